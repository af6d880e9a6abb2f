"""Split the budget of least squares between the Gram matrix and the class sums.

The rule uses public numbers only. Let λ be the ridge, W the weights, E the noise of G
and F the noise of the sums. Noise moves W by (G + λI)⁻¹ (F - E W). An entry of E W has
the standard deviation sd_G ||w|| / sqrt(2) for a column w of W. An entry of F has sd_S.
Let s be the share of mu² for G, and m the number of classes. Centered sums have m - 1
directions. The squared error is proportional to ||W||² / (2 s) + (m - 1) / (1 - s),
with its minimum at

    s / (1 - s) = ||W|| / sqrt(2 (m - 1)).

Public numbers give the growth of ||W||, but not its value. If noise is larger than G, W
is S / λ, where λ is a share of the noise's edge sqrt(d / s) / mu. The odds s / (1 - s)
then grow as n mu. Otherwise, ||W||² <= n (1 - 1/m) / (4 λ) for ridge regression on
classes, so the odds grow at most as the root of n mu. More rows and more budget raise
the share of the Gram matrix, and more classes lower it.
"""

from dphead.solvers.base import ProblemInfo

# Rule of the share s: with q = n mu / m^_CLASSES_POWER, its odds s / (1 - s) are
# _ODDS q^_POWER, times q / _SMALL if q is below _SMALL. The constants were fitted on
# held-out training rows of digits, CIFAR-10 and Gaussian classes: 2 to 100 classes, n
# of 500 to 100,000, d of 16 to 1,280. A power of d gained nothing. None of these heads
# lost 0.2 points against a share of 0.35 (results/ablation, "The Gram matrix's share").
_CLASSES_POWER = 1.5
_ODDS, _POWER = 0.18, 0.25
_SMALL = 9.0
_LEAST, _MOST = 0.05, 0.55  # smallest and largest share in those fits


def gram_share(facts: ProblemInfo) -> float:
    """Return the fraction of the budget (μ²) for the Gram matrix."""
    # n mu / m^_CLASSES_POWER, with n at least 1
    q = max(facts.n_rows, 1) * facts.mu / facts.n_classes**_CLASSES_POWER
    odds = _ODDS * q**_POWER * min(1.0, q / _SMALL)
    # without noise, odds are infinite, and 1 - 1/(1 + odds) is 1 where odds/(1 + odds)
    # would be NaN
    return max(_LEAST, min(1 - 1 / (1 + odds), _MOST))
