"""Choose public axes for a fit, and check the public rows that they come from."""

import hashlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile, check_blocks, open_features

from dphead.data.blocks import BLOCK_ROWS
from dphead.data.on_axes import RowsOnAxes, principal_axes
from dphead.fit.files import SourceFacts, check_features, file_facts
from dphead.fit.ledgers import counted_in, shared_images
from dphead.privacy.axes import PublicAxes
from dphead.privacy.contract import Rows
from dphead.solvers.base import ProblemInfo, Solver
from dphead.solvers.on_axes import OnAxes, number_of_axes
from dphead.sums.hosts import Hosts

_NUMBERS = 2**25  # public numbers that are read: 256 MB in float64; chosen


@dataclass(frozen=True)
class ChosenAxes:
    """Hold the public axes of a fit.

    Attributes
    ----------
    axes : PublicAxes or None
        The axes, or None if `number_of_axes` finds that they do not help.
    made_of : str
        Digest of the public rows.
    described : dict
        The report's `data.axes`.
    compared : bool
        Whether the public images were compared with the training images, for the data
        holder alone.
    """

    axes: PublicAxes | None
    made_of: str
    described: dict[str, Any]
    compared: bool

    def sizes(self, facts: ProblemInfo) -> ProblemInfo:
        """Return the public sizes of rows on the axes."""
        return replace(facts, n_features=self.axes.count) if self.axes else facts

    def solver(self, solver: Solver[Any]) -> Solver[Any]:
        """Return a solver whose head has the axes, if there are any."""
        if self.axes is None:
            return solver
        own: Any = solver
        if getattr(own, "prior", None) is not None:
            own = replace(own, prior=own.prior.on_axes(self.axes))
        return OnAxes(own, self.axes, self.made_of)


def on_axes(rows: Rows, solver: Solver[Any]) -> Rows:
    """Return rows on the axes of a plan's solver, if it has axes."""
    return RowsOnAxes(rows, solver.axes) if isinstance(solver, OnAxes) else rows


def choose_axes(
    given: Any,
    count: int | None,
    facts: ProblemInfo,
    source: SourceFacts,
    hosts: Hosts | None = None,
) -> ChosenAxes | None:
    """Return the axes of public rows for a fit, or None without public rows.

    Parameters
    ----------
    given : path, array of shape (n, n_features), or None
        A features file of public rows, or their features.
    count : int or None
        Number of axes; None for `number_of_axes`.
    facts : ProblemInfo
        Public sizes of the private rows, with the budget.
    source : SourceFacts
        What is public about the private rows.
    hosts : Hosts, optional
        The processes of the fit. All get the axes of process 0, bit for bit, because
        another processor's can differ. If public rows differ, the axes stay, and
        `agree` refuses the plans.

    Raises
    ------
    ValueError
        If the public rows have other features, are too few, or share the data set or
        images with the private rows. Images decide this for the data holder alone.
    """
    chosen = _chosen(given, count, facts, source)
    axes = chosen and chosen.axes
    if hosts is None:
        return chosen
    # each process sends, because another one may have public rows
    own = np.empty(0, np.float32) if axes is None else axes.values
    first = np.frombuffer(hosts.bytes_from_first(own.tobytes()), own.dtype)
    if chosen is None or axes is None or first.size != own.size:
        return chosen
    return replace(chosen, axes=PublicAxes(first.reshape(own.shape)))


def _chosen(
    given: Any, count: int | None, facts: ProblemInfo, source: SourceFacts
) -> ChosenAxes | None:
    """Return the axes that this process computes (`choose_axes`)."""
    if given is None:
        if count is not None:
            raise ValueError(
                f"`--axes-count` (`axes_count`) {count} needs public images. Add "
                "`--axes-from PUBLIC.h5` (`axes_from`), or drop it."
            )
        return None
    count = number_of_axes(facts) if count is None else count
    if count >= facts.n_features:
        raise ValueError(
            f"`--axes-count` (`axes_count`) must be below the {facts.n_features} "
            f"columns of the rows, got {count}. Use fewer axes, or drop --axes-from."
        )
    if isinstance(given, str | PathLike):
        with open_features(Path(given)) as file:
            compared = _check_public(file, source)
            x, made_of = _spread_rows(file), file_facts(file)["features"]
            origin = {"n_rows": file.n_rows, "dataset_id": file.dataset_id}
    else:
        x, compared = _public_array(given, facts.n_features), False
        made_of = hashlib.sha256(x.tobytes()).hexdigest()
        origin = {"n_rows": len(x), "dataset_id": None}
        x = x[_spread(np.arange(len(x)), x.shape[1])]
    described = {"count": count, **origin}
    axes = principal_axes(x, count) if count else None
    return ChosenAxes(axes, f"{made_of} {count}", described, compared)


def _check_public(file: FeaturesFile, source: SourceFacts) -> bool:
    """Return whether a file's images were compared with the training images.

    Raises ValueError unless the file has the features of other images.
    """
    own = source.extraction["backbone"]
    check_features(file, source.feature_space, source.n_features, own)
    if source.dataset_id is None:
        return False
    shared = shared_images(source.dataset_id, file.dataset_id)
    one = counted_in(source.dataset_id) == counted_in(file.dataset_id)
    if one or shared:
        what = "the data set" if one else f"{shared:,} images"
        raise ValueError(
            f"--axes-from {file.path} shares {what} with the training rows, so it is "
            "not public. Use images that need no protection."
        )
    return shared is not None


def _spread_rows(file: FeaturesFile) -> np.ndarray:
    """Return evenly spaced valid rows of a file."""
    check_blocks(file)
    wanted = _spread(np.flatnonzero(file.valid), file.n_features)
    parts = [np.empty((0, file.n_features), file.dtype)]
    for start in range(0, file.n_rows, BLOCK_ROWS):
        own = wanted[(wanted >= start) & (wanted < start + BLOCK_ROWS)] - start
        parts.append(file.features[start : start + BLOCK_ROWS][own])
    return np.concatenate(parts)


def _spread(slots: np.ndarray, n_features: int) -> np.ndarray:
    """Return evenly spaced slots with at most _NUMBERS numbers in all."""
    most = max(1, _NUMBERS // n_features)
    return slots[:: max(1, -(-len(slots) // most))]


def _public_array(given: Any, n_features: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        x = np.ascontiguousarray(given, np.float32)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise ValueError(
            f"`axes_from` must have the {n_features} columns of the training rows, got "
            f"shape {x.shape}. Use features of the same backbone."
        )
    return x
