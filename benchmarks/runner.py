"""`python -m benchmarks run SELECTOR`: fit what is missing, one JSON line a fit under
results/claims/.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from threadpoolctl import threadpool_limits

from benchmarks import features as f
from benchmarks import jobs as j
from benchmarks.features import facts_of
from benchmarks.fused import FusedSums
from benchmarks.shuffled import ShuffledBatches, true_epsilon
from benchmarks.store import RESULTS, append, peak_memory_mb, provenance, read
from benchmarks.together import Together
from dphead.analysis.metrics import evaluate_scores
from dphead.fit.loop import FitResult, Run, fit_head
from dphead.fit.report import guarantee
from dphead.planning.plan import Plan, make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import Solver
from dphead.sums.verified import VerifiedSum

OUT = RESULTS / "claims"
SPEED = 1.5e-9  # seconds for a row times a feature, where nothing was measured yet
# fits that read a batch together: more would not fit beside it in a core's cache
TOGETHER = 20
_PLANS: dict[Any, Plan] = {}
Task = tuple[j.Job, int, str]  # a job, its noise draw, and the file of its row


def fit(job: j.Job, seed: int) -> dict[str, Any]:
    """Fit and measure: the row to store."""
    data = f.load(job.dataset, job.features, job.held_out)
    solver, plan = prepared(job, data)
    fused = (
        job.preset is not None
        or job.clip_only
        or any(s.sampling_prob < 1 for s in plan.specs)
    )
    # our defaults cost what they cost a user
    sums = VerifiedSum(FusedSums()) if fused else None
    # threads that wait for each other stall on busy cores
    with threadpool_limits(1 if sums else None, "blas"):
        run = Run(noise=noise_of(job, seed, plan), summer=sums)
        result = fit_head(solver, data.rows, data.facts, plan, run)
    return row_of(
        job, seed, data, result, result.seconds, "fused" if sums else "audited"
    )


def fit_together(jobs: Sequence[j.Job], seed: int) -> list[dict[str, Any]]:
    """The same for jobs of one `batches`: their batches are read once.

    seconds: the time of all, over their number.
    """
    data = f.load(jobs[0].dataset, jobs[0].features, jobs[0].held_out)
    together = Together(data.rows, len(jobs))
    ready = [prepared(job, data) for job in jobs]

    def fit(i: int) -> FitResult:
        solver, plan = ready[i]
        run = Run(noise=noise_of(jobs[i], seed, plan), summer=together.summer(i))
        return fit_head(solver, together.rows(), data.facts, plan, run)

    results = together.run(fit)
    seconds = max(r.seconds for r in results) / len(jobs)
    return [
        row_of(job, seed, data, r, seconds, "fused")
        for job, r in zip(jobs, results, strict=True)
    ]


def noise_of(job: j.Job, seed: int, plan: Plan) -> NoiseSource:
    """Seeded noise, and the job's way of drawing batches."""
    return (
        ShuffledBatches(seed, plan) if job.sampling == "shuffle" else NoiseSource(seed)
    )


def prepared(job: j.Job, data: f.Loaded) -> tuple[Solver, Plan]:
    """The solver and its plan, with noise."""
    solver = j.make_method(
        job.method, data.facts, dict(job.settings), job.preset
    ).solver
    key = (
        tuple(solver.plan(data.facts)),
        data.facts,
        job.epsilon,
        job.delta,
        job.accountant,
    )
    if key not in _PLANS:  # seconds each, and many jobs have the same
        _PLANS[key] = make_plan(
            solver,
            data.facts,
            epsilon=job.epsilon,
            delta=job.delta,
            accountant=job.accountant,
        )
    plan = _PLANS[key]
    return solver, _clipped(plan, solver.plan(data.facts)) if job.clip_only else plan


def row_of(
    job: j.Job, seed: int, data: f.Loaded, result: FitResult, seconds: float, sums: str
) -> dict[str, Any]:
    """What is stored of a fit."""
    metrics = evaluate_scores(result.head.scores(data.x), data.y)
    g = guarantee(result.plan)
    solver = j.make_method(
        job.method, data.facts, dict(job.settings), job.preset
    ).solver
    epsilon = true_epsilon(result.plan) if job.sampling == "shuffle" else g["epsilon"]
    return {
        "key": job.key,
        "job": job.described(),
        "seed": seed,
        "solver": repr(solver),
        "features": data.described,
        "relation": result.plan.relation,
        "mu": g["mu"],
        "exact_epsilon": epsilon,
        "profiles": g["profiles"],
        "noise_multipliers": sorted({s.noise_multiplier for s in result.plan.specs}),
        "sums": sums,
        "accuracy": metrics["accuracy"],
        "worst_class": metrics["worst_class_accuracy"],
        "seconds": seconds,
        "peak_memory_mb": peak_memory_mb(),
        **provenance(),
    }


def batches(job: j.Job) -> tuple[Any, ...] | None:
    """Jobs for which this is equal draw the same Poisson batches from the same seed;
    None: full batches.
    """
    planned = job.solver().plan(facts_of(job.dataset, job.features))
    if planned[-1].sampling_prob == 1:
        return None
    labels = tuple((p.label, p.query, p.sampling_prob) for p in planned)
    return job.dataset, job.features, job.held_out, job.sampling, hash(labels)


def _clipped(plan: Plan, wanted: list) -> Plan:
    """A plan without noise whose releases are clipped all the same."""
    specs = [
        replace(s, clip_norm=p.clip_norm)
        for s, p in zip(plan.specs, wanted, strict=True)
    ]
    return replace(plan, specs=specs)


def out_file(selector: str, out: Path = OUT) -> Path:
    """The results file of a selector: one a paper."""
    return out / f"{selector.split('/')[0].lower()}.jsonl"


def missing(selector: str, out: Path = OUT, max_draws: int = j.DRAWS) -> list[Task]:
    """What a selector lacks, each fit once, grouped by features so that these are
    loaded once.
    """
    path = out_file(selector, out)
    done = {(row["key"], row["seed"]) for row in stored(out)}
    tasks: dict[tuple[str, int], Task] = {}
    for _, job in j.select(selector):
        # without noise, full batches leave nothing to chance
        once = job.epsilon == float("inf") and not job.clip_only
        for seed in range(1 if once else min(max_draws, job.draws)):
            if (job.key, seed) not in done:
                tasks.setdefault((job.key, seed), (job, seed, str(path)))
    return sorted(
        tasks.values(),
        key=lambda t: (
            t[0].dataset,
            t[0].features,
            t[1],
            t[0].size(),
            t[0].epsilon,
        ),
    )


def stored(out: Path = OUT) -> list[dict[str, Any]]:
    """Every stored fit of every paper, and those of `benchmarks heads` that are a job
    too.
    """
    rows = [
        row
        for path in sorted(out.glob("*.jsonl"))
        for row in read(path)
        if "key" in row
    ]
    return rows + (reused() if out == OUT else [])


def reused() -> list[dict[str, Any]]:
    """Rows of `python -m benchmarks heads` that measure a cell of our own row of FC23's
    Table 3.
    """
    found = []
    for row in read(RESULTS / "heads" / "cifar10-mobilenetv2.jsonl"):
        for job in j.own():
            same = all(
                f"{name}={value!r}," in row["settings"]
                for name, value in job.settings.items()
            )
            if same and (job.method, job.epsilon) == (row["method"], row["epsilon"]):
                found.append(row | {"key": job.key, "job": job.described()})
    return found


def hours(tasks: list[Task], out: Path = OUT) -> float:
    """Estimated hours, from what fits of the same data set took a row and feature, or
    else `SPEED`.
    """
    speeds: dict[str, list[float]] = {}
    for row in stored(out):
        speeds.setdefault(row["job"]["dataset"], []).append(
            row["seconds"] / _job(row).size()
        )
    every = [s for values in speeds.values() for s in values] or [SPEED]
    seconds = (
        job.size() * median(speeds.get(job.dataset, every)) for job, _, _ in tasks
    )
    return sum(seconds) / 3600


def _job(row: dict[str, Any]) -> j.Job:
    return j.Job(**row["job"] | {"epsilon": float(row["job"]["epsilon"])})


def groups(tasks: list[Task]) -> list[list[Task]]:
    """Tasks that share their batches, together; at most TOGETHER of them, in the order
    of the first of each.
    """
    found: dict[Any, list[Task]] = {}
    for job, seed, path in tasks:
        same = batches(job)
        key = (same, seed) if same else (job.key, seed)
        while len(found.get(key, [])) >= TOGETHER:
            key = (*key, "more")
        found.setdefault(key, []).append((job, seed, path))
    return list(found.values())


def work(tasks: list[Task]) -> str:
    """Run fits of one group and store their rows; returns a line about each."""
    seed, path = tasks[0][1:]
    jobs = [job for job, _, _ in tasks]
    rows = fit_together(jobs, seed) if len(tasks) > 1 else [fit(jobs[0], seed)]
    lines = []
    for job, row in zip(jobs, rows, strict=True):
        append(Path(path), row)
        what = f"{job.dataset} {job.features} eps {job.epsilon:g} draw {seed}"
        lines.append(f"{what}: {row['accuracy']:.4f} {row['seconds']:.0f} s")
    return "\n".join(lines)


def _pinned(tasks: list[Task]) -> str:
    """`work` in a process of its own, on one core: a fit would otherwise start a thread
    for each.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    return work(tasks)


def results(tasks: list[list[Task]], processes: int) -> Iterator[str]:
    """Run groups of tasks: one after another on all cores, or `processes` at a time on
    one core each.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    from joblib import Parallel, delayed

    yield from Parallel(processes, return_as="generator_unordered")(
        delayed(_pinned)(t) for t in tasks
    )  # type: ignore


def run(
    selector: str,
    images: Path | None,
    processes: int,
    dry_run: bool,
    out: Path = OUT,
    max_draws: int = j.DRAWS,
) -> None:
    """Run what is missing, with a progress bar; or tell what would run and for how
    long.
    """
    tasks = missing(selector, out, max_draws)
    skipped = (
        []
        if j.unclaimed(selector) is not None
        else [(c, j.why_not(c)) for c in j.selected(selector)]
    )
    reasons = sorted({why for _, why in skipped if why})
    click.echo(
        f"{selector}: {len(tasks)} fits missing, about {hours(tasks, out):.2f} hours "
        "on one run at a time"
    )
    for why in reasons:
        click.echo(
            f"  not runnable here ({sum(w == why for _, w in skipped)} claims): {why}"
        )
    if dry_run:
        for job, seed, _ in tasks:
            click.echo(
                f"  {job.key} draw {seed} {json.dumps(job.described(), sort_keys=True)}"
            )
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("groups of fits"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for dataset, features in sorted(
            {(job.dataset, job.features) for job, _, _ in tasks}
        ):
            f.files(dataset, features, images, bar.console.print)
        together = groups(tasks)
        for lines in bar.track(results(together, processes), total=len(together)):
            bar.console.print(lines)
    click.echo(f"{selector}: done in {(time.perf_counter() - start) / 60:.1f} minutes")
