"""Define the rules of `auto`: its constants, and the source of each.

The sources "ablation", "auto" and "expected" are tables in benchmarks/results. A quoted
text after the name is a row of that table. "trials" ran on held-out training rows of
CIFAR-10 and digits, and their results are not stored. Values marked "chosen" were not
measured.
"""

import math

from dphead.solvers.base import ProblemInfo
from dphead.solvers.gradient import GradientDescent

# Settings of the descent that no rule below sets.
DESCENT = GradientDescent(
    # ablation, "with momentum 0.9": -0.1 to -0.3 points at every ε
    momentum=0.0,
    # ablation: 0.1 is 0.1 points better on CIFAR-10 and was 1.3 worse on digits; 1 is
    # worse
    clip_norm=0.3,
    # normalize as [De22], so that `rate` does not depend on the clip norm
    normalize=True,
    # tests/solvers/test_auto.py: without it large steps oscillate on few features
    average="ema",
    # chosen
    ema_decay=0.9,
    # ablation, "the center's share": with few rows 0.1 to 0.8 points better than 0.3,
    # even for uneven classes; "no intercept column": no gain for even classes
    intercept=0.1,
)

# Step size: noise alone moves a weight by this standard deviation over the whole
# descent, in logits of unit rows (`rate`). results/auto (oracle): the best of 0.5, 0.9
# and 1.6 on CIFAR-10; results/ablation.
MOVE_LOGITS = 0.9
# The same for a descent from a prior with little signal, which starts closer; trials
# (ablation, "a public prior", measures the prior's gain with it).
PRIOR_MOVE_LOGITS = 0.6
# Longest step on normalized gradients of unit rows, in logits; trials: with little
# noise, longer steps were not better.
LONGEST_STEP = 640.0

# From _FAINT_CLASSES classes on, the last iterate replaces the moving average if n·mu
# is below _FAINT · classes · sqrt(features). Noise then hides the classes to the end,
# and the average gives less weight to the last steps; ablation, "the last iterate".
_FAINT, _FAINT_CLASSES = 1.5, 20

# Number of steps: _STEPS at an n·mu of _STEPS_AT, in proportion to n·mu, within bounds.
# The lower bound is _FEW_STEPS from _FEW_STEPS_AT on, and falls to _FEWEST_STEPS below.
# ablation, "30 steps": 0.2 to 0.6 points worse at ε = 4 and 8
_STEPS, _STEPS_AT = 120, 1e4
# ablation, "few rows": 60 steps are 0.5 to 2 points worse at an n·mu of 30 to 800, and
# 30 are about 0.4 worse at 1,500
_FEWEST_STEPS, _FEW_STEPS, _FEW_STEPS_AT = 30, 60, 1.2e3
_MOST_STEPS = 100  # ablation, "120 steps": no better on CIFAR-10
# From this number of features on, MOST_STEPS grows in proportion to the features;
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
# Steps are longer above this share of variance between ten classes. The share was 0.06
# to 0.11 where longer steps lost, and 0.33 to 0.46 where they gained.
LENGTHEN_FROM_SHARE = 0.2
LENGTHEN_AT_MOST = 1.8  # 1.6 logits instead of 0.9
SHARE_SD = 0.1  # the share counts as known below this noise; chosen
# Typical share, and its standard deviation. It is averaged with the measured share as
# long as that one is not known; ablation, "few rows".
LIKELY_SHARE, LIKELY_SHARE_SD = 0.3, 0.15

# Fits without noise: DP-FC, or plain gradient steps if the Gram matrix is too wide.
# ablation, "without noise": within 0.2 points of the best of 30 settings on digits and
# on CIFAR-10, where more steps or less ridge overfit, and within 1 elsewhere
UNNOISED_STEPS, UNNOISED_RIDGE = 25, 1e-3
# Sigmoids, for label sets; ablation, "label sets without noise": 25 steps overfit.
UNNOISED_SIGMOID_STEPS = 10
WIDEST_UNNOISED_GRAM = 4096  # columns: the solution takes 1 GB; chosen
# gradient steps with momentum until convergence, with weight decay
# UNNOISED_DECAY / n; the same table
UNNOISED_DECAY = 0.3
# Steps, step size and momentum by loss. The sigmoid loss has half the curvature, and
# its sums take ten times as long; ablation, "label sets without noise".
UNNOISED_DESCENTS = {"softmax": (200, 3.0, 0.95), "sigmoid": (100, 12.0, 0.9)}
# With sigmoids, steps beyond 40 and one per 100 rows gain 0.1 or less; the same table.
UNNOISED_SIGMOID_FEWEST, UNNOISED_SIGMOID_ROWS = 40, 100
UNNOISED_INTERCEPT = 0.3  # a larger intercept costs nothing without noise; chosen

# Share of mu² spent on the count of training rows that the head classifies correctly.
_COUNT_SD = 0.01  # target for the noise of the count, as a fraction of n; chosen
# ablation, "few rows": a share of 0.1 cost up to 1.3 points
_LEAST_COUNT_SHARE, _MOST_COUNT_SHARE = 0.01, 0.03
# Parts of that share for the counts before and after balancing (`balancing`); chosen
BEFORE_PART, AFTER_PART = 0.6, 0.2

# Overfitting: the gap between training rows and new rows (`expectation.overfit`);
# expected, "What overfitting costs". Constant and powers of the shift of margins, in
# standard deviations. They come from fits of five sets of features on 1,077 to 50,000
# rows, measured on different training rows.
MARGIN_SHIFT = 1.6
SHIFT_POWER_OF_LENGTH, SHIFT_POWER_OF_ROWS = 0.75, -0.2
SHIFT_POWER_OF_WRONG = 0.15
# Above SHIFT_CLASSES classes, the shift grows with their number: 54 fits on 20 to 100
# classes of CIFAR-100.
SHIFT_CLASSES, SHIFT_POWER_OF_CLASSES = 10, 0.1
# Upper bound of the gap, divided by the free parameters per unit; trials with synthetic
# classes.
GAP_PER_PARAMETER = 0.45
# Relative standard deviation of gaps up to GAP_KNOWN; above, it falls with the root of
# the gap. expected: 93 % of 264 intervals of 90 % held.
GAP_RELATIVE_SD, GAP_KNOWN = 0.6, 0.03
# Up to this number of classes, GAP_RELATIVE_SD holds for large gaps too; expected,
# "Two classes".
FEW_CLASSES = 5
NORMAL_95 = 1.645  # the standard normal's 95 % point: both sides leave 10 %


def is_strong(facts: ProblemInfo) -> bool:
    """Return whether the budget is large relative to the number of features."""
    return facts.mu * facts.n_rows >= _SCALE_FROM * facts.n_features


def is_narrow(facts: ProblemInfo) -> bool:
    """Return whether rows have few features and little noise in each of them."""
    few = facts.n_features <= _NARROW_FEATURES
    return few and facts.mu * facts.n_rows >= _NARROW * facts.n_features


def narrow_descent(facts: ProblemInfo) -> tuple[int, float]:
    """Return the number of steps, and the `move` of `rate`, for narrow rows."""
    path = _NARROW_PATH * facts.n_features / (facts.mu * facts.n_rows)
    move = max(MOVE_LOGITS, min(_NARROW_MOVE, path))
    return _NARROW_STEPS * number_of_steps(facts), move


def is_faint(facts: ProblemInfo) -> bool:
    """Return whether noise hides many classes to the end of the descent."""
    most = _FAINT * facts.n_classes * math.sqrt(facts.n_features)
    return facts.n_classes >= _FAINT_CLASSES and facts.mu * facts.n_rows < most


def number_of_steps(facts: ProblemInfo) -> int:
    """Return the number of steps, proportional to n·μ within bounds."""
    signal = facts.mu * facts.n_rows
    most = _MOST_STEPS * max(1.0, facts.n_features / _MOST_STEPS_FEATURES)
    few = max(_FEWEST_STEPS, _FEW_STEPS * min(1.0, signal / _FEW_STEPS_AT))
    return round(min(most, max(few, _STEPS * signal / _STEPS_AT)))


def rate(
    strength: float,
    steps: int,
    momentum: float = DESCENT.momentum,
    move: float = MOVE_LOGITS,
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
    LONGEST_STEP bounds the step size if there is little noise.
    """
    return (1 - momentum) * min(LONGEST_STEP, move * strength / steps)


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
    # d noisy entries of sd 1/(n mu sqrt(share))
    return facts.n_features / (facts.mu * facts.n_rows) ** 2 / share


def count_share(facts: ProblemInfo) -> float:
    """Return the share of μ² that brings the count's noise down to _COUNT_SD.

    The share is between _LEAST_COUNT_SHARE and _MOST_COUNT_SHARE.
    """
    # a count has noise 1/(mu sqrt(share)), relative to n
    wanted = (1 / _COUNT_SD / (facts.mu * facts.n_rows)) ** 2
    return min(_MOST_COUNT_SHARE, max(_LEAST_COUNT_SHARE, wanted))
