"""Define the scikit-learn classifier for rows with any number of classes.

Labels are read after the charge, one row at a time. Code here must not request a
statistic if its bound holds for one class per row only.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import expit

from dphead.analysis.metrics import classified
from dphead.data.arrays import declared_dtype, held_labels, read_column
from dphead.estimators.base import DPHeadClassifier, check_classified, share_right
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    checked_rows,
    declared,
    from_file,
    is_path,
    listed,
    of_arrays,
    refuse_split,
    require_target,
)
from dphead.estimators.labels import (
    number,
    numbers,
    private_notice,
    told,
    unread_rows,
)
from dphead.fit.loop import check_takes_sets
from dphead.planning.methods import Method, settable
from dphead.planning.plan import Target
from dphead.solvers.auto import Auto
from dphead.solvers.auto_rules import MOVE_LOGITS
from dphead.solvers.base import ProblemInfo, Solver
from dphead.solvers.settings import shown


@dataclass(kw_only=True, eq=False, repr=False)
class DPMultiLabelClassifier(DPHeadClassifier):
    """Fit a private linear head for rows with none, one, several or all classes.

    `y` is scikit-learn's indicator matrix (n_rows, n_classes) of ones and zeros. A
    class's score is the logit of its own sigmoid. A row's gradients for all classes are
    clipped as one vector. A row with many classes therefore moves the release no
    further than a row with one class. No largest number of classes per row is needed. A
    row adds zero to every sum if it is not finite, or if its values in y are not ones
    and zeros.

    Parameters
    ----------
    method : {"auto", "dp-sgd", "dp-adam", "dp-fc", "dp-newton"}, default="auto"
        "auto" takes the steps of `DPAutoClassifier` with the sigmoid loss, without an
        expected accuracy. All releases of a method must support label sets.
    settings : dict, default=None
        Settings of the method by name. Other settings use the preset's value or the
        solver's default. sampling_prob below 1 (dp-sgd and dp-adam) uses Poisson
        batches.
    classes : sequence of shape (n_classes,), default=None
        Public names of the columns of y. None uses a data frame's names, or numbers. A
        data frame with other names or another order is refused.
    epsilon, delta, relation, nominal_n, group_cap, protect, accountant, ledger, split,
    preset, allow_large_delta, random_state, unit_norm, center_share, normalization
        As of `DPClassifier`.
    group_mean : bool, default=False
        Must be False, because a mean uses rows of one class only.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Names of the columns of y, in their order.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights for rows after `head_.transform`.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts of the scores.
    n_features_in_, head_, privacy_, ledger_
        As in `DPClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPMultiLabelClassifier
    >>> rng = np.random.default_rng(0)
    >>> Y = rng.integers(0, 2, size=(2000, 3))
    >>> X = rng.normal(size=(2000, 8)) + 4 * Y @ np.eye(3, 8)
    >>> head = DPMultiLabelClassifier(epsilon=2.0, classes=["a", "b", "c"]).fit(X, Y)
    >>> head.predict(X).shape
    (2000, 3)
    >>> bool(head.score(X, Y) > 0.7)
    True
    """

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, **refused: Any
    ) -> "DPMultiLabelClassifier":
        """Charge the ledger, then fit.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features), or path
            As in `DPClassifier.fit`.
        y : array-like or sparse matrix of shape (n_rows, n_classes)
            Ones and zeros, in two columns or more. If X is a path, one row for each row
            of its split, in the file's order; the file's own labels are not used.
        groups : array-like of shape (n_rows,), default=None
            Group of each row, for group_cap. A features file has its own groups.
        **refused
            sample_weight is refused.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            As in `DPClassifier.fit`, or if a release supports only one class per row.
            Nothing is charged then.
        LedgerError
            If the fit would exceed the budget.
        """
        super().fit(X, y, groups, **refused)
        self.coef_ = self.head_.weights.T.copy()
        self.intercept_ = self.head_.intercept.copy()
        return self

    def decision_function(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return scores (n, n_classes), each the logit of its class.

        X is as in `fit`. A row that is not finite has NaN scores. If the fit was not
        private, raise ValueError for such a row.
        """
        return self._scores(X, split)

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return (n, n_classes) int64: one where a class's probability is above 1/2.

        Raises
        ------
        ValueError
            If a row is not finite or unreadable.
        """
        scores = self._scores(X, split)
        check_classified(scores)
        return (scores > 0).astype(np.int64)

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return probabilities (n, n_classes), independent for each class.

        A row that is not finite has NaN probabilities.
        """
        return expit(self._scores(X, split).astype(np.float64))

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Return the fraction of rows with every class right (subset accuracy).

        X and y are as in `fit`. A row without a prediction counts as wrong. The result
        is an exact function of these rows. Do not publish it for private rows.
        """
        X, y, weight = as_arrays(X, y, sample_weight)
        _check_order(_names_of(y), self.classes_.tolist())
        scores = self._scores(X, split)
        predicted = (scores > 0).astype(np.int64)
        return share_right(y, predicted, classified(scores), weight)

    def _options(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "loss" in settable(self.method):
            given["loss"] = "sigmoid"
        if self.method == "auto":
            given["estimate"] = False
        return given | super()._options()

    def _method(self, facts: ProblemInfo) -> Method:
        method = super()._method(facts)
        method = replace(method, solver=_of_sigmoids(method.solver))
        target = Target(
            self.epsilon, self._delta(), self.relation, group_cap=self.group_cap
        )
        check_takes_sets(method.solver, target.budgeted(facts))
        return method

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if self.group_mean:
            raise ValueError(
                "group_mean needs one class for each row, got label sets. Leave it "
                "out: the first rows of each group then count."
            )
        sets = indicators(y)
        names = columns(self.classes, sets.shape[1], _names_of(y))
        if is_path(X):
            notice = {"notice": lambda: _unread_sets(sets)}
            return from_file(self, X, groups, names, sets, **notice)
        refuse_split(self.split)
        x, sets = checked_rows(self, X, sets, multi_output=True)
        data = of_arrays(
            self,
            x,
            lambda: sets,
            groups,
            names,
            notice=lambda: told(_unread_sets(sets), unread_rows(x)),
        )
        return nullcontext(data)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        tags.target_tags.single_output = False
        tags.target_tags.multi_output = True
        tags.target_tags.two_d_labels = True
        return tags


def _of_sigmoids(solver: Solver) -> Solver:
    """Return auto with the sigmoid loss and a fixed `move`; keep other solvers.

    The step length is then fixed, because the rule that lengthens steps was tested for
    softmax only. `move` has the value for softmax. On synthetic labels and digits,
    trials with 0.6 to 3 logits were within 1.5 points of this value at ε = 1 and 8 (not
    stored).
    """
    if not isinstance(solver, Auto):
        return solver
    descent = replace(solver.descent, loss="sigmoid")
    return replace(solver, descent=descent, move=solver.move or MOVE_LOGITS)


def indicators(y: Any) -> np.ndarray:
    """Return (n, n_classes) numbers, checked by shape and dtype only.

    Numbers are read after the charge. Raises ValueError for other shapes and types.
    """
    require_target(y, "indicator matrix")
    if issparse(y):
        y = y.toarray()
    elif isinstance(y, list | tuple):
        y = _of_lists(y)
    elif hasattr(y, "iloc"):
        y = _of_frame(y)
    elif isinstance(y, np.ma.MaskedArray) and y.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            y = np.ma.filled(y.astype(np.float64), np.nan)
    y = read_column(y)
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "biuf":
        raise _no_indicators(y.shape, y.dtype)
    return y


def _no_indicators(shape: tuple[int, ...], dtype: np.dtype) -> ValueError:
    """Return the error for a y that is not an indicator matrix."""
    return ValueError(
        "y must be an indicator matrix (n_rows, n_classes) of ones and zeros with "
        f"two columns or more, got y.shape={shape}, y.{dtype=}. For one class per row "
        "use DPClassifier; convert sets of classes with "
        "MultiLabelBinarizer(classes=...)."
    )


def _of_frame(y: Any) -> np.ndarray:
    """Return a pandas frame's numbers, read one by one, with NaN for missing ones."""
    parts = [y.iloc[:, i] for i in range(y.shape[1])] if y.ndim == 2 else [y]
    dtypes = [declared_dtype(part) for part in parts]
    wrong = [dtype for dtype in dtypes if dtype.kind not in "biuf"]
    if wrong or len(parts) < 2:
        raise _no_indicators(y.shape, (wrong or dtypes or [np.dtype(object)])[0])
    return np.column_stack([numbers(part) for part in parts])


def _of_lists(y: Any) -> np.ndarray:
    """Return lists as numbers, without running any item's own code.

    An item that is not a number becomes NaN, and its row adds zero to every sum. Raises
    ValueError for another shape or a string.
    """
    rows = [row.tolist() if isinstance(row, np.ndarray) else row for row in y]
    shaped = all(isinstance(row, list | tuple) for row in rows)
    if (
        not shaped
        or len({len(row) for row in rows}) != 1
        or any(issubclass(type(item), str | bytes) for row in rows for item in row)
    ):
        raise ValueError(
            "y must be an indicator matrix of ones and zeros, got lists of other "
            "items. Convert sets of classes with MultiLabelBinarizer(classes=...)."
        )
    with np.errstate(all="ignore"):
        return np.array([[number(item) for item in row] for row in rows], np.float64)


def _names_of(y: Any) -> list[Any]:
    """Return the names of a data frame's columns, or []."""
    return list(y.columns) if hasattr(y, "iloc") and y.ndim == 2 else []


def columns(classes: Any, count: int, said: list[Any]) -> np.ndarray:
    """Return the public names of `count` columns, in their order.

    `said` has the names of a data frame's columns. These names are the classes if none
    are declared, and must match any declared classes.
    """
    texts = all(isinstance(name, str) for name in said) and len(set(said)) == count
    if classes is None:
        return np.asarray(said) if texts else np.arange(count)
    given = listed(classes)
    names = np.asarray(given) if len(declared(given)) == count else np.empty(0)
    if len(names) != count:
        raise ValueError(
            f"classes must be {count} distinct numbers or texts, one for each column "
            f"of y, got classes={shown(given)}. Correct or drop them."
        )
    _check_order(said, given)
    return names


def _check_order(said: list[Any], classes: list[Any]) -> None:
    """Raise ValueError if a data frame's columns are not the classes in order.

    Names that only number the columns match any classes.
    """
    counted = list(range(len(classes)))
    is_named = said != counted and classes != counted
    if said and said != classes and (is_named or set(said) == set(classes)):
        raise ValueError(
            f"the columns of y must be the classes in their order, got {shown(said)} "
            f"for classes={shown(classes)}. Pass y[list(classes)], or rename the "
            "columns."
        )


def _unread_sets(sets: np.ndarray) -> str:
    """Return a notice of label sets with values other than one and zero."""
    given = np.logical_not(np.isnan(sets).any(axis=1))
    used = np.asarray((held_labels(sets) >= 0).all(axis=1))
    what = "label sets have values other than one and zero"
    return private_notice(given, used, what)
