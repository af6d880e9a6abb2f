"""`python -m benchmarks run SELECTOR`: fit what is missing, one JSON line a fit under results/claims/."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from threadpoolctl import threadpool_limits

from benchmarks import features as f
from benchmarks import jobs as j
from benchmarks.fused import FusedSums
from benchmarks.heads import RESULTS, append, peak_memory_mb, provenance, read
from dphead.fit import fit_head
from dphead.metrics import evaluate_scores
from dphead.plan import Plan, make_plan
from dphead.privacy.noise import NoiseSource
from dphead.report import guarantee

OUT = RESULTS / "claims"
SPEED = 1.5e-9  # seconds for a row times a feature, where nothing was measured yet
Task = tuple[j.Job, int, str]  # a job, its noise draw, and the file of its row


def fit(job: j.Job, seed: int) -> dict[str, Any]:
    """Fit and measure: the row to store."""
    data = f.load(job.dataset, job.features, job.held_out)
    solver = j.make_method(job.method, data.facts, dict(job.settings), job.preset).solver
    plan = make_plan(solver, data.facts, epsilon=job.epsilon, delta=job.delta, accountant=job.accountant)
    if job.clip_only:
        plan = _clipped(plan, solver.plan(data.facts))
    sums, poisson = None, any(s.sampling_prob < 1 for s in plan.specs)
    if poisson or job.clip_only:
        sums = FusedSums()
    with threadpool_limits(1 if sums else None, "blas"):  # threads that wait for each other stall on busy cores
        result = fit_head(solver, data.rows, data.facts, plan=plan, noise=NoiseSource(seed), block_sum=sums)
    metrics, g = evaluate_scores(result.head.scores(data.x), data.y), guarantee(plan)
    return {
        "key": job.key, "job": job.described(), "seed": seed, "solver": repr(solver), "features": data.described,
        "relation": plan.relation, "mu": g["mu"], "exact_epsilon": g["epsilon"], "profiles": g["profiles"],
        "noise_multipliers": sorted({s.noise_multiplier for s in plan.specs}), "sums": "fused" if sums else "audited",
        "accuracy": metrics["accuracy"], "worst_class": metrics["worst_class_accuracy"],
        "seconds": result.seconds, "peak_memory_mb": peak_memory_mb(), **provenance(),
    }  # fmt: skip


def _clipped(plan: Plan, wanted: list) -> Plan:
    """A plan without noise whose releases are clipped all the same."""
    specs = [replace(s, clip_norm=p.clip_norm) for s, p in zip(plan.specs, wanted, strict=True)]
    return replace(plan, specs=specs)


def out_file(selector: str, out: Path = OUT) -> Path:
    """The results file of a selector: one a paper."""
    return out / f"{selector.split('/')[0].lower()}.jsonl"


def missing(selector: str, out: Path = OUT, max_draws: int = j.DRAWS) -> list[Task]:
    """What a selector lacks, each fit once, grouped by features so that these are loaded once."""
    path = out_file(selector, out)
    done = {(row["key"], row["seed"]) for row in stored(out)}
    tasks: dict[tuple[str, int], Task] = {}
    for _, job in j.select(selector):
        once = job.epsilon == float("inf") and not job.clip_only  # without noise, full batches leave nothing to chance
        for seed in range(1 if once else min(max_draws, job.draws)):
            if (job.key, seed) not in done:
                tasks.setdefault((job.key, seed), (job, seed, str(path)))
    return sorted(tasks.values(), key=lambda t: (t[0].dataset, t[0].features, t[1], t[0].epsilon))


def stored(out: Path = OUT) -> list[dict[str, Any]]:
    """Every stored fit of every paper."""
    return [row for path in sorted(out.glob("*.jsonl")) for row in read(path) if "key" in row]


def hours(tasks: list[Task], out: Path = OUT) -> float:
    """Estimated hours, from what fits of the same data set took a row and feature, or else `SPEED`."""
    speeds: dict[str, list[float]] = {}
    for row in stored(out):
        speeds.setdefault(row["job"]["dataset"], []).append(row["seconds"] / _job(row).size())
    every = [s for values in speeds.values() for s in values] or [SPEED]
    seconds = (job.size() * median(speeds.get(job.dataset, every)) for job, _, _ in tasks)
    return sum(seconds) / 3600


def _job(row: dict[str, Any]) -> j.Job:
    return j.Job(**row["job"] | {"epsilon": float(row["job"]["epsilon"])})


def work(task: Task) -> str:
    """Run one fit and store its row; returns a line about it."""
    job, seed, path = task
    row = fit(job, seed)
    append(Path(path), row)
    return f"{job.dataset} {job.features} eps {job.epsilon:g} draw {seed}: {row['accuracy']:.4f} {row['seconds']:.0f} s"


def _pinned(task: Task) -> str:
    """`work` in a process of its own, on one core: a fit would otherwise start a thread for each."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    return work(task)


def results(tasks: list[Task], processes: int) -> Iterator[str]:
    """Run the tasks: one after another on all cores, or `processes` at a time on one core each."""
    if processes == 1:
        yield from map(work, tasks)
        return
    from joblib import Parallel, delayed

    yield from Parallel(processes, return_as="generator_unordered")(delayed(_pinned)(t) for t in tasks)  # type: ignore


def run(
    selector: str, images: Path | None, processes: int, dry_run: bool, out: Path = OUT, max_draws: int = j.DRAWS
) -> None:
    """Run what is missing, with a progress bar; or tell what would run and for how long."""
    tasks = missing(selector, out, max_draws)
    skipped = [] if selector == "quick" else [(c, j.why_not(c)) for c in j.selected(selector)]
    reasons = sorted({why for _, why in skipped if why})
    click.echo(f"{selector}: {len(tasks)} fits missing, about {hours(tasks, out):.2f} hours on one run at a time")
    for why in reasons:
        click.echo(f"  not runnable here ({sum(w == why for _, w in skipped)} claims): {why}")
    if dry_run:
        for job, seed, _ in tasks:
            click.echo(f"  {job.key} draw {seed} {json.dumps(job.described(), sort_keys=True)}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("fits"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    start = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for dataset, features in sorted({(job.dataset, job.features) for job, _, _ in tasks}):
            f.files(dataset, features, images, bar.console.print)
        for line in bar.track(results(tasks, processes), total=len(tasks)):
            bar.console.print(line)
    click.echo(f"{selector}: done in {(time.perf_counter() - start) / 60:.1f} minutes")
