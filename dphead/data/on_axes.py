"""Compute principal axes of public rows, and project private rows onto them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dphead.privacy.axes import PublicAxes
from dphead.privacy.contract import Block, Known, Rows

_WIDEST_COVARIANCE = 4096  # most columns of a covariance matrix; chosen
_LEAST_SPREAD = 1e-10  # least variance of the last axis, relative to the first; chosen


class RowsOnAxes:
    """Yield the blocks of rows, projected onto public axes.

    Parameters
    ----------
    rows : Rows
        The rows.
    axes : PublicAxes
        The axes.
    """

    def __init__(self, rows: Rows, axes: PublicAxes) -> None:
        self._rows, self._axes = rows, axes
        self.n_rows, self.n_features = rows.n_rows, axes.count
        self.group_cap = rows.group_cap
        self.has_sets = getattr(rows, "has_sets", False)

    @property
    def within(self) -> np.ndarray:
        """Return (n_rows,) bool: True for the rows within their group's cap."""
        rows: Any = self._rows  # rows with a group cap have `within`
        return rows.within

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield the projected blocks. A block without features stays without them."""
        for block in self._rows.blocks(indices, known):
            has_features = block.x.shape[1] > 0
            x = self._axes.rows(block.x) if has_features else block.x
            yield replace(block, x=x)


def is_usable(x: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True for rows (n, d) that are finite and not zero."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(np.asarray(x, np.float64), axis=1)
        return np.isfinite(norms) & (norms > 0)


def principal_axes(x: np.ndarray, count: int) -> PublicAxes:
    """Return the principal axes of public rows, largest variance first.

    Parameters
    ----------
    x : ndarray of shape (n, n_features)
        Public rows. Each is divided by its norm first. Rows that are zero or not finite
        are left out.
    count : int
        Number of axes.

    Returns
    -------
    PublicAxes
        The axes. Their signs do not depend on the library that computes them.

    Raises
    ------
    ValueError
        If there are not more usable rows than axes, if rows have fewer columns than
        axes, or if the rows do not span `count` axes.

    References
    ----------
    Pinto, Hu, Yang, Sanyal 2023, "PILLAR: How to make semi-private learning more
    effective".
    """
    x = np.asarray(x[is_usable(x)], np.float64)
    x /= np.linalg.norm(x, axis=1)[:, None]
    most = min(len(x) - 1, x.shape[1])
    todo = "Pass more public rows, or a smaller `--axes-count` (`axes_count`)."
    if most < count:
        raise ValueError(
            f"{count} axes need at least {count + 1} usable public rows of at least "
            f"{count} columns, got {len(x)} usable rows of {x.shape[1]} columns. {todo}"
        )
    narrow = x.shape[1] <= min(_WIDEST_COVARIANCE, len(x))
    kind = "covariance_eigh" if narrow else "arpack" if count < most else "full"
    # imported here, because the module takes 120 MB and most fits do not need it
    from sklearn.decomposition import PCA

    # With one thread, axes have the same bits in every run on one machine.
    with threadpool_limits(1):
        found = PCA(count, svd_solver=kind, random_state=0).fit(x)
    spread, axes = found.explained_variance_, np.asarray(found.components_).T
    if not spread[-1] > _LEAST_SPREAD * spread[0]:
        raise ValueError(f"The public rows do not span {count} axes. {todo}")
    return PublicAxes(axes)
