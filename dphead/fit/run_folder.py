"""Check, charge, record and resume runs of heads and networks.

dphead/privacy/proofs/ledger.md covers crashes. This module reads no rows, and writes
released values only.
"""

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dphead.analysis.card.page import page
from dphead.analysis.sealed import read_json, write_json
from dphead.fit import report as reports
from dphead.fit.files import SourceFacts
from dphead.fit.ledgers import (
    Elsewhere,
    charged_elsewhere,
    check_alone,
    ledger_name,
    ledger_path,
    read_ledger,
)
from dphead.fit.loop import FitResult, reserve
from dphead.fit.options import RunOptions
from dphead.fit.provenance import commit
from dphead.planning.methods import Method
from dphead.planning.plan import FitPlan, Plan, check_facts, large_delta, public_n_rows
from dphead.privacy.atomic_write import lock_file, sync, write_text
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import Ledger, LedgerError, Tried, new_fit_id
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.schema import LostAnswer
from dphead.privacy.rounding import declared_at
from dphead.solvers.base import ProblemInfo

CHECKPOINT = "checkpoint.npz"  # a network's checkpoint in its run folder
_SLACK_DISK = 64 << 20  # bytes needed besides the stored releases; chosen


@dataclass(frozen=True)
class Prepared:
    """Hold a run before its charge, with its planned releases.

    Attributes
    ----------
    options : RunOptions
        The run's options.
    source : SourceFacts
        Public facts of the source.
    method : Method
        The method and its solver.
    plan : FitPlan
        The planned releases.
    name, settings : str and dict
        The method's name and settings, for the report.
    space : str
        Facts that a resume must find unchanged, besides the plan.
    warnings : list of str
        Warnings for the report.
    elsewhere : list of Elsewhere
        Ledgers that the run's ledger does not count (`beside_others`).
    """

    options: RunOptions
    source: SourceFacts
    method: Method
    plan: FitPlan
    name: str
    settings: dict[str, Any]
    space: str
    warnings: list[str]
    elsewhere: list[Elsewhere] = field(default_factory=list, kw_only=True)

    @property
    def announced(self) -> Plan:
        """Return the plan to charge, which is not private if there is a seed."""
        return (
            self.plan if self.options.seed is None else self.plan.marked(private=False)
        )


R = TypeVar("R", bound=Prepared)


def public_facts(
    rows: Rows, n_classes: int, relation: str, nominal_n: int | None
) -> ProblemInfo:
    """Return the checked public sizes: n, n_features and n_classes.

    Parameters
    ----------
    rows : Rows
        The training rows.
    n_classes : int
        Number of public classes.
    relation : str
        The neighboring relation.
    nominal_n : int or None
        The public number used in place of n under add_remove, where n is private.

    Raises
    ------
    ValueError
        If `nominal_n` is given under another relation, or missing under add_remove.
    """
    n_rows = public_n_rows(rows.n_rows, relation, nominal_n)
    facts = ProblemInfo(n_rows, rows.n_features, n_classes)
    check_facts(facts)
    return facts


def check_delta(options: RunOptions, plan: Plan, facts: ProblemInfo) -> list[str]:
    """Return a warning for a delta at or above 1/n that the options confirm.

    Raises ValueError if the options do not confirm this delta.
    """
    text = large_delta(plan.epsilon, plan.delta, facts.n_rows, plan.group_cap)
    if text is not None and not options.allow_large_delta:
        raise ValueError(
            f"{text} Use a smaller delta, or confirm with --allow-large-delta."
        )
    return [text] if text else []


def beside_others(run: R) -> R:
    """Return the run with a warning for each ledger that its own ledger does not count.

    Raises
    ------
    ValueError
        If such ledgers exist and tuning is "none", because the settings could have been
        chosen by their fits.
    LedgerError
        As `check_alone`, unless the run resumes a fit that may be charged already.
    """
    options, dataset_id = run.options, run.source.dataset_id
    own = ledger_name(options.ledger, dataset_id)
    if interrupted(options.out) is None:
        check_alone(dataset_id, own, None)  # makes no file; `charging` checks again
    found = charged_elsewhere(dataset_id, own)
    if found and options.tuning == "none":
        raise ValueError(
            "--tuning none needs a data set without fits in other ledgers, got "
            f"{found[0].path}. Charge that ledger with --ledger, or drop --tuning."
        )
    uncounted = [reports.uncounted(one.fact(options.out)) for one in found]
    return replace(run, elsewhere=found, warnings=run.warnings + uncounted)


def _check_new(out: Path) -> None:
    """Raise ValueError if the folder holds a finished run.

    If that run ended before its cleanup, clean up now.
    """
    if (out / "report.json").exists():
        _tidy(out)
        raise ValueError(f"{out} holds a finished run. Choose another folder with -o.")


def check_folder(out: Path, sizes: Iterable[int]) -> None:
    """Check that the run folder is writable and has disk space.

    `sizes` are the numbers of values that each release stores.

    Raises
    ------
    ValueError
        If the folder holds a finished run, or the path is a file.
    OSError
        If there is too little disk space, or the path is not writable.
    """
    _check_new(out)
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise ValueError(
            f"the run folder {out} cannot be created, because {parent} is a file. "
            "Choose another folder with -o."
        )
    need = _SLACK_DISK + 8 * sum(sizes)
    free = shutil.disk_usage(parent).free
    if free < need:
        raise OSError(
            f"the run needs {need >> 20} MB of disk, got {free >> 20} MB free at "
            f"{parent}. Choose a folder on another disk with -o."
        )
    if not os.access(parent, os.W_OK):
        raise OSError(f"{parent} is not writable. Choose another run folder with -o.")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a run folder's lock until its report is written.

    The lock is taken before the folder is read. The folder is created, and removed if
    it stays empty.

    Raises
    ------
    ValueError
        If another process uses the folder or has finished a run in it.
    OSError
        If the file system has no locks.
    """
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    if made:
        # sync the folder: if a crash lost it, the same command would charge again
        sync(out.parent)
    # a holder that has just ended may have removed the first file
    lock = lock_file(out / "lock") or lock_file(out / "lock")
    if lock is None:
        raise ValueError(
            f"another process is writing to {out}. Wait until that process ends, or "
            "choose another folder with -o."
        )
    try:
        _check_new(out)
        yield
    finally:
        (out / "lock").unlink(missing_ok=True)
        lock.close()
        if made:
            with suppress(OSError):  # not empty, or another process uses it
                out.rmdir()


@contextmanager
def noted(options: RunOptions) -> Iterator[None]:
    """Add a note about the charge to any error that ends a run."""
    try:
        yield
    except BaseException as error:
        error.add_note(_about_charge(options))
        raise


def _about_charge(options: RunOptions) -> str:
    """Describe the charge of an interrupted run, from the files in its folder."""
    out = options.out
    budget = declared_at(options.epsilon, options.delta or 0)
    if options.seed is not None:
        budget = "an infinite epsilon"  # the noise is known
    if (out / "report.json").exists():
        return f"the run in {out} is finished, and {budget} is charged."
    if math.isinf(options.epsilon):
        return (
            "an infinite epsilon may be charged. Check with `dphead ledger show`. This "
            "run cannot be resumed."
        )
    if not (out / "fit.json").exists():
        return "nothing was charged. Run the same command to start again."
    if not (out / "releases").exists():
        return f"{budget} is charged at most once. Run the same command to resume."
    return (
        f"{budget} is charged for the run in {out}. Run the same command to resume it "
        "at no further charge."
    )


def interrupted(out: Path) -> str | None:
    """Return the id of the unfinished fit in this folder, or None."""
    marker = _marker(out)
    return None if marker is None else marker["fit_id"]


def resumed_at(out: Path, done: int) -> list[int]:
    """Return the numbers of committed releases at each resume of this run folder.

    `done` is the current number, which is appended to the list and stored.
    """
    marker = _marker(out) or {}
    found = sorted({*marker.get("resumed", []), done})
    if marker:
        write_json(out / "fit.json", marker | {"resumed": found})
    return found


def _marker(out: Path) -> dict[str, Any] | None:
    path = out / "fit.json"
    if not path.exists():
        return None
    marker = read_json(path, "marker of an interrupted fit")
    if not isinstance(marker.get("fit_id"), str):
        raise ValueError(
            f"{path} has no fit id. Fit again in another folder with -o. The "
            "ledger charges the new fit too."
        )
    return marker


def try_runs(runs: Sequence[Prepared]) -> tuple[dict[str, Any], Tried]:
    """Return the totals of the runs' ledger, and whether it takes all runs.

    Nothing is charged. `runs` are prepared runs on one data set, at least one. The
    totals have the keys of a report's "ledger", without "fit_id". Their "remaining" is
    for a fit like the first run.
    """
    first = runs[0]
    given = first.options.ledger, first.source.dataset_id
    plans = [([s.row() for s in r.announced.specs], r.plan.delta) for r in runs]
    with closing(read_ledger(*given)) as book:
        plan = first.announced
        found = reports.ledger_totals(book, plan.events(), plan.delta)
        tried = book.try_fits(plans)
    found |= {"path": str(ledger_path(*given)), "elsewhere": first.elsewhere}
    return found, tried


def charge(run: Prepared, ledger: Ledger) -> Charge:
    """Charge the plan, or continue the interrupted fit in the run's folder.

    The fit's id is written to the folder first, then to the ledger. A run that ends
    between the two is charged when it resumes. A run that ends later is not charged
    again.

    Returns
    -------
    Charge
        The charge.

    Raises
    ------
    ValueError
        If an interrupted fit is resumed with an infinite epsilon.
    LedgerError
        If the ledger refuses the plan, or lacks an interrupted fit that another ledger
        may have charged.
    """
    options, out = run.options, run.options.out
    marker = _marker(out)
    begun = marker is not None
    store = fit_id = None
    if run.plan.private:
        store = out / "releases"
        if marker is not None:
            if ledger.holds(marker["fit_id"]):
                _check_same(marker.get("asked", {}), _asked(run), out)
                plan = run.plan.digest(run.space, options.seed)
                return ledger.resume(plan, marker["fit_id"], store)
            _check_uncharged(marker, ledger, out)
        fit_id = new_fit_id() if marker is None else marker["fit_id"]
        marker = {"fit_id": fit_id, "ledger": ledger.path, "asked": _asked(run)}
        write_json(out / "fit.json", marker)
    elif marker is not None:
        # exact sums must not reach the disk, so a fit without noise cannot resume
        raise ValueError(
            f"--epsilon must equal the epsilon of the interrupted fit in {out}, "
            "got inf. Repeat the first command to resume, or choose another "
            "folder with -o."
        )
    try:
        return reserve(
            run.plan,
            ledger,
            feature_space=run.space,
            seed=options.seed,
            not_private=options.not_private,
            store=store,
            description=f"{run.name} {options.preset or ''}".strip(),
            fit_id=fit_id,
        )
    except LedgerError as error:
        # A charge that may stand is found by its id, also one of an earlier run that
        # the server was still writing when this run looked for it.
        if not (isinstance(error, LostAnswer) or begun):
            (out / "fit.json").unlink(missing_ok=True)
        raise


def _asked(run: Prepared) -> dict[str, Any]:
    """Return the options that a resume must repeat, as JSON data."""
    options = run.options
    budget = {"epsilon": options.epsilon, "delta": options.delta}
    own = {"relation": options.relation, "seed": options.seed}
    return reports.plain({**run.settings, **budget, **own})


def _check_same(before: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    """Raise ValueError with the option's name if a resume has another value."""
    for name, value in before.items():
        if asked.get(name) != value:
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, list | dict):
                option = name  # a field of the solver, not an option
            had, got = ("none" if v is None else v for v in (value, asked.get(name)))
            raise ValueError(
                f"{option} must be {had}, as in the interrupted run in {out}, got "
                f"{got}. Repeat the first command to resume, or choose another folder "
                "with -o."
            )


def _check_uncharged(marker: dict[str, str], ledger: Ledger, out: Path) -> None:
    """Raise LedgerError unless a fit missing from the ledger was never charged.

    A fit was never charged if its folder names this ledger and holds no released
    values.
    """
    # a checkpoint replaces stored releases and shows that values were released
    released = any((out / "releases").glob("*.npy")) or (out / CHECKPOINT).exists()
    if released or marker.get("ledger") != ledger.path:
        todo = f"Pass --ledger {marker.get('ledger', 'with its own ledger')}"
        if marker.get("ledger") == ledger.path:
            todo = "Restore a copy of the ledger that has it"
        raise LedgerError(
            f"the ledger {ledger.path} lacks the interrupted fit {marker['fit_id']}. "
            f"{todo}, or choose another folder with -o."
        )


def write_report(
    run: Prepared,
    result: FitResult,
    tested: reports.Tested,
    tuning: str,
    sha256: str,
    **more: Any,
) -> dict[str, Any]:
    """Write run.toml, ledger.json, report.html and report.json, each durably.

    The report is written last, so a folder with a report is complete. Then the stored
    releases are removed.

    Parameters
    ----------
    run : Prepared
        The run, which has ended.
    result : FitResult
        The head or network, its plan and its ledger.
    tested : Tested
        The test metrics.
    tuning : str
        How the settings were chosen, unless the options or other ledgers decide it.
    sha256 : str
        Digest of the trained tensors.
    **more
        More entries of the report.

    Returns
    -------
    dict
        The report.
    """
    options, facts, out = run.options, run.plan.facts, run.options.out
    config = options.config
    digest = None if config is None else hashlib.sha256(config.encode()).hexdigest()
    report = reports.build_report(
        result,
        method={
            "name": run.name,
            "preset": options.preset,
            "source": run.method.source,
            "settings": run.settings,
        },
        data={"n_rows": facts.n_rows, "n_classes": facts.n_classes} | vars(run.source),
        tuning=options.tuning or ("NOT ACCOUNTED" if run.elsewhere else tuning),
        warnings=run.warnings,
        tested=tested,
        folder=out,
        elsewhere=run.elsewhere,
    ) | {
        "provenance": {
            "commit": commit(),
            "tensors_sha256": sha256,
            "config_sha256": digest,
        },
        **more,
    }
    if config is not None:
        write_text(out / "run.toml", config)
    reports.write(out / "ledger.json", {"fits": result.ledger.fits()})
    write_text(out / "report.html", page(report))
    reports.write(out / "report.json", report)
    _tidy(out)
    return report


def _tidy(out: Path) -> None:
    """Remove the files that only an unfinished run needs."""
    shutil.rmtree(out / "releases", ignore_errors=True)
    for name in ("fit.json", CHECKPOINT, "lock"):
        (out / name).unlink(missing_ok=True)
