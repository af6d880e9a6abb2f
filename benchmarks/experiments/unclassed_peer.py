"""diffprivlib's and OpenDP's components and regressions on the data of `unclassed`, by a
Python that has them: it may import numpy, scikit-learn and these, and nothing of ours.
"""

import json
import resource
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

N_COMPONENTS = 4


@dataclass(frozen=True)
class Task:
    """x: (n, d); y: (n,) targets, None for components.

    Public numbers, the same for both: row_norm; entries of a row; bounds of targets.
    """

    x: np.ndarray
    row_norm: float
    entries: tuple[float, float]
    y: np.ndarray | None = None
    bounds: tuple[float, float] = (0.0, 0.0)

    def score(self, model: Any) -> float:
        """Share of the variance of the best components that a model's hold, or R² on
        the rows themselves (an upper end, for both alike).
        """
        if self.y is not None:
            return float(model.score(self.x, self.y))
        centred = self.x - self.x.mean(axis=0)
        basis, _ = np.linalg.qr(model.components_.T)
        held = float((centred @ basis).var(axis=0).sum())
        best = np.linalg.svd(centred, compute_uv=False)[:N_COMPONENTS]
        return held / float((best**2).sum() / len(centred))


def digits() -> Task:
    """Components of scikit-learn's 1,797 digits of 4 by 4 pixels, each brought to the
    norm 1. (Of 8 by 8 pixels, diffprivlib did not return within ten minutes.)
    """
    data: Any = load_digits()
    pairs = data.images.reshape(-1, 4, 2, 4, 2)
    x = pairs.mean(axis=(2, 4)).reshape(-1, 16)
    return Task(x / np.linalg.norm(x, axis=1, keepdims=True), 1.0, (0.0, 1.0))


def diabetes() -> Task:
    """Progression of 442 patients (25 to 346), by 10 features."""
    data: Any = load_diabetes()
    return Task(data.data, 0.25, (-0.2, 0.2), data.target, (0.0, 400.0))


def linear() -> Task:
    """20,000 rows of 20 Gaussian features, of norms near 1, and a noisy target."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(20_000, 20)) / np.sqrt(20)
    y = 2 * x @ draw.normal(size=20) + 0.5 * draw.normal(size=20_000)
    return Task(x, 1.5, (-1.0, 1.0), y, (-10.0, 10.0))


def line() -> Task:
    """5,000 rows of one feature, and a noisy target."""
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (5_000, 1))
    y = 2 * x[:, 0] + 0.5 * draw.normal(size=5_000)
    return Task(x, 1.0, (-1.0, 1.0), y, (-4.0, 4.0))


def few_digits() -> Task:
    """The first 400 of the digits: with few rows and a small epsilon the peers' sampler
    of components ends.
    """
    all_of_them = digits()
    few = all_of_them.x[:400]
    return Task(few, all_of_them.row_norm, all_of_them.entries)


TASKS = {
    "diabetes": diabetes,
    "linear": linear,
    "line": line,
    "digits": digits,
    "few digits": few_digits,
}


def diffprivlib(task: Task, epsilon: float, seed: int) -> Any:
    """Its model, fitted."""
    from diffprivlib import models  # type: ignore[import-not-found]

    if task.y is None:
        components = models.PCA(
            N_COMPONENTS,
            epsilon=epsilon,
            data_norm=task.row_norm,
            bounds=task.entries,
            random_state=seed,
        )
        return components.fit(task.x)
    regression = models.LinearRegression(
        epsilon=epsilon,
        bounds_X=task.entries,
        bounds_y=task.bounds,
        random_state=seed,
    )
    return regression.fit(task.x, task.y)


def opendp(task: Task, epsilon: float, _: int) -> Any:
    """Its model, fitted; its noise has no seed. Regressions are of one feature alone,
    by the scale of noise that costs this epsilon where a row is replaced (a symmetric
    distance of two).
    """
    import opendp.prelude as dp  # type: ignore[import-not-found]

    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    if task.y is None:
        components = dp.sklearn.decomposition.PCA(
            epsilon=epsilon,
            row_norm=task.row_norm,
            n_samples=len(task.x),
            n_features=task.x.shape[1],
            n_components=N_COMPONENTS,
        )
        return components.fit(task.x)

    def regression(scale: float) -> Any:
        return dp.sklearn.linear_model.LinearRegression(
            dp.max_divergence(),
            x_bounds=[task.entries],
            y_bounds=task.bounds,
            scale=scale,
        )

    def enough(scale: float) -> bool:
        return regression(scale).measurement.map(2) <= epsilon

    scale = dp.binary_search(enough, bounds=(1e-3, 1e4))
    return regression(scale).fit(task.x, task.y)


PEERS: dict[str, Callable[[Task, float, int], Any]] = {
    "diffprivlib": diffprivlib,
    "OpenDP": opendp,
}
ONE_FEATURE = ("OpenDP",)  # whose regressions have no more


def has_model(peer: str, name: str) -> bool:
    """Whether a peer has a model for a task."""
    one = name == "line" or TASKS[name]().y is None
    return one or peer not in ONE_FEATURE


def tell(peer: str, name: str, epsilon: float, draws: int, seconds: int) -> None:
    """Print the scores of a peer's fits of a task as JSON, unless they take more than
    so many seconds of a processor together: then the process is killed.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    task = TASKS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = PEERS[peer]
        found = [task.score(fit(task, epsilon, seed)) for seed in range(draws)]
    print(json.dumps(found))
