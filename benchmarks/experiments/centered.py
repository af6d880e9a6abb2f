"""What the scale of centered rows is worth: R² of `DPRegressor`'s solver, and the share
of variance that `DPPCA`'s components hold, on held-out training rows.

Features are MobileNetV2's at 128 px of 10,000 training images each, brought to unit
rows; a fixed fifth is held out. Draw k uses noise seed k for every model.
`python -m benchmarks centered` runs what is missing.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from PIL import Image
from sklearn.preprocessing import normalize

from benchmarks import features
from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.solvers.components import PrincipalComponents
from dphead.solvers.head import LinearHead
from dphead.solvers.regression import RidgeRegression
from dphead.solvers.ridge import RidgeSolver, spectral_edge

OUT = RESULTS / "centered" / "rows.jsonl"
N = 10_000
EPSILONS = (0.5, 1.0, 3.0, 8.0)
DRAWS = 4
DELTA = 1e-5
CLIPS = (0.6, 0.8, 1.0, 1.25)
COMPONENTS = 8
# shares of the noise's spectral edge, for the peer alone
PEER_RIDGES = (0.15, 0.3, 0.6, 1.2)
SETS = {"rotation": "CIFAR-10", "animal": "CIFAR-10", "digit": "MNIST"}


@lru_cache(maxsize=3)
def problem(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (n, d) and targets (n,) in [-1, 1].

    rotation: CIFAR-10 images turned by up to 45 degrees; the size of the angle.
    animal: CIFAR-10 images; 1 for an animal, -1 for a vehicle. digit: MNIST images; the
    digit's value.
    """
    if name == "digit":
        folder = features.images("mnist", None)
        pixels = np.fromfile(folder / "train-images-idx3-ubyte", np.uint8)[16:]
        labels = np.fromfile(folder / "train-labels-idx1-ubyte", np.uint8)[8:]
        images = pixels.reshape(-1, 28, 28)[:N]
        return unit_rows(name, images), labels[:N] / 4.5 - 1
    folder = features.images("cifar10", None)
    parts = [np.fromfile(folder / f"data_batch_{i}.bin", np.uint8) for i in (1, 2)]
    raw = np.concatenate(parts).reshape(-1, 3073)
    images = raw[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if name == "animal":
        animals = np.isin(raw[N:, 0], (2, 3, 4, 5, 6, 7))
        return unit_rows(name, images[N:]), np.where(animals, 1.0, -1.0)
    angles = np.random.default_rng(0).uniform(-45, 45, N)
    turned = [
        # without the corners that the turn leaves empty
        np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR))[
            5:27, 5:27
        ]
        for image, angle in zip(images, angles, strict=False)
    ]
    return unit_rows(name, np.stack(turned)), np.abs(angles) / 22.5 - 1


def unit_rows(name: str, images: np.ndarray) -> np.ndarray:
    """Features of unit norm, extracted once into the cache."""
    path = features.cache() / "features" / f"centered-{name}.h5"
    if not path.exists():
        source = features.cache() / "images" / f"{name}.npz"
        np.savez(source, images=images, labels=np.zeros(len(images), int))
        grey = "" if images.ndim == 4 else " --channels 3"
        features.extract(source, path, features.MOBILENET + grey)
    x = load_features(path, memory=0)[0].features()
    return np.asarray(normalize(x), np.float32)


def models(kind: Any, first: tuple[int, ...]) -> dict[str, Any]:
    """Solvers by name: rows clipped at 1, and the grid of the centered clip."""
    clips = {f"clip {clip:g}": kind(*first, centered_clip=clip) for clip in CLIPS}
    return {"row_norm 1": kind(*first, row_norm=1.0), **clips}


def fitted(solver: Any, rows: np.ndarray, epsilon: float, seed: int) -> LinearHead:
    """The head of a fit of rows without classes."""
    facts = ProblemInfo(len(rows), rows.shape[1], 1)
    plan = make_plan(solver, facts, epsilon=epsilon, delta=DELTA)
    data = ArrayRows(rows, np.zeros(len(rows), np.int64))
    return fit_head(solver, data, facts, plan, Run(noise=NoiseSource(seed))).head


def one_shot(rows: np.ndarray, epsilon: float, seed: int) -> Iterator[np.ndarray]:
    """Weights of the smallest peer, for each of PEER_RIDGES.

    It has one noisy Gram matrix of (x, t), for the whole budget.
    """
    whole = RidgeRegression(row_norm=1.0, mean_share=0.0)
    facts = ProblemInfo(len(rows), rows.shape[1], 1)
    plan = make_plan(whole, facts, epsilon=epsilon, delta=DELTA)
    sd = 2 * plan.specs[0].noise_multiplier  # the squared norm of (x, t) is at most 2
    z = rows.astype(np.float64)
    noise = np.random.default_rng(seed).normal(0, sd, 2 * z.shape[1:])
    gram = z.T @ z + (noise + noise.T) / 2
    for share in PEER_RIDGES:
        ridge = spectral_edge(share * sd, len(gram))
        yield RidgeSolver(gram[:-1, :-1], ridge)(gram[:-1, -1])


def r2(target: np.ndarray, predicted: np.ndarray) -> float:
    """1 for a perfect prediction, 0 for that of the mean."""
    return float(1 - np.mean((target - predicted) ** 2) / np.var(target))


def share_held(components: np.ndarray, x: np.ndarray) -> float:
    """Variance along orthonormal columns, over that of the best so many."""
    covariance = np.cov(x.T)
    best = np.linalg.eigvalsh(covariance)[-components.shape[1] :].sum()
    return float(np.trace(components.T @ covariance @ components) / best)


def keep(at: dict[str, Any], task: str, model: str, **value: float) -> None:
    """Store a row, and say it."""
    append(OUT, {"task": task, "model": model} | at | value | provenance())
    print(task, model, at, value, flush=True)


def run() -> None:
    """Measure what is missing, and store a row for each fit."""
    done = {(r["task"], r["model"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for epsilon, name, seed in product(EPSILONS, SETS, range(DRAWS)):
        x, target = problem(name)
        kept, held = features.fifth_apart(N)
        rows = np.column_stack([x[kept], target[kept]]).astype(np.float32)

        at = {"epsilon": epsilon, "seed": seed, "delta": DELTA}
        for model, solver in models(RidgeRegression, ()).items():
            if (name, model, epsilon, seed) not in done:
                scores = fitted(solver, rows, epsilon, seed).scores(x[held])
                keep(at, name, model, r2=r2(target[held], scores[:, 0]))
        if (name, f"one-shot {PEER_RIDGES[0]:g}", epsilon, seed) not in done:
            weights = one_shot(rows, epsilon, seed)
            for share, w in zip(PEER_RIDGES, weights, strict=True):
                r = r2(target[held], x[held] @ w)
                keep(at, name, f"one-shot {share:g}", r2=r)
        task = f"components of {SETS[name]}"
        if name == "rotation":
            continue
        for model, solver in models(PrincipalComponents, (COMPONENTS,)).items():
            if (task, model, epsilon, seed) not in done:
                head = fitted(solver, x[kept], epsilon, seed)
                keep(at, task, model, share=share_held(head.weights, x[held]))
