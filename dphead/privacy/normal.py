"""Draw Gaussian noise rounded to integers, exactly distributed as round(N(0, sd²)).

A draw is round(sd·Z) with Z = Φ⁻¹(U). U is an infinite binary expansion; 64 bits of it
are drawn first. The float64 value of sd·Z is rounded if its distance from each
rounding boundary exceeds a proven bound. That bound covers the bits not yet drawn and
the rounding of Φ⁻¹ and of the product. Otherwise the bits are compared with Φ at the
boundary in integer arithmetic, and more bits are drawn until the side is certain.

The distribution is therefore exact, and no tail is cut (proofs/noise.md).

The trusted library functions are + - * /, the square root, ldexp and rounding of
float64, Python integers and their division, and `decimal`. scipy's Φ⁻¹ is only a first
guess, which is corrected or checked.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
from scipy.special import ndtri

# All but the last are chosen, not measured; the proof assumes these values.
SMALLEST_SD = 2.0**-4  # below, comparisons at far boundaries take long
LARGEST_SD = 2.0**44  # at this value, one draw in 4 needs integer arithmetic
_BLOCK_DRAWS = 8192  # draws per block, whose temporaries fit in cache
# One draw in 2^17 has a tail below 2^46, with too few digits for `quantile`.
_FIRST_BINADE = 46
_CELLS_LOG2 = 5  # log2 of the cells per binade of a tail, each with a Taylor polynomial
_TAYLOR_DEGREE = 8  # degree of these polynomials
# Twice the largest error of `quantile`, divided by 1 + x (proofs/noise.md).
QUANTILE_ERROR = 2.0**-48


def rounded_gaussian(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    sd: float,
) -> np.ndarray:
    """Return independent int64 draws of round(N(0, sd²)), in grid steps.

    Parameters
    ----------
    generator : numpy.random.Generator
        Source of uniform bits. The same state gives the same draws. The number of words
        depends on the draws.
    shape : tuple of int
        Shape of the result.
    sd : float
        Standard deviation before rounding, in grid steps, from 2**-4 to 2**44.

    Returns
    -------
    ndarray of int64
        The draws.

    Raises
    ------
    ValueError
        If `sd` is out of range.

    Notes
    -----
    Above sd = 2**34, about sd/2**46 of the draws take 0.1 ms each.

    Guarantee
    ---------
    Each entry is distributed as ⌊sd·Z + 1/2⌋ for a standard normal Z, if the 64-bit
    words of the generator are uniform and independent. For an integer A, A + entry is
    the rounding of A + N(0, sd²): post-processing of the Gaussian mechanism.
    """
    if not SMALLEST_SD <= sd <= LARGEST_SD:
        raise ValueError(
            f"sd must be from 2**-4 to 2**44 grid steps, got {sd}. Change the size of "
            "the grid's steps."
        )
    draws = np.empty(math.prod(shape), np.int64)
    # In a fixed order, so that a seed gives the same draws again.
    for start in range(0, len(draws), _BLOCK_DRAWS):
        block = draws[start : start + _BLOCK_DRAWS]
        block[:] = _block(generator, len(block), float(sd))
    return draws.reshape(shape)


def symmetric_rounded_gaussian(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    sd: float,
) -> np.ndarray:
    """Return symmetric int64 draws of round(sd·(Z + Zᵀ)/2), entry by entry.

    Parameters
    ----------
    generator : numpy.random.Generator
        Source of uniform bits.
    shape : tuple of int
        Shape (..., d, d) of the result.
    sd : float
        Standard deviation of the diagonal before rounding, in grid steps, from 2**-3.5
        to 2**44. Off the diagonal it is sd/√2, rounded up.

    Returns
    -------
    ndarray of int64
        The draws.

    Raises
    ------
    ValueError
        If `shape` does not end in two equal lengths, or if a standard deviation is out
        of the range of `rounded_gaussian`.

    Guarantee
    ---------
    Entries on and above the diagonal are independent draws of `rounded_gaussian`.
    Entries below the diagonal repeat the entries above it.
    """
    n = shape[-1]
    if len(shape) < 2 or shape[-2] != n:
        raise ValueError(
            f"shape must end in two equal lengths, got {shape}. Use (..., d, d)."
        )
    draws = np.empty(shape, np.int64)
    # The diagonal of (Z + Z^T) / 2 is Z's own: variance sd^2.
    places = np.arange(n)
    draws[..., places, places] = rounded_gaussian(generator, shape[:-1], sd)
    off_diagonal_sd = over_root_two(sd)
    # Row by row above the diagonal: variance sd^2 / 2, copied below.
    for i in range(n - 1):
        row = (*shape[:-2], n - 1 - i)
        draws[..., i, i + 1 :] = rounded_gaussian(generator, row, off_diagonal_sd)
        draws[..., i + 1 :, i] = draws[..., i, i + 1 :]
    return draws


def over_root_two(sd: float) -> float:
    """Return sd/√2 as a float that is never too small: its square is at least sd²/2."""
    value = sd / math.sqrt(2)
    # Division may round down, which would make the noise too small.
    while 2 * Fraction(value) ** 2 < Fraction(sd) ** 2:
        value = math.nextafter(value, math.inf)
    return value


def _block(generator: np.random.Generator, count: int, sd: float) -> np.ndarray:
    """Return `count` draws, rounded in float64 where certain, else by `definition`."""

    def more() -> int:
        """Return 64 further random bits."""
        return int(_words(generator, 1)[0])

    # The first bit of a word is the sign, the other 63 are the tail's digits.
    words = _words(generator, count).view(np.int64)
    negative = words < 0
    tails = words & np.int64(2**63 - 1)
    # The value for the first 64 bits. Its rounding is used where it is certain.
    x = quantile(tails)
    scaled = x * sd
    rounded = np.rint(scaled)
    # The value is certain if the bits not yet drawn and the error of Phi^-1 cannot move
    # it across a half.
    distance = np.abs(scaled - rounded)
    x += 1
    x *= -sd * QUANTILE_ERROR
    x += 0.5
    unsure = distance >= x
    # `quantile` has no cells for rarer tails.
    unsure |= tails < 2**_FIRST_BINADE
    draws = rounded.astype(np.int64)
    for i in np.flatnonzero(unsure):
        tail = Tail(int(tails[i]), more)
        draws[i] = definition(tail, sd)
    return np.where(negative, -draws, draws)


def _words(generator: np.random.Generator, count: int) -> np.ndarray:
    """Return `count` independent uniform 64-bit words, uint64 of shape (count,)."""
    return generator.integers(0, 2**64, count, dtype=np.uint64)


class Tail:
    """Hold the binary digits drawn so far of a uniform number p below 1/2.

    p lies in [digits, digits + 1] / 2**bits.

    Parameters
    ----------
    digits : int
        The first 64 binary digits. The first one is zero, since p < 1/2.
    more : callable
        Returns 64 further random bits.
    """

    def __init__(self, digits: int, more: Callable[[], int]) -> None:
        self.digits = digits
        self.bits = 64
        self.more = more

    def extend(self) -> None:
        """Draw 64 further digits."""
        self.digits = self.digits << 64 | self.more()
        self.bits += 64

    def beyond(self, x: Fraction) -> bool:
        """Return whether p < Φ(−x), that is −Φ⁻¹(p) > x.

        Digits are drawn until the answer is certain.
        """
        while True:
            mass = upper_tail(x, self.bits)
            # 2 is the error bound of `upper_tail`: only a certain answer is given.
            if self.digits + 1 <= mass - 2:
                return True
            if self.digits >= mass + 2:
                return False
            self.extend()


def definition(tail: Tail, sd: float) -> int:
    """Return ⌊sd·x + 1/2⌋ for x = −Φ⁻¹(p) ≥ 0: a draw without its sign.

    The result is the number of boundaries (j + 1/2)/sd, j = 0, 1, ..., below x.
    """
    while tail.digits < 2**63:
        tail.extend()
    # scipy's value is a guess; the two loops make it right.
    guess = -float(ndtri(tail.digits / 2**tail.bits))
    k = max(0, round(sd * guess))
    scale = 2 * Fraction(sd)
    while tail.beyond((2 * k + 1) / scale):
        k += 1
    # k is the only integer at which both loops end.
    while k > 0 and not tail.beyond((2 * k - 1) / scale):
        k -= 1
    return k


def upper_tail(x: Fraction, bits: int) -> int:
    """Return 2**bits·Φ(−x) for x ≥ 0, in integers, with an error of at most 2.

    The error is proved in proofs/noise.md. The series is from Φ(x) − 1/2 = Σ (−1)ⁿ
    uₙ/(2n + 1), where u₀ = x/√(2π) and uₙ = uₙ₋₁·x²/(2n).
    """
    extra = 32 + int(x * x)  # terms grow to exp(x²/2), and their errors with them
    places = bits + extra
    numerator = x.numerator
    denominator = x.denominator
    # Fixed-point integers with `places` bits: every step rounds down by less than 1.
    half_square = (numerator**2 << places) // (2 * denominator**2)
    term = numerator * _density_at_zero(places) // denominator
    mass = 0
    n = 0
    while term:
        share = term // (2 * n + 1)
        mass += -share if n % 2 else share
        n += 1
        # u_n = u_{n-1} x^2 / (2 n).
        term = (term * half_square >> places) // n
    return (1 << bits - 1) - (mass >> extra)


@cache
def _density_at_zero(places: int) -> int:
    """Return 2**places/√(2π), with an error of at most 1."""
    unit = 1 << 2 * places + 64
    # Machin: pi / 4 = 4 arctan(1/5) - arctan(1/239).
    pi = 4 * (4 * _arccot(5, unit) - _arccot(239, unit))
    return math.isqrt((unit << 2 * places) // (2 * pi))


def _arccot(n: int, unit: int) -> int:
    """Return unit·arctan(1/n), with an error of at most one for each term."""
    power = unit // n
    total = 0
    k = 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power //= n * n
        k += 2
    return total


def quantile(tails: np.ndarray) -> np.ndarray:
    """Return x = −Φ⁻¹(p) for each tail, for any p in [tail, tail + 1] / 2**64.

    Parameters
    ----------
    tails : ndarray of int64
        From 2**46 to 2**63.

    Returns
    -------
    ndarray of float64
        x, with an error of at most QUANTILE_ERROR/2·(1 + x), for every such p
        (proofs/noise.md).
    """
    p = tails.astype(np.float64)
    # Exponent and leading bits of the float64 number the cell.
    cells = p.view(np.int64) >> (52 - _CELLS_LOG2)
    cells -= (1023 + _FIRST_BINADE) << _CELLS_LOG2
    centers, coefficients = lookup_cells()
    step = centers.take(cells, mode="clip")  # p may have been rounded up to 2^63
    step -= p
    x = coefficients[_TAYLOR_DEGREE].take(cells, mode="clip")
    factor = np.empty_like(x)
    # Horner's rule. All terms are positive, so no digits cancel.
    for k in reversed(range(_TAYLOR_DEGREE)):
        coefficients[k].take(cells, mode="clip", out=factor)
        x *= step
        x += factor
    return x


@cache
def lookup_cells() -> tuple[np.ndarray, np.ndarray]:
    """Return the middle of each cell, and the Taylor coefficients there.

    Middles are in units of 2⁻⁶⁴. The series expands −Φ⁻¹(center − step) in powers of
    the step. It follows from x″ = x·x′². All coefficients are positive.
    """
    cells = np.arange((63 - _FIRST_BINADE) << _CELLS_LOG2)
    per_binade = 1 << _CELLS_LOG2
    middle = 1 + (cells % per_binade + 0.5) / per_binade
    centers = np.ldexp(middle, _FIRST_BINADE + cells // per_binade)
    pairs = [value_and_slope(int(c)) for c in centers]
    series = [np.array(values) for values in zip(*pairs, strict=True)]
    # x'' = x x'^2 in powers of the step: a triple convolution.
    for k in range(_TAYLOR_DEGREE - 1):
        slope = [(j + 1) * series[j + 1] for j in range(k + 1)]
        total = np.zeros(len(cells))
        for i in range(k + 1):
            for j in range(k + 1 - i):
                total += series[i] * slope[j] * slope[k - i - j]
        series.append(total / ((k + 1) * (k + 2)))
    return centers, np.stack(series)


def value_and_slope(p: int) -> tuple[float, float]:
    """Return x = −Φ⁻¹(p/2**64) and −dx/dp in units of 2⁻⁶⁴.

    Their relative errors are at most 2⁻⁵² and 2⁻⁴⁷. A guess gets one Newton step, with
    Φ computed in integers. Raises ArithmeticError if the step is not below 2⁻⁴⁰.
    """
    guess = -float(ndtri(p / 2**64))
    # Newton's step for Phi(-x) = p, with Phi in integers.
    excess = upper_tail(Fraction(guess), 128) - (p << 64)
    step = excess / 2**128 * _slope(guess)
    if not abs(step) < 2.0**-40:
        raise ArithmeticError(
            f"scipy.special.ndtri has an error of {step}, which is not below 2**-40. "
            "Install another build of scipy."
        )
    value = guess + step
    return value, _slope(value) / 2**64


def _slope(x: float) -> float:
    """Return √(2π)·exp(x²/2), the slope of Φ⁻¹, to a relative 2⁻⁵¹ for the float x."""
    # ignore the caller's context; exp rounds correctly
    with localcontext(Context(prec=30)):
        growth = (Decimal(x) ** 2 / 2).exp()
    return math.sqrt(2 * math.pi) * float(growth)
