"""Longer steps of `auto` where classes lie far apart: whether they gain or lose on data
whose classes do and do not.

Random training rows of public data, measured on other training rows. `python -m
benchmarks ablation --part apart` runs what is missing, one JSON line a fit in
results/ablation/apart.jsonl; the README there has the table.
"""

from functools import lru_cache
from itertools import product

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from benchmarks import features, variants
from benchmarks.features import training_rows
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.variants import EPSILONS, OTHER_ROWS, accuracies, row_of
from dphead.privacy.transform import RowTransform
from dphead.rows.arrays import ArrayRows
from dphead.solvers import Auto, PublicFacts
from dphead.solvers.auto_rules import LENGTHEN_AT_MOST, MOVE_LOGITS
from dphead.solvers.head import float_rows

OUT = RESULTS / "ablation" / "apart.jsonl"
APART = {  # data set, features, rows to fit on, draws
    "digits": ("digits", "scatternet-local", 1_077, 8),
    "MNIST": ("mnist", "scatternet-local", 10_000, 2),
    "Fashion-MNIST": ("fashion-mnist", "scatternet-local", 10_000, 2),
    "CIFAR-10, MobileNetV2": ("cifar10", "mobilenetv2-128", 10_000, 2),
}
# clusters of CIFAR-10's rows alone
TASKS = {"ten classes": 10, "odd and even classes": 2, "100 clusters of rows": 100}
LENGTHS = {
    "steps as planned": Auto(move=MOVE_LOGITS),
    "longer always": Auto(move=MOVE_LOGITS * LENGTHEN_AT_MOST),
    "auto": Auto(),
}


def tasks() -> list[tuple[str, tuple[str, str, int, int], str, int]]:
    """Title and entry of APART, name of a task and its number of classes."""
    both = product(APART.items(), TASKS.items())
    return [
        (title, of, task, m)
        for (title, of), (task, m) in both
        if m <= 10 or of[0] == "cifar10"
    ]


def run() -> None:
    """The missing rows of longer steps: random training rows of public data, measured
    on other training rows.
    """
    source = provenance()
    done = {
        (
            r["data"],
            r["n_classes"],
            r["epsilon"],
            r["seed"],
        )
        for r in read(OUT)
    }
    for title, (dataset, name, n, draws), _, m in tasks():
        for seed, epsilon in product(range(draws), EPSILONS):
            if (title, m, epsilon, seed) in done:
                continue
            data = some_rows(dataset, name, n, m, seed)
            found = accuracies(
                data, [(solver, seed) for solver in LENGTHS.values()], epsilon
            )
            for variant, accuracy in zip(LENGTHS, found, strict=True):
                row = row_of(variant, epsilon, seed, accuracy, data, OTHER_ROWS)
                row |= {"data": title, "n_classes": m, "n_rows": n}
                append(OUT, row | source)
            print(
                f"{title}, {m} classes, eps {epsilon:g} draw {seed}: {found}",
                flush=True,
            )


@lru_cache(maxsize=1)
def some_rows(
    dataset: str, name: str, n: int, n_classes: int, seed: int
) -> features.Loaded:
    """n random training rows to fit on and up to 10,000 others; classes modulo
    n_classes, or more clusters.
    """
    data = features.load(dataset, name)
    x, y = training_rows(data)
    if n_classes > data.facts.n_classes:
        clusters = MiniBatchKMeans(n_classes, random_state=0, batch_size=4096)
        y = clusters.fit_predict(float_rows(RowTransform(True, x.mean(0)), x)[0])
    order = np.random.default_rng(seed).permutation(len(x))
    fit = order[:n]
    held = order[n : n + 10_000]
    facts = PublicFacts(n, x.shape[1], n_classes)
    return features.Loaded(
        ArrayRows(x[fit], y[fit] % n_classes),
        x[held],
        y[held] % n_classes,
        facts,
        data.described,
    )


def table() -> str:
    """A table a data set and task."""
    rows, parts = read(OUT), []
    for title, (*_, n, _), task, m in tasks():
        own = [r for r in rows if r["data"] == title and r["n_classes"] == m]
        if own:
            draws = len({r["seed"] for r in own})
            parts.append(
                f"{title}, {task}, {n:,} rows, {draws} "
                f"draws:\n\n{variants.table(own, next(iter(LENGTHS)))}"
            )
    return "\n\n".join(parts)
