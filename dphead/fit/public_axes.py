"""Choose public axes for a fit, and check the public rows that they come from."""

import hashlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile, check_blocks, open_features

from dphead.analysis.protected import name_unit
from dphead.data.blocks import BLOCK_ROWS
from dphead.data.device_rows import DeviceRows
from dphead.data.on_axes import is_usable, principal_axes
from dphead.fit.files import SourceFacts, check_features, file_facts
from dphead.fit.ledgers import charged_elsewhere, counted_in, shared_images
from dphead.privacy.axes import PublicAxes
from dphead.solvers.base import ProblemInfo, Solver
from dphead.solvers.on_axes import OnAxes, number_of_axes
from dphead.sums.hosts import Hosts, all_or_none

# most public values that axes are computed from, 256 MB in float64; chosen
_NUMBERS = 2**25


@dataclass(frozen=True)
class ChosenAxes:
    """Hold the public axes of a fit.

    Attributes
    ----------
    axes : PublicAxes or None
        The axes, or None if `number_of_axes` finds that they do not help.
    made_of : str
        Digest of the public rows, and the number of axes.
    described : dict
        The report's `data.axes`.
    doubt : str
        What the data holder must check, or "". Private: it tells whether the public
        images were compared with the training images.
    """

    axes: PublicAxes | None
    made_of: str
    described: dict[str, Any]
    doubt: str

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


def choose_axes(
    given: Any,
    count: int | None,
    facts: ProblemInfo,
    source: SourceFacts,
    private: FeaturesFile | np.ndarray | DeviceRows,
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
        Public description of the private rows.
    private : FeaturesFile, ndarray or DeviceRows
        The private rows, with which the public ones are compared.
    hosts : Hosts, optional
        The processes of the fit. All use the axes of process 0, bit for bit, because
        processors can round differently. If the public rows differ, `agree` refuses the
        fit.

    Raises
    ------
    ValueError
        If `count` is given without public rows, or is not below the number of features.
        If the public rows have different features, are too few, share the data set or
        images with the private rows, or are equal to them. The comparison uses private
        rows, so the error is for the data holder only.
    """
    with all_or_none(hosts):
        chosen = _chosen(given, count, facts, source, private)
    axes = chosen and chosen.axes
    if hosts is None:
        return chosen
    # every process must take part, even if it has no public rows
    own = np.empty(0, np.float32) if axes is None else axes.values
    first = np.frombuffer(hosts.bytes_from_first(own.tobytes()), own.dtype)
    if chosen is None or axes is None or first.size != own.size:
        return chosen
    return replace(chosen, axes=PublicAxes(first.reshape(own.shape)))


def _chosen(
    given: Any,
    count: int | None,
    facts: ProblemInfo,
    source: SourceFacts,
    private: FeaturesFile | np.ndarray | DeviceRows,
) -> ChosenAxes | None:
    """Return the axes that this process computes (`choose_axes`)."""
    if given is None:
        if count is not None:
            raise ValueError(
                f"`--axes-count` (`axes_count`) {count} needs public images. Add "
                "`--axes-from PUBLIC.h5` (`axes_from`), or drop `--axes-count`."
            )
        return None
    count = number_of_axes(facts) if count is None else count
    if count >= facts.n_features:
        raise ValueError(
            f"`--axes-count` (`axes_count`) must be below the {facts.n_features} "
            f"columns of the rows, got {count}. Use fewer axes, or drop --axes-from."
        )
    compared = False
    if isinstance(given, str | PathLike):
        with open_features(Path(given)) as file:
            own = source.extraction["backbone"]
            check_features(file, source.feature_space, source.n_features, own)
            if isinstance(private, FeaturesFile):
                compared = _check_images(file, private)
            _check_rows(file, private, f"--axes-from {file.path}")
            x, made_of = _spread_rows(file), file_facts(file)["features"]
            dataset_id = file.dataset_id
    else:
        x = _public_array(given, facts.n_features)
        _check_rows(x, private, "`axes_from`")
        made_of = hashlib.sha256(x.tobytes()).hexdigest()
        dataset_id = None
        x = x[_spread(np.arange(len(x)), x.shape[1])]
    used = int(is_usable(x).sum())
    described = {"count": count, "n_rows": used, "dataset_id": dataset_id}
    axes = principal_axes(x, count) if count else None
    doubt, unit = "", name_unit(source.extraction)
    if axes and not compared:
        doubt = (
            f"dphead could not compare the public {unit}s of `--axes-from` "
            f"(`axes_from`) with the training {unit}s. Check that no {unit} is in both."
        )
    for one in charged_elsewhere(dataset_id and counted_in(dataset_id)) if axes else []:
        doubt += (
            f" The ledger {one.path} {'may have' if one.fits is None else 'has'} fits "
            f"on these public {unit}s. If they are private, drop `--axes-from`."
        )
    return ChosenAxes(axes, f"{made_of} {count}", described, doubt.strip())


def _check_images(file: FeaturesFile, private: FeaturesFile) -> bool:
    """Return whether a file's images were compared with the training images.

    Raises ValueError if both files have one data set or share images.
    """
    shared = shared_images(private, file)
    one = counted_in(private.dataset_id) == counted_in(file.dataset_id)
    if one or shared:
        what = "the data set" if one else f"{shared:,} images"
        raise ValueError(
            f"--axes-from {file.path} shares {what} with the training rows, so it is "
            "not public. Use images that need no protection."
        )
    return shared is not None


def _check_rows(
    public: FeaturesFile | np.ndarray,
    private: FeaturesFile | np.ndarray | DeviceRows,
    name: str,
) -> None:
    """Raise ValueError if the public rows are the training rows, compared as float32.

    `DeviceRows` that several processes share are not compared.
    """
    n_rows, n_others = map(_number_of_rows, (public, private))
    if n_rows != n_others or getattr(private, "is_shared", False):
        return
    for start in range(0, n_rows, BLOCK_ROWS):
        blocks = (_block(rows, start) for rows in (public, private))
        if not np.array_equal(*blocks, equal_nan=True):
            return
    raise ValueError(
        f"{name} has the training rows, so it is not public. Use rows that need no "
        "protection."
    )


def _number_of_rows(rows: Any) -> int:
    return rows.n_rows if isinstance(rows, FeaturesFile) else len(rows)


def _block(rows: Any, start: int) -> np.ndarray:
    stop = min(start + BLOCK_ROWS, _number_of_rows(rows))
    own = isinstance(rows, FeaturesFile)
    found = rows.rows(start, stop) if own else rows[start:stop]
    with np.errstate(all="ignore"):
        return np.asarray(found, np.float32)


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
    """Return evenly spaced rows of `slots` with at most _NUMBERS values in all."""
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
