"""Define the rules of `auto`: its settings, and the source of each constant.

The sources "ablation" and "auto" are folders in benchmarks/results. A quoted text after
the name is in a heading, a row or a sentence of the README there. "trials" ran on
held-out training rows of CIFAR-10 and digits, and their results are not stored.
Values marked "chosen" were not measured.
"""

import math
from dataclasses import replace

import numpy as np

from dphead.solvers.base import ProblemInfo
from dphead.solvers.feature_covariance import DPFC
from dphead.solvers.gradient import GradientDescent

# Settings of the descent that no rule below sets.
DESCENT = GradientDescent(
    # ablation, "with momentum 0.9": -0.1 to -0.3 points at every ε
    momentum=0.0,
    # ablation: a clip norm of 0.1 is 0.1 points better on CIFAR-10, and was 1.3 worse
    # on digits; 1 is worse
    clip_norm=0.3,
    # normalize as [De22], so that `_rate` does not depend on the clip norm
    normalize=True,
    # tests/solvers/test_auto.py: without averaging, large steps oscillate if features
    # are few
    average="ema",
    ema_decay=0.9,  # chosen, not measured
    # ablation, "the center's share": with few rows, 0.1 to 1.2 points better than 0.3,
    # and 0.05 worse to 0.25 better with two classes of unequal size. "no intercept
    # column": classes of equal size gain nothing from it. It serves unequal classes.
    intercept=0.1,
)

# Step size: noise alone moves a weight by this standard deviation over the whole
# descent, in logits of unit rows (`_rate`). results/auto (oracle): from ε = 0.5 on, the
# best of 0.5, 0.9 and 1.6 on CIFAR-10; results/ablation.
_MOVE_LOGITS = 0.9
# The same for a descent from a prior with little signal, which starts closer; trials
# (ablation, "a public prior", measures the prior's gain with it).
_PRIOR_MOVE_LOGITS = 0.6
# Longest step on normalized gradients of unit rows, in logits; trials: with little
# noise, longer steps were not better.
_LONGEST_STEP = 640.0

# From _FAINT_CLASSES classes on, the last iterate replaces the moving average if n·mu
# is below _FAINT · classes · sqrt(features). Noise then hides the classes up to the
# last step, and the average gives little weight to the last steps; ablation, "the last
# iterate".
_FAINT, _FAINT_CLASSES = 1.5, 20

# Number of steps: _STEPS at an n·mu of _STEPS_AT, in proportion to n·mu, within bounds.
# The lower bound is _FEW_STEPS from _FEW_STEPS_AT on, and falls to _FEWEST_STEPS below.
# ablation, "30 steps": 0.2 to 0.6 points worse at ε = 4 and 8
_STEPS, _STEPS_AT = 120, 1e4
# ablation, "few rows": in fits without the count of correct rows, 30 steps are 0.1 to
# 1.4 points better than 60 at an n·mu of 30 to 540, and 0.1 worse at 2,800
_FEWEST_STEPS, _FEW_STEPS, _FEW_STEPS_AT = 30, 60, 1.2e3
_MOST_STEPS = 100  # ablation, "120 steps": no better on CIFAR-10
# From this number of features on, _MOST_STEPS grows in proportion to the features;
# ablation, "twice the steps": +0.2 to +0.3 points for ScatterNet's features.
_MOST_STEPS_FEATURES = 1280

# Rows of few features. If n·mu per feature is at least _NARROW, the curvature of the
# loss contracts the noise, so the path of all steps may be longer: _NARROW_MOVE logits
# of noise, and at most _NARROW_PATH for each feature. On longer paths, heads come close
# to the minimum of the clipped loss, which is a worse classifier; results/tables.
_NARROW, _NARROW_FEATURES = 50, 256
_NARROW_STEPS, _NARROW_MOVE, _NARROW_PATH = 3, 8.0, 600.0

# Scaling of features.
SCALE_SHARE = 0.01  # share of mu² for their mean squares; chosen
# Features are scaled if n·mu per feature is at least this. Below, scaling lost 0.2
# points (ablation, "scaling always"). Above, it gained 0.6 points on MNIST and 2 on
# Fashion-MNIST (ablation, "ScatterNet"; trials).
_SCALE_FROM = 2

# Share of mu² for the mean used for centering, if there are few rows; ablation, "the
# center's share".
_CENTER_NOISE = 0.05  # target for the squared norm of the noise in a mean of unit rows
_MOST_CENTER_SHARE = 0.1

# Longer steps if classes are well separated; ablation, "longer steps".
# Steps are longer if more than this share of the variance is between classes. For ten
# classes, the share was 0.06 to 0.11 where longer steps lost, and 0.33 to 0.46 where
# they gained. `AdaptiveStepSize` has the rule for other numbers of classes.
_LENGTHEN_FROM_SHARE = 0.2
_LENGTHEN_AT_MOST = 1.8  # noise then moves a weight by 1.6 logits instead of 0.9
_SHARE_SD = 0.1  # the share counts as known below this noise; chosen
# Typical share, and its standard deviation. It is averaged with the measured share
# until that share is known; ablation, "few rows".
_LIKELY_SHARE, _LIKELY_SHARE_SD = 0.3, 0.15

# Fits without noise: DP-FC, or plain gradient steps if the Gram matrix is too wide.
# ablation, "without noise": this ridge with 20 steps is within 0.2 points of the best
# setting on digits and on CIFAR-10, where more steps or less ridge overfit. A larger
# ridge is 1.2 better on the 64 pixels of digits, and worse on Gaussian classes.
_UNNOISED_STEPS, _UNNOISED_RIDGE = 25, 1e-3
# Sigmoids, for label sets; ablation, "label sets without noise": 25 steps overfit.
_UNNOISED_SIGMOID_STEPS = 10
WIDEST_UNNOISED_GRAM = 4096  # columns: the solution takes 1 GB; chosen
# weight decay times n, in gradient steps with momentum until convergence; ablation,
# "without noise"
_UNNOISED_DECAY = 0.3
# Steps, step size and momentum by loss. The sigmoid loss has half the curvature, and
# its sums take ten times as long; ablation, "label sets without noise".
_UNNOISED_DESCENTS = {"softmax": (200, 3.0, 0.95), "sigmoid": (100, 12.0, 0.9)}
# Most steps with sigmoids: 40, and one more for each 100 rows. Further steps gain at
# most 0.1 points; the same section.
_UNNOISED_SIGMOID_FEWEST, _UNNOISED_SIGMOID_ROWS = 40, 100
_UNNOISED_INTERCEPT = 0.3  # without noise, larger intercepts lose nothing; chosen

# Share of mu² spent on the count of training rows that the head classifies correctly.
_COUNT_SD = 0.01  # target for the noise of the count, as a fraction of n; chosen
# ablation, "few rows": a share of 0.1 cost up to 1.7 points
_LEAST_COUNT_SHARE, _MOST_COUNT_SHARE = 0.01, 0.03
# Parts of that share for the counts before and after balancing (`balancing_rule`);
# chosen, not measured
_BEFORE_PART, _AFTER_PART = 0.6, 0.2


def is_strong(facts: ProblemInfo) -> bool:
    """Return whether the budget is large relative to the number of features."""
    return facts.mu * facts.n_rows >= _SCALE_FROM * facts.n_features


def private_descent(
    facts: ProblemInfo,
    descent: GradientDescent,
    strength: float,
    steps: int | None,
    move: float | None,
) -> GradientDescent:
    """Return the descent with its number of steps, step size and average set.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    descent : GradientDescent
        Descent with all other settings.
    strength : float
        n·μ of the composition of all steps.
    steps : int or None
        Number of steps. None uses the rule.
    move : float or None
        Logits by which noise alone may move a weight. None uses the rule.
    """
    softmax = descent.loss == "softmax"
    near = descent.prior is not None and softmax and not is_strong(facts)
    rule = _number_of_steps(facts), _PRIOR_MOVE_LOGITS if near else _MOVE_LOGITS
    # the rules below were tested for softmax without a prior only
    tested = softmax and descent.prior is None
    if tested and _is_narrow(facts):
        rule = _narrow_descent(facts)
    steps, move = steps or rule[0], move or rule[1]
    return replace(
        descent,
        steps=steps,
        learning_rate=_rate(strength, steps, descent.momentum, move),
        average="last" if tested and _is_faint(facts) else descent.average,
    )


def unnoised_dpfc(loss: str) -> DPFC:
    """Return the DP-FC solver for fits without noise."""
    sigmoid = loss == "sigmoid"
    return DPFC(
        steps=_UNNOISED_SIGMOID_STEPS if sigmoid else _UNNOISED_STEPS,
        loss=loss,
        ridge=_UNNOISED_RIDGE,
        intercept=_UNNOISED_INTERCEPT,
    )


def unnoised_descent(facts: ProblemInfo, descent: GradientDescent) -> GradientDescent:
    """Return the descent with the settings for fits without noise."""
    steps, step_size, momentum = _UNNOISED_DESCENTS[descent.loss]
    if descent.loss == "sigmoid":
        few = _UNNOISED_SIGMOID_FEWEST + facts.n_rows // _UNNOISED_SIGMOID_ROWS
        steps = min(steps, few)
    return replace(
        descent,
        steps=steps,
        learning_rate=step_size,
        momentum=momentum,
        # the penalty is relative to the loss summed over rows, so the mean loss gets
        # 1/n of it
        weight_decay=_UNNOISED_DECAY / facts.n_rows,
        intercept=_UNNOISED_INTERCEPT,
        normalize=False,
        average="last",
    )


def _is_narrow(facts: ProblemInfo) -> bool:
    """Return whether rows have few features and little noise in each feature."""
    few = facts.n_features <= _NARROW_FEATURES
    return few and facts.mu * facts.n_rows >= _NARROW * facts.n_features


def _narrow_descent(facts: ProblemInfo) -> tuple[int, float]:
    """Return the number of steps, and the `move` of `_rate`, for narrow rows."""
    path = _NARROW_PATH * facts.n_features / (facts.mu * facts.n_rows)
    move = max(_MOVE_LOGITS, min(_NARROW_MOVE, path))
    return _NARROW_STEPS * _number_of_steps(facts), move


def _is_faint(facts: ProblemInfo) -> bool:
    """Return whether there are many classes, and noise hides them to the last step."""
    most = _FAINT * facts.n_classes * math.sqrt(facts.n_features)
    return facts.n_classes >= _FAINT_CLASSES and facts.mu * facts.n_rows < most


def _number_of_steps(facts: ProblemInfo) -> int:
    """Return the number of steps, proportional to n·μ within bounds."""
    signal = facts.mu * facts.n_rows
    most = _MOST_STEPS * max(1.0, facts.n_features / _MOST_STEPS_FEATURES)
    few = max(_FEWEST_STEPS, _FEW_STEPS * min(1.0, signal / _FEW_STEPS_AT))
    return round(min(most, max(few, _STEPS * signal / _STEPS_AT)))


def _rate(
    strength: float,
    steps: int,
    momentum: float,
    move: float,
) -> float:
    """Return the step size at which noise alone moves a weight by `move` logits.

    Parameters
    ----------
    strength : float
        n·μ of the composition of all steps.
    steps : int
        Number of steps.
    momentum : float
        Momentum of the descent, in [0, 1).
    move : float
        Standard deviation of a weight's movement by noise over the whole descent, in
        logits.

    Returns
    -------
    float
        Step size for mean clipped gradients that are divided by the clip norm.

    Notes
    -----
    A step's normalized gradient has noise sqrt(steps)/strength. Momentum multiplies the
    noise by 1/(1 - momentum), and `steps` independent steps multiply it by sqrt(steps).
    _LONGEST_STEP bounds the step size if there is little noise.
    """
    return (1 - momentum) * min(_LONGEST_STEP, move * strength / steps)


def center_share(facts: ProblemInfo, least: float) -> float:
    """Return the share of μ² that brings the mean's noise down to _CENTER_NOISE.

    The share is at least `least` and, unless `least` is larger, at most
    _MOST_CENTER_SHARE. It is 0 if `least` is 0.
    """
    wanted = center_noise(facts, 1.0) / _CENTER_NOISE if least else 0.0
    return max(least, min(_MOST_CENTER_SHARE, wanted))


def center_noise(facts: ProblemInfo, share: float) -> float:
    """Return the expected squared norm of the noise in the mean of unit rows.

    `share` is the mean's share of μ², and is not 0.
    """
    # d entries of noise, each with sd 1/(n mu sqrt(share))
    return facts.n_features / (facts.mu * facts.n_rows) ** 2 / share


def count_shares(facts: ProblemInfo, balanced: bool) -> tuple[float, float, float]:
    """Return three shares of μ²: for counts before and after balancing, and at the end.

    The first two are 0 without balancing. A single count with the sum of the shares
    would have the noise _COUNT_SD. The sum is at least _LEAST_COUNT_SHARE and at most
    _MOST_COUNT_SHARE.
    """
    # a count has noise 1/(mu sqrt(share)), relative to n
    wanted = (1 / _COUNT_SD / (facts.mu * facts.n_rows)) ** 2
    share = min(_MOST_COUNT_SHARE, max(_LEAST_COUNT_SHARE, wanted))
    if not balanced:
        return 0.0, 0.0, share
    # parts of the same share, so the noise of gradients does not change
    left = 1 - _BEFORE_PART - _AFTER_PART
    return share * _BEFORE_PART, share * _AFTER_PART, share * left


class AdaptiveStepSize:
    """Lengthen the steps of a descent from zero weights, for well separated classes.

    The factor follows from the first released gradients and spends no further budget.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes.
    descent : GradientDescent
        Descent with the learning rate to lengthen.

    Notes
    -----
    Let g be the mean clipped gradient at zero weights, C the clip norm, and s the
    squared norm of g / C. For classes of equal size, (n_classes - 1) s is the share of
    the rows' variance between classes. This share is divided by the decimal logarithm
    of n_classes, because finer classes of the same rows explain more of the variance.

    Gradients are averaged until the noise of this share is at most _SHARE_SD. Until
    then, the share is a precision-weighted average of the observed share and a typical
    share, _LIKELY_SHARE. Steps are therefore somewhat longer at first. The longer steps
    had no effect on accuracy if noise hid the classes to the end.

    A share above _LENGTHEN_FROM_SHARE lengthens the steps in proportion, up to
    _LENGTHEN_AT_MOST and to the longest step _LONGEST_STEP. Scores that lie further
    apart tolerate more noise.
    """

    def __init__(self, facts: ProblemInfo, descent: GradientDescent) -> None:
        # steps that `_rate` made as long as _LONGEST_STEP stay as they are
        longest = _LONGEST_STEP * (1 - descent.momentum)
        self._most = min(_LENGTHEN_AT_MOST, longest / descent.learning_rate)
        self._factor = 1.0
        self._n_features = facts.n_features
        # Factor that turns a squared norm into a share of the variance. Longer steps
        # lost at a share of a quarter with 100 classes, hence the logarithm (ablation,
        # "longer steps").
        self._unit = (facts.n_classes - 1) / math.log10(facts.n_classes)
        self._known = False
        self._seen = 0
        self._sum = np.zeros(())

    def __call__(self, gradient: np.ndarray, noise_sd: float) -> float:
        """Return the factor on the learning rate for this step.

        Parameters
        ----------
        gradient : ndarray of shape (width, n_classes)
            Noisy mean gradient, divided by the clip norm.
        noise_sd : float
            Standard deviation of the noise of each entry.
        """
        if not self._known:
            # The intercept's row is left out: it depends on the class sizes.
            rows = gradient[: self._n_features]
            self._sum = self._sum + rows
            self._seen += 1
            # An entry of the mean of `seen` gradients has noise of variance
            # noise_sd²/seen. Noise adds k times this variance to the squared norm of k
            # entries, with a standard deviation of sqrt(2k) times it.
            spread = self._unit * noise_sd**2 / self._seen
            sd = spread * math.sqrt(2 * rows.size)
            # Squared norm of the mean of all gradients so far. Weights are no longer
            # zero, but early gradients still point the same way.
            squared = float((self._sum**2).sum()) / self._seen**2
            share = self._unit * squared - spread * rows.size
            self._known = sd <= _SHARE_SD
            if not self._known:
                # posterior mean: the prior share and the observed one are Gaussian
                trust = _LIKELY_SHARE_SD**2 / (_LIKELY_SHARE_SD**2 + sd**2)
                share = _LIKELY_SHARE + trust * (share - _LIKELY_SHARE)
            self._factor = min(self._most, max(1.0, share / _LENGTHEN_FROM_SHARE))
        return self._factor
