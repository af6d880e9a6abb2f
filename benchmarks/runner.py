"""Fit what is missing of a paper's tables: `python -m benchmarks run SELECTOR`.

Each fit is one JSON line in results/claims/PAPER.jsonl.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks import features, jobs
from benchmarks.jobs import Job
from benchmarks.machine import peak_memory
from benchmarks.shuffled import ShuffledBatches, true_epsilon
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import evaluate_scores
from dphead.fit.fit import fit_rows
from dphead.fit.report import guarantee
from dphead.planning.methods import make_method
from dphead.planning.plan import FitPlan, make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import Solver

OUT = RESULTS / "claims"
_PLANS: dict[Any, FitPlan] = {}
Task = tuple[Job, int, Path]  # a job, its noise draw, and the file of its row


def fit(job: Job, seed: int) -> dict[str, Any]:
    """Fit and measure one draw of a job, and return the row to store."""
    data = features.load(job.dataset, job.features, job.held_out)
    solver, plan = prepared(job, data)
    noise = (
        ShuffledBatches(seed, plan) if job.sampling == "shuffle" else NoiseSource(seed)
    )
    result = fit_rows(plan, data.rows, noise=noise)
    metrics = evaluate_scores(result.trained.scores(data.x), data.y)
    spent = guarantee(plan)
    shuffled = job.sampling == "shuffle"
    return {
        "key": job.key,
        "job": job.described(),
        "seed": seed,
        "solver": repr(solver),
        "features": data.described,
        "relation": plan.relation,
        "mu": spent["mu"],
        "exact_epsilon": true_epsilon(plan) if shuffled else spent["epsilon"],
        "profiles": spent["profiles"],
        "noise_multipliers": sorted({s.noise_multiplier for s in plan.specs}),
        "accuracy": metrics["accuracy"],
        "worst_class": metrics["worst_class_accuracy"],
        "seconds": result.seconds,
        "peak_memory_mb": peak_memory() / 2**20,
        **provenance(),
    }


def prepared(job: Job, data: features.Loaded) -> tuple[Solver, FitPlan]:
    """Return the job's solver and its plan, with noise."""
    settings = dict(job.settings)
    solver = make_method(job.method, data.facts, settings, job.preset).solver
    wanted = solver.plan(data.facts)
    key = (tuple(wanted), data.facts, job.epsilon, job.delta, job.accountant)
    # A calibration takes seconds, and many jobs have the same.
    if key not in _PLANS:
        _PLANS[key] = make_plan(
            solver,
            data.facts,
            epsilon=job.epsilon,
            delta=job.delta,
            accountant=job.accountant,
        )
    plan = replace(_PLANS[key], solver=solver)
    if job.clip_only:
        # A plan without noise does not clip, unless it is told to.
        pairs = zip(plan.specs, wanted, strict=True)
        specs = [replace(spec, clip_norm=p.clip_norm) for spec, p in pairs]
        plan = replace(plan, specs=specs)
    return solver, plan


def missing(selector: str, out: Path = OUT, max_draws: int = jobs.DRAWS) -> list[Task]:
    """Return the fits that a selector lacks, grouped by features."""
    path = out / f"{selector.split('/')[0].lower()}.jsonl"
    done = {(row["key"], row["seed"]) for row in stored(out)}
    tasks: dict[tuple[str, int], Task] = {}
    for _, job in jobs.select(selector):
        # Without noise, full batches leave nothing to chance.
        once = job.epsilon == float("inf") and not job.clip_only
        for seed in range(1 if once else min(max_draws, job.draws)):
            if (job.key, seed) not in done:
                tasks.setdefault((job.key, seed), (job, seed, path))

    def order(task: Task) -> tuple[Any, ...]:
        job, seed, _ = task
        return job.dataset, job.features, seed, job.size(), job.epsilon

    return sorted(tasks.values(), key=order)


def stored(out: Path = OUT) -> list[dict[str, Any]]:
    """Return every stored fit of every paper, with the rows that `heads` measured."""
    paths = sorted(out.glob("*.jsonl"))
    rows = [row for path in paths for row in read(path) if "key" in row]
    return rows + (reused() if out == OUT else [])


def reused() -> list[dict[str, Any]]:
    """Return the rows of `heads` that are cells of our own row of FC23's Table 3."""
    found = []
    for row in read(RESULTS / "heads" / "cifar10-mobilenetv2.jsonl"):
        for job in jobs.own():
            same = all(
                f"{name}={value!r}," in row["settings"]
                for name, value in job.settings.items()
            )
            if same and (job.method, job.epsilon) == (row["method"], row["epsilon"]):
                found.append(row | {"key": job.key, "job": job.described()})
    return found


def work(task: Task, pin: bool = False) -> str:
    """Run one fit, store its row and return a line about it.

    With `pin` the fit stays on one core, because other processes use the others.
    """
    if pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    job, seed, path = task
    row = fit(job, seed)
    append(path, row)
    what = f"{job.dataset} {job.features} eps {job.epsilon:g} draw {seed}"
    return f"{what}: {row['accuracy']:.4f} {row['seconds']:.0f} s"


def results(tasks: list[Task], processes: int) -> Iterator[str]:
    """Run tasks one by one on all cores, or `processes` at a time on one core each."""
    if processes == 1:
        yield from map(work, tasks)
        return
    from joblib import Parallel, delayed

    pool: Any = Parallel(processes, return_as="generator_unordered")
    yield from pool(delayed(work)(task, pin=True) for task in tasks)


def run(
    selector: str,
    images: Path | None,
    processes: int,
    dry_run: bool,
    out: Path = OUT,
    max_draws: int = jobs.DRAWS,
) -> None:
    """Run what is missing, or say what would run."""
    from rich.console import Console
    from rich.progress import track

    tasks = missing(selector, out, max_draws)
    click.echo(f"{selector}: {len(tasks)} fits missing")
    if selector != "quick":
        reasons = [": ".join(jobs.standing(c)) for c in jobs.selected(selector)]
        for why in sorted(set(reasons) - {": "}):
            click.echo(f"  no fit ({reasons.count(why)} claims): {why}")
    if dry_run:
        for job, seed, _ in tasks:
            described = json.dumps(job.described(), sort_keys=True)
            click.echo(f"  {job.key} draw {seed} {described}")
        return
    start = time.perf_counter()
    for dataset, name in sorted({(job.dataset, job.features) for job, *_ in tasks}):
        features.files(dataset, name, images)
    console = Console(stderr=True)
    lines = results(tasks, processes)
    for line in track(lines, "fits", total=len(tasks), console=console):
        console.print(line)
    click.echo(f"{selector}: done in {(time.perf_counter() - start) / 60:.1f} minutes")
