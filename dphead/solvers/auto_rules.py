"""The rules of `auto`: every number that it sets itself by, and where it was measured.

"ablation", "auto" and "expected" are the tables of those names in benchmarks/results,
with their rows; "trials" were made on held-out training rows of CIFAR-10 and digits,
and no rows of them are stored. "chosen" is: chosen, not measured.
"""

from dphead.solvers.base import PublicFacts
from dphead.solvers.gradient import GradientDescent

# What no rule sets.
DESCENT = GradientDescent(
    # ablation, "with momentum 0.9": -0.1 to -0.3 points at every ε
    momentum=0.0,
    # ablation: 0.1 is 0.1 better on CIFAR-10 and was 1.3 worse on digits, 1 is worse
    clip_norm=0.3,
    # [De22]'s form, so that `rate` does not depend on the clip norm
    normalize=True,
    # tests/solvers/test_auto.py: without it large steps oscillate on few features
    average="ema",
    # chosen
    ema_decay=0.9,
    # ablation, "the centre's share": with few rows 0.1 to 0.8 better than 0.3, where
    # classes are uneven too; "no intercept column": nothing where they are even
    intercept=0.1,
)

# How long steps are.
# logits of unit rows by which noise alone may move a weight in the whole descent; auto
# (oracle: best of 0.5, 0.9 and 1.6 on CIFAR-10), ablation
MOVE_LOGITS = 0.9
# the same from a prior where there is little signal: there is less far to go; trials
# (ablation, "a public prior", has what the start is worth with it)
PRIOR_MOVE_LOGITS = 0.6
# of a step on normalised gradients of unit rows, in logits; trials: with little noise,
# longer ones were not better
LONGEST_STEP = 640.0

# How many steps: so many at an n·mu of STEPS_AT, and within the bounds; the lower one
# is smaller where there is less signal: it falls to FEWEST_STEPS.
STEPS, STEPS_AT = 120, 1e4  # ablation, "30 steps": 0.2 to 0.6 worse at ε = 4 and 8
# ablation, "few rows": 60 are 0.5 to 2 points worse at an n·mu of 30 to 800, and 30
# about 0.4 worse at 1,500
FEWEST_STEPS, FEW_STEPS, FEW_STEPS_AT = 30, 60, 1.2e3
MOST_STEPS = 100  # ablation, "120 steps": no better on CIFAR-10
# wider features take more in proportion, and DP-FC's Gram matrix too; ablation, "twice
# the steps": +0.2 to +0.3 for ScatterNet's features
MOST_STEPS_FEATURES = 1280

# Whether features are scaled.
SCALE_SHARE = 0.01  # of mu² for their mean squares; chosen
# n·mu a feature from which they are; ablation, "scaling always": -0.2 below it, and
# "ScatterNet": 0.6 (MNIST) to 2 points (Fashion-MNIST) above it, trials
SCALE_FROM = 2

# How much of mu² the centre has beyond its setting, where rows are few; ablation, "the
# centre's share".
CENTER_NOISE = 0.05  # squared length of the noise in a mean of unit rows, to be reached
MOST_CENTER_SHARE = 0.1

# Longer steps where classes lie far apart; ablation, "longer steps".
# share of variance between ten classes from which steps are longer: 0.06 to 0.11 where
# they lost, 0.33 to 0.46 where they gained
LENGTHEN_FROM_SHARE = 0.2
LENGTHEN_AT_MOST = 1.8  # 1.6 logits instead of 0.9
SHARE_SD = 0.1  # of the noise in that share when it counts as known; chosen
# What it is taken to be before, and how far off that may be; ablation, "few rows"
LIKELY_SHARE, LIKELY_SHARE_SD = 0.3, 0.15

# Without noise: DP-FC's steps, or where a Gram matrix is too wide plain ones.
# ablation, "without noise": within 0.2 of the best of 30 settings on digits and on
# CIFAR-10, where more steps or less ridge overfit, and within 1 elsewhere
UNNOISED_STEPS, UNNOISED_RIDGE = 25, 1e-3
WIDEST_UNNOISED_GRAM = 4096  # columns: 1 GB to solve with; chosen
# heavy ball until it stands still; weight decay of so much over n; the same table
UNNOISED_DESCENT_STEPS, UNNOISED_DECAY = 200, 0.3
UNNOISED_RATE, UNNOISED_MOMENTUM = 3.0, 0.95
UNNOISED_INTERCEPT = 0.3  # without noise a larger one costs nothing; chosen

# What is spent on the count of rows that the head gets right, as a share of mu².
COUNT_SD = 0.01  # of the count's noise over n that it is to bring about; chosen
# ablation, "few rows": a tenth of mu² cost up to 1.3 points
LEAST_COUNT_SHARE, MOST_COUNT_SHARE = 0.01, 0.03

# A choice among several networks' features, as shares of mu².
# for the trial of each, and for all of them at most; chosen (docs/backbones.md has what
# the choice costs)
TRIAL_SHARE, TRIALS_SHARE = 0.05, 0.3
TRIAL_COUNT_SHARE = 0.2  # of a trial, for the count that decides; chosen

# How much better a head does on its own rows; expected, "What overfitting costs".
# of margins, in standard deviations, at a length of 1, one row and all wrong: fits of
# five sets of features on 1,077 to 50,000 rows, measured on other training rows
MARGIN_SHIFT = 1.6
SHIFT_POWER_OF_LENGTH, SHIFT_POWER_OF_ROWS = 0.75, -0.2  # the same fits
SHIFT_POWER_OF_WRONG = 0.15  # the same fits
# margins are the smaller, the more classes there are, from SHIFT_CLASSES on: fits on
# 2 to 100 classes of CIFAR-100
SHIFT_CLASSES, SHIFT_POWER_OF_CLASSES = 10, 0.2
# the gap at most, for each free parameter over n; trials with synthetic classes
GAP_PER_PARAMETER = 0.45
GAP_RELATIVE_SD = 0.6  # expected: 94 % of 264 intervals of 90 % held the accuracy
NORMAL_95 = 1.645  # the standard normal's 95 % point: both sides leave 10 %


def is_strong(facts: PublicFacts) -> bool:
    """Whether the budget is large beside the number of features."""
    return facts.mu * facts.n_rows >= SCALE_FROM * facts.n_features


def number_of_steps(facts: PublicFacts) -> int:
    """In proportion to n·mu, between the bounds."""
    signal = facts.mu * facts.n_rows
    most = MOST_STEPS * max(1.0, facts.n_features / MOST_STEPS_FEATURES)
    few = max(FEWEST_STEPS, FEW_STEPS * min(1.0, signal / FEW_STEPS_AT))
    return round(min(most, max(few, STEPS * signal / STEPS_AT)))


def rate(
    strength: float,
    steps: int,
    momentum: float = DESCENT.momentum,
    move: float = MOVE_LOGITS,
) -> float:
    """Step on normalised gradients at which noise alone moves a weight by `move`
    logits.

    strength: n·mu of all steps together.

    The mean clipped gradient over the clip norm has noise sqrt(steps)/strength a step,
    which momentum multiplies by 1/(1 - momentum), and `steps` independent steps by
    their square root. LONGEST_STEP bounds it where there is little noise.
    """
    return (1 - momentum) * min(LONGEST_STEP, move * strength / steps)


def center_share(facts: PublicFacts, least: float) -> float:
    """Of mu²: what brings the mean's noise down to CENTER_NOISE, within the bounds;
    nothing if `least` is nothing.
    """
    signal = facts.mu * facts.n_rows
    wanted = facts.n_features / signal**2 / CENTER_NOISE if least else 0.0
    return max(least, min(MOST_CENTER_SHARE, wanted))


def count_share(facts: PublicFacts) -> float:
    """Of mu²: what brings the count's noise down to COUNT_SD of the rows, within the
    bounds.
    """
    wanted = (1 / COUNT_SD / (facts.mu * facts.n_rows)) ** 2
    return min(MOST_COUNT_SHARE, max(LEAST_COUNT_SHARE, wanted))
