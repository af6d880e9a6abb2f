"""Compare the seconds of fits with the backends `numpy` and `jax` on this processor.

`python -m benchmarks.experiments.backends` fits each method on random rows in memory,
with both backends in turns and in one process, and stores results/backends. The first
fit of each backend loads and compiles, and has a column of its own. Seconds are the
medians of the other fits. The machine is shared, so their ratio changes with its load.
The ratio of processor seconds, of all threads, changes less.
"""

import os
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks import prose
from benchmarks.commands import METHODS
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "backends"
SIZES = ((20_000, 768, 10), (50_000, 1280, 100))
NEWTON_ROWS = 2_000  # of 100 classes, each with a Hessian of its own
REPEATS = 3


def fit_seconds(
    method: str, x: np.ndarray, y: np.ndarray, backend: str
) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a fit with checks and charge."""
    from dphead import DPHeadClassifier

    given: dict[str, Any] = {"delta": 1e-6, "backend": backend}
    classes = range(int(y.max()) + 1)
    start, used = time.perf_counter(), time.process_time()
    DPHeadClassifier(method=method, classes=classes, **given).fit(x, y)
    return time.perf_counter() - start, time.process_time() - used


def run() -> None:
    """Measure each method at each size."""
    rng = np.random.default_rng(0)
    for n, d, m in SIZES:
        x = rng.standard_normal((n, d), np.float32)
        y = rng.integers(0, m, n)
        x[np.arange(n), y] += 4
        for method in METHODS:
            rows = NEWTON_ROWS if method == "dp-newton" and m == 100 else n
            found: dict[str, list[tuple[float, float]]] = {"numpy": [], "jax": []}
            for _ in range(1 + REPEATS):
                for backend, fits in found.items():
                    fits.append(fit_seconds(method, x[:rows], y[:rows], backend))
            row = {"method": method, "n": rows, "d": d, "m": m, "fits": found}
            row["load"] = os.getloadavg()[0]
            append(OUT / "rows.jsonl", row | provenance())
            print(row, flush=True)


def readme() -> str:
    """Return results/backends/README.md from the stored rows."""
    newest = {(r["method"], r["d"]): r for r in read(OUT / "rows.jsonl")}
    lines = []
    for r in newest.values():
        first = {name: fits[0][0] for name, fits in r["fits"].items()}
        wall, used = (
            {name: median(f[i] for f in fits[1:]) for name, fits in r["fits"].items()}
            for i in range(2)
        )
        cells = [f"{r['n']:,} × {r['d']:,} × {r['m']}", f"{wall['numpy']:.2f} s"]
        cells += [f"{wall['jax']:.2f} s", f"{wall['jax'] / wall['numpy']:.2f}"]
        cells += [f"{used['jax'] / used['numpy']:.2f}"]
        cells += [f"{first['numpy']:.2f}, {first['jax']:.2f} s", f"{r['load']:.1f}"]
        lines.append([r["method"], *cells])
    head = ("method", "rows × columns × classes", "numpy", "jax", "ratio")
    more = ("ratio of processor seconds", "first fits", "load")
    return prose.wrapped(f"# {__doc__}\n{prose.table((*head, *more), lines)}\n")


if __name__ == "__main__":
    run()
