"""Classes that a head never predicts, told by the head alone and by released means:

    python -m benchmarks.experiments.missed IMAGES

IMAGES is a folder with NAME.npz, as results/calibration describes it. A fit is a line
of results/missed/rows.jsonl: the classes that are never predicted on test rows, and the
share of each class in simulated rows of several sizes (`shares`).
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.planning.worth import is_too_little
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistics import ClassSums, Gradient
from dphead.solvers import ProblemInfo

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
OUT = RESULTS / "missed" / "rows.jsonl"
SIZES = (0.02, 0.06, 0.2)
# classes, and rows of each; the first half chooses the rule
SETS: dict[str, tuple[str, list[list[int]], list[int]]] = {
    "dog, cat 9:1": ("cifar10", [[5], [3]], [540, 60]),
    "animals, cat 20:1": ("cifar10", [[2, 4, 5, 6, 7], [3]], [2000, 100]),
    "three, one rare": ("cifar10", [[0], [8], [1]], [500, 500, 50]),
    "cifar10": ("cifar10", [[k] for k in range(10)], [80] * 10),
    "pullover, shirt 9:1": ("fashion_mnist", [[2], [6]], [270, 30]),
    "4, 9 20:1": ("mnist", [[4], [9]], [300, 15]),
    "clothes, shirt 20:1": ("fashion_mnist", [[0, 2, 3, 4], [6]], [1500, 75]),
    "cifar100, halves 9:1": (
        "cifar100",
        [list(range(50)), list(range(50, 100))],
        [1350, 150],
    ),
    "cifar100, 20": ("cifar100", [[k] for k in range(20)], [40] * 20),
    "mnist": ("mnist", [[k] for k in range(10)], [60] * 9 + [10]),
}
METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    "auto, balanced": {"balanced": True},
    "dp-ls": {},
    "prototypes": {},
    "dp-adam": {},
    "auto, balanced, classes": {"balanced": True, "per_class_share": 0.05},
}


class Recording:
    """Run a solver, and keep the released class sums."""

    def __init__(self, solver: Any) -> None:
        self.solver, self.name, self.sums = solver, solver.name, None

    def plan(self, facts: ProblemInfo) -> Any:
        """Return the solver's plan."""
        return self.solver.plan(facts)

    def solve(self, facts: ProblemInfo) -> Any:
        """Pass requests and answers on."""
        steps, answer = self.solver.solve(facts), None
        try:
            while True:
                request = steps.send(answer)
                answer = yield request
                if self.sums is None and isinstance(request.statistic, ClassSums):
                    self.sums = answer.value
                if self.sums is None and isinstance(request.statistic, Gradient):
                    # at zero weights; centered rows add up to about zero
                    self.sums = -answer.value
                    constant = facts.n_rows / facts.n_classes
                    self.sums[facts.n_features :] += constant
        except StopIteration as end:
            return end.value


def shares(weights: np.ndarray, intercept: np.ndarray, size: float) -> list[float]:
    """Share of each class in rows of independent normal columns of this size."""
    # only the class scores matter: the triangular factor has their covariance
    factor = np.linalg.qr(weights, mode="r")
    rows = np.random.default_rng(0).normal(size=(20_000, len(factor)))
    chosen = (size * rows @ factor + intercept).argmax(axis=1)
    return (np.bincount(chosen, minlength=len(intercept)) / len(rows)).tolist()


def images(path: Path, classes: list[list[int]], sizes: list[int]) -> Split:
    """Return rows of these classes; test rows have the shares of training rows."""
    file, found = np.load(path), []
    for part in ("train", "test"):
        x, y = file[f"x{part}"], file[f"y{part}"]
        own = [np.flatnonzero(np.isin(y, members)) for members in classes]
        share = min(1.0, *(len(o) / s for o, s in zip(own, sizes, strict=True)))
        own = [o[: int(share * s)] for o, s in zip(own, sizes, strict=True)]
        label = np.repeat(np.arange(len(own)), [len(o) for o in own])
        order = np.argsort(np.concatenate(own), kind="stable")
        found += [x[np.concatenate(own)[order]], label[order]]
    return found[0], found[1], found[2], found[3]


@cache
def rows_of(name: str, folder: Path) -> Split:
    """Return the rows of a set."""
    file, classes, sizes = SETS[name]
    return images(folder / f"{file}.npz", classes, sizes)


def measure(name: str, method: str, epsilon: float, seed: int, folder: Path) -> None:
    """Fit once, and append a line."""
    x, y, new, _ = rows_of(name, folder)
    classes = SETS[name][1]
    facts = ProblemInfo(len(x), x.shape[1], len(classes))
    made = make_method(method.split(",")[0], facts, METHODS[method])
    solver = Recording(made.solver)
    plan = make_plan(solver, facts, epsilon=epsilon, delta=1e-5)
    fit = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed))
    head = fit.trained
    chosen = np.bincount(head.scores(new).argmax(axis=1), minlength=len(classes))
    line = {"set": name, "method": method, "epsilon": epsilon, "seed": seed}
    line |= {"n_rows": len(x), "n_test": len(new), "predicted": chosen.tolist()}
    line["few"] = is_too_little(plan, facts)
    if head.class_accuracy is not None:
        each = head.class_accuracy.each
        line["each"] = [[round(v, 3) for v in vars(one).values()] for one in each]
    line["shares"] = {
        str(size): np.round(shares(head.weights, head.intercept, size), 4).tolist()
        for size in SIZES
    }
    if solver.sums is not None:
        means = solver.sums[: facts.n_features].T
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        for size in (0.3,):
            own = (size * means @ head.weights + head.intercept).argmax(axis=1)
            line[f"mean_{size}"] = sorted(set(range(len(classes))) - set(own.tolist()))
    append(OUT, line | provenance())


def main(folder: Path, methods: str = "") -> None:
    """Run what is missing."""
    done = {(r["set"], r["method"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for seed in range(3):
        for name in SETS:
            for method in methods.split(";") if methods else METHODS:
                for epsilon in (0.5, 1.0, 3.0, 8.0):
                    if (name, method, epsilon, seed) not in done:
                        measure(name, method, epsilon, seed, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
