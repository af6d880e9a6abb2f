"""Exact deltas of pairs of mixtures of normal laws, in many digits."""

import mpmath
import numpy as np


def worst(distribution, eps):
    """Delta at eps: the larger of the two directions."""
    return max(float(losses.deltas(np.array([eps]))[0]) for losses in distribution)


def exact_delta(upper, lower, sigma, eps):
    """sup over sets of P - e^eps Q in 60 digits, for mixtures [(weight, mean)] whose
    ratio is monotone.
    """
    with mpmath.workdps(60):
        return float(
            exact_excess(upper, lower, sigma, eps)
            + max(0, 1 - mpmath.exp(mpmath.mpf(eps)))
        )


def exact_excess(upper, lower, sigma, eps):
    """Delta less max(0, 1 - e^eps), in 60 digits."""
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma)
        e = mpmath.exp(mpmath.mpf(eps))

        def scaled(mixture):
            return [(w * mpmath.exp(-m * m / (2 * s * s)), m) for w, m in mixture]

        def beyond(mixture, x, side):
            return mpmath.fsum(w * mpmath.ncdf(side * (x - m) / s) for w, m in mixture)

        weights = scaled(upper) + [(-e * w, m) for w, m in scaled(lower)]

        def gain(x):
            """P - e^eps Q over the density of mean 0, with one exponential."""
            ratio = mpmath.exp(x / (s * s))
            return mpmath.fsum(w * ratio**m for w, m in weights)

        # where P is the larger
        side = -1 if sum(w * m for w, m in upper) > sum(w * m for w, m in lower) else 1
        low = -mpmath.mpf(60) * (1 + s)
        high = mpmath.mpf(60) * (1 + s)
        if (gain(low) > 0) == (gain(high) > 0):
            return mpmath.mpf(0)
        rising = gain(high) > 0
        for _ in range(110):  # to 1e-30: its square is beyond 60 digits
            middle = (low + high) / 2
            low, high = (
                (low, middle) if (gain(middle) > 0) == rising else (middle, high)
            )
        return beyond(upper, low, side) - e * beyond(lower, low, side) - max(0, 1 - e)


def sampled_group(q, k):
    """(weight, mean) for how many rows of k are sampled with probability q."""
    with mpmath.workdps(60):
        p = mpmath.mpf(q)
        mixture = [
            (mpmath.binomial(k, j) * p**j * (1 - p) ** (k - j), j) for j in range(k + 1)
        ]
    # beside smaller weights 60 digits are coarse
    return [(w, j) for w, j in mixture if w > mpmath.mpf("1e-60")]
