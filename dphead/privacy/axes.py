"""Project rows onto public axes, each row independently of the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dphead.privacy.transform import FINE_BITS, fine

# Bits of an axis after the binary point. float32 holds such entries exactly up to 16.
_AXIS_BITS = 20
_LARGEST = 2.0**24  # largest entry in units of 2**-_AXIS_BITS, exact in float32
_TOGETHER = 1024  # rows that are mapped at a time, to limit memory; chosen


@dataclass(frozen=True, eq=False)
class PublicAxes:
    """Hold public directions in feature space, and project rows onto them.

    Parameters
    ----------
    values : ndarray of float, shape (n_features, n_axes)
        One axis in each column. Entries are rounded to multiples of 2**-_AXIS_BITS and
        kept as float32, which holds these multiples exactly.

    Raises
    ------
    ValueError
        If `values` is empty, is not a matrix of finite floats, or is so large that a
        product with a row could be inexact. Axes of norm 1 are small enough.

    Guarantee
    ---------
    The caller must ensure that the axes are public. The array is a read-only copy.
    """

    values: np.ndarray

    def __post_init__(self) -> None:
        given = np.array(self.values)
        if given.ndim != 2 or given.dtype.kind != "f" or not all(given.shape):
            raise ValueError(
                "axes must be a matrix (n_features, n_axes) of floats, got "
                f"{given.dtype} of shape {given.shape}. Use np.asarray(axes, float)."
            )
        with np.errstate(all="ignore"):
            whole = np.rint(given.astype(np.float64) * 2.0**_AXIS_BITS)
            sizes = np.abs(whole)
            # a row's entries are at most 2**FINE_BITS, so no sum exceeds 2**53
            exact = (sizes.sum(axis=0) <= 2.0 ** (53 - FINE_BITS)).all()
            held = exact and (sizes <= _LARGEST).all()
        if not held:
            raise ValueError(
                "axes must be finite and of a norm near 1, got entries up to "
                f"{np.abs(given).max():g}. Divide each axis by its norm."
            )
        own = (whole * 2.0**-_AXIS_BITS).astype(np.float32)
        own.flags.writeable = False
        object.__setattr__(self, "values", own)  # the class is frozen

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle through the constructor, which checks the values."""
        return type(self), (self.values,)

    @property
    def n_features(self) -> int:
        """Return the number of features of a row before the projection."""
        return self.values.shape[0]

    @property
    def count(self) -> int:
        """Return the number of axes, which is a row's length after the projection."""
        return self.values.shape[1]

    def rows(self, x: np.ndarray) -> np.ndarray:
        """Return the products of rows x (k, n_features) with the axes, (k, count).

        The result is float32.

        Guarantee
        ---------
        A row's products depend on that row and the axes only, bit for bit. The entries
        of both are whole numbers on their grids, and every partial sum of products is
        at most 2**53. One multiplication by a power of two and one rounding to float32
        follow. A row that is not finite becomes NaN, and adds zero to every sum. A row
        of zeros stays zero.
        """
        out = np.empty((len(x), self.count), np.float32)
        whole = self.values.astype(np.float64) * 2.0**_AXIS_BITS
        with np.errstate(all="ignore"):  # no warning may depend on a value
            for i in range(0, len(x), _TOGETHER):
                part = np.asarray(x[i : i + _TOGETHER], np.float32)
                rows = fine(part.astype(np.float64))
                products = rows.integers @ whole  # exact in any order
                products *= (rows.scale * 2.0**-_AXIS_BITS)[:, None]
                products[~rows.finite] = np.nan
                out[i : i + len(part)] = products
        return out
