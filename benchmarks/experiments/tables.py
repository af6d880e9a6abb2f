"""`auto` on tables, and `DPRegressor`, before and after their rules for much noise:

    python -m benchmarks.experiments.tables TABLES IMAGES

TABLES is the folder `csv` of the package pydataset 0.2.0, and IMAGES as for
`benchmarks.experiments.calibration`. A fit is a line of results/tables/rows.jsonl.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dphead_extract.sources.schema import Schema

from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, auto
from dphead.solvers.regression import RidgeRegression

OUT = RESULTS / "tables" / "rows.jsonl"
CHOSEN = {  # file, label, and columns that are left out; of sets that chose the rule
    "diamonds": ("ggplot2/diamonds", "cut", []),
    "flchain": ("survival/flchain", "death", ["futime", "chapter"]),
    "OFP": ("Ecdat/OFP", "medicaid", []),
    "Cracker": ("Ecdat/Cracker", "choice", ["id"]),
}
NEW = {
    "rwm5yr": ("COUNT/rwm5yr", "outwork", ["id"]),
    "azpro": ("COUNT/azpro", "procedure", []),
    "DoctorAUS": ("Ecdat/DoctorAUS", "insurance", []),
    "Tuna": ("Ecdat/Tuna", "Tuna.choice", ["Tuna.hid", "Tuna.id"]),
    "Star": ("Ecdat/Star", "freelunk", ["schidkn"]),
    "VietNamH": ("Ecdat/VietNamH", "urban", ["commune"]),
}
NUMBERS = {  # file, target, its range, and columns that are left out
    "Computers": ("Ecdat/Computers", "price", (500.0, 5500.0), []),
    "Bwages": ("Ecdat/Bwages", "wage", (0.0, 50.0), []),
    "medpar": ("COUNT/medpar", "los", (0.0, 40.0), ["provnum"]),
    "Star": ("Ecdat/Star", "tmathssk", (300.0, 700.0), ["schidkn"]),
}
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rounded(value: float, up: bool) -> float:
    """One digit of a quantile, as somebody who knows the column would declare it."""
    unit = 10.0 ** np.floor(np.log10(abs(value))) if value else 1.0
    return float((np.ceil if up else np.floor)(value / unit) * unit)


def table(path: Path, label: str, dropped: list[str]) -> tuple[np.ndarray, Any]:
    """Encoded rows, and the values of the label."""
    frame = pd.read_csv(path, index_col=0).dropna(subset=[label])
    y, frame = frame[label], frame.drop(columns=[label, *dropped])
    declared: list[tuple[str, Any]] = []
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            low, high = column.quantile(0.01), column.quantile(0.99)
            values: list[Any] = [rounded(low, False), rounded(high, True)]
            if not values[0] < values[1]:  # no value, or one
                continue
        else:
            frame[name] = column.astype(object).where(column.isna(), column.astype(str))
            values = sorted(set(frame[name].dropna()))
            if len(values) > 12:
                continue
        missing = bool(column.isna().any())
        declared.append((str(name), {"values": values, "missing": missing}))
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    return Schema.of(declared).encode(rows, path), y


def split(x: np.ndarray, y: np.ndarray) -> Split:
    """At most 20,000 rows, and a fixed random third of them as test rows."""
    order = np.random.default_rng(0).permutation(len(x))[:20_000]
    kept, held = np.split(order, [int(len(order) * 0.7)])
    return x[kept].astype(np.float32), y[kept], x[held].astype(np.float32), y[held]


def classified(name: str, rows: Split) -> Iterator[dict[str, Any]]:
    """Fit `auto` with and without the rule for few features."""
    x, y, new, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    rule = auto.is_narrow
    for epsilon in (0.5, 1.0, 3.0, 8.0):
        plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
        known = plan.budgeted(facts)
        for seed in range(3 * rule(known)):
            line = {"set": name, "epsilon": epsilon, "seed": seed, "n_rows": len(x)}
            line |= {"n_features": x.shape[1], "n_classes": facts.n_classes}
            for key in ("before", "now"):
                auto.is_narrow = rule if key == "now" else lambda facts: False
                plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5)
                fit = fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed))
                chosen = fit.trained.scores(new).argmax(axis=1)
                recall = [np.mean(chosen[label == k] == k) for k in np.unique(label)]
                line[key] = round(float(np.mean(chosen == label)), 5)
                line[f"balanced_{key}"] = round(float(np.mean(recall)), 5)
            auto.is_narrow = rule
            yield line


class ByGram(RidgeRegression):
    """The rule before: one Gram matrix with the target."""

    def _takes_steps(self, facts: ProblemInfo) -> bool:
        return False


def regressed(name: str, rows: Split) -> Iterator[dict[str, Any]]:
    """Fit a regression on unit rows, with and without steps on residuals."""
    x, t, new, target = rows
    x, new = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, new))
    joined = np.column_stack([x, t]).astype(np.float32)
    facts = ProblemInfo(len(x), joined.shape[1], 1)
    for epsilon in (0.5, 1.0, 3.0):
        plan = make_plan(RidgeRegression(), facts, epsilon=epsilon, delta=1e-5)
        if len(plan.specs) == 3:  # no steps
            continue
        for seed in range(3):
            line = {"set": name, "epsilon": epsilon, "seed": seed, "n_rows": len(x)}
            line |= {"n_features": x.shape[1]}
            for key, solver in (("before", ByGram()), ("now", RidgeRegression())):
                plan = make_plan(solver, facts, epsilon=epsilon, delta=1e-5)
                one = ArrayRows(joined, np.zeros(len(x), int))
                head = fit_rows(plan, one, noise=NoiseSource(seed)).trained
                left = head.scores(new)[:, 0] - target
                line[key] = round(1 - float(np.mean(left**2) / np.var(target)), 4)
            yield line


def images(path: Path, positions: np.ndarray) -> Split:
    """Features, and a number for each class."""
    file = np.load(path)
    t, target = positions[file["ytrain"]], positions[file["ytest"]]
    return file["xtrain"], t, file["xtest"], target


def main(csv: Path, folder: Path) -> None:
    """Run what is missing."""
    done = {row["set"] for row in read(OUT)}
    fits: list[Iterator[dict[str, Any]]] = []
    for name, (file, target, (low, high), dropped) in NUMBERS.items():
        x, y = table(csv / f"{file}.csv", target, dropped)
        t = np.clip((2 * y.to_numpy(float) - low - high) / (high - low), -1, 1)
        fits.append(regressed(f"{name} by {target}", split(x, t)))
    ramp, animal = (
        np.linspace(-1, 1, 10),
        np.where(np.isin(range(10), [0, 1, 8, 9]), 1.0, -1),
    )
    for name, file, positions in (
        ("digit", "mnist", ramp),
        ("garment", "fashion_mnist", ramp),
        ("animal", "cifar10", animal),
    ):
        fits.append(regressed(name, images(folder / f"{file}.npz", positions)))
    for name, (file, label, dropped) in (CHOSEN | NEW).items():
        x, y = table(csv / f"{file}.csv", label, dropped)
        codes = np.unique(y.astype(str), return_inverse=True)[1]
        fits.append(classified(name, split(x, codes)))
    for found in fits:
        for line in found:
            if line["set"] not in done:
                append(OUT, line | provenance())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
