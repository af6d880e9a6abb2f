"""What a choice among two networks costs beside a fit on the better one alone, and how
often it is right (docs/backbones.md).

Fits on training rows, measured on test rows, which choose nothing. `python -m
benchmarks backbones` runs what is missing, one JSON line a fit in
results/backbones.jsonl, and prints the table. "half" is a fixed half of a network's
features: a network that is a little worse.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks import features
from benchmarks.features import Loaded, training_rows
from benchmarks.heads import DELTA
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.verdicts import mean_sd
from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto
from dphead.solvers.backbones import BackboneSelection
from dphead.solvers.base import Solver

OUT = RESULTS / "backbones.jsonl"
HALF = " half"
CHOICE = "choice"
# data set, the better network and the other, epsilons, draws
PAIRS = (
    ("digits", ("scatternet-local", "scatternet"), (0.5, 1.0, 3.0), 20),
    ("cifar10", ("mobilenetv2-128", "mobilenetv2-128" + HALF), (0.1, 1.0, 4.0), 3),
    ("cifar10", ("mobilenetv2-128", "deep-patches"), (1.0,), 3),
)
Key = tuple[str, tuple[str, ...], float]


@lru_cache(maxsize=2)
def load(dataset: str, name: str) -> Loaded:
    """One network's features; of a half of its columns where its name says so."""
    data = features.load(dataset, name.removesuffix(HALF))
    if not name.endswith(HALF):
        return data
    width = data.facts.n_features
    kept = np.sort(np.random.default_rng(7).permutation(width)[: width // 2])
    x, y = training_rows(data)
    facts = replace(data.facts, n_features=len(kept))
    rows = ArrayRows(np.ascontiguousarray(x[:, kept]), y)
    return Loaded(rows, data.x[:, kept], data.y, facts, data.described)


def fitted(
    networks: Sequence[Loaded], epsilon: float, seed: int, choose: bool
) -> dict[str, Any]:
    """Accuracy of a fit that chooses among networks, and which it chose; or of one on
    the first.
    """
    facts = networks[0].facts
    solver: Solver = Auto()
    if choose:
        widths = tuple(data.facts.n_features for data in networks)
        solver = BackboneSelection(widths)
        facts = replace(facts, n_features=max(widths))
    plan = make_plan(solver, facts, epsilon=epsilon, delta=DELTA)
    rows = [data.rows for data in networks] if choose else networks[0].rows
    head = fit_head(solver, rows, facts, plan, Run(noise=NoiseSource(seed))).head
    chosen = head.selection.chosen if head.selection else 0
    data = networks[chosen]
    accuracy = float(np.mean(head.scores(data.x).argmax(axis=1) == data.y))
    return {"accuracy": accuracy, "chosen": chosen}


def run() -> None:
    """The missing rows."""
    source = provenance()
    done = {(*_key(r), r["variant"], r["seed"]) for r in read(OUT)}
    for dataset, names, epsilons, draws in PAIRS:
        for epsilon in epsilons:
            key: Key = (dataset, names, epsilon)
            for variant in (CHOICE, names[0]):
                seeds = [s for s in range(draws) if (*key, variant, s) not in done]
                for seed in seeds:
                    networks = [load(dataset, name) for name in names]
                    found = fitted(networks, epsilon, seed, variant == CHOICE)
                    row = {"dataset": dataset, "networks": names, "variant": variant}
                    row |= {"epsilon": epsilon, "delta": DELTA, "seed": seed}
                    append(OUT, row | found | {"measured_on": "test rows"} | source)
                    print(f"{key} {variant} draw {seed}: {found}", flush=True)


def _key(row: dict[str, Any]) -> Key:
    return row["dataset"], tuple(row["networks"]), row["epsilon"]


def table() -> str:
    """Accuracy of the choice and of the better network alone, in %, mean ± sd."""
    cells: dict[Key, dict[str, list[dict[str, Any]]]]
    cells = defaultdict(lambda: defaultdict(list))
    for row in read(OUT):
        cells[_key(row)][row["variant"]].append(row)
    lines = [
        "| rows | networks | ε | draws | first chosen | choice | first alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, names, epsilon), found in cells.items():
        choices = found[CHOICE]
        first = sum(row["chosen"] == 0 for row in choices)
        shown = [_spread(rows) for rows in (choices, found[names[0]])]
        lines.append(
            f"| {dataset} | {', '.join(names)} | {epsilon:g} | {len(choices)} | "
            f"{first} | {' | '.join(shown)} |"
        )
    return "\n".join(lines)


def _spread(rows: Sequence[dict[str, Any]]) -> str:
    values = [100 * row["accuracy"] for row in rows]
    return mean_sd(values, digits=1) if len(values) > 1 else "-"
