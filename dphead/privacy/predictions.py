"""Round public weights to a grid, and turn scores and residuals into integers.

No bound depends on the accuracy of a prediction. Each residual of this module is
checked, in integers, against the bound (proofs/exactness.md).
"""

from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np

from dphead.privacy.transform import RADIUS, fits

Array = Any  # numpy array, or jax.numpy array if `xp` is jax.numpy
# Grids: the integer that stands for 1. A finer grid rounds less and has larger
# integers; proofs/exactness.md adds up their bits. Each was chosen, not measured.
PROBABILITY_SCALE = 2**16  # a probability of one
POWER_TABLE_SIZE = 2**11  # entries of the table of powers of two
POWER_SCALE = 2**15  # a power of one
POWERS_PER_NAT = POWER_TABLE_SIZE * 1.4426950408889634  # log2(e) in table entries
MAX_POWER = 16 * POWER_TABLE_SIZE - 1  # largest exponent; its power is 0
# Bounds (proofs/exactness.md).
_MAX_WEIGHT = 1e100  # larger weights become zero; all do if none reaches 1e-100
MAX_SCORE_RATE = 1e290  # largest unit of a score: 0 times an infinite one is NaN
_MAX_INTEGER_WEIGHT = 2**15 - 1  # int16
_MAX_WEIGHT_NORM = 2**18  # norm of a class's integer weights: scores are below 2**30


@dataclass(frozen=True)
class IntegerWeights:
    """Hold public weights on a grid.

    Parameters
    ----------
    w : ndarray of int16, shape (n_classes, width)
        Whole numbers.
    step : float
        Real value of one unit of w; 0 if all are zero.
    """

    w: np.ndarray
    step: float


def integer_weights(weights: np.ndarray) -> IntegerWeights:
    """Round weights (width, n_classes) to a grid.

    A weight becomes zero if it is not finite or exceeds 1e100 in absolute value. All
    weights become zero if none reaches 1e-100. The result is the same on every machine,
    because it uses operations on single entries and sums of integers.
    """
    weights = np.asarray(weights, np.float64).T
    with np.errstate(invalid="ignore"):
        weights = np.where(np.abs(weights) <= _MAX_WEIGHT, weights, 0.0)
    largest = float(np.abs(weights).max(initial=0.0))
    if largest < 1 / _MAX_WEIGHT:
        zeros = np.zeros(weights.shape, np.int16)
        return IntegerWeights(zeros, 0.0)
    parts = np.rint(weights / largest * 2.0**20).astype(np.int64)
    squared = (parts**2).sum(axis=1)
    length = float(np.sqrt(float(squared.max())))
    longest = largest * length / 2**20
    # Cauchy-Schwarz with RADIUS bounds every score by 2**30. Rounding can increase the
    # norms of weights, so they get a smaller bound.
    room = _MAX_WEIGHT_NORM - 2 * np.sqrt(weights.shape[1])
    step = max(largest / _MAX_INTEGER_WEIGHT, longest / room)
    w = np.rint(weights / step)
    return IntegerWeights(w.astype(np.int16), step)


@cache
def powers_of_two() -> np.ndarray:
    """Return POWER_SCALE * 2**(-i / POWER_TABLE_SIZE) for each i, rounded, int64."""
    # decimal arithmetic is the same on every machine
    with localcontext(Context(prec=30)):
        step = Decimal(2) ** (Decimal(-1) / POWER_TABLE_SIZE)
        half = Decimal("0.5")
        powers = (POWER_SCALE * step**i for i in range(POWER_TABLE_SIZE))
        table = [int(value + half) for value in powers]
    return np.array(table, np.int64)


def power(xp: Any, distance: Array, rate: Array) -> Array:
    """Return POWER_SCALE * e**-(distance * rate), as int64.

    The result is a power of two with an exponent in steps of 1 / POWER_TABLE_SIZE,
    truncated. A power below 2**-15 becomes 0, because POWER_SCALE is 2**15.

    Parameters
    ----------
    xp : module
        numpy or jax.numpy.
    distance : array of shape (k, m)
        Whole numbers of at least 0, in units of scores.
    rate : array of shape (k, 1)
        Real value of one unit of a score.
    """
    table = xp.asarray(powers_of_two())
    # The conversion to int64 truncates in numpy and in jax, so both find the same
    # index.
    exponent = distance * (rate * POWERS_PER_NAT)
    exponent = xp.minimum(exponent, float(MAX_POWER)).astype(xp.int64)
    return xp.take(table, exponent % POWER_TABLE_SIZE) >> (exponent // POWER_TABLE_SIZE)


def shortened(xp: Any, residual: Array, factor: Array) -> Array:
    """Return residual (k, m) * factor (k, 1) as int64, with norms up to RADIUS.

    Entries are rounded. A residual is truncated toward zero if its sum of squares
    exceeds RADIUS**2, and set to zero if it still does.

    Guarantee
    ---------
    No sum of squares exceeds RADIUS**2.
    """
    value = residual.astype(xp.float64) * factor
    l = xp.rint(value)
    l = xp.where(fits(l, RADIUS**2), l, xp.trunc(value))
    l = xp.where(fits(l, RADIUS**2), l, 0.0)
    return l.astype(xp.int64)
