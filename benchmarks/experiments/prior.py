"""`auto` started from MobileNetV2's own ImageNet head: CIFAR-10's classes as means of
ImageNet's, matched by name.

The matching (`CLASSES`) was made from the list of ImageNet's class names alone, which
timm has; no image was looked at. ImageNet has no deer: antelopes stand for it. `python
-m benchmarks prior` runs what is missing, on a held-out fifth of the training rows and
on the test rows, one JSON line a fit in results/ablation/prior-*.jsonl, and writes the
class weights to $DPHEAD_CACHE/cifar10-prior.npy, for `dphead fit --prior`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import features
from benchmarks.features import WEIGHTS
from benchmarks.heads import DELTA
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.together import fit_together
from benchmarks.variants import EPSILONS, row_of
from dphead.solvers import Auto
from dphead.solvers.prior import PublicPrior

OUT = RESULTS / "ablation"
START = {False: "auto", True: "started from the network's own head"}
DRAWS = 3
BACKGROUND = 1  # the network's first class is none of ImageNet's
Ranges = list[tuple[int, int]]
CLASSES: dict[str, Ranges] = {  # positions in ImageNet's list of 1,000, ends included
    "airplane": [(404, 404), (895, 895), (908, 908)],  # airliner, warplane, wing
    "automobile": [
        (436, 436),
        (468, 468),
        (511, 511),
        (609, 609),
        (627, 627),
        (656, 656),
        (661, 661),
        (751, 751),
        # beach wagon, cab, convertible, jeep, limousine, minivan, Model T,
        # racer, sports car
        (817, 817),
    ],
    "bird": [(7, 24), (80, 100), (127, 146)],
    "cat": [(281, 287)],
    "deer": [(351, 353)],  # hartebeest, impala, gazelle
    "dog": [(151, 268)],
    "frog": [(30, 32)],
    "horse": [(339, 340)],  # sorrel, zebra
    "ship": [
        (484, 484),
        (510, 510),
        (554, 554),
        (576, 576),
        (625, 625),
        (628, 628),
        (724, 724),
        (780, 780),
        # catamaran, container ship, fireboat, gondola, lifeboat, liner, ...
        (814, 814),
        (871, 871),
        (913, 914),
    ],
    # fire engine, garbage truck
    "truck": [
        (555, 555),
        (569, 569),
        (675, 675),
        (717, 717),
        (864, 864),
        (867, 867),
    ],
}


def class_weights(head: np.ndarray) -> np.ndarray:
    """(n_features, 10): the mean of the head's rows of each class.

    head: (1001, n_features).
    """
    means = []
    for ranges in CLASSES.values():
        positions = [
            i + BACKGROUND for first, last in ranges for i in range(first, last + 1)
        ]
        means.append(head[positions].mean(axis=0))
    return np.stack(means, axis=1)


def load(weights: Path = WEIGHTS / "mobilenetv2_100.in1k.safetensors") -> np.ndarray:
    """`class_weights` of the network at hand."""
    from safetensors.numpy import load_file

    return class_weights(load_file(weights)["classifier.weight"].astype(np.float64))


def run() -> None:
    """The missing rows: with and without the prior, the same noise seeds."""
    weights = load()
    source = provenance()
    np.save(features.cache() / "cifar10-prior.npy", weights)
    solvers: dict[bool, Any] = {False: Auto(), True: Auto(prior=PublicPrior(weights))}
    for kind in ("held-out", "test"):
        out = OUT / f"prior-{kind}.jsonl"
        done = {(r["variant"], r["epsilon"], r["seed"]) for r in read(out)}
        data = features.load("cifar10", "mobilenetv2-128", kind == "held-out")
        for epsilon in EPSILONS:
            missing = [
                (p, s)
                for p in solvers
                for s in range(DRAWS)
                if (START[p], epsilon, s) not in done
            ]
            if not missing:
                continue
            results = fit_together(
                data.rows,
                data.facts,
                [(solvers[p], s, epsilon) for p, s in missing],
                DELTA,
            )
            for (prior, seed), result in zip(missing, results, strict=True):
                accuracy = float(
                    np.mean(result.head.scores(data.x).argmax(axis=1) == data.y)
                )
                row = row_of(
                    START[prior], epsilon, seed, accuracy, data, f"{kind} rows"
                )
                append(out, row | source)
                print(
                    f"{kind} eps {epsilon:g} prior {prior} draw {seed} {accuracy:.4f}",
                    flush=True,
                )
