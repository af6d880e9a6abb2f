"""`auto` beside every method at its defaults, and beside an oracle: methods tuned on the test rows.

The oracle is what nobody could use: for each epsilon, the best of a method's settings (`GRIDS`, at most 30) by its mean
accuracy on the very test rows that are reported, at no charge. `python -m benchmarks.compare DATASET` runs what is
missing of it, for cifar10, mnist or digits, one JSON line a fit in results/auto/; `... table` writes the README there.
The rows of untuned methods are those of `python -m benchmarks heads`; for digits, 20 random splits, they are run here.
"""

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks import features
from benchmarks.ablation import Recorded, accuracies
from benchmarks.features import Loaded
from benchmarks.heads import DELTA, METHODS, RESULTS, append, provenance, read
from dphead.data import ArrayRows
from dphead.fit import fit_head
from dphead.methods import make_method
from dphead.privacy.noise import NoiseSource
from dphead.solvers import DPFC, Auto, GradientDescent, LeastSquares
from dphead.solvers.base import center_classes
from dphead.solvers.ridge import RidgeSolver

OUT = RESULTS / "auto"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DATASETS = {"cifar10": "mobilenetv2-128", "mnist": "scatternet", "digits": "scatternet"}
STORED = {"cifar10": "cifar10-mobilenetv2", "mnist": "mnist-scatternet"}
DRAWS = {"cifar10": 3, "mnist": 1, "digits": 20}
TITLES = {
    "cifar10": "CIFAR-10, MobileNetV2 at 128 px (50,000 × 1,280)",
    "mnist": "MNIST, ScatterNet (60,000 × 3,969)",
    "digits": "scikit-learn's digits, ScatterNet (1,347 × 324)",
}
MOVES, RIDGES = (0.5, 0.9, 1.6), (1e-3, 3e-3, 1e-2)
GRIDS: dict[str, dict[str, Any]] = {
    "gradient descent": {
        f"{steps} steps, noise moves a weight by {move}": Auto(steps=steps, move=move, estimate=False)
        for steps, move in product((30, 60, 100), MOVES)
    },
    "dp-adam": {
        f"{steps} steps, learning rate {rate}": GradientDescent("adam", steps=steps, learning_rate=rate)
        for steps, rate in product((30,), (0.03, 0.1, 0.3))
    },
    "dp-fc": {
        f"{steps} steps, ridge {ridge}": DPFC(steps=steps, ridge=ridge) for steps, ridge in product((3, 10, 30), RIDGES)
    },
    "dp-ls": {f"ridge {ridge:.2g}": float(ridge) for ridge in np.geomspace(1e-4, 1, 30)},
}
UNTUNED = "defaults"
Row = dict[str, Any]


def run(dataset: str) -> None:
    """The missing rows of a data set, those of one epsilon, draw and method together."""
    out, source = OUT / f"{dataset}.jsonl", provenance()
    done = {(r["method"], r["epsilon"], r["seed"]) for r in read(out) if r["settings"] != UNTUNED}
    done |= {(UNTUNED, r["epsilon"], r["seed"]) for r in read(out) if r["settings"] == UNTUNED}
    for seed in range(DRAWS[dataset]):
        data: Loaded | None = None
        methods = [*GRIDS, *([UNTUNED] if dataset == "digits" else [])]
        for epsilon, method in ((e, m) for e in EPSILONS for m in methods):
            if (method, epsilon, seed) in done:
                continue
            data = data or loaded(dataset, seed)
            described = {"dataset": dataset, "features": data.described, "epsilon": epsilon, "delta": DELTA}
            for name, settings, accuracy in found(data, method, epsilon, seed):
                row = {"method": name, "settings": settings, "seed": seed, "accuracy": accuracy}
                append(out, described | row | {"measured_on": "test rows"} | source)
            print(f"{dataset} eps {epsilon:g} draw {seed} {method}", flush=True)


def loaded(dataset: str, seed: int) -> Loaded:
    """Training and test rows; for digits, a random split of all rows into as many as the file has."""
    data = features.load(dataset, DATASETS[dataset])
    if dataset != "digits":
        return data
    blocks = [(b.x[b.index >= 0], b.y[b.index >= 0]) for b in data.rows.blocks()]
    x = np.concatenate([*(x for x, _ in blocks), data.x])
    y = np.concatenate([*(y for _, y in blocks), data.y])
    order, n = np.random.default_rng(seed).permutation(len(x)), data.facts.n_rows
    train, test = order[:n], order[n:]
    return Loaded(ArrayRows(x[train], y[train]), x[test], y[test], data.facts, data.described | {"split": seed})


def found(data: Loaded, method: str, epsilon: float, seed: int) -> Iterator[tuple[str, str, float]]:
    """(method, settings, accuracy) of every setting of a grid, or of every method's defaults."""
    if method == UNTUNED:
        names = [m for m in METHODS if m != "dp-newton"]
        solvers = [make_method(m, data.facts, {}).solver for m in names]
        accuracy = accuracies(data, [(s, seed) for s in solvers], epsilon)
        yield from ((name, UNTUNED, a) for name, a in zip(names, accuracy, strict=True))
    elif method == "dp-ls":
        yield from ((method, *result) for result in least_squares(data, epsilon, seed))
    else:
        grid = GRIDS[method]
        for part in parts(list(grid), 4 if data.facts.n_features > 2048 else 15):
            accuracy = accuracies(data, [(grid[name], seed) for name in part], epsilon)
            yield from ((method, name, a) for name, a in zip(part, accuracy, strict=True))


def parts(names: list[str], size: int) -> list[list[str]]:
    """In groups: Gram matrices of fits that run at the same time must fit in memory."""
    return [names[i : i + size] for i in range(0, len(names), size)]


def least_squares(data: Loaded, epsilon: float, seed: int) -> Iterator[tuple[str, float]]:
    """Every λ on the sums of one fit."""
    solver = Recorded(LeastSquares())
    fit_head(solver, data.rows, data.facts, epsilon=epsilon, delta=DELTA, noise=NoiseSource(seed))
    gram, right = solver.answers["gram"].value, center_classes(solver.answers["class sums"].value)
    held = solver.transform.apply(np, data.x)[0]
    for name, ridge in GRIDS["dp-ls"].items():
        weights = RidgeSolver(gram, ridge * data.facts.n_rows)(right)
        yield name, float(np.mean((held @ weights.astype(np.float32)).argmax(axis=1) == data.y))


if __name__ == "__main__":
    run(sys.argv[1])
