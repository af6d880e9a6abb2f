"""Fit private heads as scikit-learn estimators.

No label's own code may run, and no row's value may decide anything before the charge.
Each estimator names a method. Its settings default to the preset's or the solver's own.
The solver checks them at `fit`, and `documented` takes their documentation from there.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dphead.estimators.base import DPClassifier, DPHeadClassifier
from dphead.estimators.documented import documented
from dphead.estimators.fitting import PrivacyWarning, PrivateNotice
from dphead.estimators.guarantee import Privacy
from dphead.estimators.multilabel import DPMultiLabelClassifier
from dphead.estimators.pca import DPPCA
from dphead.estimators.regression import DPRegressor
from dphead.solvers.gradient import Average
from dphead.solvers.prototypes import Rule

__all__ = [
    "DPPCA",
    "DPAdamClassifier",
    "DPAutoClassifier",
    "DPClassifier",
    "DPFeatureCovarianceClassifier",
    "DPHeadClassifier",
    "DPLeastSquaresClassifier",
    "DPMultiLabelClassifier",
    "DPNewtonClassifier",
    "DPPrototypeClassifier",
    "DPRegressor",
    "DPSGDClassifier",
    "Privacy",
    "PrivacyWarning",
    "PrivateNotice",
]


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPAutoClassifier(DPClassifier):
    """Nothing to choose: gradient steps that follow from the sizes and the budget, and
    the accuracy to expect.

    estimate gives `expected_accuracy_`, per_class_share (a share of mu²)
    `head_.class_accuracy`, also of the worst class. prior: (n_features, n_classes), for
    rows as they are, such as the backbone's own head for these classes.
    """

    method: ClassVar[str] = "auto"

    estimate: bool | None = None
    per_class_share: float | None = None
    prior: np.ndarray | None = None
    balanced: bool | None = None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPLeastSquaresClassifier(DPClassifier):
    """DP-LS: least squares from one noisy Gram matrix and noisy class sums [FC23
    Algorithm 3].

    error_bars: after the fit `coef_std_`, `intercept_std_` and `decision_std` say how
    far the privacy noise moves what they are named after (one standard error; not the
    error from having few rows).
    """

    method: ClassVar[str] = "dp-ls"

    ridge: float | Literal["stein"] | None = None
    gram_share: float | Literal["rule"] | None = None
    class_grams: bool | None = None
    alpha: float | None = None
    feature_clip: float | None = None
    intercept: float | None = None
    error_bars: bool | None = None
    shrink: bool | None = None

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, **refused: Any
    ) -> "DPLeastSquaresClassifier":
        """As `DPClassifier.fit`, then coef_std_ and intercept_std_, shaped like coef_
        and intercept_, if asked for.
        """
        super().fit(X, y, groups, **refused)
        if self.error_bars:
            weights, self.intercept_std_ = self.head_.weights_std(self._differences())
            self.coef_std_ = weights.T
        return self

    def decision_std(self, X: Any, split: str | None = None) -> np.ndarray:
        """Standard errors of `decision_function` due to the privacy noise, of its
        shape. X as there.
        """
        found = self._scores(
            X, split, lambda x: self.head_.scores_std(x, self._differences())
        )
        return found[:, 0] if len(self.classes_) == 2 else found

    def _differences(self) -> np.ndarray | None:
        """Return the matrix that takes the classes' weights to `coef_`.

        It takes the second minus the first of two classes. With more classes it is
        None: each class has its own weights.
        """
        return np.array([[-1.0], [1.0]]) if len(self.classes_) == 2 else None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPFeatureCovarianceClassifier(DPClassifier):
    """DP-FC: gradient steps preconditioned by one noisy Gram matrix [FC23 4]."""

    method: ClassVar[str] = "dp-fc"

    steps: int | None = None
    learning_rate: float | None = None
    ridge: float | None = None
    gram_share: float | None = None
    loss: str | None = None
    clip_norm: float | None = None
    feature_clip: float | None = None
    intercept: float | None = None
    gram_intercept: bool | None = None
    initial_bias: float | None = None
    balanced: bool | None = None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPNewtonClassifier(DPClassifier):
    """DP-Newton: noisy Newton steps for one-vs-rest logistic regression [FC23 Algorithm
    2].
    """

    method: ClassVar[str] = "dp-newton"

    steps: int | None = None
    learning_rate: float | None = None
    ridge: float | None = None
    feature_clip: float | None = None
    intercept: float | None = None
    initial_bias: float | None = None
    hessian_share: float | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class _GradientClassifier(DPClassifier):
    steps: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    beta2: float | None = None
    loss: str | None = None
    clip_norm: float | None = None
    sampling_prob: float | None = None
    normalize: bool | None = None
    average: Average | None = None
    ema_decay: float | None = None
    weight_decay: float | None = None
    intercept: float | None = None
    initial_bias: float | None = None
    balanced: bool | None = None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPSGDClassifier(_GradientClassifier):
    """DP-SGD with momentum, full batches or Poisson batches (`sampling_prob` < 1) [FC23
    Algorithm 1; TB21; De22].
    """

    method: ClassVar[str] = "dp-sgd"


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPAdamClassifier(_GradientClassifier):
    """DP-Adam, full batches or Poisson batches (`sampling_prob` < 1) [FC23 Algorithm 1
    with Adam's step].
    """

    method: ClassVar[str] = "dp-adam"


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPPrototypeClassifier(DPClassifier):
    """One noisy mean for each class; the nearest wins, by angle or by distance."""

    method: ClassVar[str] = "prototypes"

    rule: Rule | None = None
    intercept: float | None = None
    feature_clip: float | None = None
