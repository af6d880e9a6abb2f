"""Tasks of several labels a row, their scores, and diffprivlib's one-vs-rest logistic
regressions on them, by a Python that has it: it may import numpy, scikit-learn and
diffprivlib, and nothing of ours.
"""

import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.multiclass import OneVsRestClassifier

# what is true of each digit: it has a loop, is even, is above 4, is prime
TRUTHS = ((0, 6, 8, 9), (0, 2, 4, 6, 8), (5, 6, 7, 8, 9), (2, 3, 5, 7))
TEST_SHARE = 4  # every fourth row


@dataclass(frozen=True)
class Task:
    """x: (n, d) rows of norm one around their public centre; y: (n, n_labels) of ones
    and zeros, two labels or more. Every fourth row is for tests.
    """

    x: np.ndarray
    y: np.ndarray

    def split(self, test: bool) -> tuple[np.ndarray, np.ndarray]:
        """Training rows, or those for tests."""
        chosen = (np.arange(len(self.x)) % TEST_SHARE == 0) == test
        return self.x[chosen], self.y[chosen]

    def score(self, model: Any) -> list[float]:
        """Of rows for tests: subset accuracy, macro F1, mean average precision."""
        x, y = self.split(test=True)
        predicted = model.predict(x)
        scores = np.nan_to_num(model.decision_function(x))
        averaged: Any = {"average": "macro", "zero_division": 0.0}
        f1 = f1_score(y, predicted, **averaged)
        precision = average_precision_score(
            y,
            scores,
            average="macro",
        )
        return [
            float(np.mean((predicted == y).all(axis=1))),
            float(f1),
            precision,
        ]


def unit(x: np.ndarray, center: float) -> np.ndarray:
    """Rows less a public number, of norm one."""
    x = x - center
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def digits() -> Task:
    """1,797 digits of 64 pixels, and four things that are true of some of them."""
    data: Any = load_digits()
    y = np.stack([np.isin(data.target, truth) for truth in TRUTHS], axis=1)
    return Task(unit(data.data, 8.0), y.astype(np.int64))


def topics() -> Task:
    """20,000 documents of 50 words and 10 topics, 2 on average (scikit-learn's)."""
    made: Any = make_multilabel_classification(
        n_samples=20_000,
        n_features=50,
        n_classes=10,
        n_labels=2,
        random_state=0,
    )
    return Task(unit(made[0], 0.0), made[1])


def embeddings() -> Task:
    """20,000 rows of 64 numbers, which hold a direction for each of their labels and
    noise; 20 labels that 2 to 30 % of the rows have, some more often together.
    """
    draw = np.random.default_rng(0)
    directions = draw.normal(size=(20, 64)) / 8
    shared = draw.normal(size=(20_000, 5)) @ draw.normal(size=(5, 20)) / np.sqrt(5)
    wants = shared + draw.normal(size=(20_000, 20))
    rates = np.geomspace(0.02, 0.3, 20)
    limits = [np.quantile(wants[:, j], 1 - rate) for j, rate in enumerate(rates)]
    y = (wants > np.array(limits)).astype(np.int64)
    x = 3 * y @ directions + 0.6 * draw.normal(size=(20_000, 64))
    return Task(unit(x, 0.0), y)


TASKS = {
    "digits": digits,
    "topics": topics,
    "embeddings": embeddings,
}


def without_privacy(task: Task) -> Any:
    """scikit-learn's one-vs-rest logistic regressions, fitted."""
    model = OneVsRestClassifier(LogisticRegression(C=100.0, max_iter=1000))
    return model.fit(*task.split(test=False))


def peer(task: Task, epsilon: float, seed: int) -> Any:
    """diffprivlib's logistic regressions, one a label, fitted; each has its share of
    epsilon, as any row is in all of them.
    """
    from diffprivlib import models  # type: ignore[import-not-found]

    each = models.LogisticRegression(
        epsilon=epsilon / task.y.shape[1], data_norm=1.0, random_state=seed
    )
    return OneVsRestClassifier(each).fit(*task.split(test=False))


def tell(name: str, epsilon: float, draws: int) -> None:
    """Print the scores of a task's fits as JSON."""
    task = TASKS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [task.score(peer(task, epsilon, seed)) for seed in range(draws)]
    print(json.dumps(found))
