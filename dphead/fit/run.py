"""Fit a head from a features file to a run folder (`dphead fit`).

Process 0 leads the fit and writes the folder. Other processes sum their rows.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile

from dphead.analysis.metrics import evaluate_labeled
from dphead.analysis.protected import name_unit
from dphead.data.features import FeaturesRows, load_features
from dphead.data.on_axes import RowsOnAxes
from dphead.fit.backends import block_sum
from dphead.fit.files import (
    SplitRows,
    check_features,
    check_selection,
    class_names,
    file_facts,
    images_of_test,
    measured_rows,
    rows_digest,
    source_of,
    test_origin,
)
from dphead.fit.fit import About, Fit, FitResult, RowSizes
from dphead.fit.head_file import save_head
from dphead.fit.ledgers import RowGroups, counted_in
from dphead.fit.loop import Progress
from dphead.fit.memory import share
from dphead.fit.options import FitOptions
from dphead.fit.processes import given_options, joined, software
from dphead.fit.public_axes import choose_axes
from dphead.fit.report import NOT_TESTED, Tested
from dphead.fit.run_folder import (
    beside_others,
    charge,
    check_folder,
    locked,
    try_plans,
    tuning_of,
    write_report,
)
from dphead.planning.methods import make_method
from dphead.planning.plan import (
    FitPlan,
    check_delta,
    check_unit,
    make_plan,
    public_facts,
)
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import Tried
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import Solver
from dphead.solvers.head import LinearHead
from dphead.solvers.on_axes import OnAxes
from dphead.sums.hosts import Hosts, SumOfParts
from dphead.sums.verified import VerifiedSum

_Announce = Callable[[Fit[LinearHead], float], None]


# rows to measure on (`files.measured_rows`), and their origin (`files.test_origin`)
_TestRows = tuple[np.ndarray, np.ndarray, np.ndarray | None, str]


def fit_files(
    options: FitOptions,
    announce: _Announce | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit a head and write its run folder.

    The folder holds head.safetensors, head.json, report.json, report.html, ledger.json
    and, with `options.config`, run.toml.

    Parameters
    ----------
    options : FitOptions
        The fit's options.
    announce : callable, optional
        Called with the prepared run and the expected seconds before the charge. The
        seconds are 0 if they are not known (`duration`).
    progress : callable, optional
        Called with (releases made, releases planned, label) after each release.

    Returns
    -------
    dict
        "report", "test", "seconds" and "head". "test" holds the test metrics, which are
        private unless `test_is` is "public".

    Raises
    ------
    ValueError, OSError
        If the input is unusable or the ledger refuses the fit, before any budget is
        spent. After the charge, if the disk or the ledger fails.

    Notes
    -----
    Call the function again with the same options to resume an interrupted run under its
    charge. With several processes, each process calls this function. All processes get
    the head. Only process 0 gets the other results. An error in one process ends all
    processes.
    """
    start = time.perf_counter()
    hosts = None
    with ExitStack() as opened:
        if options.processes is not None:
            only_cpu = options.backend in ("numpy", "reference")
            hosts = opened.enter_context(joined(options.processes, only_cpu))
        rows, file = _open_rows(options, opened)
        plan, about = _plan_head(options, rows, file, hosts)
        given = (options, rows, file)
        if hosts is not None and not hosts.first:
            head = _prepare(plan, about, *given, hosts).serve()
            return {"report": None, "test": None, "seconds": None, "head": head}
        test = _open_test(options, about, rows, file)
        n_test = 0 if test is None else len(test[0])
        # disk space for the stored values, which a resume needs
        width = plan.facts.n_features + 1
        stored = [int(np.prod(r.statistic.shape(width))) for r in plan.releases]
        check_folder(options.out, stored)
        about = beside_others(about, options.out, options.ledger, options.tuning)
        with locked(options.out):
            fit = _prepare(plan, about, *given, hosts, n_test)
            result = fit.carry_out(
                lambda fit: charge(fit, options),
                announce=announce,
                progress=progress,
            )
            tested = measure(options, result.trained, test)
            report = _write(options, about, result, tested)
    seconds = time.perf_counter() - start
    return {
        "report": report,
        "test": tested.metrics,
        "seconds": seconds,
        "head": result.trained,
    }


def _open_rows(
    options: FitOptions, files: ExitStack
) -> tuple[FeaturesRows, FeaturesFile]:
    """Return the rows and the open features file, which `files` closes later."""
    cap = options.group_cap, options.group_mean
    rows, file = load_features(options.features, options.split, 0, *cap)
    files.enter_context(file)
    return rows, file


def plan_fits(
    options: FitOptions, epsilons: Sequence[float]
) -> tuple[dict[str, Any], Tried, dict[float, FitPlan[LinearHead]]]:
    """Plan several fits, and find the first one that the ledger would refuse.

    Nothing is charged. The fits are tried in their order.

    Parameters
    ----------
    options : FitOptions
        The options of all fits, without their epsilons.
    epsilons : sequence of float
        The epsilon of each fit, at least one.

    Returns
    -------
    dict
        The ledger's totals, as `try_plans`.
    Tried
        The first fit that the ledger would refuse, if any.
    dict
        The plan of each epsilon.

    Raises
    ------
    ValueError
        If the input is unusable.
    """
    with ExitStack() as opened:
        rows, file = _open_rows(options, opened)
        plans = {
            epsilon: _plan_head(replace(options, epsilon=epsilon), rows, file)
            for epsilon in dict.fromkeys(epsilons)
        }
        about = plans[epsilons[0]][1]
        about = beside_others(about, options.out, options.ledger, options.tuning)
        announced = [plans[epsilon][0].seeded(options.seed) for epsilon in epsilons]
        each = {epsilon: plan for epsilon, (plan, _) in plans.items()}
        groups = RowGroups.of(file)
        return *try_plans(announced, about, options.ledger, groups), each


def _plan_head(
    options: FitOptions,
    rows: FeaturesRows,
    file: FeaturesFile,
    hosts: Hosts | None = None,
) -> tuple[FitPlan[LinearHead], About]:
    """Return the plan and the description of a fit. Nothing is charged.

    Raises ValueError if the options do not match the file, and LedgerError and
    ExtractError as `declared_people`.
    """
    check_selection(file, options.relation, options.group_cap)
    source = source_of(file, class_names(file, options.classes))
    ungrouped = check_unit(
        source.grouped,
        options.protect,
        options.epsilon,
        confirm="--protect image",
        instead="--group-cap K",
        group_cap=options.group_cap,
        thing=name_unit(source.extraction),
    )
    n_classes = len(source.class_names)
    facts = public_facts(rows, n_classes, options.relation, options.nominal_n)
    caps = options.group_cap, options.group_mean
    budgeted = options.target("auto", *caps).budgeted(facts)
    given = options.axes_from, options.axes_count
    chosen = choose_axes(*given, budgeted, source, file, hosts)
    if chosen is not None:
        facts = chosen.sizes(facts)
    method = make_method(options.method, facts, options.settings, options.preset)
    solver = method.solver if chosen is None else chosen.solver(method.solver)
    target = options.target(method.accountant, *caps)
    plan = make_plan(solver, facts, **vars(target))
    large = check_delta(plan, facts, options.allow_large_delta)
    about = About(
        source=source,
        name=options.method,
        preset=options.preset,
        settings=method.settings(),
        settings_from=method.source,
        space=f"{file.feature_space}/{options.split}"
        + (" group means" if options.group_mean else ""),
        rows=rows_digest(file) + (f" {chosen.made_of}" if chosen else ""),
        axes=chosen and chosen.described,
        doubt=chosen.doubt if chosen else "",
        warnings=(*large, *ungrouped),
    )
    return plan, about


def _on_axes(rows: Rows, solver: Solver[Any]) -> Rows:
    """Return the rows mapped to the axes of a plan's solver, or `rows` without axes."""
    return RowsOnAxes(rows, solver.axes) if isinstance(solver, OnAxes) else rows


def _prepare(
    plan: FitPlan[LinearHead],
    about: About,
    options: FitOptions,
    rows: FeaturesRows,
    file: FeaturesFile,
    hosts: Hosts | None,
    n_test: int = 0,
) -> Fit[LinearHead]:
    """Return the fit on this process's part of the rows, within the memory bound.

    `n_test` counts test rows already in memory.
    """
    n_rows, count = rows.n_rows, 1 if hosts is None else hosts.count
    start, stop = (0, n_rows) if hosts is None else hosts.part(n_rows)
    room = share(
        options.memory,
        replace(plan.facts, n_features=rows.n_features),
        plan.releases,
        n_rows=stop - start,
        n_test=n_test,
        backend=options.backend,
        processes=count,
        private_n=options.relation == "add_remove",
    )
    sums, kept = block_sum(options.backend, room.kept)
    part = rows.part(start, stop, room.features)
    own = _on_axes(part, plan.solver)
    used = own if hosts is None else _on_axes(rows, plan.solver)
    parts = None if hosts is None else SumOfParts(hosts, own)
    fit = Fit(
        plan=plan,
        about=about,
        sizes=RowSizes.of(used),
        rows=lambda: used,
        summer=VerifiedSum(sums, parts=parts, memory=kept),
        noise=NoiseSource(options.seed),
        hosts=hosts,
        backend=options.backend,
        groups=RowGroups.of(file),
    )
    if hosts is None:
        return fit
    return replace(fit, agreed=_facts_to_agree(fit, options, file))


def measure(options: FitOptions, head: LinearHead, test: _TestRows | None) -> Tested:
    """Return the head's metrics on the test rows, if there are any."""
    if test is None:
        return NOT_TESTED
    x, y, groups, origin = test
    metrics = evaluate_labeled(head.scores(x), y, head.loss, groups)
    return Tested(metrics, options.test_is, origin)


def _write(
    options: FitOptions, about: About, result: FitResult[LinearHead], tested: Tested
) -> dict[str, Any]:
    """Write the head, the report and a copy of the ledger, and return the report."""
    out, source = options.out, about.source
    facts = {
        "class_names": source.class_names,
        "feature_space": source.feature_space,
        "extraction": source.extraction,
    }
    return write_report(
        out,
        about,
        result,
        tested=tested,
        declared=options.tuning,
        tuning=tuning_of(
            [options.preset, options.axes_count, *options.settings.values()],
            result.ledger,
        ),
        sha256=save_head(out, result.trained, facts),
        config=options.config,
    )


def _facts_to_agree(
    fit: Fit[LinearHead], options: FitOptions, file: FeaturesFile
) -> dict[str, str | list[str]]:
    """Return the values that all processes of a run must share (`agree`)."""
    own: dict[str, str | list[str]] = {
        "n_rows": str(fit.sizes.n_rows),
        "settings": f"{fit.digest()} {options.backend}",
    }
    return software() | given_options(options) | own | file_facts(file)


def _open_test(
    options: FitOptions, about: About, train: FeaturesRows, trained: FeaturesFile
) -> _TestRows | None:
    """Return the test rows, or None if the options name none.

    Test rows come from --test, or else from a split of the training file. Private test
    rows may be training rows. The report states where they come from (`test_origin`).
    """
    if options.test is None and options.test_split is None:
        return None
    path = options.test or trained.path
    rows, file = load_features(path, options.test_split, memory=0)
    with file:
        own = trained.config["backbone"]
        check_features(file, trained.feature_space, trained.n_features, own)
        source = replace(
            about.source, dataset_id=counted_in(file.dataset_id), people=file.people
        )
        train_split = options.split or trained.split_names[0]
        test_split = options.test_split or file.split_names[0]
        origin = test_origin(
            options,
            options.group_cap,
            SplitRows(
                source=about.source,
                split=train_split,
                groups=train.groups,
                images=train.image_digests(),
            ),
            SplitRows(
                source=source,
                split=test_split,
                groups=rows.groups,
                images=images_of_test(options, rows, file),
                holdout=file.holdout,
            ),
        )
        return *measured_rows(rows, file, about.source.class_names), origin
