"""What stands around a fit and is outside its guarantee: steps of a pipeline that were
fitted to the same rows, and a search that changes settings from fit to fit.

It only warns, and not always: rows that were transformed by hand before, and a search
that makes its own estimators, cannot be seen from here. No row is looked at.
"""

import sys
import uuid
from collections import Counter
from multiprocessing import current_process
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

# settings whose change is no choice between results
NO_CHOICE = {"random_state", "ledger"}


CHANGED = (
    "this fit is of a clone whose settings were changed, as a grid search does: the "
    "choice between such fits by their scores on private rows is in no epsilon and no "
    "ledger. Choose settings on public rows. "
)
REPEATED = (
    "Clones of this estimator are fitted, as by cross-validation, a search or an "
    "ensemble: each fit spends its own epsilon, and fits on overlapping rows add up. "
    "privacy_ is of one fit. "
)
MAIN = "MainProcess"  # as Python calls it
UNCOUNTED = "No ledger counts them together: give ledger=."
_fits: Counter[str | None] = Counter()  # of each family of clones, in this process
_told: set[tuple[str, str]] = set()  # families, and what they were warned of


class WatchedMixin:
    """For an estimator that stands before `BaseEstimator`, and before every other
    mixin, among the bases.

    scikit-learn's searches clone an estimator, set the candidate's settings and fit, in
    whatever process: a fit of a clone whose settings were then changed is one of them.
    An estimator, its clones and theirs are a family, which is told each thing once.
    """

    def __sklearn_clone__(self) -> Any:
        twin: Any = super().__sklearn_clone__()  # type: ignore[misc]
        twin._family = vars(self).setdefault("_family", uuid.uuid4().hex)
        twin._is_clone = True
        return twin

    def set_params(self, **params: Any) -> Any:
        """As scikit-learn's."""
        changed = {name.split("__")[0] for name in params} - NO_CHOICE
        if vars(self).get("_is_clone") and changed:
            self._is_candidate = True
        return super().set_params(**params)  # type: ignore[misc]


def is_news(estimator: Any, subject: str) -> bool:
    """Return whether an estimator's family was not told of this yet, and note that.

    An estimator that was never cloned is told in each fit.
    """
    family = vars(estimator).get("_family")
    news = (family, subject) not in _told
    if family is not None:
        _told.add((family, subject))
    return news


def around(estimator: Any, total: float | None) -> dict[str, str]:
    """Return what to warn of in this fit: subjects, with a sentence or more each.

    total: epsilon of the ledger with this fit; None where no ledger was given.
    """
    found = {}
    family = vars(estimator).get("_family")
    if family is not None:
        _fits[family] += 1
    changed = vars(estimator).get("_is_candidate", False)
    # another process knows only its own fits
    apart = vars(estimator).get("_is_clone") and current_process().name != MAIN
    if changed or apart or _fits[family] > 1:
        count = UNCOUNTED
        if total is not None:
            count = (
                f"With this fit the ledger's total is epsilon {total:.4g}; each "
                "further fit adds to it."
            )
        found["clones"] = f"{CHANGED if changed else ''}{REPEATED}{count}"
    steps = fitted_before(estimator, sys._getframe(1))
    if steps:
        found["pipeline"] = (
            f"the pipeline's steps before this one, {', '.join(steps)}, were "
            "fitted to the same rows: epsilon does not cover what they release. "
            "Use steps that look at each row by itself, such as Normalizer, or "
            "fit them to public rows and freeze them."
        )
    return found


def fitted_before(estimator: Any, frame: FrameType | None) -> list[str]:
    """Names of the steps that each pipeline being fitted around `frame` has before the
    one with `estimator` in it, and has fitted to its rows.
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
    """The position of a step, or of one like it, which a pipeline with a memory clones;
    the last one's for what is within another estimator.
    """
    steps = [step for _, step in pipeline.steps]
    same = [i for i, step in enumerate(steps) if step is inner]
    alike = [i for i, step in enumerate(steps) if type(step) is type(inner)]
    return (same or alike or [len(steps) - 1])[0]


def _learns(step: Any) -> bool:
    """Whether a step's fit looks at rows, and is no private fit of its own."""
    if step is None or step == "passthrough" or hasattr(step, "privacy_"):
        return False
    if type(step).__name__ == "FrozenEstimator":
        return False
    return not isinstance(step, BaseEstimator) or get_tags(step).requires_fit
