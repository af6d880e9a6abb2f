"""Temperatures of `auto` where the expected accuracy may be that of guessing:

    python -m benchmarks.experiments.guessing IMAGES TABLES

IMAGES is a folder with NAME.npz (xtrain, ytrain, xtest, ytest: features of MobileNetV2
at 112 px of the first 8,000, 4,000 or 3,000 and 4,000 or 2,000 rows of a random order),
TABLES the folder `csv` of the package pydataset 0.2.0. A fit is a line of
results/calibration/guessing.jsonl.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
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

OUT = RESULTS / "calibration" / "guessing.jsonl"
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Classes = list[list[int]]
# classes of each class, and training rows of each if they are uneven
IMAGES: dict[str, tuple[str, Classes | None, list[int] | None]] = {
    "pullover, shirt": ("fashion_mnist", [[2], [6]], None),
    "clothes, shirt 10:1": ("fashion_mnist", [[0, 2, 3, 4], [6]], [1500, 150]),
    "mnist 4, 9": ("mnist", [[4], [9]], None),
    "cifar100, 20": ("cifar100", [[k] for k in range(20)], None),
}
TABLES = {  # file, label, and columns that are left out
    "Hdma": ("Ecdat/Hdma.csv", "deny", []),
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
    """Fit once. Append a line if the interval of the accuracy holds guessing."""
    x, y, new, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    line = {"set": name, "epsilon": epsilon, "seed": seed, "n_rows": len(x)}
    line |= {"n_features": facts.n_features, "n_classes": facts.n_classes}
    line |= {"n_test": len(new), "largest_class": float(np.bincount(y).max() / len(y))}
    found: list[float] = []
    temperature = auto.temperature

    def noted(facts, expected, margin) -> float:
        above = replace(expected, careful=(0.99, 1e-6))
        found.extend(temperature(facts, e, margin) for e in (above, expected))
        return found[-1]

    auto.temperature = noted
    try:
        plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
        fit = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed))
    finally:
        auto.temperature = temperature
    expected = fit.trained.estimate
    if found[0] == found[1]:  # the rule changes nothing
        return
    scores = fit.trained.scores(new)
    right = scores.argmax(axis=1) == label
    line |= {"accuracy": round(float(right.mean()), 5), "expected": vars(expected)}
    for key, divisor in zip(("without", "with"), found, strict=True):
        p = probabilities(scores * (found[-1] / divisor))
        line |= {f"temperature_{key}": divisor}
        line |= {f"confidence_{key}": round(float(p.max(axis=1).mean()), 5)}
        error = expected_calibration_error(label, p)
        line |= {f"error_{key}": round(error, 5)}
        own = p[np.arange(len(label)), label]
        line |= {f"log_loss_{key}": round(float(-np.log(own).mean()), 5)}
    append(OUT, line | provenance())


def sets_of(folder: Path, csv: Path) -> dict[str, Callable[[], Split]]:
    """All sets, each read when it is called."""
    sets: dict[str, Callable[[], Split]] = {
        "wine": lambda: shipped(datasets.load_wine),
    }
    for name, (file, label, dropped) in TABLES.items():
        sets[name] = lambda f=file, a=label, b=dropped: table(csv / f, a, b)
    for name, (file, classes, sizes) in IMAGES.items():
        sets[name] = lambda f=file, a=classes, b=sizes: images(
            folder / f"{f}.npz", a, b
        )
    return sets


def main(folder: Path, csv: Path) -> None:
    """Run what is missing, also on shuffled labels, which features do not tell."""
    done = {(r["set"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for name, made in sets_of(folder, csv).items():
        x, y, new, label = made()
        rng = np.random.default_rng(1)
        both = {name: (x, y, new, label)}
        both[f"{name}, shuffled"] = (x, rng.permutation(y), new, rng.permutation(label))
        for one, rows in both.items():
            for epsilon in (0.1, 0.3, 1.0, 8.0):
                for seed in range(3):
                    if (one, epsilon, seed) not in done:
                        measure(one, rows, epsilon, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
