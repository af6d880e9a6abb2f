"""Compare the seconds of fits with the backends `numpy` and `jax` on this processor.

`python -m benchmarks.experiments.backends` fits each method on random rows in memory,
with both backends in turns and in one process, and stores results/backends. The first
fit of each backend loads and compiles, and has a column of its own. Ratios are of the
medians of the other fits.
"""

import os
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks import prose
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "backends"
METHODS = ("auto", "dp-fc", "dp-ls", "dp-newton", "dp-adam", "dp-sgd", "prototypes")
SIZES = ((20_000, 768, 10), (50_000, 1280, 100))
NEWTON_ROWS = 2_000  # of 100 classes, each with a Hessian of its own
REPEATS = 3


def fit_seconds(method: str, x: np.ndarray, y: np.ndarray, backend: str) -> float:
    """Return the seconds of a whole fit, with its checks and its charge."""
    from dphead import DPHeadClassifier

    given: dict[str, Any] = {"delta": 1e-6, "backend": backend}
    classes = range(int(y.max()) + 1)
    start = time.perf_counter()
    DPHeadClassifier(method=method, classes=classes, **given).fit(x, y)
    return time.perf_counter() - start


def run() -> None:
    """Measure each method at each size."""
    rng = np.random.default_rng(0)
    for n, d, m in SIZES:
        x = rng.standard_normal((n, d), np.float32)
        y = rng.integers(0, m, n)
        x[np.arange(n), y] += 4
        for method in METHODS:
            rows = NEWTON_ROWS if method == "dp-newton" and m == 100 else n
            seconds: dict[str, list[float]] = {"numpy": [], "jax": []}
            for _ in range(1 + REPEATS):
                for backend, found in seconds.items():
                    found.append(fit_seconds(method, x[:rows], y[:rows], backend))
            later = {name: median(found[1:]) for name, found in seconds.items()}
            row = {"method": method, "n": rows, "d": d, "m": m, "seconds": seconds}
            row["ratio"] = later["jax"] / later["numpy"]
            row["load"] = os.getloadavg()[0]
            append(OUT / "rows.jsonl", row | provenance())
            print({k: v for k, v in row.items() if k != "seconds"}, later, flush=True)


def readme() -> str:
    """Return results/backends/README.md from the stored rows."""
    newest = {(r["method"], r["d"]): r for r in read(OUT / "rows.jsonl")}
    lines = []
    for r in newest.values():
        first = {name: found[0] for name, found in r["seconds"].items()}
        later = {name: median(found[1:]) for name, found in r["seconds"].items()}
        cells = [f"{r['n']:,} × {r['d']:,} × {r['m']}", f"{later['numpy']:.2f} s"]
        cells += [f"{later['jax']:.2f} s", f"{r['ratio']:.2f}"]
        cells += [f"{first['numpy']:.2f}, {first['jax']:.2f} s", f"{r['load']:.1f}"]
        lines.append([r["method"], *cells])
    head = ("method", "rows × columns × classes", "numpy", "jax", "ratio")
    table = prose.table((*head, "first fits", "load"), lines)
    return prose.wrapped(f"# {__doc__}\n{table}\n")


if __name__ == "__main__":
    run()
    (OUT / "README.md").write_text(readme(), encoding="utf-8")
