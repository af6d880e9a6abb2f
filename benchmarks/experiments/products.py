"""Exact products of 16-bit integers beside float32: `python -m benchmarks products`.

One thread. Each case is timed in turns, in one process: scores and products by numpy's
library for 128 rows at a time, or for all of them ("whole"), and the integers'
kernels. Printed: billions of operations a second (median), and the integers' time over
the float32 time, which is below 1 where integers are faster. "both": scores of a chunk
of rows and then its products, as a gradient takes them, and the rows' gigabytes a
second.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.sums.kernels import loops as integers
from dphead.sums.kernels.products import add_products

ROWS = 2048
CHUNK = integers.CHUNK_ROWS
SIZES = [
    (768, 2),
    (768, 10),
    (1280, 10),
    (15552, 10),
    (768, 100),
    (1664, 1000),
]
SQUARES = [768, 1664]
REPEATS = 9


def seconds(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median time of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(REPEATS + 1):
        for name, run in contenders.items():
            start = perf_counter()
            run()
            if turn:  # the first compiles
                times[name].append(perf_counter() - start)
    return {name: median(taken) for name, taken in times.items()}


def gradient_times(d: int, m: int) -> dict[str, float]:
    """Seconds of scores, products and both for ROWS rows, by floats and by integers."""
    rng = np.random.default_rng(0)
    shapes = (ROWS, d), (m, d), (ROWS, m)
    rows, weights, left = (rng.integers(-99, 99, s).astype(np.int16) for s in shapes)
    x, w, r = (
        np.asarray(
            a,
            np.float32,
            order="C",
        )
        for a in (rows, weights, left)
    )
    turned = np.ascontiguousarray(r.T)
    starts = range(0, ROWS, CHUNK)
    product = np.empty((m, d), np.float32)
    total = np.zeros((m, d))
    scores = np.empty((m, CHUNK), np.float32)
    exact_scores = np.empty((m, CHUNK), np.int32)
    exact = np.zeros((m, d), np.int64)
    packed = integers.packed_weights(weights)
    most = (m + 23) // 24 * 24
    residuals = np.zeros((len(starts), most, CHUNK), np.int16)
    residuals[:, :m] = left.T.reshape(m, -1, CHUNK).swapaxes(0, 1)
    pairs = residuals.view(np.int32)

    def float_scores(i: int) -> None:
        np.dot(w, x[i : i + CHUNK].T, scores)

    def float_products(i: int) -> None:
        np.dot(turned[:, i : i + CHUNK], x[i : i + CHUNK], product)
        np.add(total, product, out=total)

    def exact_scores_of(i: int) -> None:
        integers.scores_into(rows, i, i + CHUNK, packed, exact_scores)

    def exact_products(i: int) -> None:
        integers.add_pair_products(pairs[i // CHUNK], rows, i, i + CHUNK, exact)

    def each(*steps: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            for i in starts:
                for step in steps:
                    step(i)

        return run

    return seconds(
        {
            "float scores": each(float_scores),
            "exact scores": each(exact_scores_of),
            "float products": each(float_products),
            "float whole": lambda: np.add(total, r.T @ x, out=total),
            "exact products": each(exact_products),
            "exact whole": lambda: add_products(left, rows, exact),
            "float both": each(float_scores, float_products),
            "exact both": each(exact_scores_of, exact_products),
        }
    )


def square_times(d: int) -> dict[str, float]:
    """Seconds of the upper triangle of a Gram matrix of ROWS rows."""
    rows = (
        np.random.default_rng(0)
        .integers(
            -99,
            99,
            (ROWS, d),
        )
        .astype(np.int16)
    )
    x = rows.astype(np.float32)
    total = np.zeros((d, d))
    exact = np.zeros((d, d), np.int64)
    return seconds(
        {
            "float whole": lambda: np.add(total, x.T @ x, out=total),
            "exact whole": lambda: add_products(rows, None, exact),
        }
    )


def show(name: str, times: dict[str, float], operations: float) -> None:
    """A line for each part that was timed both ways."""
    for exact in (key for key in times if key.startswith("exact")):
        part = exact.removeprefix("exact ")
        rates = [
            operations / times[f"{way} {part}"] / 1e9 for way in ("float", "exact")
        ]
        ratio = times[exact] / times[f"float {part}"]
        print(f"{name:>12} {part:>8} {rates[0]:7.1f} {rates[1]:7.1f} {ratio:6.2f}")


def run() -> None:
    """Measure, and print the table: nothing is stored."""
    print(f"{'d x m':>12} {'':>8} {'float':>7} {'exact':>7} {'ratio':>6}")
    with threadpool_limits(1, "blas"):
        for d, m in SIZES:
            times = gradient_times(d, m)
            show(f"{d} x {m}", times, 2 * ROWS * d * m)
            print(f"{'':>12} both: {2e-9 * ROWS * d / times['exact both']:.1f} GB/s")
        for d in SQUARES:
            show(f"Gram {d}", square_times(d), ROWS * d * d)
