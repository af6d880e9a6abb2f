"""Run the missing fits of a paper's tables: `python -m benchmarks reproduce CLAIM`.

Each fit adds one JSON line to results/claims/PAPER.jsonl.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from dphead_extract.features.format import open_features

from benchmarks import claims, features, jobs, training
from benchmarks.heads import measured
from benchmarks.jobs import Job
from benchmarks.machine import peak_memory
from benchmarks.shuffled import ShuffledBatches, true_epsilon
from benchmarks.store import RESULTS, append, provenance, read
from dphead.fit.fit import fit_rows
from dphead.planning.methods import make_method
from dphead.planning.plan import FitPlan, make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo, Solver

OUT = RESULTS / "claims"
AGAIN = Path("reproduced")
_PLANS: dict[Any, FitPlan] = {}


class Task(NamedTuple):
    """Hold a job, its noise draw, the file for its row, and the paths of its inputs."""

    job: Job
    seed: int
    path: Path
    images: Path | None = None
    file: Path | None = None


def fit(task: Task) -> dict[str, Any]:
    """Fit and measure one draw of a job, and return the row to store."""
    job, seed = task.job, task.seed
    if job.trains:
        return training.train(job, seed, task.images)
    data = features.load(job.dataset, job.features, task.file)
    solver, plan = prepared(job, data.facts)
    shuffled = job.sampling == "shuffle"
    noise = ShuffledBatches(seed, plan) if shuffled else NoiseSource(seed)
    result = fit_rows(plan, data.rows, noise=noise)
    row = {
        "key": job.key,
        "job": job.described(),
        "seed": seed,
        "solver": repr(solver),
        "features": data.described,
        "noise_multipliers": sorted({s.noise_multiplier for s in plan.specs}),
        "seconds": result.seconds,
        "peak_memory_mb": peak_memory() / 2**20,
        **measured(result, data.x, data.y),
        **provenance(),
    }
    if shuffled:
        row["exact_epsilon"] = true_epsilon(plan.events(), plan.delta)
    return row


def prepared(job: Job, facts: ProblemInfo) -> tuple[Solver, FitPlan]:
    """Return the job's solver and its plan, with noise."""
    solver = make_method(job.method, facts, dict(job.settings), job.preset).solver
    wanted = solver.plan(facts)
    key = (tuple(wanted), facts, job.epsilon, job.delta, job.accountant)
    # A calibration takes seconds, and many jobs have the same.
    if key not in _PLANS:
        _PLANS[key] = make_plan(
            solver,
            facts,
            epsilon=job.epsilon,
            delta=job.delta,
            accountant=job.accountant,
        )
    plan = replace(_PLANS[key], solver=solver)
    if job.clip_only:
        # A plan without noise does not clip, so set the clip norms here. A norm of 1e6
        # means "no clip", and would round channel means to multiples of 244.
        pairs = zip(plan.specs, wanted, strict=True)
        specs = [
            replace(spec, clip_norm=p.clip_norm) if p.clip_norm < 1e6 else spec
            for spec, p in pairs
        ]
        plan = replace(plan, specs=specs)
    return solver, plan


def plan_all(calibrate: bool = True) -> tuple[int, list[str]]:
    """Plan every claim's jobs by public sizes. Return their number, and refusals.

    Without `calibrate`, the noise is not computed, which takes most of the time.
    """
    found: dict[str, tuple[Job, str]] = {}
    for claim in claims.load():
        for job in [*jobs.jobs_of(claim), *jobs.run_here(claim)]:
            found[job.key] = job, claim.id
    refused = []
    for job, name in found.values():
        try:
            if job.trains:
                training.planned(job, calibrate)
            elif calibrate:
                prepared(job, features.facts_of(job.dataset, job.features))
            else:
                job.solver().plan(features.facts_of(job.dataset, job.features))
        except (ValueError, click.ClickException) as error:
            refused.append(f"{name} {job.method} {job.settings}: {error}")
    return len(found), refused


def missing(
    selector: str,
    out: Path = OUT,
    draws: int = jobs.DRAWS,
    images: Path | None = None,
    file: Path | None = None,
) -> list[Task]:
    """Return the fits of a selector that `out` does not store, grouped by features."""
    path = out / f"{selector.split('-')[0].lower()}.jsonl"
    done = {(row["key"], row["seed"]) for row in stored(out)}
    tasks: dict[tuple[str, int], Task] = {}
    for _, job in jobs.select(selector, backbone_of(file)):
        # A fit without noise on full batches has one result, so run it once.
        once = job.epsilon == float("inf") and not job.clip_only
        for seed in range(min(draws, 1 if once else job.draws)):
            if (job.key, seed) not in done:
                task = Task(job, seed, path, images, file)
                tasks.setdefault((job.key, seed), task)

    def order(task: Task) -> tuple[Any, ...]:
        return task.job.dataset, task.job.features, task.seed

    return sorted(tasks.values(), key=order)


def stored(out: Path = OUT) -> list[dict[str, Any]]:
    """Return every stored fit of every paper."""
    return [row for p in sorted(out.glob("*.jsonl")) for row in read(p) if "key" in row]


def run(tasks: list[Task]) -> None:
    """Run fits and store their rows, after extracting the features that they lack."""
    from rich.console import Console
    from rich.progress import track

    inputs = {(t.job.dataset, t.job.features, t.images) for t in tasks if not t.file}
    for one in sorted(inputs, key=str):
        features.files(*one)
    console = Console(stderr=True)
    for task in track(tasks, "fits", console=console, disable=not tasks):
        row = fit(task)
        append(task.path, row)
        job = task.job
        console.print(
            f"{job.dataset} {job.features} eps {job.epsilon:g} draw {task.seed}: "
            f"{row['accuracy']:.4f} {row['seconds']:.0f} s ({job.label or job.method})"
        )


def reproduce(
    selector: str,
    images: Path | None = None,
    file: Path | None = None,
    again: bool = False,
    draws: int = jobs.DRAWS,
    out: Path = OUT,
) -> str:
    """Run the fits of claims that are missing, or stored ones again, and compare.

    Returns the paper's numbers, ours and verdicts as a Markdown table. With `again`, a
    second table has the stored results beside the new ones. `quick` repeats stored
    fits.

    Raises ValueError if `again` finds no stored fit of claims that run here.
    """
    from benchmarks import verdicts

    again = again or selector == "quick"
    # keep fits on a user's features apart from the project's results
    new = AGAIN if again or file else out
    pairs = jobs.select(selector, backbone_of(file))
    tasks = missing(selector, new, draws, images, file)
    if again and not file:
        kept = {row["key"] for row in stored(out)}
        tasks = [task for task in tasks if task.job.key in kept]
        if pairs and not any(job.key in kept for _, job in pairs):
            raise ValueError(f"no fit of {selector} is stored. Drop --again to run it.")
    run(tasks)
    found = [] if selector == "quick" else jobs.selected(selector)
    if file:
        found = list({c.row + c.column: c for c, _ in pairs if c}.values())
    rows = stored(new)
    by_key = verdicts.by_key_of(rows)
    if not file:  # the order within a column needs the stored results too
        by_key = verdicts.by_key_of(stored(out)) | by_key
    parts = [verdicts.told(found, by_key, file is not None)]
    if again:
        parts.append(verdicts.compared(pairs, stored(out), rows))
    parts += verdicts.about_small(found)
    if not file:
        # list the claims that cannot run here, each with its reason and command
        parts.append(verdicts.states(verdicts.unmeasured(found), by_key))
    parts += verdicts.notes(found)
    return "\n\n".join(filter(None, parts))


def backbone_of(file: Path | None) -> str:
    """Return the name of a features file's backbone, or "" without a file."""
    if file is None:
        return ""
    with open_features(file) as opened:
        return str(opened.config["backbone"])
