"""What `auto` gains by `dphead extract --axes`: MobileNetV2's features turned to the
directions in which ImageNet's classes differ, for few classes and many.

Fits on public training rows, measured on others; no test row is looked at. The rows are
those of the whole features, turned here by the same function as in extraction.
`python -m benchmarks axes` runs what is missing, one JSON line a fit in
results/ablation/axes-*.jsonl; the table is in that folder's README.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from torch import from_numpy, nn

from benchmarks import features
from benchmarks.experiments.longer_steps import some_rows
from benchmarks.features import WEIGHTS, Loaded, training_rows
from benchmarks.heads import describe
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.variants import OTHER_ROWS, accuracies, row_of
from dphead.rows.arrays import ArrayRows
from dphead.rows.features import load_features
from dphead.solvers import Auto, PublicFacts
from extract.axes import class_axes

OUT = RESULTS / "ablation"
NAME = "mobilenetv2-128"
AXES = 400
VARIANTS = {"auto": None, f"on {AXES} class axes": AXES}
EPSILONS = (0.5, 1.0, 0.1, 4.0)  # the first are those that matter most
DRAWS = 3


def cifar100() -> Loaded:
    """Four fifths of CIFAR-100's training rows, and the others. FileNotFoundError where
    they were not extracted.
    """
    path = features.cache() / "features" / f"cifar100-{NAME}-train.h5"
    if not path.exists():
        raise FileNotFoundError(
            f"CIFAR-100's features must be at hand, got no {path}. Extract them with "
            f"{features.MOBILENET} --classes 100."
        )
    rows, file = load_features(path, memory=0)
    x, y = rows.features(), rows.labels()
    kept, held = features.fifth_apart(len(x))
    facts = PublicFacts(len(kept), x.shape[1], 100)
    described = describe(file, PublicFacts(len(x), x.shape[1], 100))
    return Loaded(ArrayRows(x[kept], y[kept]), x[held], y[held], facts, described)


def clusters() -> Loaded:
    """10,000 of CIFAR-10's training rows in 100 clusters, as in `ablation`."""
    return some_rows("cifar10", NAME, 10_000, 100, 0)


def ten_classes() -> Loaded:
    """The same rows with CIFAR-10's own classes."""
    return some_rows("cifar10", NAME, 10_000, 10, 0)


SETS: dict[str, Callable[[], Loaded]] = {
    "clusters": clusters,
    "cifar100": cifar100,
    "ten": ten_classes,
}


@lru_cache(maxsize=1)
def turn() -> np.ndarray:
    """(1280, AXES)."""
    from safetensors.numpy import load_file

    path = WEIGHTS / "mobilenetv2_100.in1k.safetensors"
    weights = load_file(path)["classifier.weight"]
    classifier = nn.Linear(weights.shape[1], weights.shape[0])
    classifier.weight.data = from_numpy(weights)
    return class_axes(classifier, AXES).numpy().T


def turned(data: Loaded) -> Loaded:
    """The same rows on the axes."""
    x, y = training_rows(data)
    facts = PublicFacts(len(x), AXES, data.facts.n_classes)
    rows = ArrayRows(x @ turn(), y)
    return Loaded(rows, data.x @ turn(), data.y, facts, data.described)


def run() -> None:
    """The missing rows, the draws of one epsilon together."""
    source = provenance()
    for name, load in SETS.items():
        out = OUT / f"axes-{name}.jsonl"
        done = {(r["variant"], r["epsilon"], r["seed"]) for r in read(out)}
        plain = load()
        data = {None: plain, AXES: turned(plain)}
        for epsilon in EPSILONS:
            for variant, axes in VARIANTS.items():
                seeds = [s for s in range(DRAWS) if (variant, epsilon, s) not in done]
                if not seeds:
                    continue
                found = accuracies(data[axes], [(Auto(), s) for s in seeds], epsilon)
                for seed, accuracy in zip(seeds, found, strict=True):
                    row = row_of(variant, epsilon, seed, accuracy, plain, OTHER_ROWS)
                    append(out, row | {"n_rows": plain.facts.n_rows} | source)
                print(f"{name} eps {epsilon:g} {variant}: {found}", flush=True)
