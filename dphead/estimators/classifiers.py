"""Define the scikit-learn classifiers, one for each built-in method.

A setting that is None has the preset's value, or else the solver's default. The solver
checks the settings at `fit`. `documented` describes the parameters in `help(CLASS)`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from dphead.analysis.records import read_run
from dphead.estimators.base import DPClassifier
from dphead.estimators.docstrings import documented
from dphead.estimators.guarantee import privacy_of
from dphead.estimators.labels import named_as_given
from dphead.fit.head_file import open_head
from dphead.planning.methods import settable
from dphead.solvers.gradient import Average
from dphead.solvers.head import AccuracyEstimate
from dphead.solvers.prototypes import Rule
from dphead.solvers.settings import Setting


@documented(settable("auto"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPAutoClassifier(DPClassifier):
    """Fit a head with no hyperparameters to set, and estimate its accuracy.

    The number of gradient steps follows from the public sizes and the budget. With
    `estimate`, `expected_accuracy_` has the expected accuracy. With `per_class_share`,
    `head_.class_accuracy` has the accuracy of each class. `prior` is an array
    (n_features, n_classes) for untransformed rows, such as the backbone's own head for
    the same classes.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPAutoClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPAutoClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

    method: ClassVar[str] = "auto"

    estimate: bool | None = None
    per_class_share: float | None = None
    prior: np.ndarray | None = None
    balanced: bool | None = None


@documented(settable("dp-ls"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPLeastSquaresClassifier(DPClassifier):
    """Fit DP-LS: least squares from a noisy Gram matrix and class sums [FC23].

    See FC23, Algorithm 3. With `error_bars`, the attributes `coef_std_` and
    `intercept_std_` give standard errors of `coef_` and `intercept_`. The method
    `decision_std` gives standard errors of scores. These errors are due to the privacy
    noise of the Gram matrix and the class sums. They exclude the noise of the center
    (`center_share`) and the sampling of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPLeastSquaresClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPLeastSquaresClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
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

    def _set_coefficients(self) -> None:
        super()._set_coefficients()
        if self.head_.error_bars:
            weights, self.intercept_std_ = self.head_.weights_std(self._differences())
            self.coef_std_ = weights.T

    def decision_std(self, X: Any, split: str | None = None) -> np.ndarray:
        """Return standard errors of the scores due to the privacy noise.

        Parameters
        ----------
        X, split
            As in `decision_function`.

        Returns
        -------
        ndarray of shape (n, n_classes) or (n,)
            Standard errors, in the shape of `decision_function`.

        Raises
        ------
        ValueError
            If the fit had no `error_bars`, or as in `decision_function`.
        """
        found = self._scores(
            X, split, lambda x: self.head_.scores_std(x, self._differences())
        )
        return found[:, 0] if len(self.classes_) == 2 else found

    def _differences(self) -> np.ndarray | None:
        """Return a matrix (2, 1) for two classes, or None for more than two.

        The matrix subtracts the first class from the second, as `coef_` does.
        """
        return np.array([[-1.0], [1.0]]) if len(self.classes_) == 2 else None


@documented(settable("dp-fc"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPFeatureCovarianceClassifier(DPClassifier):
    """Fit DP-FC: gradient steps preconditioned by a noisy Gram matrix [FC23].

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPFeatureCovarianceClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPFeatureCovarianceClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

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
    shrink: bool | None = None
    balanced: bool | None = None


@documented(settable("dp-newton"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPNewtonClassifier(DPClassifier):
    """Fit DP-Newton: noisy Newton steps of one-vs-rest logistic regression [FC23].

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPNewtonClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPNewtonClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
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
class _StepsClassifier(DPClassifier):
    steps: int | None = None
    learning_rate: float | None = None
    loss: str | None = None
    clip_norm: float | None = None
    sampling_prob: float | None = None
    normalize: bool | None = None
    average: Average | None = None
    ema_decay: float | None = None
    intercept: float | None = None
    initial_bias: float | None = None
    balanced: bool | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class _GradientClassifier(_StepsClassifier):
    momentum: float | None = None
    beta2: float | None = None
    epoch_steps: int | None = None
    weight_decay: float | None = None


@documented(settable("dp-sgd"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPSGDClassifier(_GradientClassifier):
    """Fit DP-SGD with momentum, on full, Poisson or allocated batches.

    Poisson batches have a `sampling_prob` below 1. With `epoch_steps` above 1, each row
    is in one random step of each epoch. See FC23 (Algorithm 1), TB21 and De22.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPSGDClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPSGDClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

    method: ClassVar[str] = "dp-sgd"


@documented(settable("dp-adam"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPAdamClassifier(_GradientClassifier):
    """Fit DP-Adam, on full, Poisson or allocated batches.

    The batches are as for `DPSGDClassifier`. The method is FC23's Algorithm 1 with the
    steps of Adam.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPAdamClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPAdamClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

    method: ClassVar[str] = "dp-adam"


@documented(settable("dp-optax"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPOptaxClassifier(_StepsClassifier):
    """Fit a head with an optimizer of optax, on noisy clipped gradients.

    The optimizer gets the released gradient and the weights, and nothing else.
    Optimizers that need the loss are refused, such as line searches.

    Examples
    --------
    >>> import numpy as np
    >>> import optax
    >>> from dphead import DPOptaxClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> lion = optax.lion(0.1)
    >>> head = DPOptaxClassifier(optimizer=lion, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    """

    method: ClassVar[str] = "dp-optax"

    optimizer: Any = None
    epoch_steps: int | None = None


@documented(settable("prototypes"))
@dataclass(kw_only=True, eq=False, repr=False)
class DPPrototypeClassifier(DPClassifier):
    """Fit a noisy mean for each class, and predict the class of the nearest mean.

    `rule` selects the measure: the angle to a mean, or the squared distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPPrototypeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPPrototypeClassifier(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

    method: ClassVar[str] = "prototypes"

    rule: Rule | None = None
    intercept: float | None = None
    feature_clip: float | None = None


@documented({})
@dataclass(kw_only=True, eq=False, repr=False)
class DPHeadClassifier(DPClassifier):
    """Fit any method by name, including methods of installed packages.

    Parameters
    ----------
    method : str, default="auto"
        Name of the method: one of `dphead.planning.registry.method_names()`.
    settings : dict, default=None
        Settings of the method by name. Other settings have the preset's value, or the
        method's default.

    Examples
    --------
    >>> import numpy as np
    >>> from dphead import DPHeadClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
    >>> head = DPHeadClassifier(method="dp-ls", epsilon=2.0, classes=range(3)).fit(X, y)
    >>> head.predict(X).shape
    (600,)
    >>> bool(head.privacy_.epsilon <= 2.0)
    True
    """

    method: Annotated[str, Setting("Name of the method.")] = "auto"
    settings: Annotated[
        dict[str, Any] | None, Setting("Settings of the method by name.")
    ] = None

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted classifier of a run folder, for predictions.

        The classifier does not have the fit's settings of the method. A new fit would
        use those of its preset, or the defaults.

        Parameters
        ----------
        folder : str or Path
            Run folder of `dphead fit` or of `save`.

        Returns
        -------
        DPHeadClassifier
            The fitted classifier.

        Raises
        ------
        ValueError
            If the folder does not hold a finished run with a head of one class per row,
            or was changed.
        """
        run = read_run(folder)
        head, facts = open_head(folder)
        report = run.report
        g, method = report["guarantee"], report["method"]
        classes = named_as_given(facts)
        model = cls(
            method=method["name"],
            epsilon=g["target_epsilon"],
            delta=g["delta"],
            relation=g["neighboring_relation"],
            group_cap=g["group_cap"],
            group_mean=g.get("group_mean", False),
            preset=method["preset"],
            classes=classes,
        )
        model._refuse_label_sets("Use `DPHeadClassifier.load`.")
        model.head_, model.classes_ = head, classes
        model.n_features_in_ = report["data"]["n_features"]
        model._feature_space = report["data"]["feature_space"]
        # predictions need no estimate, so head.json has none
        if (expected := report["expected_accuracy"]) is not None:
            expected = AccuracyEstimate(**expected)
        model.expected_accuracy_ = expected
        model._set_coefficients()
        privacy = privacy_of(
            run.plan,
            n_rows=report["data"]["n_rows"],
            seeded=not g["private"] and run.plan.private,
            counted=True,
            classes_seen=False,
            warning="",
        )
        model.privacy_ = replace(privacy, notes=tuple(report["warnings"]))
        return model
