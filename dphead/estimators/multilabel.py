"""Define the scikit-learn classifier for rows with any number of classes.

Each label set is converted alone. An array of labels is checked by shape and dtype. If
labels are lists, a string in them or unequal lengths stop the fit before the charge. Do
not request a statistic here if its sensitivity assumes one class per row.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.utils.validation import check_consistent_length

from dphead.analysis.metrics import classified
from dphead.data.arrays import declared_dtype, held_labels, read_column
from dphead.data.device_rows import own_scalars
from dphead.estimators.base import check_classified, share_right
from dphead.estimators.classifiers import DPHeadClassifier
from dphead.estimators.docstrings import documented
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    checked_rows,
    class_list,
    declared,
    from_file,
    is_path,
    of_arrays,
    refuse_split,
    require_target,
)
from dphead.estimators.labels import (
    as_number,
    numbers,
    private_notice,
    told,
    unread_rows,
)
from dphead.planning.methods import Method, settable
from dphead.solvers.auto import Auto
from dphead.solvers.base import ProblemInfo, Solver
from dphead.solvers.settings import typed


@documented({})
@dataclass(kw_only=True, eq=False, repr=False)
class DPMultiLabelClassifier(DPHeadClassifier):
    """Fit a private linear head for rows with none, one, several or all classes.

    `fit` takes y as scikit-learn's indicator matrix of ones and zeros, dense or sparse,
    of shape (n_rows, n_classes). If X is a path, y has one row for each row of the
    split, in the file's order, and the file's labels are not used. A row adds zero to
    every sum if it is not finite, or if its values in y are not ones and zeros.

    The score of a class is the logit of a sigmoid for this class. The gradients of a
    row for all classes are bounded together, so the number of classes per row needs no
    limit.

    Parameters
    ----------
    method : str, default="auto"
        "auto", "dp-sgd", "dp-adam", "dp-optax", "dp-fc" or "dp-newton". "auto" takes
        the steps of `DPAutoClassifier` with the sigmoid loss, without an expected
        accuracy.
    classes : sequence of shape (n_classes,), default=None
        Public names of the columns of y. None means the column names of a data frame if
        they are distinct strings, and 0, 1, ... otherwise. The columns of a data frame
        must have the names in `classes`, in the same order, or be 0, 1, ...
    group_mean : bool, default=False
        Must be False, because a mean uses rows of one class only.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Names of the columns of y, in their order.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights for rows after `head_.transform` and `head_.feature_clip`. If the rows
        were projected (`axes_from`), one column for each axis.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts of the scores.

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

    def _set_coefficients(self) -> None:
        self.coef_ = self.head_.weights.T.copy()
        self.intercept_ = self.head_.intercept.copy()

    def decision_function(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the logit of each class.

        Parameters and errors are as in `DPClassifier.decision_function`.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Scores. NaN for a row that is not finite.
        """
        return self._scores(X, split)

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the classes with a probability above 1/2.

        Parameters and errors are as in `DPClassifier.predict`.

        Returns
        -------
        ndarray of int64, shape (n, n_classes)
            1 for each predicted class of a row, and 0 for the other classes.
        """
        scores = self._scores(X, split)
        check_classified(scores)
        return (scores > 0).astype(np.int64)

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the probability of each class, independent of the other classes.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Probabilities. NaN for a row that is not finite.
        """
        return expit(self._scores(X, split).astype(np.float64))

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Return the subset accuracy: the fraction of rows with every class right.

        X and y are as in `fit`. A row that is not finite counts as wrong, as does a
        set with values other than one and zero. The accuracy is an exact function of
        these rows. Do not publish it for private rows.
        """
        X, y, weight = as_arrays(X, y, sample_weight)
        _check_order(_names_of(y), self.classes_.tolist())
        scores = self._scores(X, split)
        sets = held_labels(indicators(y))
        check_consistent_length(sets, scores)
        known = classified(scores) & (sets[:, 0] >= 0)
        return share_right(np.abs(sets), (scores > 0).astype(np.int8), known, weight)

    def _options(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "loss" in settable(self.method):
            given["loss"] = "sigmoid"
        if self.method == "auto":
            given["estimate"] = False
        return given | super()._options()

    def _method(self, facts: ProblemInfo) -> Method:
        method = super()._method(facts)
        return replace(method, solver=_of_sigmoids(method.solver))

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if self.group_mean:
            raise ValueError(
                "`group_mean` must be False for label sets, got True. Remove "
                "`group_mean` to use the first rows of each group."
            )
        sets = indicators(y)
        names = _column_names(self.classes, sets.shape[1], _names_of(y))
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
            has_sets=True,
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
    """Return `Auto` with the sigmoid loss, and other solvers unchanged."""
    if not isinstance(solver, Auto):
        return solver
    return replace(solver, descent=replace(solver.descent, loss="sigmoid"))


def indicators(y: Any) -> np.ndarray:
    """Return y as numbers (n, n_classes).

    An array is checked by shape and dtype only. Raises ValueError if y is not an
    indicator matrix.
    """
    require_target(y)
    if issparse(y):
        y = y.toarray()
    elif isinstance(y, list | tuple):
        y = _of_lists(y)
    elif _names_of(y):
        y = _of_frame(y)
    elif isinstance(y, np.ma.MaskedArray) and y.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            y = np.ma.filled(y.astype(np.float64), np.nan)
    y = read_column(y)
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "biuf":
        raise _no_indicators(y.shape, y.dtype)
    return y


def _no_indicators(shape: tuple[int, ...], dtype: np.dtype) -> ValueError:
    """Return the error that reports a y that is not an indicator matrix."""
    return ValueError(
        "`y` must be an indicator matrix of ones and zeros with two columns or more, "
        f"got {dtype} of shape {shape}. For one class per row, use `DPAutoClassifier`. "
        "Convert sets of classes with `MultiLabelBinarizer(classes=...)`."
    )


def _of_frame(y: Any) -> np.ndarray:
    """Return a pandas frame as numbers, read one by one. Missing values become NaN.

    Raises ValueError if a column's dtype is not real and numeric.
    """
    parts = [y.iloc[:, i] for i in range(y.shape[1])]
    for dtype in map(declared_dtype, parts):
        if dtype.kind not in "biuf":
            raise _no_indicators(y.shape, dtype)
    return np.column_stack([numbers(part) for part in parts])


def _of_lists(y: Any) -> np.ndarray:
    """Return lists as numbers, without running the code of an item.

    An item that is not a number becomes NaN. Raises ValueError for strings, and for
    lists of unequal lengths.
    """
    rows = [
        row.tolist() if isinstance(row, np.ndarray) else row for row in as_arrays(*y)
    ]
    if (
        not all(isinstance(row, list | tuple) for row in rows)
        or len({len(row) for row in rows}) != 1
        or any(issubclass(type(item), str | bytes) for row in rows for item in row)
    ):
        raise _no_indicators((len(rows),), np.dtype(object))
    with np.errstate(all="ignore"):
        numbers_of = ([as_number(item) for item in own_scalars(row)] for row in rows)
        return np.array([*numbers_of], np.float64)


def _names_of(y: Any) -> list[Any]:
    """Return the names of a data frame's columns, or []."""
    return list(y.columns) if hasattr(y, "iloc") and y.ndim == 2 else []


def _column_names(classes: Any, count: int, said: list[Any]) -> np.ndarray:
    """Return the public names of `count` columns, in order.

    `said` has the names of a data frame's columns, or is empty. Declared classes must
    match these names (`_check_order`).
    """
    texts = all(isinstance(name, str) for name in said) and len(set(said)) == count
    if classes is None:
        return np.asarray(said) if texts else np.arange(count)
    given = class_list(classes)
    names = np.asarray(given) if len(declared(given)) == count else np.empty(0)
    if len(names) != count:
        raise ValueError(
            f"`classes` must be {count} distinct numbers or strings, one for each "
            f"column of `y`, got {typed(given)}. Remove `classes` to number the "
            "columns."
        )
    _check_order(said, given)
    return names


def _check_order(said: list[Any], classes: list[Any]) -> None:
    """Raise ValueError if a data frame's columns are not the classes in order.

    The names 0, 1, ... match any classes, and the classes 0, 1, ... any names, unless
    one is a permutation of the other.
    """
    counted = list(range(len(classes)))
    is_named = said != counted and classes != counted
    if said and said != classes and (is_named or set(said) == set(classes)):
        raise ValueError(
            f"`y` must have its columns in the order of `classes`, got {typed(said)} "
            f"for {typed(classes)}. Use `y[list(classes)]`, or rename the columns."
        )


def _unread_sets(sets: np.ndarray) -> str:
    """Return a notice of label sets with values other than one and zero, or "".

    Label sets with a missing value are not counted.
    """
    given = np.logical_not(np.isnan(sets).any(axis=1))
    used = np.asarray((held_labels(sets) >= 0).all(axis=1))
    what = "label sets have values other than one and zero"
    return private_notice(given, used, what)
