"""NOT PRIVATE, a benchmark only: DP-FC and DP-LS with one noise vector for all classes,
beside honest noise.

The published code of FC23 draws its noise inside a `vmap` over classes from one
captured random key, so that every class gets the same vector, and, once compiled, every
step too. What is added to all class scores alike cannot change which is the largest.
`python -m benchmarks shared-noise` measures what that is worth: the same head,
settings, noise scale and draws, with noise that is (a) fresh for each class and step,
(b) shared by the classes, (c) shared by classes and steps. Only (a) has the guarantee;
the numbers of (b) and (c) are not differentially private at that epsilon.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import features
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.verdicts import header, measured
from dphead.analysis.metrics import evaluate_scores
from dphead.fit.loop import Run, fit_head
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource

OUT = RESULTS / "shared_noise.jsonl"
EPSILONS = (0.1, 0.5, 1.0, 8.0)
DRAWS = 5
DELTA = 1e-5
HONEST = "fresh"
CLASSES = "shared by classes"
STEPS = "shared by classes and steps"
METHODS = {  # name: (method, settings, the noises that differ for it)
    "dp-fc": ("dp-fc", {}, (HONEST, CLASSES, STEPS)),
    "dp-ls": ("dp-ls", {}, (HONEST, CLASSES)),
    "dp-ls, class Grams": ("dp-ls", {"class_grams": True}, (HONEST, CLASSES)),
}


class _OneVector:
    """A generator whose normal draws are the same for every class."""

    def __init__(self, generator: np.random.Generator, n_classes: int) -> None:
        self._generator, self._n_classes = generator, n_classes

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Class sums and gradients (width, n_classes) share a column, class Grams
        (n_classes, d, d) a matrix.
        """
        if len(shape) == 2 and shape[1] == self._n_classes:
            return np.repeat(
                self._generator.standard_normal((shape[0], 1)), shape[1], axis=1
            )
        if len(shape) == 3:
            return np.broadcast_to(
                self._generator.standard_normal(shape[1:]), shape
            ).copy()
        return self._generator.standard_normal(shape)


class SharedNoise(NoiseSource):
    """Not private.

    Simulates a random key that all classes, and with `steps` all releases of a kind,
    have in common.
    """

    def __init__(self, seed: int, n_classes: int, steps: bool) -> None:
        super().__init__(seed)
        self._n_classes, self._steps = n_classes, steps

    def generator(self, sequence: int, purpose: str) -> Any:
        """Draws that depend on the seed, and on the release only if steps differ."""
        return _OneVector(
            super().generator(-1 if self._steps else sequence, purpose), self._n_classes
        )


def noise_source(noise: str, seed: int, n_classes: int) -> NoiseSource:
    """The noise of one of HONEST, CLASSES and STEPS."""
    return (
        NoiseSource(seed)
        if noise == HONEST
        else SharedNoise(seed, n_classes, noise == STEPS)
    )


def run(
    out: Path = OUT,
    dataset: str = "cifar10",
    name: str = "mobilenetv2-128",
    draws: int = DRAWS,
) -> None:
    """Run what is missing, one JSON line a fit."""
    done = {
        (
            r["name"],
            r["epsilon"],
            r["noise"],
            r["seed"],
        )
        for r in (read(out) + honest())
    }
    data = features.load(dataset, name)
    for label, (method, settings, noises) in METHODS.items():
        for seed in range(draws):
            solver = make_method(method, data.facts, dict(settings)).solver
            for epsilon in EPSILONS:
                plan = make_plan(solver, data.facts, epsilon=epsilon, delta=DELTA)
                for noise in noises:
                    if (label, epsilon, noise, seed) in done:
                        continue
                    source = noise_source(noise, seed, data.facts.n_classes)
                    result = fit_head(
                        solver, data.rows, data.facts, plan, Run(noise=source)
                    )
                    metrics = evaluate_scores(result.head.scores(data.x), data.y)
                    row = {
                        "name": label,
                        "dataset": dataset,
                        "features": data.described,
                        "solver": repr(solver),
                        "epsilon": epsilon,
                        "delta": DELTA,
                        "noise": noise,
                        "private": noise == HONEST,
                        "seed": seed,
                        "accuracy": metrics["accuracy"],
                        "worst_class": metrics["worst_class_accuracy"],
                        "seconds": result.seconds,
                        **provenance(),
                    }
                    append(out, row)
                    print(
                        (
                            f"{label} eps {epsilon:g} {noise} draw {seed}: "
                            f"{metrics['accuracy']:.4f}"
                        ),
                        flush=True,
                    )


def honest() -> list[dict[str, Any]]:
    """Rows of `benchmarks heads`: the same solvers with fresh noise and the same
    seeds.
    """
    rows = read(RESULTS / "heads" / "cifar10-mobilenetv2.jsonl")
    names = {
        method: name for name, (method, settings, _) in METHODS.items() if not settings
    }
    return [
        r | {"name": names[r["method"]], "noise": HONEST}
        for r in rows
        if r["method"] in names and r["epsilon"] in EPSILONS and r["seed"] < DRAWS
    ]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Accuracy in %, a line for each method and noise, a column for each epsilon."""
    cells: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for r in rows:
        cells[r["name"], r["noise"], r["epsilon"]].append(100 * r["accuracy"])
    epsilons = sorted({e for *_, e in cells})
    lines = header(epsilons, "method", "noise")
    for name, noise in dict.fromkeys((n, s) for n, s, _ in cells):
        values = [cells.get((name, noise, e)) for e in epsilons]
        lines.append(
            f"| {name} | {noise} | "
            + " | ".join(measured(v) if v else "—" for v in values)
            + " |"
        )
    return "\n".join(lines)
