"""Refuse, before any data is read, settings that would round every row to zero."""

import numpy as np

from dphead.privacy.transform import RowTransform, aim, clipped_bound, clipped_step
from dphead.solvers.base import ProblemInfo


def check_intercept(facts: ProblemInfo, intercept: float, norm: float | None) -> None:
    """Refuse an appended constant so large that every row would be rounded to zero.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes and budget.
    intercept : float
        Appended constant.
    norm : float or None
        Norm that rows have or are clipped to; None if no public number gives it.

    Raises
    ------
    ValueError
        If there is noise, and no row would count beside the constant.

    Notes
    -----
    A row and its constant share one grid. Beside a constant of 500 norms for 1,000
    features (3,000 for 8, 160 for 10,000), every entry of a row is rounded to zero.
    Well below that, rows count with fewer bits, and nothing is refused.
    """
    RowTransform(append=intercept)  # refuses what is out of range
    if not intercept or norm is None or not 0 < norm < np.inf or np.isinf(facts.mu):
        return
    bound, _ = clipped_bound(norm, intercept)
    if aim(bound, facts.n_features) == 0:
        raise ValueError(
            "an intercept's constant must leave room for the rows beside it, got "
            f"{intercept=} for rows of norm {norm:g} and "
            f"n_features={facts.n_features}: all would be rounded to zero. Use a "
            "smaller intercept."
        )


def check_clip(
    facts: ProblemInfo, intercept: float, clip: float, norm: float | None
) -> None:
    """Refuse a constant or a clip norm that would lose the rows.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes and budget.
    intercept : float
        Appended constant.
    clip : float
        Clip norm of the features.
    norm : float or None
        Norm of the rows; None if no public number gives it.

    Raises
    ------
    ValueError
        If there is noise, and the constant is above the clip norm or all rows would be
        rounded to zero.

    Notes
    -----
    Clipped rows and their constant are in one statistic. Its noise grows with the
    square of clip² + intercept², so a constant above the clip norm drowns the rows.
    Rows lie on a grid of about clip / 4095. A row shorter than half a step is rounded
    to zero.
    """
    RowTransform(append=intercept)  # refuses what is out of range
    if np.isinf(facts.mu):
        return
    if intercept > clip:
        raise ValueError(
            f"intercept must be at most feature_clip={clip:g}, got {intercept=}: the "
            "noise would grow with the constant, and drown the rows. Use a smaller "
            "intercept, or 0 for none."
        )
    if norm is None:
        return
    if norm < clipped_step(clip, intercept) / 2:
        raise ValueError(
            "feature_clip must not be thousands of times the rows' norm, got "
            f"feature_clip={clip:g} for rows of norm {norm:g}: all would be rounded "
            "to zero. Use a clip near the norm."
        )
