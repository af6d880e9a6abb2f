"""Variants of a method beside one of them, on the same rows, budgets and noise."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.features import Loaded
from benchmarks.heads import DELTA
from benchmarks.together import fit_together
from dphead.solvers import Solver

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
Row = dict[str, Any]


def accuracies(
    data: Loaded, fits: Sequence[tuple[Solver, int]], epsilon: float
) -> list[float]:
    """Accuracy on data.x of each (solver, seed), fitted together on full batches."""
    results = fit_together(
        data.rows, data.facts, [(solver, seed, epsilon) for solver, seed in fits], DELTA
    )
    return [
        float(np.mean(r.head.scores(data.x).argmax(axis=1) == data.y)) for r in results
    ]


def table(rows: list[Row], base: str) -> str:
    """Accuracy of `base` in %, and of the others the difference from it on the same
    draws, in points ± 1 se.
    """
    cells: dict[tuple[str, float], dict[int, float]] = defaultdict(dict)
    for r in rows:
        cells[r["variant"], r["epsilon"]][r["seed"]] = 100 * r["accuracy"]
    variants = [
        base,
        *(v for v in dict.fromkeys(r["variant"] for r in rows) if v != base),
    ]
    lines = [
        "| | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
        "|---" * (len(EPSILONS) + 1) + "|",
    ]
    for variant in variants:
        line = f"| {variant} |"
        for epsilon in EPSILONS:
            values = cells[variant, epsilon]
            reference = cells[base, epsilon]
            if variant == base:
                line += f" {mean(values.values()):.2f} |" if values else " — |"
                continue
            gaps = paired(values, reference)
            line += f" {spread(gaps)} |" if gaps else " — |"
        lines.append(line)
    return "\n".join(lines)


def paired(values: dict[int, float], others: dict[int, float]) -> list[float]:
    """Differences on the draws that both have."""
    return [values[seed] - others[seed] for seed in values if seed in others]


def spread(gaps: list[float]) -> str:
    """Mean ± standard error, signed."""
    error = f" ± {np.std(gaps, ddof=1) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
    return f"{mean(gaps):+.2f}{error}"
