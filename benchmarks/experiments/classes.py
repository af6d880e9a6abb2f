"""Whether `auto` knows the accuracy of each class, and of the worst one, where
`per_class_share` has a twentieth of mu² (docs/classes.md).

The rows are those of `expected`: random subsets of public training rows, measured on
all test rows. `python -m benchmarks classes` runs what is missing, one JSON line a fit
in results/classes.jsonl, and prints the table.
"""

from collections import defaultdict
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.experiments.expected import subsets
from benchmarks.features import Loaded
from benchmarks.heads import DELTA
from benchmarks.store import RESULTS, append, provenance, read
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto

OUT = RESULTS / "classes.jsonl"
EPSILONS = (0.5, 1.0, 4.0)
SHARE = 0.05
DRAWS = {"digits": 20, "cifar10": 10}
Row = dict[str, Any]


def run() -> None:
    """The missing rows."""
    source = provenance()
    done = {(r["dataset"], r["n_rows"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for dataset, draws in DRAWS.items():
        for seed in range(draws):
            for data in subsets(dataset, seed):
                for epsilon in EPSILONS:
                    if (dataset, data.facts.n_rows, epsilon, seed) in done:
                        continue
                    row = {"dataset": dataset, "n_rows": data.facts.n_rows}
                    row |= {"epsilon": epsilon, "delta": DELTA, "seed": seed}
                    append(OUT, row | one(data, epsilon, seed) | source)
            print(f"{dataset} draw {seed}", flush=True)


def one(data: Loaded, epsilon: float, seed: int) -> Row:
    """A fit: what it expects of each class, and what that is on the test rows; the
    accuracy of all with and without the share for classes, on the same noise.
    """
    heads = {}
    for share in (0.0, SHARE):
        solver = Auto(per_class_share=share)
        plan = make_plan(solver, data.facts, epsilon=epsilon, delta=DELTA)
        how = Run(noise=NoiseSource(seed))
        heads[share] = fit_head(solver, data.rows, data.facts, plan, how).head
    right = {
        s: head.scores(data.x).argmax(axis=1) == data.y for s, head in heads.items()
    }
    found = heads[SHARE].class_accuracy
    assert found is not None
    return {
        "features": data.described,
        "expected": [vars(one) for one in found.each],
        "worst": vars(found.worst),
        "weakest": found.weakest,
        "measured": [
            float(right[SHARE][data.y == position].mean())
            for position in range(data.facts.n_classes)
        ],
        "accuracy": float(right[SHARE].mean()),
        "without": float(right[0.0].mean()),
    }


def table() -> str:
    """How often intervals held what was measured, and how far the worst's estimate was
    from it.
    """
    cells: dict[tuple[str, int, float], list[Row]] = defaultdict(list)
    for row in read(OUT):
        cells[row["dataset"], row["n_rows"], row["epsilon"]].append(row)
    lines = [
        "| rows | ε | draws | class intervals that held | worst's that held | worst "
        "measured | its estimate's error | named | accuracy with - without |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (dataset, n_rows, epsilon), rows in sorted(cells.items()):
        least = [min(row["measured"]) for row in rows]
        worst = [row["worst"] for row in rows]
        held = [
            one["low"] <= true <= one["high"]
            for row in rows
            for one, true in zip(row["expected"], row["measured"], strict=True)
        ]
        both = list(zip(worst, least, strict=True))
        of_worst = [one["low"] <= true <= one["high"] for one, true in both]
        off = [100 * (one["accuracy"] - true) for one, true in both]
        named = [int(np.argmin(row["measured"])) == row["weakest"] for row in rows]
        cost = [100 * (row["accuracy"] - row["without"]) for row in rows]
        lines.append(
            f"| {n_rows:,} of {dataset} | {epsilon:g} | {len(rows)} | "
            f"{100 * mean(held):.0f} % | {sum(of_worst)} | {100 * mean(least):.1f} | "
            f"{mean(off):+.1f} ± {stdev(off):.1f} | {sum(named)} | {mean(cost):+.1f} |"
        )
    return "\n".join(lines)
