"""The one scikit-learn classifier that all methods share."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dphead.analysis.metrics import accuracy, probabilities
from dphead.estimators.guarantee import privacy_of
from dphead.estimators.inputs import TrainingData, from_arrays, from_file, is_path
from dphead.estimators.ledger import LedgerMixin
from dphead.planning.methods import make_method
from dphead.planning.plan import (
    check_budget,
    check_facts,
    check_unit,
    large_delta,
    make_plan,
)
from dphead.privacy.ledger import Ledger
from dphead.privacy.noise import NoiseSource
from dphead.rows.features import load_features
from dphead.runs.loop import Run, door_for, fit_head, reserve
from dphead.solvers.base import PublicFacts

RowScores = Callable[[np.ndarray], np.ndarray]


class PrivacyWarning(UserWarning):
    """The guarantee holds, and is weaker than a reader may think."""


def confirmed_delta(epsilon: float, delta: float, n_rows: int, allow: bool) -> str:
    """A delta of 1/n or more is an error, or a warning to the caller of `fit` once
    allowed; "" below it.
    """
    text = large_delta(epsilon, delta, n_rows)
    if text is None:
        return ""
    if not allow:
        raise ValueError(
            f"{text} Use a smaller one, or confirm with allow_large_delta=True."
        )
    warnings.warn(text, PrivacyWarning, stacklevel=3)
    return text


def seed_of(random_state: Any) -> int | None:
    """The seed of a fit's noise: None for a guarantee. 0 is a seed like any other.

    ValueError for what is neither None nor an int.
    """
    if random_state is None:
        return None
    if isinstance(random_state, Integral):
        return int(random_state)
    raise ValueError(
        f"random_state must be None or an int, got {random_state!r}. None is private, "
        "an int is for tests."
    )


@dataclass(kw_only=True, eq=False, repr=False)
class DPClassifier(LedgerMixin, ClassifierMixin, BaseEstimator):
    """A private linear head on features.

    Parameters of the guarantee; a subclass adds its method's settings.

    Every setting that is None takes the preset's value, or else the solver's default.

    epsilon, delta: the budget of this fit; epsilon = inf turns clipping and noise off:
        not private.
    classes: the public classes, needed for a guarantee; a row with another label counts
        zero. classes_ are these, sorted. A features file brings its own, in its order.
    relation: the neighbouring relation, "zero_out", "add_remove" or "replace_one".
    nominal_n: a public number in place of the number of rows, which is private under
        add_remove, and only there.
    group_cap: None protects each row. An int protects groups of rows (patients), of
        which the first so many count.
    protect: "image" confirms that each row is protected for itself alone although a
        features file has groups; None refuses such a file, unless it is capped.
    accountant: "auto" is the preset's, else exact for full batches and PLD for Poisson
        ones.
    ledger: the data set's ledger, a path or a `Ledger`. None: a features file's own;
        for arrays, only this fit counts. A `Ledger` is shared by clones, and cannot be
        sent to another process: give a path there. A features file's fits in other
        ledgers are a `PrivacyWarning` and a note in privacy_.
    split: which rows of a features file to fit. preset: a paper's settings, such as
        "fc23".
    allow_large_delta: confirm a delta of 1/n or more, which lets a mechanism publish
        whole rows.
    random_state: None for a guarantee. An int fixes the noise: reproducible, not
        private.
    unit_norm, center_share, normalization: how rows are brought to one scale
        (`dphead.planning.methods.make_method`).

    After `fit`: classes_, coef_ and intercept_ (one row of coefficients for two
    classes, else one for each; they apply to rows after `head_.transform`),
    n_features_in_, head_, privacy_ (`Privacy`), ledger_ (`Ledger`) and
    expected_accuracy_ (`AccuracyEstimate`, private like the head; None for a method
    that does not ask for one).

    A private fit does not look at a row's value except through a noisy release: a row
    that is not finite counts zero and nothing is reported about it. X may be an array,
    a data frame, or the path of a features file (then y is None).
    """

    method: ClassVar[str]

    epsilon: float = 1.0
    delta: float = 1e-5
    classes: Sequence[Any] | np.ndarray | None = None
    relation: Literal["zero_out", "add_remove", "replace_one"] = "zero_out"
    nominal_n: int | None = None
    group_cap: int | None = None
    protect: Literal["image"] | None = None
    accountant: str = "auto"
    ledger: str | Path | Ledger | None = None
    split: str | None = None
    preset: str | None = None
    allow_large_delta: bool = False
    random_state: int | None = None
    unit_norm: bool | None = None
    center_share: float | None = None
    normalization: dict[str, Any] | None = None

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> "DPClassifier":
        """Charge the ledger, then fit.

        X: (n, d) numbers and y: (n,) labels, or X the path of a features file.

        groups: (n,) whole numbers, one for each patient or other group, negative for a
        row on its own; needed with group_cap, and no use without. A features file
        brings its own, which are protected by group_cap, or not by protect="image",
        as a note in privacy_ then says.
        Raises ValueError, with nothing charged, for settings, shapes or dtypes that
        cannot be used, fewer rows than classes, a delta of 1/n or more, and
        (LedgerError) a budget that would be exceeded.
        """
        check_budget(self.epsilon, self.delta)
        seed = seed_of(self.random_state)
        noise = NoiseSource(seed)
        with self._training_data(X, y, groups) as data:
            facts = self._public_facts(data)
            large = confirmed_delta(
                self.epsilon, self.delta, facts.n_rows, self.allow_large_delta
            )
            ungrouped = check_unit(
                data.grouped,
                self.protect,
                self.epsilon,
                confirm="protect='image'",
                instead="group_cap=K",
                group_cap=self.group_cap,
            )
            method = make_method(self.method, facts, self._options(), self.preset)
            plan = make_plan(
                method.solver,
                facts,
                epsilon=self.epsilon,
                delta=self.delta,
                relation=self.relation,
                accountant=method.accountant
                if self.accountant == "auto"
                else self.accountant,
                group_cap=self.group_cap,
            )
            summer = door_for(method.solver, plan, facts)
            ledger = self._open_ledger(data.dataset_id)
            others = self._uncounted(ledger, data.dataset_id)
            if others:
                warnings.warn(others, PrivacyWarning, stacklevel=2)
            charged = reserve(
                method.solver,
                plan,
                ledger,
                feature_space=data.feature_space,
                seed=seed,
                description=self.method,
            )
            run = Run(charged=charged, noise=noise, summer=summer)
            result = fit_head(method.solver, data.rows(), facts, plan, run)
        self.classes_, self.n_features_in_, self.head_ = (
            data.classes,
            data.n_features,
            result.head,
        )
        self.expected_accuracy_ = result.head.estimate
        self._ledger, self._feature_space = ledger, data.feature_space
        self.privacy_ = privacy_of(
            plan,
            n_rows=facts.n_rows,
            seeded=not noise.private,
            counted=ledger.path != ":memory:" or isinstance(self.ledger, Ledger),
            classes_seen=data.classes_seen,
            warning=" ".join(filter(None, [large, *ungrouped, others])),
        )
        weights, intercept = result.head.weights.T, result.head.intercept
        two = len(data.classes) == 2
        self.coef_ = weights[1:] - weights[:1] if two else weights.copy()
        self.intercept_ = intercept[1:] - intercept[:1] if two else intercept.copy()
        return self

    def decision_function(self, X: Any, split: str | None = None) -> np.ndarray:
        """Scores: (n, n_classes), or (n,) for two classes: the second's minus the
        first's. X as in `fit`.

        A row that is not finite scores the intercept (after a fit without privacy it is
        refused, as scikit-learn does).
        """
        scores = self._scores(X, split)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, split: str | None = None) -> np.ndarray:
        """The class with the highest score, (n,); the first of equals."""
        scores = self._scores(X, split)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any, split: str | None = None) -> np.ndarray:
        """Probabilities (n, n_classes): softmax, or normalised sigmoids
        (`dphead.analysis.metrics.probabilities`).

        Those of a squared loss and of prototypes are right in order and not calibrated.
        """
        scores = self._scores(X, split)
        return probabilities(scores, self.head_.loss)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, split: str | None = None
    ) -> float:
        """Accuracy on rows X and labels y, or on those rows of a features file that
        have a label.

        It is an exact function of these rows. On the training rows it is private: do
        not publish it.
        """
        if not is_path(X):
            return super().score(X, y, sample_weight)
        scores, labels = self._file_scores(X, split)
        known = (labels >= 0) & (labels < len(self.classes_))
        return accuracy(labels[known], scores.argmax(axis=1)[known])[0]

    def _options(self) -> dict[str, Any]:
        """The method's settings, None for what is not given."""
        names = (f.name for f in fields(self) if f.name not in _GUARANTEE)
        return {name: getattr(self, name) for name in names}

    def _training_data(
        self, X: Any, y: Any, groups: Any
    ) -> AbstractContextManager[TrainingData]:
        if not is_path(X):
            return nullcontext(
                from_arrays(
                    self, X, y, groups, self.classes, bool(np.isfinite(self.epsilon))
                )
            )
        if y is not None or groups is not None:
            raise ValueError(
                "a features file has its own labels and groups, got y or groups "
                "besides. Leave them out."
            )
        vars(self).pop("feature_names_in_", None)
        options = (self.split, self.classes, self.group_cap, self.relation)
        return from_file(X, *options)

    def _public_facts(self, data: TrainingData) -> PublicFacts:
        if (self.relation == "add_remove") != (self.nominal_n is not None):
            raise ValueError(
                "nominal_n must be given exactly when the number of rows is private, "
                f"got relation={self.relation!r}, nominal_n={self.nominal_n}. Correct "
                "one of them."
            )
        n_rows = self.nominal_n if self.nominal_n is not None else data.n_rows
        facts = PublicFacts(n_rows, data.n_features, len(data.classes))
        check_facts(facts)
        return facts

    def _scores(
        self, X: Any, split: str | None, scores_of: RowScores | None = None
    ) -> np.ndarray:
        """Scores (n, n_classes) of rows or of a features file, or what `scores_of` says
        instead.
        """
        check_is_fitted(self)
        if is_path(X):
            return self._file_scores(X, split, scores_of)[0]
        finite = not self.__sklearn_tags__().input_tags.allow_nan
        x: Any = validate_data(self, X, reset=False, ensure_all_finite=finite)
        return (scores_of or self.head_.scores)(x)

    def _file_scores(
        self, path: Any, split: str | None, scores_of: RowScores | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `_scores` of a file, by blocks, and label positions (n,)."""
        check_is_fitted(self)
        scores_of = scores_of or self.head_.scores
        rows, file = load_features(path, split, memory=0)
        with file:
            if self._feature_space and file.feature_space != self._feature_space:
                raise ValueError(
                    "features must be of the head's own network and settings, got "
                    f"{path}. Extract them alike."
                )
            scores = np.empty((rows.n_rows, len(self.classes_)), np.float32)
            for block in rows.blocks():
                used = block.index >= 0
                scores[block.index[used]] = scores_of(block.x[used])
            return scores, rows.labels()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.epsilon != np.inf
        return tags


_GUARANTEE = {f.name for f in fields(DPClassifier)} - {
    "unit_norm",
    "center_share",
    "normalization",
}
