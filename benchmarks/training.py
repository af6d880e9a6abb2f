"""Train a claim's network: arguments of `dphead finetune`, the plan, and the row."""

import json
import math
import os
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import click

from benchmarks import claims, features
from benchmarks.jobs import Job
from benchmarks.shuffled import ShuffledBatches, true_epsilon
from benchmarks.store import provenance
from dphead.analysis.profiles import all_profiles
from dphead.finetune import run
from dphead.finetune.gradients import ModelGradient
from dphead.finetune.options import FinetuneOptions
from dphead.finetune.settings import NAMES
from dphead.planning import presets
from dphead.planning.plan import large_delta
from dphead.privacy.accounting import GaussianEvent
from dphead.solvers.base import ProblemInfo

# shapes of ScatterNet's maps
SHAPES = {"mnist": "81,7,7", "fashion-mnist": "81,7,7", "cifar10": "243,8,8"}
_PREPARE = run._prepare
# number of parameters of a planned network; the noise does not depend on it
_SIZE = 1000


@cache
def _options() -> set[str]:
    """Return the options of `dphead finetune`. The other settings need --set."""
    from dphead.cli.finetune import finetune

    found = finetune.get_params(click.Context(finetune))
    return {typed for option in found for typed in option.opts}


def arguments(job: Job, train: str = "", out: str = "RUN") -> list[str]:
    """Return the command that trains a job's network, as its arguments."""
    named = f"FIRST-{job.rows}-IMAGES" if job.rows else "IMAGES"
    found = ["dphead", "finetune", train or named, "-o", out]
    if job.features == features.MAPS:
        found += ["--shape", SHAPES[job.dataset]]
    else:
        found += ["--split", "train", "--classes", str(facts_of(job).n_classes)]
    if job.preset is not None:
        by_dataset = "dataset" in presets.load(job.preset).get("columns", {})
        column = f"/{job.dataset}" if by_dataset else ""
        found += ["--preset", f"{job.preset}{column}"]
    found += ["--epsilon", f"{job.epsilon:.10g}", "--delta", f"{job.delta:g}"]
    if job.epsilon == float("inf"):
        found.append("--i-know-this-is-not-private")
    if job.accountant != "auto":
        found += ["--accountant", job.accountant]
    if large_delta(job.epsilon, job.delta, facts_of(job).n_rows):
        found.append("--allow-large-delta")
    for name, value in job.settings.items():
        option = f"--{name.replace('_', '-')}"
        if name in NAMES and option not in _options():
            found += ["--set", f"{name}={str(value).lower()}"]
        elif isinstance(value, bool):
            found.append(option if value else f"--no-{option[2:]}")
        else:
            found += [option, str(value)]
    return found


def facts_of(job: Job) -> ProblemInfo:
    """Return the public sizes of a job's images."""
    known = claims.needs("data")[job.dataset]
    n_features = math.prod(map(int, SHAPES.get(job.dataset, "1").split(",")))
    return ProblemInfo(job.rows or known["train_rows"], n_features, known["classes"])


def parsed(arguments: list[str]) -> FinetuneOptions:
    """Return the options of a command, as `dphead finetune` reads them."""
    from dphead.cli import cli
    from dphead.cli.finetune import finetune, options_of_training

    parent = click.Context(cli, **cli.context_settings)
    typed = [".", *arguments[3:]]  # the source must exist
    with finetune.make_context("finetune", typed, parent) as context:
        return options_of_training(context.params | {"processes": None})


@cache
def _parsed(*arguments: str) -> FinetuneOptions:
    return parsed([*arguments])


def planned(job: Job, calibrate: bool = True) -> None:
    """Plan a job's training, without any data.

    Raises ValueError if `dphead finetune` refuses the job's options. Without
    `calibrate`, do not check that the epsilon allows the noise.
    """
    options, facts = parsed(arguments(job)), facts_of(job)
    settings, target = options.settings, options.target("auto")
    if calibrate:
        named = settings.model, settings.views, settings.augment
        statistic = ModelGradient(facts.n_classes, _SIZE, *named)
        spec = SimpleNamespace(pixels=False)  # normalized rows are feature maps
        network: Any = SimpleNamespace(statistic=statistic, start=None, spec=spec)
        run.make_training(settings, target, facts, network)


def views(job: Job) -> float:
    """Return the number of views of an image that a training processes."""
    n_rows = facts_of(job).n_rows
    s = _parsed(*arguments(job)).settings.resolved(n_rows)
    return (s.batch_size or n_rows) * (s.steps or 1) * max(1, s.views)


def _shuffled(options: FinetuneOptions, data: Any, plan: Any, *rest: Any) -> Any:
    """Prepare a training as `dphead finetune` does, with shuffled batches."""
    noise = ShuffledBatches(cast(int, options.seed), plan)
    return replace(_PREPARE(options, data, plan, *rest), noise=noise)


def train(job: Job, seed: int, images: Path | None) -> dict[str, Any]:
    """Train a job's network from a seed, and return the row to store."""
    from dphead.cli import cli

    start, shuffled = time.perf_counter(), job.sampling == "shuffle"
    train, test = features.files(job.dataset, job.features, images)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = arguments(job, str(train), str(out))
        command += ["--test", str(test), "--test-is", "public"]
        command += ["--seed", str(seed), "--set", f"init_seed={seed}"]
        if job.features != features.MAPS:
            command += ["--test-split", "test"]
        command.append("--i-know-this-is-not-private")
        # use a separate home, and drop the output, which is about a temporary folder
        with (
            redirect_stdout(StringIO()),
            patch.dict(os.environ, DPHEAD_HOME=folder),
            patch.object(run, "_prepare", _shuffled if shuffled else _PREPARE),
        ):
            cli(command[1:], standalone_mode=False)
        report = json.loads((out / "report.json").read_text())
    # the report of a seeded run has no profiles, because it has no guarantee
    names = ("noise_multiplier", "sampling_prob", "count")
    releases = report["guarantee"]["releases"]
    events = [GaussianEvent(*(release[name] for name in names)) for release in releases]
    profiles = all_profiles(events, job.delta)
    exact = true_epsilon(events, job.delta) if shuffled else profiles["pld"]
    return {
        "key": job.key,
        "job": job.described(),
        "seed": seed,
        "exact_epsilon": exact,
        "profiles": profiles,
        "noise_multipliers": sorted({event.noise_multiplier for event in events}),
        "accuracy": report["test"]["accuracy"],
        "seconds": time.perf_counter() - start,
        **provenance(),
    }
