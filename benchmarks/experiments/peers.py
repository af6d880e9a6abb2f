"""Compare the speed of a linear head's full-batch step with other libraries.

All contenders get the same arrays, each in its own process. `python -m benchmarks
peers` runs every contender at every size and writes results/peers. A contender that
would need more than LIMIT seconds per step or MEMORY bytes runs on a twentieth of the
rows, and its row states this. The roofline is the larger of two times, both measured in
the same run: the multiplications divided by the rate of a float32 matrix product, and
the bytes of the features divided by the rate of reading memory. The machine is shared.
A cell is the median of the last RUNS runs, which should be an hour apart, with the best
and the worst run in parentheses.
"""

import subprocess
import time
from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np

from benchmarks import prose
from benchmarks.experiments.contenders import (
    CONTENDERS,
    PART,
    TURNS,
    needs,
)
from benchmarks.machine import alone, machine_rates, peak_memory
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "peers"
SIZES = (
    (50_000, 768, 10),
    (50_000, 768, 100),
    (50_000, 1280, 10),
    (100_000, 1664, 1000),
)
RUNS = 3
LIMIT, MEMORY = 120.0, 20e9  # seconds a step, bytes
FEWER = 20  # divisor of the rows if all rows are too many
WHY = """Besides the products, a step draws the noise, writes two entries of the ledger,
counts the used rows, and checks the secret rows. For this check, the reference adds the
secret rows again, and the fast code adds 2,048 rows twice. Columns with up to 100
classes have three runs within seven minutes on an idle machine. With 1,000 classes, the
worst run used earlier kernels, compiled by numba. In the other two runs, dphead takes
1.2 s, the step without privacy 1.8 and 2.4 s, and ghost clipping 5.4 s. The roofline
counts float32 products. The kernels multiply 16-bit integers at twice their rate, so
they can be faster.
"""


def one(name: str, n: int, d: int, m: int, patience: float = 20.0) -> dict[str, Any]:
    """Return a contender's seconds per step and peak memory, in this process.

    The first step warms up. At least one step is timed. More steps, TURNS at most,
    follow until `patience` seconds have passed since the warm-up began.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), np.float32)
    y = rng.integers(0, m, n)
    w = (0.01 * rng.standard_normal((d, m))).astype(np.float32)
    step = CONTENDERS[name](x, y, w)
    seconds: list[float] = []
    first = time.perf_counter()
    step()
    while len(seconds) < TURNS and (
        not seconds or time.perf_counter() - first < patience
    ):
        start = time.perf_counter()
        step()
        seconds.append((time.perf_counter() - start) / PART.get(name, 1))
    return {"seconds": seconds, "peak_mb": peak_memory() / 1e6}


def measure(name: str, n: int, d: int, m: int) -> dict[str, Any]:
    """Return a contender's time and memory in a new process, or why there are none.

    A contender that cannot process all rows runs on fewer, and `seconds_a_step` is
    extrapolated to all rows.
    """
    for rows in (n, n // FEWER):
        if needs(name, rows, d, m) > MEMORY:
            why = f"more than {MEMORY / 1e9:.0f} GB"
            continue
        try:
            found = alone(one, name, rows, d, m, timeout=2 * LIMIT + 30)
        except subprocess.TimeoutExpired:
            why = f"more than {LIMIT:.0f} s a step"
        except RuntimeError as error:
            why = str(error).strip().splitlines()[-1]
        else:
            seconds = median(found["seconds"])
            if seconds <= LIMIT:
                return found | {
                    "rows_timed": rows,
                    "seconds_a_step": seconds * n / rows,
                }
            why = f"more than {LIMIT:.0f} s a step"
    return {"not_run": why}


def run(sizes: tuple[tuple[int, int, int], ...] = SIZES) -> None:
    """Measure every contender at every size, one after another."""
    OUT.mkdir(parents=True, exist_ok=True)
    started = time.strftime("%Y-%m-%d %H:%M")
    for n, d, m in sizes:
        rates = machine_rates()
        roofline = max(4 * n * d * m / rates["flops"], 4 * n * d / rates["bytes"])
        for name in CONTENDERS:
            row = {
                "contender": name,
                "n": n,
                "d": d,
                "m": m,
                "roofline_seconds": roofline,
                "rates": rates,
            }
            row |= measure(name, n, d, m)
            append(OUT / "steps.jsonl", row | {"started": started} | provenance())
            print(
                name, n, d, m, row.get("seconds_a_step", row.get("not_run")), flush=True
            )


def last_runs() -> dict[tuple[str, int, int, int], list[dict[str, Any]]]:
    """Return the rows of the last RUNS runs, by contender and size."""
    found: dict[tuple[str, int, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in read(OUT / "steps.jsonl"):
        if "started" in row:  # older results lack the start of their run
            found[row["contender"], row["n"], row["d"], row["m"]].append(row)
    return {key: rows[-RUNS:] for key, rows in found.items()}


def middle(rows: list[dict[str, Any]]) -> float:
    """Return the median of the runs' seconds per step."""
    return median(row["seconds_a_step"] for row in rows)


def table() -> str:
    """Render the median, best and worst run of each contender and size.

    Ratios compare medians with dphead's.
    """
    runs = last_runs()
    sizes = [size for size in SIZES if ("dphead", *size) in runs]
    heads = [f"{n:,} × {d}, {m} classes" for n, d, m in sizes]
    lines = []
    for name in CONTENDERS:
        if any((name, *size) in runs for size in sizes):
            cells = [
                _cell(runs.get((name, *size), []), runs["dphead", *size])
                for size in sizes
            ]
            lines.append([name, *cells])
    cells = []
    for size in sizes:
        ours = runs["dphead", *size]
        roof = median(row["roofline_seconds"] for row in ours)
        cells.append(f"{roof:.3g} (ours is {middle(ours) / roof:.2g}×)")
    lines.append(["roofline", *cells])
    what = "one step, seconds (best to worst run; times ours)"
    return prose.table([what, *heads], lines)


def _cell(rows: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    if not rows or "not_run" in rows[-1]:
        return rows[-1]["not_run"] if rows else "not measured"
    rows = [row for row in rows if "not_run" not in row]
    seconds = [row["seconds_a_step"] for row in rows]
    ratio = middle(rows) / middle(ours)
    fewer = rows[-1]["rows_timed"] != rows[-1]["n"]
    mark = f", on {rows[-1]['rows_timed']:,} rows" if fewer else ""
    spread = f"{min(seconds):.3g} to {max(seconds):.3g}" if len(rows) > 1 else "one run"
    times = f"{ratio:{'.0f' if ratio >= 10 else '.2g'}}×"
    memory = max(row["peak_mb"] for row in rows) / 1000
    return (
        f"{float(f'{middle(rows):.3g}'):,g} ({spread}; {times}{mark}), {memory:.1f} GB"
    )


def readme() -> str:
    """Return the text of results/peers/README.md, from the stored results."""
    return prose.wrapped(f"# {__doc__}\n{table()}\n\n{WHY}")
