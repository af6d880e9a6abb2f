"""Hold rows in memory.

No conversion of a row depends on the values of another row.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from dphead_extract.features.format import (
    check_ids,
    declared_dtype,
    group_ids,
    is_missing,
    read_column,
)

from dphead.data.blocks import BLOCK_ROWS, BLOCKS_TOGETHER, padded, rows_of_block
from dphead.data.device_rows import DeviceRows
from dphead.privacy.contract import Block, Known
from dphead.privacy.group_means import GroupMeans, group_means
from dphead.privacy.sampling import within_cap

__all__ = [
    "ArrayRows",
    "capped",
    "declared_dtype",
    "group_ids",
    "held_labels",
    "is_missing",
    "read_column",
    "within_group_cap",
]


class ArrayRows:
    """Yield blocks of the rows of arrays in memory.

    Parameters
    ----------
    x : ndarray of shape (n_rows, n_features), or DeviceRows
        Features, kept as float32. A float64 value beyond float32's range becomes
        infinite, and its row adds zero to every sum.
    y : ndarray of shape (n_rows,) or (n_rows, n_classes)
        Class indices, or label sets of ones and zeros. A row with any other label adds
        zero to every sum.
    block_rows : int, optional
        Largest number of rows per block, rounded up to a multiple of 128. By default,
        every core gets the same number of blocks of 8,192 rows. The remaining rows form
        blocks of 2,048. Blocks of a sample have at most 256.
    groups : ndarray of int, shape (n_rows,), optional
        Ids from `group_ids`; -1 for a row without a group.
    group_cap : int, optional
        Largest number of rows used in each group. The first rows are used.
    group_mean : bool, default False
        Whether to use the mean of each group's rows of a class instead of the group's
        first rows. At most `group_cap` means are used per group (`group_means`).

    Raises
    ------
    ValueError
        If an array has the wrong type or shape. If `group_cap` is given without groups.
        If `group_mean` is set without `group_cap`, or for label sets.
    """

    def __init__(
        self,
        x: np.ndarray | DeviceRows,
        y: np.ndarray,
        block_rows: int | None = None,
        groups: np.ndarray | None = None,
        group_cap: int | None = None,
        group_mean: bool = False,
    ) -> None:
        on_device = isinstance(x, DeviceRows)
        if not on_device:
            _check_plain(x, "x")
        _check_plain(y, "y")
        labels = y.ndim <= 2 and y.shape[1:] != (1,)
        if x.ndim != 2 or y.shape[:1] != x.shape[:1] or not labels:
            raise ValueError(
                "`X` must have shape (n, d), and `y` (n,) or (n, n_classes) with "
                f"n_classes > 1. Got {x.shape} and {y.shape}. Reshape them, or pass "
                "one label per row."
            )
        # numbers beyond float32 and signaling NaNs would warn
        with np.errstate(all="ignore"):
            # C order and aligned, so that all chunks use the same kernel
            self._x = x if on_device else np.require(x, np.float32, ["C", "A"])
        self.has_sets = y.ndim == 2
        self.within = within_group_cap(groups, group_cap, y.shape[:1])
        self._y, means = capped(
            held_labels(y), self.within, groups, group_cap, group_mean
        )
        if means is not None:
            own, self._x = self._x, np.empty(x.shape, np.float32)
            means.write(np.arange(len(own)), own.__getitem__, self._x)
        self.group_cap = group_cap
        self._most, self._together = (
            (block_rows, 1) if block_rows else (BLOCK_ROWS, BLOCKS_TOGETHER)
        )
        self.n_rows, self.n_features = x.shape

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield blocks that hold each row, or each of `indices`, once.

        A short last block is padded with index -1.
        """
        size = rows_of_block(self._most, self.n_rows, indices is not None)
        if indices is not None:
            for chosen in (indices[i : i + size] for i in range(0, len(indices), size)):
                yield padded(chosen, self._x[chosen], self._y[chosen], size)
            return
        large = self._together * size
        # every core gets the same number of large blocks; small blocks follow
        round_of_cores = large * (os.cpu_count() or 1)
        end = self.n_rows // round_of_cores * round_of_cores
        for first, last, rows in ((0, end, large), (end, self.n_rows, size)):
            for i in range(first, last, rows):
                part = slice(i, min(i + rows, last))  # views, except for the last block
                yield padded(
                    np.arange(part.start, part.stop), self._x[part], self._y[part], rows
                )


def _check_plain(array: Any, name: str) -> None:
    """Raise ValueError unless `array` is a plain numpy array of real numbers.

    When other objects are converted, one row's value could change the dtype of all
    rows.
    """
    plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    if not plain or array.dtype.kind not in "biuf":
        found = f"{array.dtype} values" if plain else type(array).__name__
        raise ValueError(
            f"`{name}` must be a plain numpy array of real numbers, got {found}. Use "
            f"`np.asarray({name}, float)`."
        )


def held_labels(y: np.ndarray) -> np.ndarray:
    """Return class indices (n,) int32, or label sets (n, n_classes) int8.

    An invalid class index becomes -1. A label set with values other than one and zero
    becomes -1 in every entry.
    """
    with np.errstate(all="ignore"):  # no warning may depend on a value
        if y.ndim == 1:
            held = (y >= 0) & (y < 2**31)  # 2**32 must not wrap to class 0
            return np.where(held, y, -1).astype(np.int32)
        known = ((y == 0) | (y == 1)).all(axis=1, keepdims=True)
        return np.where(known, y, -1).astype(np.int8)


def within_group_cap(
    groups: np.ndarray | None, group_cap: int | None, shape: tuple[int, ...]
) -> np.ndarray:
    """Return (n,) bool: True for the rows within their group's cap.

    Without a cap, all are True. `groups` has ids from `group_ids`, not the user's
    values. Raises ValueError if there is a cap without groups, or if groups and rows
    differ in number.
    """
    if group_cap is None:
        return np.ones(shape, bool)
    if groups is None:
        raise ValueError(
            "`group_cap` needs `groups`, the group of each row. Pass `groups`, or "
            "drop `group_cap`."
        )
    check_ids(groups)
    if groups.shape != shape:
        raise ValueError(
            f"`groups` must have one entry per row, got shape {groups.shape} for "
            f"{shape[0]} rows. Pass a vector with the group of each row."
        )
    return within_cap(groups, group_cap)


def capped(
    y: np.ndarray,
    within: np.ndarray,
    groups: np.ndarray | None,
    group_cap: int | None,
    group_mean: bool,
) -> tuple[np.ndarray, GroupMeans | None]:
    """Return each row's label or label set for training, and the means of rows.

    The means replace the rows. They are None if the fit uses the rows themselves: then
    rows beyond the cap of their group get the label -1, in `y` itself.

    Parameters
    ----------
    y, within : ndarray
        Results of `held_labels` and of `within_group_cap`.
    groups, group_cap, group_mean
        As in `ArrayRows`.

    Raises
    ------
    ValueError
        If `group_mean` is set without a cap, or for label sets.
    """
    if not group_mean:
        y[~within] = -1
        return y, None
    if groups is None or group_cap is None:
        raise ValueError(
            "`--group-mean` (`group_mean`) needs `--group-cap` (`group_cap`). Set the "
            "cap to the number of classes that a group can have, such as 1."
        )
    if y.ndim == 2:
        raise ValueError(
            "`group_mean` needs one class per row, got label sets. Drop `group_mean` "
            "to use the first rows of each group."
        )
    means, y = group_means(groups, y, group_cap)
    return y, means
