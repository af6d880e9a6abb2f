"""Define the scikit-learn classifier that all methods share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dphead.analysis.metrics import (
    accuracy,
    classified,
    predicted_classes,
    probabilities,
)
from dphead.data.device_rows import DeviceRows
from dphead.data.features import load_features
from dphead.data.on_axes import RowsOnAxes
from dphead.estimators.docstrings import documented
from dphead.estimators.fitting import HeadEstimator, PrivateClassifier, tell_holder
from dphead.estimators.guarantee import CLASSES_SEEN
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    from_arrays,
    from_file,
    is_path,
)
from dphead.estimators.labels import label_column, positions
from dphead.fit.files import check_features, check_labels
from dphead.fit.fit import About
from dphead.fit.head_file import save_head
from dphead.fit.options import AXES_COUNT
from dphead.fit.public_axes import ChosenAxes, choose_axes
from dphead.fit.run_folder import tuning_of
from dphead.planning.methods import Method, RowPreparation, make_method
from dphead.planning.plan import Target, check_facts, check_unit
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.solvers.base import ProblemInfo
from dphead.solvers.head import AccuracyEstimate, LinearHead
from dphead.solvers.settings import Setting, check_settings, given_once
from dphead.sums.hosts import all_or_none

if TYPE_CHECKING:
    from dphead.export.exporting import Exported

_RowScores = Callable[[np.ndarray], np.ndarray]


@documented({})
@dataclass(kw_only=True, eq=False, repr=False)
class DPClassifier(HeadEstimator, PrivateClassifier):
    """Fit a private linear head on features.

    The fitted head is (epsilon, delta)-differentially private: no outcome is more than
    exp(epsilon) times as likely with a row as without it, or the reverse, up to a
    probability delta. At epsilon = 1, delta = 1e-5 and a 1 % false-positive rate,
    membership inference detects at most 3.68 % of training rows, compared with a fit on
    another row instead. Compared with a fit without the row, the bound is 1.98 %.
    `dphead account` prints these bounds for any epsilon.

    The head of a private fit depends on the values of rows only through noisy releases.
    A row with NaN, infinity or a value beyond float32 adds zero to every sum.

    Parameters
    ----------
    split : str, default=None
        Split of a features file to fit. None means the file's only split.
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the preset's value, or else
        True.
    center_share : float, default=None
        Fraction of mu**2 spent to release the mean used for centering and the number of
        rows in it. 0 means no centering. None means the preset's value, or else 0.02.
        If there are few rows, the method auto increases the fraction, to at most 0.1.
    normalization : dict, default=None
        Fields of `dphead.solvers.normalization.ChannelNormalization`, which replaces
        unit norms and centering.
    axes_from : path, or ndarray of shape (n, n_features), default=None
        Public rows by the same backbone: a features file, or their features. The
        training rows are projected onto the principal axes of the public rows. The
        public rows are not protected.
    axes_count : int, default=None
        Number of axes. None means a number from the public sizes and the budget, or no
        axes and no projection if axes would not help.

    Attributes
    ----------
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`. If the rows
        were projected (`axes_from`), one column for each axis.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None if the fit
        released no estimate.

    Examples
    --------
    >>> from dphead import DPAutoClassifier, DPClassifier
    >>> issubclass(DPAutoClassifier, DPClassifier)
    True
    """

    method: ClassVar[str]

    split: Annotated[str | None, Setting("Split of a features file.")] = None
    unit_norm: bool | None = None
    center_share: float | None = None
    normalization: dict[str, Any] | None = None
    axes_from: Any = None
    axes_count: Annotated[int | None, AXES_COUNT] = None

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Charge the ledger, then fit.

        Sample weights are not supported, because weights would change the sensitivity.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features), or path
            Array, data frame, PyTorch tensor or jax array of numbers, or path of a
            features file. Several processes can share a jax array.
        y : array-like of shape (n_rows,), default=None
            Labels of all rows, as an array, list, PyTorch tensor, or column of pandas
            or pyarrow. A row with a missing label adds zero to every sum. Must be None
            if X is a path.
        groups : array-like of shape (n_rows,), default=None
            Group of each row, as string or number, for use with group_cap. A row with
            "" or a missing value is its own group. Must be None if X is a path.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If settings, shapes or dtypes are invalid, if there are fewer rows than
            classes, or if delta is 1/n or more without `allow_large_delta`. Nothing is
            charged then.
        LedgerError
            If the ledger refuses the fit, for example because it would exceed the
            budget. After the charge, if the ledger cannot be written.

        Warns
        -----
        PrivacyWarning
            If the guarantee is weaker than it may seem. Causes are a large delta, a
            seed, and fits on the data set in other ledgers. Other causes are an earlier
            pipeline step fitted to the same rows, and fits of clones, as in a grid
            search.
        PrivateNotice
            Before the charge, if the public rows of `axes_from` could not be compared
            with the training rows, or if a ledger may have fits on these public rows.
            After a fit of arrays, with the number of labels that match no class, and of
            rows that are not finite in float32. The notice also names a column that
            dominates the rows' norms. Do not publish these notices.
        UserWarning
            If the noise is too large for a useful head, if the fit takes long, or if no
            released number shows that each class is predicted.
        """
        check_settings(self)
        X, y, groups = as_arrays(X, y, groups)
        with self._training_data(X, y, groups) as data:
            check_facts(data.facts)
            unit = check_unit(
                data.source.grouped,
                self.protect,
                self.epsilon,
                confirm="protect='image'",
                instead="group_cap=K",
                group_cap=self.group_cap,
                thing="row",
            )
            data, chosen = self._on_axes(X, data)
            method = self._method(data.facts)
            auto = self.accountant == "auto"
            accountant = method.accountant if auto else self.accountant
            about = About(
                source=data.source,
                name=self.method,
                preset=self.preset,
                settings=method.settings(),
                settings_from=method.source,
                space=data.source.feature_space,
                axes=chosen and chosen.described,
                warnings=tuple(unit),
            )
            solver = method.solver if chosen is None else chosen.solver(method.solver)
            result = self._carry_out(
                data, about, lambda: self._plan_head(solver, data, accountant)
            )
        self.head_: LinearHead = result.trained
        self._keep_run(result, about)
        # kept for `save`, because parameters can be set again after the fit
        self._chosen = [self.preset, self.axes_count, *self._options().values()]
        self.classes_: np.ndarray = data.classes
        self.n_features_in_: int = data.source.n_features
        self.expected_accuracy_: AccuracyEstimate | None = self.head_.estimate
        self._feature_space = data.source.feature_space
        self._set_coefficients()
        return self

    def _on_axes(
        self, X: Any, data: TrainingData
    ) -> tuple[TrainingData, ChosenAxes | None]:
        """Return the data on public axes, and the choice of axes.

        Without axes, the data are unchanged. The choice is None without `axes_from`.
        """
        (public,) = as_arrays(self.axes_from)
        with all_or_none(data.hosts):
            if public is not None:
                data.wait()
                _refuse_memory_of(public, X, data.private)
        budget = Target(
            self.epsilon,
            self._delta(),
            self.relation,
            group_cap=self.group_cap,
            group_mean=self.group_mean,
        )
        given = public, self.axes_count, budget.budgeted(data.facts), data.source
        chosen = choose_axes(*given, data.private, data.hosts)
        tell_holder(chosen.doubt if chosen else "")
        if chosen is None or (axes := chosen.axes) is None:
            return data, chosen
        facts = chosen.sizes(data.facts)
        sizes = replace(data.sizes, n_features=facts.n_features)
        rows = data.rows
        more = {"rows": lambda: RowsOnAxes(rows(), axes), "sizes": sizes}
        return replace(data, facts=facts, **more), chosen

    def _set_coefficients(self) -> None:
        """Set `coef_` and `intercept_` from the head, in scikit-learn's shapes."""
        weights, intercept = self.head_.weights.T, self.head_.intercept
        two = len(self.classes_) == 2
        self.coef_: np.ndarray = weights[1:] - weights[:1] if two else weights.copy()
        self.intercept_: np.ndarray = (
            intercept[1:] - intercept[:1] if two else intercept.copy()
        )

    def save(self, folder: str | Path, tuning: str | None = None) -> None:
        """Write a run folder, as `dphead fit` does.

        The folder holds the head, the report, the privacy card and a copy of the
        ledger. `dphead check`, `predict`, `report` and `export` accept it.

        Parameters
        ----------
        folder : str or Path
            A new folder.
        tuning : str, default=None
            How the settings were chosen, for the report: a value of
            `dphead.fit.options.TUNING`. None means "none" for default settings in the
            first fit of a ledger file, if no other ledger may have fits on the images.
            Otherwise it means "NOT ACCOUNTED".

        Raises
        ------
        ValueError
            If the classes were not declared, or if there are label sets. If `tuning` is
            "none", and the fit is a search's, or the ledger has earlier fits, or a
            different ledger has fits on the same images. If the classifier is a fold of
            `cross_validate`. If the folder is a file or holds a finished run.
        AttributeError, LedgerError
            If the fit's ledger is unavailable, does not have this fit, or does not
            count all fits (`ledger_`).
        """
        check_is_fitted(self)
        self._refuse_label_sets(
            "Save `head_.weights` and `head_.intercept`, such as with `numpy.savez`."
        )
        if CLASSES_SEEN in self.privacy_.notes:
            raise ValueError(
                "`save` needs declared classes, but this fit inferred them from `y`. "
                "Fit again with `classes`."
            )
        tuned = "NOT ACCOUNTED"  # other ledgers may have fits on the same arrays
        if self.ledger_.path != IN_MEMORY:
            tuned = tuning_of(self._chosen, self.ledger_)
        facts = {"extraction": self._about.source.extraction}
        self._write_run(folder, tuning, tuned, save_head, facts)

    def _refuse_label_sets(self, todo: str) -> None:
        if self.__sklearn_tags__().classifier_tags.multi_label:
            raise ValueError(
                "A run folder holds a head with one class per row, but this estimator "
                f"has label sets. {todo}"
            )

    def export(
        self, to: str, folder: str | Path, weights: str | Path | None = None
    ) -> "Exported":
        """Write the head for other software, as `dphead export` does.

        Parameters
        ----------
        to : str
            Format of the export, as in `dphead export --to`. "timm" needs a head that
            was fitted to a features file of a timm backbone.
        folder : str or Path
            A new or empty folder.
        weights : str or Path, default=None
            Local file of the backbone's weights, for timm and onnx.

        Returns
        -------
        Exported
            The written files, and code that loads them.
        """
        from dphead.export.exporting import export

        with TemporaryDirectory() as made:
            self.save(run := Path(made) / "run")
            return export(run, to, folder, weights)

    def decision_function(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return scores (n, n_classes), or (n,) for two classes.

        Parameters
        ----------
        X : array-like of shape (n, n_features), or path
            New rows, or path of a features file.
        split : str, default=None
            Split of a features file.

        Returns
        -------
        ndarray of shape (n, n_classes) or (n,)
            Scores of the classes. For two classes, the score of the second class minus
            the score of the first. NaN for a row that is not finite.

        Raises
        ------
        ValueError
            If the rows do not match the head. If a row of an array is not finite and
            epsilon is infinite, as in scikit-learn.
        """
        scores = self._scores(X, split)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return the class with the highest score, or the first of tied classes.

        Parameters
        ----------
        X, split
            As in `decision_function`.

        Returns
        -------
        ndarray of shape (n,)
            One of `classes_` per row.

        Raises
        ------
        ValueError
            If the rows do not match the head. If a row is not finite, or its image was
            unreadable.
        """
        scores = self._scores(X, split)
        check_classified(scores)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return probabilities of the classes, by softmax or normalized sigmoids.

        For prototypes, and for losses without calibration (parameter `loss`), the order
        of the probabilities is right, but not their values.

        Parameters
        ----------
        X, split
            As in `decision_function`.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Probabilities. NaN for a row that is not finite.
        """
        scores = self._scores(X, split)
        return probabilities(scores, self.head_.loss)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Return the accuracy on labeled rows.

        The accuracy is an exact function of these rows. Do not publish it for private
        rows. If the label of a file's row is not in `classes_`, the row is left out. In
        an array, such a row counts as wrong.

        Parameters
        ----------
        X : array-like of shape (n, n_features), or path
            Rows, or path of a features file with its own labels.
        y : array-like of shape (n,), default=None
            Labels. Must be None if X is a path.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows. Not used if X is a path.
        split : str, default=None
            Split of a features file.

        Returns
        -------
        float
            Fraction of these rows with the right class. A row that is not finite counts
            as wrong.

        Raises
        ------
        ValueError
            As in `decision_function`. If a file has different classes, or no label of
            them.
        """
        if is_path(X):
            scores, labels = self._file_scores(X, split, measured=True)
            known = (labels >= 0) & (labels < len(self.classes_))
            return accuracy(labels[known], predicted_classes(scores[known]))[0]
        X, y, weight = as_arrays(X, y, sample_weight)
        scores = self._scores(X, None)
        y = positions(label_column(y), self.classes_)
        return share_right(y, scores.argmax(axis=1), classified(scores), weight)

    def _method(self, facts: ProblemInfo) -> Method:
        return make_method(self.method, facts, self._options(), self.preset)

    def _options(self) -> dict[str, Any]:
        """Return the given settings by name."""
        names = (f.name for f in fields(self) if f.name not in _NO_SETTINGS)
        given = {name: getattr(self, name) for name in names}
        return given_once(given, getattr(self, "settings", None) or {})

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if not is_path(X):
            return nullcontext(from_arrays(self, X, y, groups, self.classes))
        if y is not None:
            raise ValueError(
                "`y` must be None for a features file, which has its own labels. "
                "Remove `y`."
            )
        return from_file(self, X, groups, self.classes)

    def _scores(
        self, X: Any, split: str | None, scores_of: _RowScores | None = None
    ) -> np.ndarray:
        """Return scores (n, n_classes) from `scores_of`, or from the head if None."""
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
        """Return the scores (n, n_classes) and class indices (n,) of a file's rows.

        If `measured`, raise ValueError unless the file has the head's classes, and a
        row with one of them as its label. The caller compares labels and predictions.
        """
        check_is_fitted(self)
        score_rows: _RowScores = scores_of or self.head_.scores
        rows, file = load_features(path, split, memory=0)
        with file:
            check_features(file, self._feature_space, self.n_features_in_)
            labels = rows.measured_labels()
            if measured:
                check_labels(file, labels, list(self.classes_), path)
            scores = np.full((rows.n_rows, len(self.classes_)), np.nan)
            for block in rows.blocks():
                used = block.index[block.index >= 0]
                scores[used] = score_rows(block.x[: len(used)])
            scores[~rows.valid] = np.nan
            return scores, labels


def _refuse_memory_of(public: Any, *private: Any) -> None:
    """Raise ValueError if public rows share memory with private ones."""
    if any(
        np.may_share_memory(own, other)
        for x in private
        for own in _memory_of(x)
        for other in _memory_of(public)
    ):
        raise ValueError(
            "`axes_from` shares memory with `X`, so its rows may be training rows. "
            "Pass a copy of rows that need no protection."
        )


def _memory_of(x: Any) -> list[np.ndarray]:
    """Return numpy arrays on the memory of `x`, as far as numpy can view it."""
    if isinstance(x, DeviceRows):
        return x.memory()
    known = isinstance(x, np.ndarray) or hasattr(x, "iloc")
    return [np.asarray(x)] if known else []


def check_classified(scores: np.ndarray) -> None:
    """Raise ValueError if a row has a score that is not finite."""
    if none := int((~classified(scores)).sum()):
        raise ValueError(
            f"{none} of {len(scores)} rows have no class, because they have NaN, "
            "infinity or an unreadable image. Remove these rows, or use "
            "`predict_proba`."
        )


def share_right(y: Any, predicted: np.ndarray, known: np.ndarray, weight: Any) -> float:
    """Return the weighted accuracy. Rows outside the mask `known` count as wrong."""
    check_consistent_length(y, predicted, weight)
    weights = np.ones(len(known)) if weight is None else np.asarray(weight)
    if not known.any():  # scikit-learn raises if all weights are zero
        return 0.0
    right = accuracy_score(y, predicted, normalize=False, sample_weight=weights * known)
    return float(right / weights.sum())


# parameters of estimators that are not settings of the method
_NO_SETTINGS = {"method", "settings", *(f.name for f in fields(DPClassifier))} - {
    f.name for f in fields(RowPreparation)
}
