"""Warn about leaks that the guarantee of a fit does not cover.

Two leaks are detected: pipeline steps fitted to the same rows, and searches that change
settings between fits. Manual transforms and manual searches are not detected. Private
estimators of dphead state their own guarantee. No row is read.
"""

import sys
from collections import Counter
from multiprocessing import current_process
from types import FrameType
from typing import TYPE_CHECKING, Any

from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from dphead.privacy.rounding import rounded_up

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

_CHANGED = (
    "This fit uses a clone with changed settings, as in a grid search. Neither "
    "epsilon nor a ledger covers a choice between such fits by scores on private rows. "
    "Choose settings on public rows. "
)
_REPEATED = (
    "Clones of this estimator are fitted, as in cross-validation, a search or an "
    "ensemble. Each fit spends its own epsilon, and fits on overlapping rows add up. "
    "privacy_ covers one fit. For heads, `dphead.cross_validate` charges all folds or "
    "none. "
)
_FOLDS = (
    "Under relation={relation!r}, epsilon holds only if no row decides which other "
    "rows a fit gets. scikit-learn chooses folds by positions or labels. Use "
    'relation="zero_out". '
)
_MAIN = "MainProcess"  # Python's name for the main process
_UNCOUNTED = "No ledger adds these fits up. Pass `ledger` to add them up."
# number of fits of each family of clones in this process
_fits: Counter[str | None] = Counter()
_told: set[tuple[str, str]] = set()  # (family, subject of the warning)


def is_news(estimator: Any, subject: str) -> bool:
    """Return whether a warning is the first on this subject for a family of clones.

    Later calls for the family and subject return False. An estimator without clones
    gets the warning in each fit.
    """
    family = vars(estimator).get("_family")
    news = (family, subject) not in _told
    if family is not None:
        _told.add((family, subject))
    return news


def around(estimator: Any, total: float | None) -> dict[str, str]:
    """Count this fit for its family of clones, and return its warnings by subject.

    `total` is the ledger's epsilon with this fit, or None without a ledger.
    """
    found = {}
    family = vars(estimator).get("_family")
    if family is not None:
        _fits[family] += 1
    changed = vars(estimator).get("_is_candidate", False)
    # a process counts only its own fits
    apart = vars(estimator).get("_is_clone") and current_process().name != _MAIN
    if changed or apart or _fits[family] > 1:
        count = _UNCOUNTED
        if total is not None:
            count = (
                f"With this fit, the ledger's total is epsilon {rounded_up(total)}. "
                "Each further fit adds to this total."
            )
        folds = ""
        if estimator.relation != "zero_out":
            folds = _FOLDS.format(relation=estimator.relation)
        found["clones"] = f"{_CHANGED if changed else ''}{_REPEATED}{folds}{count}"
    steps = _fitted_before(estimator, sys._getframe(1))
    if steps:
        found["pipeline"] = (
            f"The earlier pipeline steps {', '.join(steps)} were fitted to the same "
            "rows. Epsilon does not cover these steps. Use steps that learn nothing, "
            "such as Normalizer, or fit the steps to public rows and wrap them in "
            "FrozenEstimator."
        )
    return found


def _fitted_before(estimator: Any, frame: FrameType | None) -> list[str]:
    """Return the names of earlier pipeline steps that were fitted to the rows.

    The pipelines are found on the stack of calls, from `frame` outward.
    """
    found: list[str] = []
    inner = estimator
    # a pipeline on the stack has loaded its module
    pipelines: Any = sys.modules.get("sklearn.pipeline")
    while pipelines and frame is not None:
        around: Any = frame.f_locals.get("self")
        fits = frame.f_code.co_name.startswith("fit")
        if fits and isinstance(around, pipelines.Pipeline):
            before = around.steps[: _place(around, inner)]
            found = [name for name, step in before if _learns(step)] + found
            inner = around
        frame = frame.f_back
    return list(dict.fromkeys(found))


def _place(pipeline: "Pipeline", inner: Any) -> int:
    """Return the index of the step `inner`, or of the last step if none matches.

    A pipeline with a memory clones its steps, so a step of the same type also matches.
    """
    steps = [step for _, step in pipeline.steps]
    same = [i for i, step in enumerate(steps) if step is inner]
    alike = [i for i, step in enumerate(steps) if type(step) is type(inner)]
    return (same or alike or [len(steps) - 1])[0]


def _learns(step: Any) -> bool:
    """Return whether a step learns from rows without privacy."""
    if step is None or step == "passthrough":
        return False
    if hasattr(step, "privacy_"):
        return not step.privacy_.private
    if type(step).__name__ == "FrozenEstimator":
        return False
    return not isinstance(step, BaseEstimator) or get_tags(step).requires_fit
