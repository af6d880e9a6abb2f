"""Refuse settings that would round every row to zero."""

import numpy as np

from dphead.privacy.transform import RowTransform, aim, clipped_bound, clipped_step
from dphead.solvers.base import ProblemInfo


def check_intercept(facts: ProblemInfo, intercept: float, norm: float | None) -> None:
    """Refuse an appended constant so large that every row would round to zero.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes and budget.
    intercept : float
        Appended constant.
    norm : float or None
        Norm or clip norm of the rows; None if unknown.

    Raises
    ------
    ValueError
        If the constant is out of range, or if there is noise and the constant rounds
        all rows to zero.

    Notes
    -----
    A row and its constant share one grid. For 1,000 features, every entry of a row
    rounds to zero if the constant is about 490 times the row's norm (for 8 features:
    2,900 times, for 10,000 features: 160 times). A smaller constant only reduces the
    precision of rows, and is accepted.
    """
    RowTransform(append=intercept)  # checks the range
    if not intercept or norm is None or not 0 < norm < np.inf or np.isinf(facts.mu):
        return
    # bound on the sum of squares of a row's integers, without the constant's
    bound, _ = clipped_bound(norm, intercept)
    if aim(bound, facts.n_features) == 0:
        raise ValueError(
            f"`intercept` is too large, got {intercept:g} for rows of norm {norm:g} "
            f"with {facts.n_features} features. All rows would round to zero. Use "
            f"{norm:g} or less."
        )


def check_clip(
    facts: ProblemInfo, intercept: float, clip: float, norm: float | None
) -> None:
    """Refuse a constant above the clip norm, or a clip norm that rounds rows to zero.

    Parameters
    ----------
    facts : ProblemInfo
        Public sizes and budget.
    intercept : float
        Appended constant.
    clip : float
        Clip norm of the features.
    norm : float or None
        Norm of the rows; None if unknown.

    Raises
    ------
    ValueError
        If the constant is out of range, or if there is noise and the constant exceeds
        the clip norm or all rows would round to zero.

    Notes
    -----
    Clipped rows and their constant are in one statistic, so its noise grows with the
    constant. If the constant is above the clip norm, noise hides the rows. Rows lie on
    a grid of about clip / 4095. A row shorter than half a step rounds to zero.
    """
    RowTransform(append=intercept)  # checks the range
    if np.isinf(facts.mu):
        return
    if intercept > clip:
        raise ValueError(
            f"`intercept` must be at most `feature_clip`, got {intercept:g} and "
            f"{clip:g}. Noise grows with the intercept, and would hide the rows. Use a "
            "smaller intercept."
        )
    if norm is None:
        return
    # then every entry of a row is below half a step of the grid
    if norm < clipped_step(clip, intercept) / 2:
        raise ValueError(
            f"`feature_clip` is too large, got {clip:g} for rows of norm {norm:g}. All "
            f"rows would round to zero. Use {norm:g}."
        )
