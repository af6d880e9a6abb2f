"""Calibration and balanced accuracy of `auto`:

    python -m benchmarks.experiments.calibration IMAGES TABLES

IMAGES is a folder with NAME.npz (xtrain, ytrain, xtest, ytest: features of MobileNetV2
at 112 px of the first 8,000, 4,000 or 3,000 and 4,000 or 2,000 rows of a random order),
TABLES the folder `csv` of the package pydataset 0.2.0. A fit is a line of
results/calibration/rows.jsonl.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import expected_calibration_error, probabilities
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, auto

OUT = RESULTS / "calibration" / "rows.jsonl"
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Classes = list[list[int]]
# classes of each class, and training rows of each if they are uneven
IMAGES: dict[str, tuple[str, Classes | None, list[int] | None]] = {
    "cifar10": ("cifar10", None, None),
    "cat, dog": ("cifar10", [[3], [5]], None),
    "plane, ship": ("cifar10", [[0], [8]], None),
    "animal, vehicle": ("cifar10", [[2, 3, 4, 5, 6, 7], [0, 1, 8, 9]], None),
    "dog, cat 5:1": ("cifar10", [[3], [5]], [700, 140]),
    "animals, cat 20:1": ("cifar10", [[2, 4, 5, 6, 7], [3]], [3000, 150]),
    "fashion": ("fashion_mnist", None, None),
    "pullover, shirt": ("fashion_mnist", [[2], [6]], None),
    "clothes, shirt 10:1": ("fashion_mnist", [[0, 2, 3, 4], [6]], [1500, 150]),
    "mnist": ("mnist", None, None),
    "mnist 4, 9": ("mnist", [[4], [9]], None),
    "cifar100, 20": ("cifar100", [[k] for k in range(20)], None),
    "cifar100, 43": ("cifar100", [[k] for k in range(43)], None),
    "cifar100": ("cifar100", None, None),
    "cifar100, halves": ("cifar100", [list(range(50)), list(range(50, 100))], None),
}
TABLES = {  # file, label, and columns that are left out
    "HI": ("Ecdat/HI.csv", "hhi", []),
    "diamonds": ("ggplot2/diamonds.csv", "cut", []),
    "Hdma": ("Ecdat/Hdma.csv", "deny", []),
    "flchain": ("survival/flchain.csv", "death", ["futime", "chapter"]),
    "bfi": ("psych/bfi.csv", "gender", []),
    "OFP": ("Ecdat/OFP.csv", "medicaid", []),
    "Cracker": ("Ecdat/Cracker.csv", "choice", ["id"]),
}


def images(path: Path, classes: Classes | None, sizes: list[int] | None) -> Split:
    """Rows of these classes. Test rows have the shares of uneven training rows."""
    file = np.load(path)
    found: list[np.ndarray] = []
    for part in ("train", "test"):
        x, y = file[f"x{part}"], file[f"y{part}"]
        if classes:
            position = np.full(int(y.max()) + 1, -1)
            for i, members in enumerate(classes):
                position[members] = i
            y = position[y]
            x, y = x[y >= 0], y[y >= 0]
        if sizes:
            counts = np.bincount(y)
            share = min(1.0, min(c / s for c, s in zip(counts, sizes, strict=True)))
            own = [
                np.flatnonzero(y == i)[: int(share * s)] for i, s in enumerate(sizes)
            ]
            kept = np.sort(np.concatenate(own))
            x, y = x[kept], y[kept]
        found += [x, y]
    return found[0], found[1], found[2], found[3]


def table(path: Path, label: str, dropped: list[str]) -> Split:
    """At most 20,000 rows; columns standardized, and clipped at 5."""
    frame = pd.read_csv(path, index_col=0).dropna(subset=[label])
    y = np.unique(frame[label].astype(str), return_inverse=True)[1]
    frame = frame.drop(columns=[label, *dropped])
    texts = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    many = [c for c in texts if len(set(frame[c])) > 12]
    x = pd.get_dummies(frame.drop(columns=many)).astype(float)
    x = x.fillna(x.median())
    x = ((x - x.mean()) / (x.std() + 1e-9)).clip(-5, 5)
    return split(x.to_numpy(), y)


def shipped(load: Callable) -> Split:
    """A set of scikit-learn."""
    data = load()
    x = data.data
    return split((x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9), data.target, 0.4)


def split(x: np.ndarray, y: np.ndarray, test: float = 0.3) -> Split:
    """A fixed random part of the rows as test rows."""
    order = np.random.default_rng(0).permutation(len(x))[:20_000]
    kept, held = np.split(order, [int(len(order) * (1 - test))])
    return x[kept].astype(np.float32), y[kept], x[held].astype(np.float32), y[held]


def measure(name: str, rows: Split, epsilon: float, seed: int) -> None:
    """Fit once plainly and once balanced, and append a line."""
    x, y, new, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    line = {"set": name, "epsilon": epsilon, "seed": seed, "n_rows": len(x)}
    line |= {"n_features": facts.n_features, "n_classes": facts.n_classes}
    line |= {"n_test": len(new), "largest_class": float(np.bincount(y).max() / len(y))}
    divisors: list[float] = []
    temperature = auto.temperature

    def noted(*given) -> float:
        divisors.append(temperature(*given))
        return divisors[-1]

    auto.temperature = noted
    for balanced in (False, True):
        plan = make_plan(Auto(balanced=balanced), facts, epsilon=epsilon, delta=1e-5)
        fit = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed))
        scores = fit.trained.scores(new)
        chosen = scores.argmax(axis=1)
        each = [float((chosen[label == k] == k).mean()) for k in np.unique(label)]
        line["balanced" if balanced else "plain"] = round(float(np.mean(each)), 5)
        if not balanced:
            line["accuracy"] = round(float((chosen == label).mean()), 5)
            expected = fit.trained.estimate
            line |= {"expected": vars(expected), "temperature": divisors[-1]}
            for key, factor in (("before", divisors[-1]), ("after", 1.0)):
                p = probabilities(scores * factor)
                error = expected_calibration_error(label, p)
                own = p[np.arange(len(label)), label]
                line |= {f"error_{key}": round(error, 5)}
                line |= {f"log_loss_{key}": round(float(-np.log(own).mean()), 5)}
            # the best constant, which needs the test labels
            grid = np.geomspace(0.1, 10, 93)
            losses = [
                -np.log(
                    probabilities(scores * divisors[-1] / t)[range(len(label)), label]
                )
                for t in grid
            ]
            best = grid[int(np.argmin([np.mean(one) for one in losses]))]
            p = probabilities(scores * divisors[-1] / best)
            error = expected_calibration_error(label, p)
            line |= {"best_temperature": round(float(best), 3)}
            line |= {"error_best": round(error, 5)}
    auto.temperature = temperature
    append(OUT, line | provenance())


def sets_of(folder: Path, csv: Path) -> dict[str, Callable[[], Split]]:
    """All sets, each read when it is called."""
    sets: dict[str, Callable[[], Split]] = {
        "breast cancer": lambda: shipped(datasets.load_breast_cancer),
        "digits": lambda: shipped(datasets.load_digits),
        "wine": lambda: shipped(datasets.load_wine),
    }
    for name, (file, label, dropped) in TABLES.items():
        sets[name] = lambda f=file, a=label, b=dropped: table(csv / f, a, b)
    for name, (file, classes, sizes) in IMAGES.items():
        sets[name] = lambda f=file, a=classes, b=sizes: images(
            folder / f"{f}.npz", a, b
        )
    return sets


def worth(name: str, rows: Split, each: int, seed: int) -> None:
    """Fit each epsilon, and no privacy, on `each` rows of a class; append a line."""
    x, y, new, label = rows
    order = np.random.default_rng(seed).permutation(len(y))
    classes = np.unique(y)
    kept = np.concatenate([order[y[order] == k][:each] for k in classes])
    kept.sort()
    x, y = x[kept], y[kept]
    facts = ProblemInfo(len(x), x.shape[1], len(classes))
    line = {"set": name, "seed": seed, "n_rows": len(x), "rows_of_a_class": each}
    line |= {"n_features": facts.n_features, "n_classes": facts.n_classes}
    for epsilon in (0.3, 1.0, 3.0, 8.0, np.inf):
        plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
        fit = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed))
        chosen = fit.trained.scores(new).argmax(axis=1)
        recall = [float((chosen[label == k] == k).mean()) for k in classes]
        found = {"balanced": round(float(np.mean(recall)), 4)}
        found |= {"worst": round(min(recall), 4), "mu": plan.budgeted(facts).mu}
        line[f"{epsilon:g}"] = found
    append(RESULTS / "worth" / "rows.jsonl", line | provenance())


def main(folder: Path, csv: Path, part: str = "calibration") -> None:
    """Run what is missing of "calibration", or of "worth"."""
    done = {(r["set"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for name, made in sets_of(folder, csv).items():
        rows = made()
        if part == "worth":
            if min(np.bincount(rows[1])) >= 40 and ":" not in name:
                for each in (20, 50, 120, 300):
                    if min(np.bincount(rows[1])) >= each:
                        worth(name, rows, each, 0)
            continue
        for epsilon in (1.0, 8.0):
            for seed in range(3):
                if (name, epsilon, seed) not in done:
                    measure(name, rows, epsilon, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
