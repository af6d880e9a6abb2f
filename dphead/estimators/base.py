"""Define the one scikit-learn classifier that all methods share.

It may decide nothing that its solver or `fitting` does not.
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
    """A private linear head on features.

    Whoever sees the fitted head, and knows every row but one, can tell whether that
    row was used only as well as (epsilon, delta) allows: no outcome is more than
    exp(epsilon) times as likely with the row as without it, up to a probability delta.
    At epsilon = 1, delta = 1e-5 and a 1 % false-positive rate, membership inference
    detects at most 3.68 % of training rows if an unused row has another in its place
    (1.98 % if its place is empty). `dphead account` prints the limits of any epsilon.

    A private fit does not look at a row's value except through a noisy release: a row
    that is not finite counts zero and nothing is reported about it.

    Parameters
    ----------
    epsilon : float, default=1.0
        The budget of this fit. Infinity turns clipping and noise off: not private.
    delta : float, default=None
        Of the budget; below 1/n_rows. None: the preset's, else 1e-5.
    classes : sequence of shape (n_classes,), default=None
        The public classes, needed for a guarantee; a row with another label counts
        zero. A features file brings its own, in its order.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row counts zero; one row more or less, where the
        number of rows is private; one row is replaced.
    nominal_n : int, default=None
        A public number in place of the number of rows, under add_remove and only there.
    group_cap : int, default=None
        None protects each row. A number protects groups of rows (patients), of which
        the first so many count.
    group_mean : bool, default=False
        True counts the mean of a group's rows of each class instead, for at most
        group_cap classes, the first in the order of `classes`. There is no accuracy to
        expect then.
    protect : {"image"}, default=None
        "image" confirms that each row is protected for itself alone although a features
        file has groups; None refuses such a file, unless it is capped.
    accountant : str, default="auto"
        The preset's, else exact for full batches and PLD for Poisson ones.
    ledger : path or Ledger, default=None
        The data set's ledger. None: a features file's own; for arrays, only this fit
        counts. A `Ledger` is shared by clones, and cannot be sent to another process:
        give a path there. A features file's fits in other ledgers are a
        `PrivacyWarning` and a note in privacy_.
    split : str, default=None
        Which rows of a features file to fit.
    preset : str, default=None
        A paper's settings, such as "fc23".
    allow_large_delta : bool, default=False
        Confirm a delta of 1/n or more, which lets a mechanism publish whole rows.
    random_state : int, default=None
        None for a guarantee. A number fixes the noise: reproducible, not private.
    unit_norm : bool, default=None
        Whether rows are brought to the unit sphere; None is the method's own.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering; 0: no centering.
    normalization : dict, default=None
        Of rows in groups of columns (`dphead.planning.methods.make_method`).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted; a features file's in its order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights; they apply to rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Added to the scores.
    n_features_in_ : int
        Columns of X.
    head_ : Head
        The head: transform, weights, and what else is saved.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        What counted this fit.
    expected_accuracy_ : AccuracyEstimate or None
        The accuracy to expect on new rows, private like the head; None for a method
        that does not ask for one.

    Examples
    --------
    See a method's class, such as `DPAutoClassifier`.
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
            Numbers: an array, a data frame, a PyTorch tensor; or the path of a features
            file. A row that is not finite counts zero.
        y : array-like of shape (n_rows,), default=None
            Labels: an array, a list, a PyTorch tensor, a column of pandas or pyarrow;
            a missing one is no class. None where X is a path.
        groups : array-like of shape (n_rows,), default=None
            Whose a row is, for group_cap, and no use without: texts or numbers, which
            name groups by value; "" or missing for a row on its own. A features file
            brings its own, which are protected by group_cap, or not by protect="image",
            as a note in privacy_ then says.
        **refused
            sample_weight is refused: it would decide how far a row moves the release.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            With nothing charged: for settings, shapes or dtypes that cannot be used,
            weights, fewer rows than classes, and a delta of 1/n or more.
        LedgerError
            For a budget that would be exceeded.

        Warns
        -----
        PrivacyWarning
            Where the guarantee holds and is weaker than it may look: a large delta,
            fits of a features file in other ledgers, a step of the pipeline before
            that was fitted to the same rows, and a clone whose settings were changed
            (a grid search).
        PrivateNotice
            After the fit, with the number of labels that match no class. It is private,
            for the data holder alone.
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

        It holds the head, the report, the privacy card and a copy of the ledger, for
        `dphead check`, `predict`, `report` and `export`.

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
        """Scores: (n, n_classes), or (n,) for two classes: the second's minus the
        first's. X as in `fit`.

        A row that is not finite has no class: its scores are NaN (after a fit without
        privacy it is refused, as scikit-learn does).
        """
        scores = self._scores(X, split)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the class with the highest score, (n,); the first of equals.

        Raises
        ------
        ValueError
            For rows that are not finite or unreadable, which have no class.
        """
        scores = self._scores(X, split)
        check_classified(scores)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Probabilities (n, n_classes): softmax, or normalised sigmoids
        (`dphead.analysis.metrics.probabilities`).

        Those of a squared loss and of prototypes are right in order and not calibrated.
        A row that is not finite has no class: its probabilities are NaN.
        """
        scores = self._scores(X, split)
        return probabilities(scores, self.head_.loss)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Accuracy on rows X and labels y, or on those rows of a features file that
        have a label. A row without a class counts as wrong.

        It is an exact function of these rows. On the training rows it is private: do
        not publish it.
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
        """Return the method's settings, None for those that are not given."""
        names = (f.name for f in fields(self) if f.name not in _NO_SETTINGS)
        given = {name: getattr(self, name) for name in names}
        return given | (getattr(self, "settings", None) or {})

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if not is_path(X):
            return nullcontext(from_arrays(self, X, y, groups, self.classes))
        if y is not None:
            raise ValueError(
                "a features file has its own labels, got y besides. Leave it out."
            )
        return from_file(self, X, groups, self.classes)

    def _scores(
        self, X: Any, split: str | None, scores_of: _RowScores | None = None
    ) -> np.ndarray:
        """Return the scores (n, n_classes) of rows or of a features file.

        `scores_of` computes something else from the rows instead.
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

        If `measured`, the labels are used, so their classes must be the head's.
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
    """Any method by its name, also one of an installed package (docs/own-method.md).

    method: one of `dphead.planning.registry.names()`. settings: the method's, by name;
    what is not there has the preset's value, or the solver's default (docs/settings.md
    has ours). The other parameters, and the attributes after `fit`: `DPClassifier`.
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
            If the folder is not that of a head, or was changed.
        """
        return load(cls, folder)


def check_classified(scores: np.ndarray) -> None:
    """Raise ValueError if rows have no class, as scikit-learn does for NaN."""
    if none := int((~classified(scores)).sum()):
        raise ValueError(
            "predict needs rows with a class, got NaN or infinity, or an unreadable "
            f"image, in {none} of {len(scores)} rows. Leave them out, or use "
            "predict_proba, whose rows are NaN there."
        )


def share_right(y: Any, predicted: np.ndarray, known: np.ndarray, weight: Any) -> float:
    """Return scikit-learn's accuracy, with rows that are not known counted as wrong."""
    check_consistent_length(y, predicted, weight)
    weights = np.ones(len(known)) if weight is None else np.asarray(weight)
    if not known.any():  # scikit-learn refuses weights that are all zero
        return 0.0
    right = accuracy_score(y, predicted, normalize=False, sample_weight=weights * known)
    return float(right / weights.sum())


_NO_SETTINGS = {f.name for f in fields(DPHeadClassifier)} - {
    f.name for f in fields(RowPreparation)
}
