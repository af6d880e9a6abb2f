"""A fit from files to files: what `dphead fit` does, as a function."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dphead.planning.methods import Method, make_method
from dphead.planning.plan import (
    Plan,
    check_facts,
    large_delta,
    make_plan,
    unprotected_groups,
)
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import FitLedger, Ledger, LedgerError, write_durably
from dphead.privacy.noise import NoiseSource
from dphead.rows.features import FeaturesRows, check_views, load_features
from dphead.runs import report as reports
from dphead.runs.export import save_head
from dphead.runs.files import (
    check_labels,
    check_public,
    class_names,
    classes_declared,
    evaluate,
    extraction,
    test_origin,
)
from dphead.runs.ledgers import open_ledger
from dphead.runs.loop import FitResult, Progress, Run, fit_head, reserve
from dphead.runs.memory import share
from dphead.runs.processes import Group, Place, software
from dphead.solvers.base import PlannedRelease, PublicFacts
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.door import Door
from dphead.sums.parts import SumOfParts, bounds
from dphead.sums.reference import BlockSum, ReferenceSums
from extract.format import FeaturesFile, open_features

SLACK_DISK = 64 << 20  # bytes beside the stored releases


@dataclass(frozen=True)
class FitOptions:
    """Everything that decides a fit.

    settings: the method's options; None values take its defaults.

    classes: public class names if the file declares none. group_cap: protects groups of
    the file's group column, of which the first so many rows count; None protects each
    row. nominal_n: replaces n under add_remove. seed: for tests.
    tuning: how the settings were chosen; None says "none" for the data set's first fit
    if it uses defaults only.
    memory: bytes that this process may hold; None streams features beyond 2 GB and
    promises nothing. processes: this one's place among several, each of which reads its
    own part of the rows.
    """

    features: Path
    out: Path
    method: str = "auto"
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    epsilon: float = 1.0
    delta: float = 1e-5
    relation: str = "zero_out"
    nominal_n: int | None = None
    group_cap: int | None = None
    accountant: str | None = None
    classes: tuple[str, ...] | None = None
    split: str | None = None
    test: Path | None = None
    test_split: str | None = None
    test_is: str = "private"
    ledger: Path | None = None
    seed: int | None = None
    tuning: str | None = None
    allow_large_delta: bool = False
    memory: int | None = None
    backend: str = "numpy"
    processes: Place | None = None


def fit_files(
    options: FitOptions,
    announce: Callable[[Plan, Method], None] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit a head and write the run folder: head.safetensors, head.json, report.json,
    ledger.json.

    Returns {"report", "test", "seconds", "head"}: test holds the test metrics, which
    are for the data holder's eyes unless test_is is "public". Raises ValueError or
    OSError, before any budget is spent, for unusable input.
    A run that was interrupted after its charge continues under the same charge when the
    same command is given again.
    On many processes all call it; all get the head, and all but the first None for the
    rest. An error on one of them ends all.
    """
    if options.processes is None:
        return _fit_files(options, None, announce, progress)
    with Group(
        options.processes, only_cpu=options.backend in ("numpy", "reference")
    ) as group:
        return _fit_files(options, group, announce, progress)


def _fit_files(
    options: FitOptions,
    group: Group | None,
    announce: Callable[[Plan, Method], None] | None,
    progress: Progress | None,
) -> dict[str, Any]:
    start = time.perf_counter()
    rows, file = load_features(options.features, options.split, 0, options.group_cap)
    with file:
        check_views(file, options.relation)
        classes = class_names(file, options.classes)
        facts = public_facts(options, rows, len(classes))
        method = make_method(options.method, facts, options.settings, options.preset)
        plan = make_plan(
            method.solver,
            facts,
            epsilon=options.epsilon,
            delta=options.delta,
            relation=options.relation,
            accountant=options.accountant or method.accountant,
            group_cap=options.group_cap,
        )
        warnings = check_delta(options, facts) + check_groups(options, file)
        releases = method.solver.plan(plan.budgeted(facts))
        if group is not None and not group.first:
            own, sums, memory = own_rows(options, group, rows, facts, releases)
            Door(sums).check((r.query for r in releases), facts.n_features)
            group.agree(_agreed(options, file, rows, method, plan))
            return {
                "report": None,
                "test": None,
                "seconds": None,
                "head": group.serve(own, sums, KeptRows(memory)),
            }
        test = open_test(options, file, classes)
        origin = None if test is None else rows_of_test(options, file)
        check_public(origin or "", options.test_is)
        check_folder(
            options.out,
            (int(np.prod(r.query.shape(facts.n_features + 1))) for r in releases),
        )
        own, sums, memory = own_rows(
            options, group, rows, facts, releases, 0 if test is None else len(test[0])
        )
        if group is not None:
            group.agree(_agreed(options, file, rows, method, plan))
        if announce is not None:
            announce(plan, method)
        summer = Door(
            sums, parts=None if group is None else SumOfParts(group, own), memory=memory
        )
        summer.check((r.query for r in releases), facts.n_features)
        ledger = open_ledger(options.ledger, file.dataset_id)
        charged = charge(
            options, method, plan, ledger, f"{file.feature_space}/{options.split}"
        )
        run = Run(
            charged=charged,
            noise=NoiseSource(options.seed),
            summer=summer,
            progress=progress,
        )
        result = fit_head(
            method.solver, own if group is None else rows, facts, plan, run
        )
        metrics = (
            evaluate(result.head, test, len(classes)) if test is not None else None
        )
        report = _report(
            options, file, facts, method, result, warnings, metrics, origin
        )
        of_head = {
            "class_names": classes,
            "feature_space": file.feature_space,
            "extraction": extraction(file),
        }
        save_head(options.out, result.head, of_head)
        write_records(options.out, report, result)
        if group is not None:
            group.end(result.head)
    return {
        "report": report,
        "test": metrics,
        "seconds": time.perf_counter() - start,
        "head": result.head,
    }


def _report(
    options: FitOptions,
    file: FeaturesFile,
    facts: PublicFacts,
    method: Method,
    result: FitResult,
    warnings: list[str],
    metrics: dict[str, Any] | None,
    origin: str | None,
) -> dict[str, Any]:
    """The report of a head.

    metrics, origin: on the test rows and where these are from, None without any.
    """
    settings = asdict(method.solver)  # type: ignore[call-overload]
    classes = class_names(file, options.classes)
    return reports.build(
        result,
        method={
            "name": options.method,
            "preset": options.preset,
            "source": method.source,
            "settings": settings,
        },
        data={
            "n_rows": facts.n_rows,
            "n_features": facts.n_features,
            "n_classes": facts.n_classes,
        }
        | {
            "class_names": classes,
            "dataset_id": file.dataset_id,
            "feature_space": file.feature_space,
        }
        | {"classes_declared": classes_declared(file), "extraction": extraction(file)},
        tuning=options.tuning or _tuning(options, result.ledger),
        warnings=warnings,
        test=metrics,
        test_is=options.test_is if metrics is not None else None,
        test_rows=origin,
    )


def own_rows(
    options: FitOptions,
    group: Group | None,
    rows: FeaturesRows,
    facts: PublicFacts,
    releases: list[PlannedRelease],
    n_test: int = 0,
) -> tuple[FeaturesRows, BlockSum, int]:
    """This process's part of the rows, its block sum, and bytes of rows to keep, within
    the bound on memory.
    """
    index, count = (0, 1) if group is None else (group.index, group.count)
    start, stop = bounds(rows.n_rows, count)[index : index + 2]
    sizes: Any = {"n_rows": stop - start, "n_test": n_test, "processes": count}
    private_n = options.relation == "add_remove"
    room = share(
        options.memory,
        facts,
        releases,
        backend=options.backend,
        private_n=private_n,
        **sizes,
    )
    return rows.part(start, stop, room.features), *block_sum(options.backend, room.kept)


def _agreed(
    options: FitOptions,
    file: FeaturesFile,
    rows: FeaturesRows,
    method: Method,
    plan: Plan,
) -> dict[str, str]:
    """What must be equal on all processes of a run; of the features a digest."""
    return software() | {
        "n_rows": str(rows.n_rows),
        "n_features": f"{file.n_features} {file.dtype}",
        "dataset_id": file.dataset_id,
        "config": file.config_hash,
        "settings": plan.digest(
            method.solver, f"{options.split} {options.backend}", options.seed
        ),
        "features": hashlib.sha256(file.block_digest.tobytes()).hexdigest(),
    }


def public_facts(options: FitOptions, rows: Rows, n_classes: int) -> PublicFacts:
    """n (public or nominal), n_features, n_classes, checked."""
    if (options.relation == "add_remove") != (options.nominal_n is not None):
        raise ValueError(
            "nominal_n must be given exactly when relation is add_remove (n is then "
            f"private), got relation={options.relation}, "
            f"nominal_n={options.nominal_n}. Correct one."
        )
    facts = PublicFacts(
        rows.n_rows if options.nominal_n is None else options.nominal_n,
        rows.n_features,
        n_classes,
    )
    check_facts(facts)
    return facts


def check_delta(options: FitOptions, facts: PublicFacts) -> list[str]:
    """A delta at or above 1/n must be confirmed; then it is a warning in the report."""
    text = large_delta(options.epsilon, options.delta, facts.n_rows)
    if text is not None and not options.allow_large_delta:
        raise ValueError(
            text + " Use a smaller delta, or confirm with --allow-large-delta."
        )
    return [text] if text else []


def check_groups(options: FitOptions, file: FeaturesFile) -> list[str]:
    """Groups that the file knows and the fit does not protect are a warning in the
    report.
    """
    grouped = file.group is not None
    text = unprotected_groups(
        grouped, options.group_cap, options.epsilon, "--group-cap"
    )
    return [text] if text else []


def open_test(
    options: FitOptions, train: FeaturesFile, classes: list[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The test rows (x, y), from --test or from another split of the same file, or
    None.
    """
    if options.test is None and options.test_split is None:
        return None
    path = options.test or options.features
    rows, file = load_features(path, options.test_split, memory=0)
    with file:
        if file.feature_space != train.feature_space:
            raise ValueError(
                "test features must come from the same network and settings, got "
                f"test={path}. Extract them alike."
            )
        if file.n_features != train.n_features:
            raise ValueError(
                "test features must have the training rows' width, got "
                f"n_features={file.n_features} for {train.n_features}. Extract them "
                "alike."
            )
        check_labels(file, rows, classes, path)
        return rows.features(), rows.labels()


def rows_of_test(options: FitOptions, train: FeaturesFile) -> str:
    """The `test_origin` of the test rows, by the data sets' ids and the splits."""
    with open_features(options.test or options.features) as file:
        split = options.split or train.split_names[0]
        test_split = options.test_split or file.split_names[0]
        return test_origin(file.dataset_id == train.dataset_id, split, test_split)


def block_sum(backend: str, memory: int) -> tuple[BlockSum, int]:
    """numpy, jax, reference, or auto: jax where it finds an accelerator; and bytes that
    kept rows may take there.

    memory: what they may take on this host. On accelerators they take up to half of
        what the devices have.
    """
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")
    if backend == "reference":
        return ReferenceSums(), 0
    if backend == "numpy" or (
        backend == "auto" and not any(find_spec(name) for name in plugins)
    ):
        return CpuSums(), memory
    import jax

    from dphead.sums.jax import JaxSums

    if jax.default_backend() == "cpu":
        return JaxSums() if backend == "jax" else CpuSums(), memory
    devices = sum(
        (d.memory_stats() or {}).get("bytes_limit", 0) for d in jax.local_devices()
    )
    return JaxSums(), devices // 2


def charge(
    options: FitOptions, method: Method, plan: Plan, ledger: Ledger, space: str
) -> FitLedger:
    """Reserve the plan, or continue the interrupted fit that this folder holds."""
    store = options.out / "releases" if plan.private else None
    marker = options.out / "fit.json"
    if marker.exists():
        if store is None:
            raise ValueError(
                "an interrupted fit continues with its own settings, got epsilon=inf "
                f"in {options.out}."
            )
        fit_id = json.loads(marker.read_text())["fit_id"]
        return ledger.resume(
            plan.digest(method.solver, space, options.seed), fit_id, store
        )
    made = not options.out.exists()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        charged = reserve(
            method.solver,
            plan,
            ledger,
            feature_space=space,
            seed=options.seed,
            store=store,
            description=f"{options.method} {options.preset or ''}".strip(),
        )
    except LedgerError:
        if made:
            options.out.rmdir()
        raise
    # exact sums must not reach the disk: without noise there is nothing to resume from
    if store is not None:
        text = json.dumps({"fit_id": charged.fit_id})
        write_durably(marker, lambda file: file.write(text.encode()))
    return charged


def write_records(out: Path, report: dict[str, Any], result: FitResult) -> None:
    """report.json and ledger.json; the stored releases are no longer needed."""
    reports.write(out / "ledger.json", {"fits": result.ledger.fits()})
    reports.write(out / "report.json", report)
    shutil.rmtree(out / "releases", ignore_errors=True)
    (out / "fit.json").unlink(missing_ok=True)


def _tuning(options: FitOptions, ledger: Ledger) -> str:
    """Defaults, on data that no earlier fit has seen, leave nothing that could have
    been tuned.
    """
    chosen = options.preset is not None or any(
        v is not None for v in options.settings.values()
    )
    return "NOT ACCOUNTED" if chosen or len(ledger.fits()) > 1 else "none"


def check_folder(out: Path, sizes: Iterable[int]) -> None:
    """Refuse a finished run, an unwritable place, or too little space for stored
    releases of so many numbers each.
    """
    if (out / "report.json").exists():
        raise ValueError(
            f"the run folder must be new, got out={out} with a report. Choose another "
            "folder."
        )
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise ValueError(
            f"the run folder must be a folder, got out={out} where {parent} is a file. "
            "Choose another."
        )
    need = SLACK_DISK + 8 * sum(sizes)
    free = shutil.disk_usage(parent).free
    if free < need:
        raise OSError(
            f"the run needs {need >> 20} MB of disk, got {free >> 20} MB free at "
            f"{parent}. Make room."
        )
    if not os.access(parent, os.W_OK):
        raise OSError(
            f"the run folder must be writable, got out={out}. Choose another."
        )
