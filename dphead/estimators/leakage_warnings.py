"""Warn about leaks around a fit that its guarantee does not cover.

The leaks are pipeline steps fitted to the same rows, and searches that change settings
between fits. Manual transforms of rows and other searches go undetected. No row is
read.
"""

import sys
from collections import Counter
from multiprocessing import current_process
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

# changing these does not choose between results
NO_CHOICE = {"random_state", "ledger"}


_CHANGED = (
    "this fit is of a clone with changed settings, as in a grid search. No epsilon "
    "or ledger covers a choice between such fits by scores on private rows. Choose "
    "settings on public rows. "
)
_REPEATED = (
    "Clones of this estimator are fitted, as in cross-validation, a search or an "
    "ensemble. Each fit spends its own epsilon, and fits on overlapping rows add up. "
    "privacy_ covers one fit. "
)
_MAIN = "MainProcess"  # Python's name for the main process
_UNCOUNTED = "No ledger counts them together: pass ledger=."
_fits: Counter[str | None] = Counter()  # by family of clones, in this process
_told: set[tuple[str, str]] = set()  # (family, subject of the warning)


def is_news(estimator: Any, subject: str) -> bool:
    """Return whether an estimator's family has not had this warning yet, and note it.

    An estimator without clones gets the warning in each fit.
    """
    family = vars(estimator).get("_family")
    news = (family, subject) not in _told
    if family is not None:
        _told.add((family, subject))
    return news


def around(estimator: Any, total: float | None) -> dict[str, str]:
    """Return the warnings of this fit by subject.

    `total` is the ledger's epsilon with this fit, or None without a ledger.
    """
    found = {}
    family = vars(estimator).get("_family")
    if family is not None:
        _fits[family] += 1
    changed = vars(estimator).get("_is_candidate", False)
    # another process knows only its own fits
    apart = vars(estimator).get("_is_clone") and current_process().name != _MAIN
    if changed or apart or _fits[family] > 1:
        count = _UNCOUNTED
        if total is not None:
            count = (
                f"With this fit the ledger's total is epsilon {total:.4g}; each "
                "further fit adds to it."
            )
        found["clones"] = f"{_CHANGED if changed else ''}{_REPEATED}{count}"
    steps = _fitted_before(estimator, sys._getframe(1))
    if steps:
        found["pipeline"] = (
            f"the earlier pipeline steps {', '.join(steps)} were fitted to the same "
            "rows: epsilon does not cover them. Use steps that transform each row "
            "alone, such as Normalizer, or fit the steps to public rows and freeze "
            "them."
        )
    return found


def _fitted_before(estimator: Any, frame: FrameType | None) -> list[str]:
    """Return the names of pipeline steps fitted to the rows before this estimator.

    The search covers each pipeline that is being fitted around `frame`, and its steps
    before `estimator`.
    """
    found: list[str] = []
    inner = estimator
    while frame is not None:
        around = frame.f_locals.get("self")
        if isinstance(around, Pipeline) and frame.f_code.co_name.startswith("fit"):
            before = around.steps[: _place(around, inner)]
            found = [name for name, step in before if _learns(step)] + found
            inner = around
        frame = frame.f_back
    return list(dict.fromkeys(found))


def _place(pipeline: Pipeline, inner: Any) -> int:
    """Return the index of a step in a pipeline.

    A pipeline with a memory clones its steps, so a step of the same type matches too.
    For an estimator within another estimator, return the index of the last step.
    """
    steps = [step for _, step in pipeline.steps]
    same = [i for i, step in enumerate(steps) if step is inner]
    alike = [i for i, step in enumerate(steps) if type(step) is type(inner)]
    return (same or alike or [len(steps) - 1])[0]


def _learns(step: Any) -> bool:
    """Return whether a step's fit reads rows and is not itself private."""
    if step is None or step == "passthrough" or hasattr(step, "privacy_"):
        return False
    if type(step).__name__ == "FrozenEstimator":
        return False
    return not isinstance(step, BaseEstimator) or get_tags(step).requires_fit
