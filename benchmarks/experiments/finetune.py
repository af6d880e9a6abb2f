"""End-to-end trainings in miniature, and what the papers' own would cost: `python -m
benchmarks finetune JOB`.

Every finished run is a line of results/finetune/rows.jsonl; a job runs what is missing,
so it can be stopped.
Jobs: tan (a prediction, stored before its large runs), tb21 (its CNN), timing, costs,
table. De22's Table 2 is in `ingredients.py`.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dphead_extract.sources.classes import Classes

from benchmarks import features
from benchmarks.store import RESULTS, append, provenance, read
from dphead.finetune.images import LabelledImages, load_images
from dphead.finetune.models import ModelSpec
from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import make_training
from dphead.finetune.settings import Settings, make_settings
from dphead.finetune.tan import Simulated, predict, simulated_settings
from dphead.fit.loop import Run as FitRun
from dphead.fit.loop import fit_head
from dphead.planning.plan import Target
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.sums.verified import VerifiedSum

OUT = RESULTS / "finetune" / "rows.jsonl"
FACTORS = (16, 8, 4)
SEEDS = (0, 1, 2)
TAN = Settings(
    "tb21-mnist",
    noise_multiplier=2.0,
    batch_size=1024,
    steps=300,
    learning_rate=1.0,
    average="last",
)


@dataclass(frozen=True)
class Run:
    """One training.

    rows: of the training split that are used; a fifth of them is held out and measured
    on.

    size: side that images are brought to, None for their own. test: measure on the test
        split too.
    """

    job: str
    variant: str
    dataset: str
    settings: Settings
    seed: int
    rows: int
    epsilon: float = 8.0
    groups: int = 16
    standardise: bool = True
    accountant: str = "rdp"
    size: int | None = None
    test: bool = False

    @property
    def key(self) -> list[Any]:
        """What tells it from others in the file."""
        return [
            self.job,
            self.variant,
            self.dataset,
            asdict(self.settings),
            self.seed,
            self.rows,
            self.epsilon,
        ]


@lru_cache(2)
def pictures(dataset: str, split: str, size: int | None) -> LabelledImages:
    """The images of a data set."""
    return load_images(features.images(dataset, None), Classes.parse("10"), split, size)


def train(run: Run) -> dict[str, Any]:
    """Train through `release` and measure the averaged weights on the held-out
    fifth.
    """
    start = time.perf_counter()
    images = pictures(run.dataset, "train", run.size)
    used = run.rows - run.rows // 5
    x = images.x[:used]
    y = images.y[:used]
    model = ModelSpec(
        run.settings.model, x.shape[1], "before", run.groups, run.standardise, run.seed
    )
    s = run.settings
    shape = x.shape[1:]
    network = Network(
        NetworkSpec(
            model,
            (shape[0], shape[1], shape[2]),
            10,
            True,
            0.5,
            0.25,
            s.views,
            s.augment,
        )
    )
    facts = ProblemInfo(len(x), int(np.prod(x.shape[1:])), 10)
    target = Target(run.epsilon, 1e-5, accountant=run.accountant)
    training = make_training(s, target, facts, network)
    plan, found = training.plan, training.schedule
    sums = TorchSums(network, batch=s.batch_size or 256)
    how = FitRun(noise=NoiseSource(run.seed), summer=VerifiedSum(sums))
    result: Any = fit_head(training.method.solver, ImageRows(x, y), facts, plan, how)

    def accuracy(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
        return float((network.scores(weights, x).argmax(axis=1) == y).mean())

    held = slice(used, run.rows)
    measured = {
        "accuracy": accuracy(result.head.average, images.x[held], images.y[held])
    }
    if run.test:
        test = pictures(run.dataset, "test", run.size)
        measured["test_last"] = accuracy(result.head.weights, test.x, test.y)
        measured["test_average"] = accuracy(result.head.average, test.x, test.y)
    return {
        "key": run.key,
        "job": run.job,
        "variant": run.variant,
        "seed": run.seed,
        **measured,
    } | {
        "sigma": found.noise_multiplier,
        "spent": found.epsilon,
        "batch_size": found.batch_size,
        "steps": found.steps,
        "seconds": time.perf_counter() - start,
    }


def missing(runs: list[Run]) -> Iterator[Run]:
    """Those without a row yet, in order."""
    for run in runs:
        if not any(r.get("key") == plain(run.key) for r in read(OUT)):
            yield run


def plain(value: Any) -> Any:
    """As JSON gives it back."""
    import json

    return json.loads(json.dumps(value))


def do(runs: list[Run]) -> None:
    """Run what is missing, one line a run."""
    for run in missing(runs):
        row = train(run)
        append(OUT, row | provenance())
        print(
            (
                f"{run.job} {run.variant} seed {run.seed}: {100 * row['accuracy']:.2f} "
                f"%, {row['seconds']:.0f} s"
            ),
            flush=True,
        )


def tan_runs(factors: tuple[int, ...]) -> list[Run]:
    """Simulated runs of a CNN on MNIST at B/k and sigma/k; k = 1 is the full run."""
    return [
        Run("tan", f"k = {k}", "mnist", simulated_settings(TAN, k), seed, 60_000, 1e9)
        for k in factors
        for seed in SEEDS
    ]


def tan() -> None:
    """Simulate, store the prediction, then run at the full batch."""
    do(tan_runs(FACTORS))
    rows = read(OUT)
    if not any(r["job"] == "tan prediction" for r in rows):
        runs = [
            Simulated(0.0, r["batch_size"], r["sigma"], r["seed"], r["accuracy"])
            for r in rows
            if r["job"] == "tan"
        ]
        prediction = predict(runs, TAN.batch_size or 1)
        append(
            OUT,
            {
                "job": "tan prediction",
                "at": time.strftime("%H:%M:%S"),
                **prediction._asdict(),
            }
            | provenance(),
        )
    do(tan_runs((1,)))


def tb21_runs() -> list[Run]:
    """TB21's CNN on the pixels of MNIST at epsilon 3, trained on four fifths."""
    settings, _ = make_settings({}, "tb21-cnn/mnist", 3.0)
    return [
        Run(
            "tb21",
            "cnn",
            "mnist",
            settings.resolved(48_000),
            0,
            60_000,
            3.0,
            accountant="rdp-classic",
        )
    ]


def timing(rows: int = 16, repeats: int = 5) -> None:
    """Per-example gradients of WRN-16-4, clipped and summed, beside Opacus's, taken in
    turn in one process.
    """
    import torch

    # of the extra `bench`
    from opacus import GradSampleModule  # pyright: ignore[reportMissingImports]

    from dphead.finetune.gradients import PerExample, clipped
    from dphead.finetune.models import loss_of

    # Opacus has no sampler for standardised convolutions
    spec = ModelSpec("wrn-16-4", standardise=False)
    x = torch.rand(rows, 3, 32, 32)
    y = torch.zeros(rows, dtype=torch.long)
    theirs: Any = GradSampleModule(spec.build(10), loss_reduction="sum")

    def opacus() -> None:
        for p in theirs.parameters():
            p.grad_sample = None
        loss_of(theirs(x), y).sum().backward()
        samples: list[Any] = [p.grad_sample.flatten(1) for p in theirs.parameters()]
        norms = torch.stack([g.norm(dim=1) for g in samples]).norm(dim=0)
        factor = (1 / norms).clamp(max=1)
        [factor @ g for g in samples]

    gradients = PerExample(spec.build(10))

    def ours() -> None:
        clipped(gradients.parts(x[:, None], y), y == 0, 1.0)

    tasks = {"opacus": opacus, "dphead": ours}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn:
                times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values)) / rows for name, values in times.items()}
    row = {
        "job": "timing",
        "variant": f"wrn-16-4, {rows} rows",
        "seconds_a_row": medians,
        "threads": torch.get_num_threads(),
    }
    ratio = medians["opacus"] / medians["dphead"]
    append(OUT, row | {"ratio": ratio, "opacus": "1.6.0"} | provenance())
    print(
        {name: f"{1000 * v:.1f} ms a row" for name, v in medians.items()},
        f"opacus / ours {ratio:.2f}",
    )


def costs(views_a_second: float = 20_000.0) -> None:
    """What the papers' trainings on CIFAR-10 would take at a speed of WRN-16-4 that is
    assumed, not measured.
    """
    flops = {"wrn-16-4": 1.0, "wrn-40-4": 3.4, "wrn-28-10": 13.5}
    print(
        f"assumed: {views_a_second:,.0f} views a second of WRN-16-4; others in "
        "proportion to their multiplications"
    )
    for preset in ("de22-13", "de22-14", "de22-16"):
        from dphead.planning import presets

        for epsilon in presets.load(preset)["columns"]["epsilon"]:
            options = {"learning_rate": 2.0} if preset == "de22-16" else {}
            settings, source = make_settings(options, preset, epsilon)
            views = (
                (settings.batch_size or 0)
                * (settings.steps or 0)
                * max(1, settings.views)
            )
            hours = views * flops[settings.model] / views_a_second / 3600
            print(
                f"{source}, epsilon {epsilon:g}: {views:,} views of {settings.model}, "
                f"about {hours:.1f} hours"
            )


def table() -> str:
    """What was measured, as Markdown."""
    rows = read(OUT)
    lines = [
        "| job | variant | B | σ | T | accuracy, % (runs) |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        if "accuracy" in r and "variant" in r and not r["job"].startswith("ablation"):
            groups.setdefault((r["job"], r["variant"]), []).append(r)
    for (job, variant), found in groups.items():
        values = 100 * np.array([r["accuracy"] for r in found])
        first = found[0]
        spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
        sizes = f"{first['batch_size']} | {first['sigma']:.4g} | {first['steps']}"
        lines.append(
            f"| {job} | {variant} | {sizes} | {values.mean():.2f}{spread} "
            f"({len(values)}) |"
        )
    for r in rows:
        if r["job"] == "tan prediction":
            low, middle, high = (100 * r[k] for k in ("low", "accuracy", "high"))
            lines.append(
                f"| tan | predicted at k = 1 | 1024 | 2 | 300 | {middle:.2f} "
                f"({low:.2f} to {high:.2f}) |"
            )
        if r["job"] == "timing":
            each = ", ".join(
                f"{k} {1000 * v:.1f}" for k, v in r["seconds_a_row"].items()
            )
            lines.append(
                f"| timing | {r['variant']}, ms a row: {each} | | | | Opacus / ours "
                f"{r['ratio']:.2f} |"
            )
    return "\n".join(lines)


def run(job: str) -> None:
    """One of JOBS: its missing rows, or what is printed or drawn from stored ones."""
    JOBS[job]()


JOBS = {
    "tan": tan,
    "tb21": lambda: do(tb21_runs()),
    "timing": timing,
    "costs": costs,
    "table": lambda: print(table()),
}
