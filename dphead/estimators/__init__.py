"""Fit private heads as scikit-learn estimators.

No label's code may run, and no row's value may affect anything before the charge. Each
estimator names a method. A setting defaults to the value of the preset or the solver.
The solver checks the settings at `fit`, and `documented` copies their documentation.
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
    """Fit a head with no hyperparameters to set, and report the accuracy to expect.

    Gradient steps follow from public sizes and the budget. `estimate` sets
    `expected_accuracy_`. `per_class_share`, a fraction of mu², sets
    `head_.class_accuracy`, with the worst class. `prior` is an array (n_features,
    n_classes) for untransformed rows, such as the backbone's own head for these
    classes.
    """

    method: ClassVar[str] = "auto"

    estimate: bool | None = None
    per_class_share: float | None = None
    prior: np.ndarray | None = None
    balanced: bool | None = None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPLeastSquaresClassifier(DPClassifier):
    """Fit DP-LS: least squares from a noisy Gram matrix and class sums [FC23].

    With `error_bars`, `coef_std_`, `intercept_std_` and `decision_std` give standard
    errors due to the privacy noise. They exclude sampling of rows. See FC23, Algorithm
    3.
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
        """Fit as `DPClassifier.fit`, with standard errors if `error_bars` is set.

        The standard errors are coef_std_ and intercept_std_, in the shapes of coef_ and
        intercept_.
        """
        super().fit(X, y, groups, **refused)
        if self.error_bars:
            weights, self.intercept_std_ = self.head_.weights_std(self._differences())
            self.coef_std_ = weights.T
        return self

    def decision_std(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return standard errors of `decision_function` due to the privacy noise.

        X and the shape are as in `decision_function`.
        """
        found = self._scores(
            X, split, lambda x: self.head_.scores_std(x, self._differences())
        )
        return found[:, 0] if len(self.classes_) == 2 else found

    def _differences(self) -> np.ndarray | None:
        """Return the matrix that maps the classes' weights to `coef_`.

        For two classes, the matrix subtracts the first class from the second. For more
        classes, return None, because each class has its own weights.
        """
        return np.array([[-1.0], [1.0]]) if len(self.classes_) == 2 else None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPFeatureCovarianceClassifier(DPClassifier):
    """Fit DP-FC: gradient steps preconditioned by a noisy Gram matrix [FC23]."""

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
    """Fit DP-Newton: noisy Newton steps of one-vs-rest logistic regression [FC23]."""

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
    """Fit by DP-SGD with momentum, on full or Poisson batches (`sampling_prob` < 1).

    See FC23 Algorithm 1, TB21 and De22.
    """

    method: ClassVar[str] = "dp-sgd"


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPAdamClassifier(_GradientClassifier):
    """Fit by DP-Adam, on full or Poisson batches (`sampling_prob` < 1).

    This is FC23 Algorithm 1 with Adam's step.
    """

    method: ClassVar[str] = "dp-adam"


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DPPrototypeClassifier(DPClassifier):
    """Fit a noisy mean for each class, and predict the nearest by angle or distance."""

    method: ClassVar[str] = "prototypes"

    rule: Rule | None = None
    intercept: float | None = None
    feature_clip: float | None = None
