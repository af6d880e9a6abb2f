"""Define the scikit-learn classifiers, one for each built-in method.

A setting that is None has the preset's value, or else the solver's default. The solver
checks the settings at `fit`. `python docs/settings_page.py` writes the lists of
parameters and attributes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from dphead.analysis.records import read_run
from dphead.estimators.base import DPClassifier
from dphead.estimators.fitting import named_as_given
from dphead.estimators.guarantee import privacy_of
from dphead.fit.head_file import open_head
from dphead.solvers.gradient import Average
from dphead.solvers.head import AccuracyEstimate
from dphead.solvers.prototypes import Rule
from dphead.solvers.settings import Setting


@dataclass(kw_only=True, eq=False, repr=False)
class DPAutoClassifier(DPClassifier):
    """Fit a head with no hyperparameters to set, and estimate its accuracy.

    The number of gradient steps follows from the public sizes and the budget. With
    `estimate`, `expected_accuracy_` has the expected accuracy. With `per_class_share`,
    `head_.class_accuracy` has the accuracy of each class. `prior` is an array
    (n_features, n_classes) for untransformed rows, such as the backbone's own head for
    the same classes.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    estimate : bool, default=None
        Spend 1 to 3 % of mu² on an estimate of the accuracy. Default: True (chosen, not
        measured).
    per_class_share : from 0 to 0.5, default=None
        Fraction of mu² spent on the accuracy of each class. Default: 0.0 (off).
    prior : ndarray, or path of a .npy file, default=None
        An .npy file of public initial weights (features, classes). Default: off.
    balanced : bool, default=None
        Weight all classes equally: subtract the log of noisy class frequencies from the
        scores. Default: False (off).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPLeastSquaresClassifier(DPClassifier):
    """Fit DP-LS: least squares from a noisy Gram matrix and class sums [FC23].

    See FC23, Algorithm 3. With `error_bars`, the attributes `coef_std_` and
    `intercept_std_` give standard errors of `coef_` and `intercept_`. The method
    `decision_std` gives standard errors of scores. These errors are due to the privacy
    noise, and exclude the sampling of rows.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    ridge : positive, at most 1e+15, or one of stein, default=None
        Ridge penalty in units of the mean Gram matrix; None: set from the noise; stein
        (dp-ls): set by Stein's estimate of the risk of the released sums. Default:
        `ridge_for`, a rule without data.
    gram_share : in (0, 1), or one of rule, default=None
        Fraction of mu² for the Gram matrix; rule (dp-ls): set from the budget and the
        numbers of rows and classes; None: every release has the same noise. Default:
        'rule' (`gram_share`, a rule without data: results/ablation).
    class_grams : bool, default=None
        Also release one Gram matrix for each class. Default: False (trials on training
        rows, not stored).
    alpha : from 0 to 1e+15, default=None
        Weight of the shared Gram matrix relative to class Gram matrices. Default: 1.0
        (chosen, not measured).
    feature_clip : positive, at most 1e+15, default=None
        Clip norm of features. Default: 1.0 (the norm of unit rows).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.0 (off).
    error_bars : bool, default=None
        Save standard errors of the weights due to noise. Default: False (off).
    shrink : bool, default=None
        Shrink the Gram matrix's eigenvalues by the distribution of its noise. Default:
        True (held-out training rows: results/ablation).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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
            If the fit had no `error_bars`.
        """
        found = self._scores(
            X, split, lambda x: self.head_.scores_std(x, self._differences())
        )
        return found[:, 0] if len(self.classes_) == 2 else found

    def _differences(self) -> np.ndarray | None:
        """Return a matrix (2, 1) for two classes, and None for more.

        The matrix subtracts the first class from the second, as `coef_` does.
        """
        return np.array([[-1.0], [1.0]]) if len(self.classes_) == 2 else None


@dataclass(kw_only=True, eq=False, repr=False)
class DPFeatureCovarianceClassifier(DPClassifier):
    """Fit DP-FC: gradient steps preconditioned by a noisy Gram matrix [FC23].

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    steps : a whole number from 1 to 1048576, default=None
        Number of gradient steps. Default: 10 (FC23 Tables 2-4: 1, 10 or 100).
    learning_rate : positive, at most 1e+15, default=None
        Learning rate. Default: Böhning 1992's bound, by the loss.
    ridge : positive, at most 1e+15, default=None
        Ridge penalty in units of the mean Gram matrix; None: set from the noise; stein
        (dp-ls): set by Stein's estimate of the risk of the released sums. Default:
        `ridge_for`, a rule without data.
    gram_share : in (0, 1), default=None
        Fraction of mu² for the Gram matrix; None: every release has the same noise.
        Default: 0.15 (trials on training rows, not stored).
    loss : one of softmax, sigmoid, squared, default=None
        Training loss. With squared, probabilities are not calibrated. Default:
        'softmax' (chosen, not measured).
    clip_norm : positive, at most 1e+15, default=None
        Clip norm of gradients. Default: 1.0 (chosen, not measured).
    feature_clip : positive, at most 1e+15, default=None
        Clip norm of features. Default: 1.0 (the norm of unit rows).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.0 (off).
    gram_intercept : bool, default=None
        Include the intercept in the Gram matrix; otherwise the bias has its own step.
        Default: True (chosen, not measured).
    initial_bias : from -1e+15 to 1e+15, default=None
        Score of every class before the first step. Default: 0.0 (off).
    shrink : bool, default=None
        Shrink the Gram matrix's eigenvalues by the distribution of its noise. Default:
        True (held-out training rows: results/ablation).
    balanced : bool, default=None
        Weight all classes equally: subtract the log of noisy class frequencies from the
        scores. Default: False (off).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPNewtonClassifier(DPClassifier):
    """Fit DP-Newton: noisy Newton steps of one-vs-rest logistic regression [FC23].

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    steps : a whole number from 1 to 1048576, default=None
        Number of gradient steps. Default: 1 (trials on training rows, not stored).
    learning_rate : positive, at most 1e+15, default=None
        Learning rate. Default: 1.0 (Newton's own).
    ridge : positive, at most 1e+15, default=None
        Ridge penalty in units of the mean Gram matrix; None: set from the noise; stein
        (dp-ls): set by Stein's estimate of the risk of the released sums. Default:
        `ridge_for`, a rule without data.
    feature_clip : positive, at most 1e+15, default=None
        Clip norm of features. Default: 1.0 (the norm of unit rows).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.0 (off).
    initial_bias : from -1e+15 to 1e+15, default=None
        Score of every class before the first step. Default: 0.0 (off).
    hessian_share : in (0, 1), default=None
        Fraction of mu² for the Hessians. Default: 0.2 (trials on training rows, not
        stored).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPSGDClassifier(_GradientClassifier):
    """Fit DP-SGD with momentum, on full batches or on Poisson batches.

    Poisson batches have a `sampling_prob` below 1. See FC23 (Algorithm 1), TB21 and
    De22.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    steps : a whole number from 1 to 1048576, default=None
        Number of gradient steps. Default: 30 (trials on training rows, not stored).
    learning_rate : positive, at most 1e+15, default=None
        Learning rate. Default: 8.0 (trials on training rows, not stored).
    momentum : in [0, 1), default=None
        Momentum; beta1 of Adam. Default: 0.9 (TB21 Table 13).
    beta2 : in [0, 1), default=None
        Decay of Adam's squared gradients. Default: 0.999 (Kingma, Ba 2015).
    loss : one of softmax, sigmoid, squared, default=None
        Training loss. With squared, probabilities are not calibrated. Default:
        'softmax' (chosen, not measured).
    clip_norm : positive, at most 1e+15, default=None
        Clip norm of gradients. Default: 1.0 (chosen, not measured).
    sampling_prob : in (0, 1], default=None
        Sampling rate of Poisson batches; 1: the full batch. Default: 1.0 (chosen, not
        measured).
    normalize : bool, default=None
        Also divide the gradient by the clip norm, as De22 does. Default: False (off).
    average : one of last, mean, ema, default=None
        Iterate to return: the last, the mean, or the moving average. Default: 'last'
        (off).
    ema_decay : in [0, 1), default=None
        Decay of the moving average. Default: 0.9999 (De22 appendix C).
    weight_decay : from 0 to 1e+15, default=None
        Weight decay, added to the gradient. Default: 0.0 (off).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.0 (off).
    initial_bias : from -1e+15 to 1e+15, default=None
        Score of every class before the first step. Default: 0.0 (off).
    balanced : bool, default=None
        Weight all classes equally: subtract the log of noisy class frequencies from the
        scores. Default: False (off).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPAdamClassifier(_GradientClassifier):
    """Fit DP-Adam, on full batches or on Poisson batches.

    Poisson batches have a `sampling_prob` below 1. The method is FC23's Algorithm 1
    with the steps of Adam.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    steps : a whole number from 1 to 1048576, default=None
        Number of gradient steps. Default: 30 (trials on training rows, not stored).
    learning_rate : positive, at most 1e+15, default=None
        Learning rate. Default: 0.1 (trials on training rows, not stored).
    momentum : in [0, 1), default=None
        Momentum; beta1 of Adam. Default: 0.9 (TB21 Table 13).
    beta2 : in [0, 1), default=None
        Decay of Adam's squared gradients. Default: 0.999 (Kingma, Ba 2015).
    loss : one of softmax, sigmoid, squared, default=None
        Training loss. With squared, probabilities are not calibrated. Default:
        'softmax' (chosen, not measured).
    clip_norm : positive, at most 1e+15, default=None
        Clip norm of gradients. Default: 1.0 (chosen, not measured).
    sampling_prob : in (0, 1], default=None
        Sampling rate of Poisson batches; 1: the full batch. Default: 1.0 (chosen, not
        measured).
    normalize : bool, default=None
        Also divide the gradient by the clip norm, as De22 does. Default: False (off).
    average : one of last, mean, ema, default=None
        Iterate to return: the last, the mean, or the moving average. Default: 'last'
        (off).
    ema_decay : in [0, 1), default=None
        Decay of the moving average. Default: 0.9999 (De22 appendix C).
    weight_decay : from 0 to 1e+15, default=None
        Weight decay, added to the gradient. Default: 0.0 (off).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.0 (off).
    initial_bias : from -1e+15 to 1e+15, default=None
        Score of every class before the first step. Default: 0.0 (off).
    balanced : bool, default=None
        Weight all classes equally: subtract the log of noisy class frequencies from the
        scores. Default: False (off).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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


@dataclass(kw_only=True, eq=False, repr=False)
class DPPrototypeClassifier(DPClassifier):
    """Fit a noisy mean for each class, and predict the class of the nearest mean.

    `rule` selects the measure: the angle to a mean, or the squared distance.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).
    rule : one of cosine, nearest, default=None
        cosine: score by the angle to a class's mean, seen from the middle of all
        classes. nearest: score by the squared distance to the mean. Default: 'cosine'
        (chosen, not measured).
    intercept : from 0 to 1e+15, default=None
        Constant appended to each row (0: none). Default: 0.25 (chosen, not measured;
        its class sums give the counts).
    feature_clip : positive, at most 1e+15, default=None
        Clip norm of features. Default: 1.0 (the norm of unit rows).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows. None means the preset's value, or 1e-5
        without a preset.
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with another label add zero to
        every sum. A features file has its own classes.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    group_cap : int, default=None
        Number of rows that count in each group (patient): the first rows of the group.
        The fit then protects groups. None protects each row.
    group_mean : bool, default=False
        Whether the mean of a group's rows of a class replaces these rows. At most
        group_cap classes of a group count: the first ones in the order of `classes`.
        The expected accuracy is then unavailable.
    protect : {"image"}, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for Poisson batches.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the features file's own ledger. For arrays, None
        means a new ledger for this fit only. Clones share a `Ledger` object. Pass a
        path if clones fit in other processes.
    split : str, default=None
        Split of a features file to fit.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own (no `ledger`, or ":memory:").
    unit_norm : bool, default=None
        Whether rows are scaled to unit norm. None means the method's default.
    center_share : float, default=None
        Fraction of mu**2 spent on the mean used for centering. 0 means no centering.
        None means the method's default.
    normalization : dict, default=None
        Settings of a private normalization (`dphead.planning.methods.make_method`).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the file's order.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights for rows after `head_.transform` and `head_.feature_clip`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Intercepts of the scores.
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    expected_accuracy_ : AccuracyEstimate or None
        Expected accuracy on new rows, computed from released values. None for methods
        without an estimate.

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
    settings: Annotated[dict[str, Any] | None, Setting("Of the method.")] = None

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted classifier of a run folder, for predictions.

        The classifier has no settings of the method. A new fit would use the defaults.

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
            If the folder does not hold a head, or was changed.
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
        # head.json has no estimate, because predictions do not need it
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
