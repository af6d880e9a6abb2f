"""diffprivlib's components and regressions on the data of `unclassed`, by a Python that
has it: it may import numpy, scikit-learn and diffprivlib, and nothing of ours.
"""

import json
import warnings
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


TASKS = {"diabetes": diabetes, "linear": linear, "digits": digits}


def peer(task: Task, epsilon: float, seed: int) -> Any:
    """diffprivlib's model, fitted."""
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


def tell(name: str, epsilon: float, draws: int) -> None:
    """Print the scores of a task's fits as JSON."""
    task = TASKS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [task.score(peer(task, epsilon, seed)) for seed in range(draws)]
    print(json.dumps(found))
