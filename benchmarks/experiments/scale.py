"""Measure time and memory of the sums of DP-LS against the number of rows.

`python -m benchmarks scale FOLDER` writes synthetic float16 features of ImageNet's size
(1,664 columns, 1,000 classes) to FOLDER. It releases the Gram matrix and the class sums
of the first n rows, streamed from disk, in a separate process. It stores the times in
results/scale. One pass computes both sums, and the time of this pass is the time of the
Gram matrix. A few rows come first, to load libraries, because the first release of a
process takes a second longer. Then come three passes, and the table has their medians.
The roofline is the larger of two times, both measured in the same run: n d²
multiplications and additions (half a symmetric product) divided by the rate of a
float32 product, and the bytes of the features divided by the rate of reading the file.
On a shared machine, the ratio of the largest size differs by a tenth between runs
(rows.jsonl).
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from dphead_extract.features.format import open_features
from dphead_extract.features.rows import Header
from dphead_extract.features.writing import FeaturesWriter

from benchmarks import prose
from benchmarks.machine import alone, machine_rates, peak_memory
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "scale"
COLUMNS, CLASSES = 1664, 1000
ROWS = (10_000, 30_000, 100_000, 300_000, 1_281_167)
WARM_UP, PASSES = 2_048, 3
PLAN: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "description": "scale",
    "plan_hash": "",
    "store": None,
}


def write_synthetic(path: Path, n: int = ROWS[-1]) -> None:
    """Write features of a block of normal rows, repeated with rotated columns."""
    rng = np.random.default_rng(0)
    names = [f"class {j}" for j in range(CLASSES)]
    header = Header(
        n,
        COLUMNS,
        "float16",
        names,
        "classes-flag",
        config={"source": "synthetic"},
        block_rows=8192,
    )
    base = rng.standard_normal((header.block_rows, COLUMNS), np.float32).astype(
        np.float16
    )
    with FeaturesWriter(path, header) as writer:
        while not writer.already_complete and writer.next_row < n:
            start, stop = writer.next_block()
            rows = np.roll(base, start // header.block_rows, axis=1)[: stop - start]
            writer.append(rows, {"labels": rng.integers(0, CLASSES, len(rows))})
        writer.finish()


def one(path: str, n: int) -> dict[str, Any]:
    """Return median seconds and peak memory of releases of n streamed rows.

    The releases are the Gram matrix and the class sums. The same releases of WARM_UP
    rows come first, to load libraries and compiled code.
    """
    from dphead.data.features import FeaturesRows

    with open_features(Path(path)) as file:
        rows = FeaturesRows(file, memory=0)
        warm_up = timed(rows.part(0, WARM_UP, 0))
        passes = [timed(rows.part(0, n, 0)) for _ in range(PASSES)]
    seconds = {name: median(p[name] for p in passes) for name in passes[0]}
    return {
        "seconds": seconds,
        "passes": passes,
        "warm_up_seconds": sum(warm_up.values()),
        "peak_bytes": peak_memory(),
    }


def timed(rows: Any) -> dict[str, float]:
    """Return the seconds of one request for a Gram matrix and for class sums."""
    from dphead.privacy.statistic_base import Params
    from dphead.privacy.statistics import ClassSums, Gram
    from dphead.privacy.transform import RowTransform
    from dphead.sums.cpu import CpuSums
    from dphead.sums.verified import VerifiedSum

    params = Params(RowTransform(unit_norm=True))
    asked = [(statistic, params) for statistic in (Gram(CLASSES), ClassSums(CLASSES))]
    summer = VerifiedSum(CpuSums()).one_pass([statistic for statistic, _ in asked])
    gram, sums = release_seconds(rows, asked, summer)
    return {"Gram": gram, "ClassSums": sums}


def release_seconds(rows: Any, asked: list[tuple[Any, Any]], summer: Any) -> list[Any]:
    """Return the seconds of the release of each pair of statistic and parameters."""
    from dphead.privacy.contract import ReleaseSpec
    from dphead.privacy.ledger import Ledger
    from dphead.privacy.noise import NoiseSource
    from dphead.privacy.release import release

    specs = [ReleaseSpec(q.name, q.name, 1.0, 1.0, rows.n_rows) for q, _ in asked]
    fit = Ledger().reserve([spec.row() for spec in specs], **PLAN)
    noise = NoiseSource()
    seconds = []
    for given, spec in zip(asked, specs, strict=True):
        statistic, params = given
        start = time.perf_counter()
        release(statistic, params, rows, spec, ledger=fit, noise=noise, summer=summer)
        seconds.append(time.perf_counter() - start)
    return seconds


def read_rate(path: Path, most: int = 2 << 30) -> float:
    """Return bytes per second of the file's first gigabytes, read 8 MB at a time."""
    piece = bytearray(8 << 20)
    done = 0
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while done < most and (count := file.readinto(piece)):
            done += count
    return done / (time.perf_counter() - start)


def run(folder: Path, sizes: tuple[int, ...] = ROWS) -> None:
    """Measure each size in a separate process, and store the rows."""
    path = folder / "synthetic.h5"
    if not path.exists():
        write_synthetic(path)
    for n in sizes:
        rates = machine_rates() | {"disk": read_rate(path)}
        roofline = max(n * COLUMNS**2 / rates["flops"], 2 * n * COLUMNS / rates["disk"])
        found = alone(one, str(path), n)
        total = found["seconds"]["Gram"] + found["seconds"]["ClassSums"]
        row = {
            "n": n,
            "d": COLUMNS,
            "m": CLASSES,
            "rates": rates,
            "roofline_seconds": roofline,
            "total_seconds": total,
        }
        append(OUT / "rows.jsonl", row | found | provenance())
        print(
            f"{n:>9,} rows: {total:.2f} s, {total / roofline:.2f} x the roofline, "
            f"{found['peak_bytes'] / 1e9:.2f} GB"
        )


# backend, platform, divisor of the rows, number of gradients (fewer if each is slow)
BACKENDS = (("numpy", "cpu", 1, 2), ("jax", "cpu", 16, 1), ("jax", "cuda", 1, 5))


def released(backend: str, n: int, gradients: int) -> dict[str, Any]:
    """Return the seconds of DP-FC's releases of n rows in memory, and memory in bytes.

    Two Gram matrices come first, then gradients. The first of each includes compilation
    and conversion of the rows.
    """
    from dphead.data.arrays import ArrayRows
    from dphead.fit.backends import block_sum
    from dphead.privacy.statistic_base import Params
    from dphead.privacy.statistics import Gradient, Gram
    from dphead.privacy.transform import RowTransform
    from dphead.sums.verified import VerifiedSum

    rng = np.random.default_rng(0)
    x = np.resize(rng.standard_normal((8192, COLUMNS), np.float32), (n, COLUMNS))
    rows = ArrayRows(x, rng.integers(0, CLASSES, n))
    sums, memory = block_sum(backend, x.nbytes)
    transform = RowTransform(unit_norm=True)
    weights = rng.standard_normal((COLUMNS, CLASSES), np.float32)
    gradient = Gradient(CLASSES, "softmax", "features")
    statistics = [Gram(CLASSES), Gram(CLASSES), *[gradient] * gradients]
    asked = [
        (q, Params(transform, weights * (1 + t))) for t, q in enumerate(statistics)
    ]
    first, gram, *others = release_seconds(
        rows, asked, VerifiedSum(sums, memory=memory)
    )
    found = {
        "first_gram": first,
        "gram": gram,
        "gradients": others,
        "features_bytes": x.nbytes,
        "peak_bytes": peak_memory(),
    }
    if backend == "jax":
        import jax

        stats = jax.devices()[0].memory_stats() or {}
        found["device_peak_bytes"] = stats.get("peak_bytes_in_use")
    return found


def run_gpu(store: Callable[..., None], tiny: bool = False) -> None:
    """Time DP-FC's releases at ImageNet's size by each backend, in new processes."""
    n = 20_000 if tiny else ROWS[-1]
    for backend, platform, part, gradients in BACKENDS:
        facts = {"backend": backend, "platform": platform, "n": n // part}
        where = {"JAX_PLATFORMS": "cpu" if tiny else platform}
        try:
            found = alone(released, backend, n // part, gradients, env=where)
            store(**facts, d=COLUMNS, m=CLASSES, **found)
        except RuntimeError as error:
            store(**facts, failed=str(error))


def newest() -> list[dict[str, Any]]:
    """Return the last row of each size."""
    return [
        row for _, row in sorted({r["n"]: r for r in read(OUT / "rows.jsonl")}.items())
    ]


def slope(rows: list[dict[str, Any]], least: int = 100_000) -> float:
    """Return the slope of log seconds against log rows, from `least` rows on."""
    rows = [r for r in rows if r["n"] >= least]
    return float(
        np.polyfit(
            np.log([r["n"] for r in rows]),
            np.log([r["total_seconds"] for r in rows]),
            1,
        )[0]
    )


def table() -> str:
    """Render a line for each size, and the slope."""
    rows = newest()
    names = ("rows", "Gram matrix", "class sums", "both", "roofline", "ratio")
    lines = []
    for r in rows:
        seconds = (
            *(r["seconds"][q] for q in ("Gram", "ClassSums")),
            r["total_seconds"],
            r["roofline_seconds"],
        )
        cells = [
            f"{r['n']:,}",
            *(f"{s:.2f} s" for s in seconds),
            f"{seconds[-2] / seconds[-1]:.2f}",
        ]
        lines.append([*cells, f"{r['peak_bytes'] / 1e9:.2f} GB"])
    return prose.table((*names, "peak memory"), lines) + (
        "\n\nFrom 100,000 rows on, the slope of log seconds against log rows is "
        f"{slope(rows):.2f}."
    )


def readme() -> str:
    """Return the text of results/scale/README.md, from the stored results."""
    return prose.wrapped(f"# {__doc__}\n{table()}\n")
