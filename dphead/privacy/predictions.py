"""What public weights predict of a row, in integers: scores, predictions, residuals.

Nothing is concluded from the accuracy of a prediction, and nothing may be: a residual
that leaves here is checked, in integers, to be no longer than the bound
(proofs/exactness.md).
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from dphead.privacy.transform import RADIUS, fits

Loss = Literal["softmax", "sigmoid", "squared"]
LOSSES: tuple[Loss, ...] = get_args(Loss)  # all that a linear head may have
Array = Any  # of numpy, or of jax.numpy where `xp` is that
# Grids: what stands for one. The finer, the less rounding and the longer the integers,
# whose bit counts proofs/exactness.md adds up; each was chosen, not measured.
PROBABILITY_SCALE = 2**16  # a probability of one
POWER_TABLE_SIZE = 2**11  # entries of the table of powers of two
POWER_SCALE = 2**15  # what the table calls one
POWERS_PER_NAT = POWER_TABLE_SIZE * 1.4426950408889634  # times log2(e): entries
MAX_POWER = 16 * POWER_TABLE_SIZE - 1  # powers below 2**-16 count as this one
# Bounds (proofs/exactness.md).
MAX_WEIGHT = 1e100  # above, a weight counts as zero; all do if none reaches 1e-100
MAX_SQUARED_RESIDUAL = 2**24  # of a squared loss, 256 in real numbers
MAX_SCORE_RATE = 1e290  # of scores' units: a larger one times 0 would be no number
MAX_INTEGER_WEIGHT = 2**15 - 1  # int16
MAX_WEIGHT_NORM = 2**18  # of a class's integer weights: scores are then below 2**30


@dataclass(frozen=True)
class IntegerWeights:
    """Public weights on a grid.

    w: (n_classes, width) int16; step: what one of them stands for, 0 if all are zero.
    """

    w: np.ndarray
    step: float


def integer_weights(weights: np.ndarray) -> IntegerWeights:
    """Weights (width, n_classes) rounded; beyond MAX_WEIGHT or not finite is zero.

    The same on every machine: operations on single entries, and sums of integers.
    """
    weights = np.asarray(weights, np.float64).T
    with np.errstate(invalid="ignore"):
        weights = np.where(np.abs(weights) <= MAX_WEIGHT, weights, 0.0)
    largest = float(np.abs(weights).max(initial=0.0))
    if largest < 1 / MAX_WEIGHT:
        zeros = np.zeros(weights.shape, np.int16)
        return IntegerWeights(zeros, 0.0)
    parts = np.rint(weights / largest * 2.0**20).astype(np.int64)
    squared = (parts**2).sum(axis=1)
    length = float(np.sqrt(float(squared.max())))
    longest = largest * length / 2**20
    room = MAX_WEIGHT_NORM - 2 * np.sqrt(weights.shape[1])  # rounding may lengthen them
    step = max(largest / MAX_INTEGER_WEIGHT, longest / room)
    w = np.rint(weights / step)
    return IntegerWeights(w.astype(np.int16), step)


@cache
def powers_of_two() -> np.ndarray:
    """(POWER_TABLE_SIZE,) int64: POWER_SCALE * 2**(-i / POWER_TABLE_SIZE), rounded."""
    with localcontext(prec=30):  # decimal arithmetic is the same on every machine
        step = Decimal(2) ** (Decimal(-1) / POWER_TABLE_SIZE)
        half = Decimal("0.5")
        powers = (POWER_SCALE * step**i for i in range(POWER_TABLE_SIZE))
        table = [int(value + half) for value in powers]
    return np.array(table, np.int64)


def power(xp: Any, distance: Array, rate: Array) -> Array:
    """POWER_SCALE * e**-(distance * rate), as int64.

    distance: (k, m) whole numbers >= 0, of scores; rate: (k, 1) what one stands for.
    The exponent is truncated to 1 / POWER_TABLE_SIZE of a power of two.
    """
    table = xp.asarray(powers_of_two())
    exponent = distance * (rate * POWERS_PER_NAT)
    exponent = xp.minimum(exponent, float(MAX_POWER)).astype(xp.int64)
    return xp.take(table, exponent % POWER_TABLE_SIZE) >> (exponent // POWER_TABLE_SIZE)


def unknown(loss: str) -> ValueError:
    """The error of a loss that is not defined where it is met."""
    known = f"{', '.join(LOSSES[:-1])} or {LOSSES[-1]}"
    return ValueError(f"loss must be {known}, got {loss=}. Choose one.")


def probabilities(xp: Any, z: Array, rate: Array, loss: Loss) -> Array:
    """Predictions (k, m), as int64 parts of PROBABILITY_SCALE.

    z: (k, m) scores, whole numbers; rate: (k, 1), what one of them stands for.
    ValueError for a loss that is not defined here.
    """
    if loss == "softmax":
        distance = z.max(axis=1, keepdims=True) - z
        e = power(xp, distance, rate)
        total = e.sum(axis=1, keepdims=True)
        one = float(PROBABILITY_SCALE) / total.astype(xp.float64)
        share = e.astype(xp.float64) * one
        return xp.rint(share).astype(xp.int64)
    if loss == "sigmoid":
        e = power(xp, xp.abs(z), rate)
        larger = POWER_SCALE * PROBABILITY_SCALE // (POWER_SCALE + e)
        return xp.where(z >= 0, larger, PROBABILITY_SCALE - larger)
    if loss != "squared":
        raise unknown(loss)
    most = float(MAX_SQUARED_RESIDUAL)
    value = xp.clip(z * (rate * float(PROBABILITY_SCALE)), -most, most)
    return xp.rint(value).astype(xp.int64)


def shortened(xp: Any, residual: Array, factor: Array) -> Array:
    """residual (k, m) * factor (k, 1), no longer than RADIUS, as int64.

    Rounded; truncated towards zero where the sum of squares exceeds RADIUS**2; zero
    where it still does. Guarantee: no sum of squares exceeds RADIUS**2.
    """
    value = residual.astype(xp.float64) * factor
    l = xp.rint(value)
    l = xp.where(fits(l, RADIUS**2), l, xp.trunc(value))
    l = xp.where(fits(l, RADIUS**2), l, 0.0)
    return l.astype(xp.int64)
