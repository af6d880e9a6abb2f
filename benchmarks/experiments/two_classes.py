"""The accuracy that `auto` expects with two classes:

    python -m benchmarks.experiments.two_classes TABLES IMAGES

The folders are those of `benchmarks.experiments.calibration`, which reads the sets. A
fit is a line of results/expected/few.jsonl. The accuracy is measured on up to 8,000
other rows.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.calibration import images, table
from benchmarks.store import RESULTS, append, provenance
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, expectation

OUT = RESULTS / "expected" / "few.jsonl"
TABLES = {
    "HI": ("Ecdat/HI.csv", "hhi", []),
    "hdma": ("Ecdat/Hdma.csv", "deny", []),
    "ofp": ("Ecdat/OFP.csv", "medicaid", []),
    "flchain": ("survival/flchain.csv", "death", ["futime", "chapter"]),
}
_of_counts = expectation.on_all_classes


def of_images(name: str, path: Path, draw: int) -> Iterator[tuple[str, Any, Any]]:
    """Two halves of the classes, or two fifths, by chance."""
    x, y, more, label = images(path, None, None)
    x, y = np.concatenate([x, more]), np.concatenate([y, label])
    m = int(y.max()) + 1
    order = np.random.default_rng(100 + draw).permutation(m)
    if draw % 2:
        yield f"{name}/{draw}", x, np.isin(y, order[: m // 2]).astype(int)
        return
    one, two = np.isin(y, order[: m // 5]), np.isin(y, order[m // 5 : 2 * (m // 5)])
    yield f"{name}/{draw}", x[one | two], one[one | two].astype(int)


def sets(csv: Path, folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Names, rows and classes."""
    for name in ("cifar10", "fashion_mnist", "mnist", "cifar100"):
        for draw in range(4):
            yield from of_images(name, folder / f"{name}.npz", draw)
    for name, (file, label, dropped) in TABLES.items():
        x, y, more, other = table(csv / file, label, dropped)
        yield name, np.concatenate([x, more]), np.concatenate([y, other])


def measure(name: str, x: np.ndarray, y: np.ndarray, n: int, epsilon: float) -> None:
    """Fit n random rows, and append a line."""
    order = np.random.default_rng(7).permutation(len(x))
    own, other = order[:n], order[n:][:8000]
    facts = ProblemInfo(n, x.shape[1], 2)
    plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
    told: list[Any] = []

    def noted(known: Any, descent: Any, *counts: float) -> Any:
        told.extend(counts)
        return _of_counts(known, descent, *counts)

    expectation.on_all_classes = noted
    head = fit_rows(plan, ArrayRows(x[own], y[own]), noise=NoiseSource(0)).trained
    line = {"set": name, "n_rows": n, "n_features": x.shape[1], "n_classes": 2}
    line |= dict(zip(("seen", "noise", "units"), told, strict=True))
    right = head.scores(x).argmax(axis=1) == y
    line |= {"epsilon": epsilon, "seed": 0, "n_test": len(other), "delta": 1e-5}
    line |= {"accuracy": float(np.mean(right[other]))}
    append(OUT, line | {"train_accuracy": float(np.mean(right[own]))} | provenance())


if __name__ == "__main__":
    for name, x, y in sets(*map(Path, sys.argv[1:])):
        for n in (200, 600, 2000, 6000):
            for epsilon in (1.0, 3.0, 8.0):
                if len(x) >= n + 400 and not (n == 6000 and x.shape[1] > 1000):
                    measure(name, x.astype(np.float32), y, n, epsilon)
