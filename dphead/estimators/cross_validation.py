"""Fit a private classifier on all folds of a data set, under one charge."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dphead_extract.features.rows import UNGROUPED
from sklearn.utils import _safe_indexing

from dphead.data.arrays import declared_dtype, group_ids
from dphead.data.device_rows import DeviceRows
from dphead.estimators.base import DPClassifier
from dphead.estimators.inputs import as_arrays, declared, is_path, require_target
from dphead.estimators.labels import label_column, require_same_kind
from dphead.fit.fit import Fit, charge_ledger
from dphead.planning.plan import FitPlan
from dphead.privacy.ledger import Ledger
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.solvers.settings import typed


@dataclass(frozen=True)
class CrossValidation:
    """Hold the results of a cross-validation.

    Attributes
    ----------
    scores : ndarray of shape (folds,)
        Accuracy of each fold's classifier on the rows that its fit left out. These
        numbers are exact and private: do not publish them. NaN for a fold without rows.
    estimators : list of DPClassifier
        The fitted classifiers. The guarantee `privacy_` of each covers its own fit.
    epsilon, delta : float
        Total charge of all folds: epsilon at delta.
    """

    scores: np.ndarray
    estimators: list[DPClassifier]
    epsilon: float
    delta: float


def cross_validate(
    estimator: DPClassifier, X: Any, y: Any, groups: Any = None, folds: int = 5
) -> CrossValidation:
    """Fit a classifier once for each fold, and charge all fits or none.

    scikit-learn's `cross_val_score` charges one fold after another. If the budget ends
    between two folds, the later folds have no score. By default, its folds depend on
    the labels, so the label of one row can change the fold of a different row.

    Each fit leaves out the rows of one fold, which then add zero to every sum. The
    number of rows stays the same. Without groups, a fixed shuffle of the positions
    decides the fold of a row. With groups, a digest of the row's group decides it, and
    a row without a group is never left out.

    Parameters
    ----------
    estimator : DPClassifier
        The classifier, with its parameters. It is not fitted.
    X : array-like of shape (n_rows, n_features)
        The rows.
    y : array-like of shape (n_rows,)
        Labels, as for `fit`.
    groups : array-like of shape (n_rows,), default=None
        Group of each row, for use with group_cap.
    folds : int, default=5
        Number of folds, at least 2.

    Returns
    -------
    CrossValidation
        The scores, the classifiers and the charge.

    Raises
    ------
    ValueError
        If a setting is invalid, if epsilon is infinite, if `X` is a path, or if the
        labels are label sets. Under relation="add_remove", if there are no groups: the
        removal of one row would move other rows to different folds. Nothing is charged
        then.
    LedgerError
        If the ledger refuses all folds together, for example because they would exceed
        the budget. Nothing is charged then. After the charge, if the ledger cannot be
        written.

    Notes
    -----
    The charge counts each row in every fit, although one fit leaves it out. Epsilon
    does not cover a choice of settings by these scores.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPAutoClassifier, cross_validate
    >>> X = np.random.default_rng(0).normal(size=(300, 8))
    >>> found = cross_validate(
    ...     DPAutoClassifier(classes=[0, 1], delta=1e-4), X, X[:, 0] > 0, folds=3
    ... )
    >>> len(found.scores), found.epsilon < 3
    (3, True)
    """
    X, y, groups = as_arrays(X, y, groups)
    if is_path(X) or not isinstance(estimator, DPClassifier):
        raise ValueError(
            "`cross_validate` needs a classifier of dphead and an array, got "
            f"{typed(estimator)} and {typed(X)}. Load the rows of a features file "
            "first, and pass the data set's ledger as `ledger`."
        )
    if estimator.__sklearn_tags__().classifier_tags.multi_label:
        raise ValueError(
            "`cross_validate` needs one label per row, got the multi-label classifier "
            f"{typed(estimator)}. Use `sklearn.model_selection.cross_validate`, which "
            "charges one fold after another."
        )
    # with several processes, the first score would fail, after the charge
    if isinstance(X, DeviceRows):
        X.require_one_process()
    if type(folds) is not int or folds < 2:
        raise ValueError(
            f"`folds` must be a whole number of at least 2, got {folds!r}. Use 5."
        )
    if not np.isfinite(estimator.epsilon):
        raise ValueError(
            f"`cross_validate` needs a finite epsilon, got {estimator.epsilon}. Use "
            "`sklearn.model_selection.cross_validate` for fits without privacy."
        )
    require_target(y)
    labels = label_column(y)
    if estimator.classes is not None:  # the first fit refuses None
        require_same_kind(declared_dtype(y), declared(estimator.classes))
    fold = folds_of_rows(estimator, len(labels), groups, folds)
    in_memory = estimator.ledger in (None, IN_MEMORY)
    ledger = Ledger() if in_memory else estimator.ledger  # one for all folds
    charged = _OneCharge(folds)
    given: dict[str, Any] = estimator.get_params(deep=False)
    given["ledger"] = ledger
    scores, fitted = [], []
    for k in range(folds):
        left_out = np.flatnonzero(fold == k)
        rest = labels.astype(object)
        rest[left_out] = None  # no label: the row adds zero to every sum
        own = type(estimator)(**given)
        own._charge = charged
        fitted.append(own.fit(X, rest, groups))
        own._is_fold = True
        score = np.nan
        if len(left_out):
            score = own.score(_safe_indexing(X, left_out), labels[left_out])
        scores.append(score)
    assert charged.plan is not None
    plan = charged.plan.seeded(estimator.random_state)
    return CrossValidation(np.array(scores), fitted, plan.epsilon_spent(), plan.delta)


class _OneCharge:
    """Charge the plan of all folds at the first fold, in one transaction."""

    def __init__(self, folds: int) -> None:
        self._folds = folds
        self._charge: Charge | None = None
        self.plan: FitPlan | None = None

    def __call__(self, fit: Fit[Any], ledger: Ledger) -> Charge:
        # the folds have the same public sizes, so they have the same plan
        if self._charge is None:
            plan = replace(fit.plan, specs=fit.plan.specs * self._folds)
            self.plan = plan = replace(plan, epsilon=plan.epsilon_spent())
            name = f"{fit.about.name}, cross-validation of {self._folds} folds"
            about = replace(fit.about, name=name)
            self._charge = charge_ledger(replace(fit, plan=plan, about=about), ledger)
        return self._charge


def folds_of_rows(
    estimator: DPClassifier, n_rows: int, groups: Any, folds: int
) -> np.ndarray:
    """Return the fold of each row, or -1 for a row that is never left out.

    The fold depends on the row's position, or on its own group only. Raises ValueError
    for add_remove without groups.
    """
    if groups is not None:
        ids = group_ids(groups, n_rows)
        return np.where(ids == UNGROUPED, -1, ids % folds)
    if estimator.relation == "add_remove":
        raise ValueError(
            "`cross_validate` needs `groups` for the relation add_remove, because the "
            "removal of a row would move others to different folds. Pass `groups`, or "
            "use zero_out or replace_one."
        )
    # the seed is public, so the shuffle depends only on the number of rows
    return np.random.default_rng(0).permutation(n_rows) % folds
