"""Heads of `auto` with and without public axes (`fit --axes-from`):

    python -m benchmarks.experiments.axes IMAGES

IMAGES is the folder of results/calibration. A pair of fits with the
same rows and noise is a line of results/axes/rows.jsonl. `... IMAGES more` makes more
draws of the cells that lost more than 0.3 points (more.jsonl).
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.data.on_axes import RowsOnAxes, principal_axes
from dphead.fit.fit import fit_rows
from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.plan import make_plan
from dphead.privacy.axes import PublicAxes
from dphead.privacy.contract import Rows
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.on_axes import OnAxes, number_of_axes

OUT = RESULTS / "axes" / "rows.jsonl"
EACH, EPSILONS, DRAWS = (20, 50, 120), (1.0, 3.0), 3
MORE = {("bear, wolf", 50, 3.0): 30, ("cat, dog", 20, 1.0): 30}


class Task(NamedTuple):
    """Private rows of some classes, the set of public rows, and whether it chose."""

    file: str
    classes: tuple[int, ...]
    public: str
    chose: bool = False


TASKS = {
    "cifar10": Task("cifar10", tuple(range(10)), "cifar100", True),
    "cat, dog": Task("cifar10", (3, 5), "cifar100", True),
    "plane, ship": Task("cifar10", (0, 8), "cifar100", True),
    "cifar100, every tenth from 2": Task(
        "cifar100", tuple(range(2, 100, 10)), "cifar10"
    ),
    "cifar100, every tenth from 7": Task(
        "cifar100", tuple(range(7, 100, 10)), "cifar10"
    ),
    "bear, wolf": Task("cifar100", (3, 97), "cifar10"),
    "bicycle, motorcycle": Task("cifar100", (8, 48), "cifar10"),
    "fashion": Task("fashion_mnist", tuple(range(10)), "mnist"),
    "coat, shirt": Task("fashion_mnist", (4, 6), "mnist"),
    "fashion on photographs": Task("fashion_mnist", tuple(range(10)), "cifar100"),
    "mnist on photographs": Task("mnist", tuple(range(10)), "cifar100"),
}


def rows_of(folder: Path, task: Task, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a task's classes, and their positions."""
    file = np.load(folder / f"{task.file}.npz")
    x, y = file[f"x{part}"], file[f"y{part}"]
    position = np.full(int(y.max()) + 1, -1)
    position[list(task.classes)] = range(len(task.classes))
    kept = position[y] >= 0
    return x[kept].astype(np.float32), position[y[kept]]


def measured(
    rows: Rows, facts: ProblemInfo, axes: PublicAxes | None, seed: int, test
) -> dict[str, float]:
    """Balanced accuracy and the worst class's, in percent."""
    solver, own = Auto(), rows
    if axes is not None:
        solver = OnAxes(solver, axes, "")
        own = RowsOnAxes(rows, axes)
        facts = ProblemInfo(facts.n_rows, axes.count, facts.n_classes)
    plan = make_plan(solver, facts, epsilon=test[2], delta=1e-5)
    head = fit_rows(plan, own, noise=NoiseSource(seed)).trained
    chosen, y = head.scores(test[0]).argmax(axis=1), test[1]
    recall = [100 * float((chosen[y == k] == k).mean()) for k in np.unique(y)]
    return {
        "balanced": round(float(np.mean(recall)), 2),
        "worst": round(min(recall), 2),
    }


def main(folder: Path, part: str = "rows") -> None:
    """Run what is missing, where `number_of_axes` chooses axes."""
    out = OUT.with_name(f"{part}.jsonl")
    done = {(r["set"], r["each"], r["epsilon"], r["seed"]) for r in read(out)}
    for name, task in TASKS.items():
        x, y = rows_of(folder, task, "train")
        new, label = rows_of(folder, task, "test")
        public = np.load(folder / f"{task.public}.npz")["xtrain"][:3000]
        made: dict[int, PublicAxes] = {}
        for each in (n for n in EACH if n <= min(np.bincount(y))):
            for epsilon in EPSILONS:
                n = each * len(task.classes)
                mu = mu_from_epsilon(epsilon, 1e-5)
                facts = ProblemInfo(n, x.shape[1], len(task.classes), mu=mu)
                count = number_of_axes(facts)
                more = MORE.get((name, each, epsilon), 0)
                draws = DRAWS if part == "rows" else more
                for seed in range(draws) if count else ():
                    if (name, each, epsilon, seed) in done:
                        continue
                    order = np.random.default_rng(seed).permutation(len(y))
                    parts = [
                        order[y[order] == k][:each] for k in range(len(task.classes))
                    ]
                    kept = np.sort(np.concatenate(parts))
                    rows = ArrayRows(x[kept], y[kept])
                    if count not in made:
                        made[count] = principal_axes(public.astype(np.float32), count)
                    test = (new, label, epsilon)
                    line = {"set": name, "each": each, "epsilon": epsilon, "seed": seed}
                    line |= {"public": task.public, "chose": task.chose, "axes": count}
                    line |= {"n_classes": len(task.classes), "strength": each * mu}
                    for key, axes in (("without", None), ("with", made[count])):
                        line[key] = measured(rows, facts, axes, seed, test)
                    append(out, line | provenance())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
