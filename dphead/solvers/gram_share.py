"""How least squares splits its budget between the Gram matrix and the class sums, from
public numbers alone.

With λ the ridge and W the weights, noise moves W by (G + λI)⁻¹ (F - E W), E that of G
and F that of the sums. A column of E W has sd_G ||w|| / sqrt(2) an entry, one of F
sd_S, so that the squared error of a split s : 1 - s of mu² is in proportion to
||W||² / (2 s) + (m - 1) / (1 - s) for m classes, whose centred sums have m - 1
directions. It is least where

    s / (1 - s) = ||W|| / sqrt(2 (m - 1)).

How long W is no public number says, only how it grows. Where noise is larger than G, W
is S / λ, λ a share of the noise's edge sqrt(d / s) / mu, and the odds grow as n mu;
beyond, ||W||² <= n (1 - 1/m) / (4 λ) for ridge regression on classes, and they grow as
its root at most. The more rows and budget, the more for the Gram matrix; the more
classes, the less.
"""

from dphead.solvers.base import PublicFacts

# Odds of the share by q = n mu / m^CLASSES_POWER: ODDS q^POWER, less in proportion to q
# below SMALL. Fitted to other training rows of digits, CIFAR-10 and Gaussian classes, 2
# to 100 of them, n of 500 to 100,000, d of 16 to 1,280 (no power of d was worth one),
# so that none loses 0.2 points (results/ablation, "the Gram matrix's share").
CLASSES_POWER = 1.5
ODDS, POWER = 0.18, 0.25
SMALL = 9.0
LEAST, MOST = 0.05, 0.55  # of the shares there


def gram_share(facts: PublicFacts) -> float:
    """The Gram matrix's share of mu²."""
    q = max(facts.n_rows, 1) * facts.mu / facts.n_classes**CLASSES_POWER
    odds = ODDS * q**POWER * min(1.0, q / SMALL)
    # odds are infinite without noise
    return max(LEAST, min(1 - 1 / (1 + odds), MOST))
