"""Define the scikit-learn classifier that all methods share.

Solvers and `fitting` make all decisions.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dphead.analysis.metrics import (
    accuracy,
    classified,
    predicted_classes,
    probabilities,
)
from dphead.data.features import check_classes, load_features
from dphead.estimators.fitting import GroupCap, GroupMean, PrivateClassifier
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    from_arrays,
    from_file,
    is_path,
    refuse_weights,
)
from dphead.estimators.saving import Fitted, export, load, save
from dphead.fit.files import check_features
from dphead.planning.methods import Method, make_method
from dphead.planning.option_aliases import RowPreparation
from dphead.planning.plan import check_facts, check_unit
from dphead.solvers.base import ProblemInfo
from dphead.solvers.settings import Setting, check_settings

if TYPE_CHECKING:
    from dphead.export.exporting import Exported

_RowScores = Callable[[np.ndarray], np.ndarray]


@dataclass(kw_only=True, eq=False, repr=False)
class DPClassifier(PrivateClassifier):
    """Fit a private linear head on features.

    The fitted head is (epsilon, delta)-differentially private: no outcome is more than
    exp(epsilon) times as likely with a row as without it, up to a probability delta. At
    epsilon = 1, delta = 1e-5 and a 1 % false-positive rate, membership inference
    detects at most 3.68 % of training rows. This bound compares with another row in the
    place of an unused row. If the place is empty, the bound is 1.98 %. `dphead account`
    prints these bounds for any epsilon.

    A private fit reads a row's value only through noisy releases. A row that is not
    finite adds zero to every sum, without any report.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None uses the preset's, else 1e-5.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes, in its order.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced.
        add_remove keeps the number of rows private.
    nominal_n : int, default=None
        Public number used in place of the number of rows; only under add_remove.
    group_cap : int, default=None
        None protects each row. A number protects groups of rows (patients). At most
        this number of rows of a group counts, the first ones.
    group_mean : bool, default=False
        If True, the mean of a group's rows of each class counts instead, for at most
        group_cap classes, the first ones in the order of `classes`. The expected
        accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" uses the preset's accountant.
        Without a preset, it is exact for full batches and uses PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None uses a features file's own ledger. For arrays, None uses
        a new ledger for this fit only. Clones share a `Ledger` object. Pass a path to
        other processes. Fits of a features file in other ledgers cause a
        `PrivacyWarning` and a note in privacy_.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Settings of a paper, such as "fc23".
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more, which may allow publishing whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. The fit is private only if this is None.
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None uses the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering; 0: no centering.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted classes; for a features file, in its order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : Head
        The head, with transform, weights and other saved data.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger that counts this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, as private as the head. None for methods without
        an estimate.

    Examples
    --------
    See the class of a method, such as `DPAutoClassifier`.
    """

    method: ClassVar[str]

    group_cap: GroupCap = None
    group_mean: GroupMean = False
    split: Annotated[str | None, Setting("Of a features file.")] = None
    unit_norm: bool | None = None
    center_share: float | None = None
    normalization: dict[str, Any] | None = None

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, **refused: Any
    ) -> "DPClassifier":
        """Charge the ledger, then fit.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features), or path
            Array, data frame or PyTorch tensor of numbers, or path of a features file.
            A row that is not finite adds zero to every sum.
        y : array-like of shape (n_rows,), default=None
            Labels as an array, list, PyTorch tensor, or column of pandas or pyarrow. A
            missing label is no class. Use None if X is a path.
        groups : array-like of shape (n_rows,), default=None
            Group of each row, as string or number, for use with group_cap. A row with
            "" or a missing value is its own group. A features file has its own groups.
        **refused
            sample_weight is refused, because weights would change the sensitivity.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If settings, shapes or dtypes are invalid, if weights are given, if there
            are fewer rows than classes, or if delta is 1/n or more. Nothing is charged
            then.
        LedgerError
            If the fit would exceed the budget.

        Warns
        -----
        PrivacyWarning
            If the guarantee is weaker than it may seem: a large delta, fits of a
            features file in other ledgers, an earlier pipeline step fitted to the same
            rows, or a clone with changed settings (a grid search).
        PrivateNotice
            After the fit, with the number of labels that match no class. This number is
            private.
        """
        refuse_weights(refused)
        check_settings(self)
        X, y, groups = as_arrays(X, y, groups)
        with self._training_data(X, y, groups) as data:
            check_facts(data.facts)
            unit = check_unit(
                data.grouped,
                self.protect,
                self.epsilon,
                confirm="protect='image'",
                instead="group_cap=K",
                group_cap=self.group_cap,
                thing="row",
            )
            method = self._method(data.facts)
            auto = self.accountant == "auto"
            accountant = method.accountant if auto else self.accountant
            result = self._carry_out(
                data,
                lambda: self._plan_head(method.solver, data.facts, accountant),
                description=self.method,
                notes=unit,
            )
            self.head_ = result.head
            self._fitted = Fitted(
                method,
                data.facts,
                data.source,
                result.plan,
                result.fit_id,
                result.seconds,
                not result.private_noise,
            )
        self.classes_, self.n_features_in_ = data.classes, data.facts.n_features
        self.expected_accuracy_ = self.head_.estimate
        self._feature_space = data.feature_space
        self._set_coefficients()
        return self

    def _set_coefficients(self) -> None:
        """Set `coef_` and `intercept_` from the head, as scikit-learn shapes them."""
        weights, intercept = self.head_.weights.T, self.head_.intercept
        two = len(self.classes_) == 2
        self.coef_ = weights[1:] - weights[:1] if two else weights.copy()
        self.intercept_ = intercept[1:] - intercept[:1] if two else intercept.copy()

    def save(self, folder: str | Path, tuning: str | None = None) -> None:
        """Write the run folder that `dphead fit` writes.

        The folder holds the head, the report, the privacy card and a copy of the
        ledger, for `dphead check`, `predict`, `report` and `export`.

        Parameters
        ----------
        folder : str or Path
            A new folder.
        tuning : str, optional
            How the settings were chosen, for the report: a value of
            `dphead.fit.report.TUNING`. None says "none" for default settings and the
            first fit of a ledger file, and "NOT ACCOUNTED" otherwise.

        Raises
        ------
        ValueError
            If the classes were not declared, or the folder holds a finished run.
        """
        check_is_fitted(self)
        save(self, folder, tuning)

    def export(
        self, to: str, folder: str | Path, weights: str | Path | None = None
    ) -> "Exported":
        """Write the head for other software, as `dphead export` does.

        Parameters
        ----------
        to : {"torch", "timm", "onnx", "sklearn"}
            The format. Heads of arrays have no backbone: "timm" refuses them.
        folder : str or Path
            A new or empty folder.
        weights : str or Path, optional
            A local file of the backbone's weights, for timm and onnx.

        Returns
        -------
        Exported
            The files, and code that loads them.
        """
        check_is_fitted(self)
        return export(self, to, folder, weights)

    def decision_function(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return scores (n, n_classes), or (n,) for two classes.

        With two classes, return the second class's score minus the first's. X is as in
        `fit`.

        A row that is not finite has NaN scores. If the fit was not private, raise
        ValueError for such a row, as scikit-learn does.
        """
        scores = self._scores(X, split)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the class with the highest score, (n,); the first of ties.

        Raises
        ------
        ValueError
            If a row is not finite or unreadable, so that it has no class.
        """
        scores = self._scores(X, split)
        check_classified(scores)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return probabilities (n, n_classes) by softmax or normalized sigmoids.

        `dphead.analysis.metrics.probabilities` defines the probabilities. For a squared
        loss and for prototypes, the order of the probabilities is right, but they are
        not calibrated. A row that is not finite has NaN probabilities.
        """
        scores = self._scores(X, split)
        return probabilities(scores, self.head_.loss)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Return the accuracy on rows X with labels y, or on a features file.

        Only rows with a label are used, and a row without a class counts as wrong. The
        accuracy is an exact function of these rows. Do not publish it for private rows.
        """
        if is_path(X):
            scores, labels = self._file_scores(X, split, measured=True)
            known = (labels >= 0) & (labels < len(self.classes_))
            return accuracy(labels[known], predicted_classes(scores[known]))[0]
        X, y, weight = as_arrays(X, y, sample_weight)
        scores = self._scores(X, None)
        predicted = self.classes_[scores.argmax(axis=1)]
        return share_right(y, predicted, classified(scores), weight)

    def _method(self, facts: ProblemInfo) -> Method:
        return make_method(self.method, facts, self._options(), self.preset)

    def _options(self) -> dict[str, Any]:
        """Return the method's settings; None for defaults."""
        names = (f.name for f in fields(self) if f.name not in _NO_SETTINGS)
        given = {name: getattr(self, name) for name in names}
        return given | (getattr(self, "settings", None) or {})

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if not is_path(X):
            return nullcontext(from_arrays(self, X, y, groups, self.classes))
        if y is not None:
            raise ValueError("a features file has its own labels, got y too. Drop y.")
        return from_file(self, X, groups, self.classes)

    def _scores(
        self, X: Any, split: str | None, scores_of: _RowScores | None = None
    ) -> np.ndarray:
        """Return the scores (n, n_classes) of rows or of a features file.

        `scores_of` replaces the head's scores.
        """
        if is_path(X):
            return self._file_scores(X, split, scores_of)[0]
        x = self._new_rows(X)
        return (scores_of or self.head_.scores)(x)

    def _file_scores(
        self,
        path: Any,
        split: str | None,
        scores_of: _RowScores | None = None,
        measured: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `_scores` of a file and its label positions (n,).

        If `measured`, the labels must have the head's classes.
        """
        check_is_fitted(self)
        score_rows: _RowScores = scores_of or self.head_.scores
        rows, file = load_features(path, split, memory=0)
        with file:
            check_features(file, self._feature_space, self.n_features_in_)
            if measured:
                check_classes(file, self.classes_)
            scores = np.full((rows.n_rows, len(self.classes_)), np.nan)
            for block in rows.blocks():
                used = block.index[block.index >= 0]
                scores[used] = score_rows(block.x[: len(used)])
            scores[~rows.valid] = np.nan
            return scores, rows.measured_labels()


@dataclass(kw_only=True, eq=False, repr=False)
class DPHeadClassifier(DPClassifier):
    """Fit any method by name, including methods of installed packages.

    `method` is one of `dphead.planning.registry.names()` (docs/own-method.md).
    `settings` has settings of the method by name. Other settings use the preset's value
    or the solver's default (docs/settings.md). For other parameters and attributes, see
    `DPClassifier`.
    """

    method: Annotated[str, Setting("Its name.")] = "auto"
    settings: Annotated[dict[str, Any] | None, Setting("The method's.")] = None

    @classmethod
    def load(cls, folder: str | Path) -> "DPHeadClassifier":
        """Return the fitted classifier of a run folder, to predict with.

        The method's settings are in the folder's report, not in the parameters: a new
        fit would use the defaults.

        Raises
        ------
        ValueError
            If the folder does not hold a head, or was changed.
        """
        return load(cls, folder)


def check_classified(scores: np.ndarray) -> None:
    """Raise ValueError if rows have no class, as scikit-learn does for NaN."""
    if none := int((~classified(scores)).sum()):
        raise ValueError(
            "predict needs rows with a class, got NaN, infinity or unreadable images "
            f"in {none} of {len(scores)} rows. Remove these rows, or use "
            "predict_proba, which returns NaN for them."
        )


def share_right(y: Any, predicted: np.ndarray, known: np.ndarray, weight: Any) -> float:
    """Return scikit-learn's accuracy, counting rows without a class as wrong."""
    check_consistent_length(y, predicted, weight)
    weights = np.ones(len(known)) if weight is None else np.asarray(weight)
    if not known.any():  # scikit-learn refuses weights of zeros only
        return 0.0
    right = accuracy_score(y, predicted, normalize=False, sample_weight=weights * known)
    return float(right / weights.sum())


_NO_SETTINGS = {f.name for f in fields(DPHeadClassifier)} - {
    f.name for f in fields(RowPreparation)
}
