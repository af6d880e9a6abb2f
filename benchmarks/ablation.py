"""What each part of `auto` is worth, and each way of placing or removing noise in least squares.

Fits on four fifths of public training rows, measured on the other fifth: no test row is looked at. The same noise seeds
for every variant. `python -m benchmarks.ablation` runs what is missing, one JSON line a fit in results/ablation/, and
writes its README; `python -m benchmarks.ablation table` writes the README alone.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import features
from benchmarks.fused import Together
from benchmarks.heads import DELTA, RESULTS, append, provenance, read
from dphead.fit import fit_head
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, Solver
from dphead.solvers.auto import DESCENT
from dphead.solvers.base import Centering

OUT = RESULTS / "ablation"
DATASET, NAME = "cifar10", "mobilenetv2-128"
EPSILONS, DRAWS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0), 3
VARIANTS: dict[str, Any] = {
    "auto": Auto(),
    "no moving average: the last iterate": Auto(descent=replace(DESCENT, average="last")),
    "no momentum": Auto(descent=replace(DESCENT, momentum=0.0)),
    "no intercept column": Auto(descent=replace(DESCENT, intercept=0.0)),
    "no centring (and no scaling)": Auto(centering=Centering(0.0)),
    "scaling never": Auto(scale="never"),
    "scaling always": Auto(scale="always"),
    "clip norm 0.1": Auto(descent=replace(DESCENT, clip_norm=0.1)),
    "clip norm 1": Auto(descent=replace(DESCENT, clip_norm=1.0)),
    "30 steps": Auto(steps=30),
    "120 steps": Auto(steps=120),
    "half the step size": Auto(move=0.6),
    "twice the step size": Auto(move=2.4),
    "no count of correct rows": Auto(estimate=False),
}
Row = dict[str, Any]


def accuracies(data: features.Loaded, fits: Sequence[tuple[Solver, int]], epsilon: float) -> list[float]:
    """Accuracy on data.x of each (solver, seed), fitted together on full batches."""
    together = Together(data.rows, len(fits))

    def fit(i: int) -> float:
        solver, seed = fits[i]
        result = fit_head(
            solver, together.rows(), data.facts, epsilon=epsilon, delta=DELTA, noise=NoiseSource(seed),
            block_sum=together.block_sum(i),
        )  # fmt: skip
        return float(np.mean(result.head.scores(data.x).argmax(axis=1) == data.y))

    return together.run(fit)


def run_auto() -> None:
    """The missing rows of `auto`'s parts, those of one epsilon and draw together."""
    out, source = OUT / "auto.jsonl", provenance()
    done = {(r["variant"], r["epsilon"], r["seed"]) for r in read(out)}
    data = features.load(DATASET, NAME, held_out=True)
    for seed in range(DRAWS):
        for epsilon in EPSILONS:
            names = [name for name in VARIANTS if (name, epsilon, seed) not in done]
            if not names:
                continue
            found = accuracies(data, [(VARIANTS[name], seed) for name in names], epsilon)
            for name, accuracy in zip(names, found, strict=True):
                row = {"variant": name, "epsilon": epsilon, "seed": seed, "accuracy": accuracy}
                row |= {"settings": repr(VARIANTS[name]), "features": data.described, "delta": DELTA}
                append(out, row | {"measured_on": "a held-out fifth of the training rows"} | source)
            print(f"eps {epsilon:g} draw {seed}: " + " ".join(f"{100 * a:.2f}" for a in found), flush=True)


def table(rows: list[Row], base: str) -> str:
    """Accuracy of `base` in %, and of the others the difference from it on the same draws, in points ± 1 se."""
    cells: dict[tuple[str, float], dict[int, float]] = defaultdict(dict)
    for r in rows:
        cells[r["variant"], r["epsilon"]][r["seed"]] = 100 * r["accuracy"]
    variants = [base, *(v for v in dict.fromkeys(r["variant"] for r in rows) if v != base)]
    lines = ["| | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |", "|---" * (len(EPSILONS) + 1) + "|"]
    for variant in variants:
        line = f"| {variant} |"
        for epsilon in EPSILONS:
            values, reference = cells[variant, epsilon], cells[base, epsilon]
            if variant == base:
                line += f" {mean(values.values()):.2f} |" if values else " — |"
                continue
            gaps = [values[seed] - reference[seed] for seed in values if seed in reference]
            line += f" {spread(gaps)} |" if gaps else " — |"
        lines.append(line)
    return "\n".join(lines)


def spread(gaps: list[float]) -> str:
    """Mean ± standard error, signed."""
    error = f" ± {np.std(gaps, ddof=1) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
    return f"{mean(gaps):+.2f}{error}"


if __name__ == "__main__":
    if sys.argv[1:] != ["table"]:
        run_auto()
