"""Calibration and balanced accuracy of `auto`:

    python -m benchmarks.experiments.calibration IMAGES TABLES

IMAGES is a folder with NAME.npz: xtrain, ytrain, xtest, ytest. They are features of
MobileNetV2 of the first 8,000 (CIFAR), 4,000 (Fashion-MNIST) or 3,000 (MNIST) training
rows and 4,000 (CIFAR) or 2,000 test rows of `default_rng(1).permutation`. Pillow made
the images 112 px wide (bicubic), and their pixels are divided by 127.5, less 1.
TABLES the folder `csv` of the package pydataset 0.2.0. A pair of fits is a line of
results/calibration/rows.jsonl. `... IMAGES TABLES reasons` then fits each cell with a
high error again, and appends to reasons.jsonl where the error comes from. `... uneven`
fits uneven sets that the rule for balanced decisions was not tried on (uneven.jsonl),
`... IMAGES TABLES reasons-uneven 12 SET...` is for these sets, here with 12 draws, and
`... IMAGES TABLES page` prints the tables of the page.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import (
    _expected_calibration_error as expected_calibration_error,
)
from dphead.analysis.metrics import probabilities
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, auto

OUT = RESULTS / "calibration" / "rows.jsonl"
REASONS = OUT.with_name("reasons.jsonl")
UNEVEN = OUT.with_name("uneven.jsonl")
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
}
_HALVED = [[k] for k in range(5)]
_GROUPS = [list(range(40)), list(range(40, 48)), [48, 49]]
UNEVEN_IMAGES: dict[str, tuple[str, Classes | None, list[int] | None]] = {
    "fashion, halved 4 times": ("fashion_mnist", _HALVED, [400, 200, 100, 50, 25]),
    "mnist, halved 4 times": ("mnist", _HALVED, [288, 144, 72, 36, 18]),
    "cifar100, 40:8:2": ("cifar100", _GROUPS, None),
}
_LEVELS = [f"edlevel{k}" for k in range(1, 5)]
UNEVEN_TABLES = {
    "diamonds, clarity": ("ggplot2/diamonds.csv", "clarity", []),
    "diamonds, color": ("ggplot2/diamonds.csv", "color", []),
    "Males": ("Ecdat/Males.csv", "occupation", ["nr"]),
    "Workinghours": ("Ecdat/Workinghours.csv", "occupation", []),
    "Yogurt": ("Ecdat/Yogurt.csv", "choice", ["id"]),
    "Catsup": ("Ecdat/Catsup.csv", "choice", ["id"]),
    "rwm5yr": ("COUNT/rwm5yr.csv", "edlevel", ["id", "educ", *_LEVELS]),
}
CHOSE = (  # sets that chose the temperature's numbers
    "HI",
    "animal, vehicle",
    "animals, cat 20:1",
    "breast cancer",
    "cat, dog",
    "cifar10",
    "digits",
    "dog, cat 5:1",
    "plane, ship",
)
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


def measure(
    name: str, rows: Split, epsilon: float, seed: int, file: Path = OUT
) -> None:
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
    append(file, line | provenance())


def sets_of(
    folder: Path, csv: Path, uneven: bool = False
) -> dict[str, Callable[[], Split]]:
    """All sets, each read when it is called."""
    sets: dict[str, Callable[[], Split]] = {}
    if not uneven:
        sets |= {
            "breast cancer": lambda: shipped(datasets.load_breast_cancer),
            "digits": lambda: shipped(datasets.load_digits),
            "wine": lambda: shipped(datasets.load_wine),
        }
    tables = UNEVEN_TABLES if uneven else TABLES
    for name, (file, label, dropped) in tables.items():
        sets[name] = lambda f=file, a=label, b=dropped: table(csv / f, a, b)
    for name, (file, classes, sizes) in (UNEVEN_IMAGES if uneven else IMAGES).items():
        sets[name] = lambda f=file, a=classes, b=sizes: images(
            folder / f"{f}.npz", a, b
        )
    return sets


def reasons(name: str, rows: Split, epsilon: float, seed: int) -> None:
    """Append the errors of a fit with exact inputs, and of a calibrated head."""
    x, y, new, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    given: list[tuple] = []
    temperature = auto.temperature

    def noted(*arguments) -> float:
        given.append(arguments)
        return 1.0

    auto.temperature = noted
    plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
    head = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed)).trained
    auto.temperature = temperature
    budgeted, expected, margin = given[0]
    scores, seen = head.scores(new), head.scores(x)
    accuracy = float((scores.argmax(axis=1) == label).mean())
    own = seen[np.arange(len(y)), y]
    m = facts.n_classes
    exact = float((own - (seen.sum(axis=1) - own) / (m - 1)).mean())
    inputs = {
        "after": (expected, margin),
        "accuracy": (
            replace(expected, accuracy=accuracy, sd=0.0, careful=None),
            margin,
        ),
        "exact": (
            replace(expected, accuracy=accuracy, sd=0.0, careful=None),
            (exact, 1e-3 * abs(exact)),
        ),
    }
    line = {"set": name, "epsilon": epsilon, "seed": seed}
    for key, found in inputs.items():
        divisor = temperature(budgeted, *found)
        p = probabilities(scores / divisor)
        line[f"temperature_{key}"] = divisor
        line[f"error_{key}"] = round(expected_calibration_error(label, p), 5)
    # labels that the head's own probabilities draw, so only their number gives an error
    grid = np.geomspace(0.1, 10, 93)
    rows_of = np.arange(len(label))
    losses = [-np.log(probabilities(scores / t)[rows_of, label]).mean() for t in grid]
    p = probabilities(scores / grid[int(np.argmin(losses))])
    line["error_best"] = round(expected_calibration_error(label, p), 5)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(20):
        one = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(0, m - 1)
        drawn.append(expected_calibration_error(one, p))
    line["error_drawn"] = round(float(np.mean(drawn)), 5)
    append(REASONS, line | provenance())


def missed(file: Path) -> set[tuple[str, float]]:
    """Cells whose mean error is above 3 points, or 5 above ten classes."""
    errors: dict[tuple[str, float, int], list[float]] = {}
    for r in read(file):
        key = r["set"], r["epsilon"], r["n_classes"]
        errors.setdefault(key, []).append(100 * r["error_after"])
    return {
        (name, epsilon)
        for (name, epsilon, m), found in errors.items()
        if np.mean(found) > (3 if m <= 10 else 5)
    }


def cells(file: Path) -> dict[tuple[str, float], list[dict]]:
    """The draws of each set and epsilon, sorted."""
    found: dict[tuple[str, float], list[dict]] = {}
    for r in read(file):
        found.setdefault((r["set"], r["epsilon"]), []).append(r)
    return dict(sorted(found.items()))


def mean(draws: list[dict], key: str, unit: float = 100) -> float:
    return unit * float(np.mean([r[key] for r in draws]))


PARTS = ("drawn", "best", "exact", "after")
NAMES = ("few test rows", "shape of the scores", "model", "released values")


def reason(draws: list[dict]) -> str:
    """Name the largest part of a high error: each error less the one before."""
    errors = [mean(draws, f"error_{key}") for key in PARTS]
    return NAMES[int(np.argmax(np.diff(errors, prepend=0.0)))]


def page() -> None:
    """Print the tables of results/calibration."""
    from_files = cells(OUT)
    why = cells(REASONS)
    for (name, epsilon), draws in from_files.items():
        m = draws[0]["n_classes"]
        goal = 3 if m <= 10 else 5
        after = mean(draws, "error_after")
        star = "*" if name in CHOSE else ""
        print(
            f"| {name}{star} | {m} | {draws[0]['n_test']:,} | {epsilon:g} "
            f"| {mean(draws, 'accuracy'):.1f} | {mean(draws, 'temperature', 1):.2f} "
            f"| {mean(draws, 'best_temperature', 1):.2f} "
            f"| {mean(draws, 'error_before'):.1f} | {after:.1f} "
            f"| {mean(draws, 'error_best'):.1f} | {'!' if after > goal else ''} |"
        )
    print()
    for (name, epsilon), draws in why.items():
        errors = " | ".join(f"{mean(draws, f'error_{key}'):.1f}" for key in PARTS)
        print(f"| {name} | {epsilon:g} | {errors} | {reason(draws)} |")
    for file in (OUT, UNEVEN):
        print()
        for (name, epsilon), draws in cells(file).items():
            gain = [100 * (r["balanced"] - r["plain"]) for r in draws]
            error = float(np.std(gain, ddof=1)) / math.sqrt(len(gain))
            lost = "!" if np.mean(gain) < -2 * error else ""
            print(
                f"| {name} | {100 * draws[0]['largest_class']:.0f} % | {epsilon:g} "
                f"| {mean(draws, 'plain'):.1f} | {mean(draws, 'balanced'):.1f} "
                f"| {np.mean(gain):+.1f} ± {error:.1f} | {lost} |"
            )


def main(
    folder: Path, csv: Path, part: str = "calibration", draws: str = "3", *names: str
) -> None:
    """Run what is missing of "calibration", "reasons" or "uneven", or print."""
    if part == "page":
        page()
        return
    file, one = {
        "calibration": (OUT, measure),
        "reasons": (REASONS, reasons),
        "reasons-uneven": (REASONS, reasons),
        "uneven": (UNEVEN, partial(measure, file=UNEVEN)),
    }[part]
    done = {(r["set"], r["epsilon"], r["seed"]) for r in read(file)}
    uneven = part.endswith("uneven")
    high = missed(UNEVEN if uneven else OUT) if "reasons" in part else None
    for name, made in sets_of(folder, csv, uneven).items():
        if names and name not in names:
            continue
        rows = made()
        for epsilon in (1.0, 8.0):
            for seed in range(int(draws)):
                asked = high is None or (name, epsilon) in high
                if asked and (name, epsilon, seed) not in done:
                    one(name, rows, epsilon, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
