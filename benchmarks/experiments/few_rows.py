"""Measure the expected accuracy of `auto` on few rows of pixels, ten even classes.

`python -m benchmarks.experiments.few_rows FOLDER` reads the unpacked MNIST and
Fashion-MNIST (IDX) in FOLDER, and scikit-learn's digits, and prints JSON lines.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dphead import DPAutoClassifier

ROWS, EPSILONS, DRAWS, TESTED = (100, 175, 300, 600, 1200), (2.0, 8.0), 24, 3000
DELTA = 1e-4


def read_idx(path: Path) -> np.ndarray:
    """Return the unsigned bytes of an IDX file."""
    data = path.read_bytes()
    shape = [int.from_bytes(data[4 + 4 * i :][:4], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def sets(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name, rows and labels: 64 or 196 pixels in [0, 1]."""
    x, y = load_digits(return_X_y=True)
    yield "digits", x / 16, y
    for name in ("mnist", "fashion_mnist"):
        images = read_idx(folder / name / "t10k-images-idx3-ubyte")
        small = images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(images), -1)
        labels = read_idx(folder / name / "t10k-labels-idx1-ubyte")
        yield name, small / 255, labels.astype(int)


def main(folder: str) -> None:
    """Print a line for each fit."""
    warnings.simplefilter("ignore")
    for name, x, y in sets(Path(folder)):
        for epsilon, n, seed in product(EPSILONS, ROWS, range(DRAWS)):
            order = np.random.default_rng(seed).permutation(len(x))
            used, new = order[:n], order[n : n + TESTED]
            head = DPAutoClassifier(epsilon=epsilon, delta=DELTA, classes=range(10))
            head.fit(x[used], y[used])
            expected = head.expected_accuracy_
            row = {
                "set": name,
                "epsilon": epsilon,
                "delta": DELTA,
                "n_rows": n,
                "n_test": len(new),
                "seed": seed,
                "expected": round(expected.accuracy, 4),
                "low": round(expected.low, 4),
                "high": round(expected.high, 4),
                "accuracy": round(head.score(x[new], y[new]), 4),
            }
            print(json.dumps(row, sort_keys=True), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
