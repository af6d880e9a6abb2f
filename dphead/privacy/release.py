"""Provide `release`, the only function that may return sums over private rows.

It logs the charged release, samples, sums, adds noise and commits, in this order.

One `ReleaseSpec` determines the noise, the sample and the accountant's event. The
reported guarantee therefore matches the mechanism that ran.
"""

from dataclasses import replace
from typing import cast

import numpy as np

from dphead.privacy.contract import (
    GroupedRows,
    Released,
    ReleaseSpec,
    Rows,
    Summer,
    SumTask,
)
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.noise import NoiseSource, refuse_compilation, rounded_noise
from dphead.privacy.normal import LARGEST_SD, SMALLEST_SD
from dphead.privacy.sampling import poisson_sample
from dphead.privacy.statistic_base import Params, Statistic, check_whole, root

_MAX_SUM = 2**62  # sums stay below it, so int64 holds them (proofs/exactness.md)


def release(
    statistic: Statistic,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    *,
    ledger: Charge,
    noise: NoiseSource,
    summer: Summer,
) -> Released:
    """Log one charged release, sum the rows, add rounded noise, commit and return.

    Parameters
    ----------
    statistic : Statistic
        The statistic. It must be the planned one (`spec.statistic`).
    params : Params
        Public numbers and earlier releases that the statistic may use.
    rows : Rows
        The private rows.
    spec : ReleaseSpec
        The release, planned before any row was read.
    ledger : Charge
        The reserved releases of this fit.
    noise : NoiseSource
        Source of the sample and of the noise.
    summer : Summer
        The verified sum.

    Returns
    -------
    Released
        The noisy sum in real units (float64) and the noise's standard deviation before
        rounding. If an earlier run committed this release, the committed value.

    Raises
    ------
    ValueError
        If the statistic or the rows differ from the plan. If seeded noise was charged
        as private. If there is no noise but the ledger stores values. If the noise is
        too small or too large for its grid, or the sum could overflow. Raised before
        this call reads a row.
    RuntimeError
        If torch compiles the caller (`refuse_compilation`), or if the summer's check
        fails.
    LedgerError
        If the release is not the next reserved one, or cannot begin or be committed.
    OSError
        If a file in the charge's store cannot be written or deleted.
    TypeError
        If the sum has a wrong type or shape, which is a defect.

    Guarantee
    ---------
    The returned value is a Gaussian mechanism of the statistic's integer sum, rounded
    to integers afterwards. The noise's standard deviation is at least
    `noise_multiplier` times the sensitivity that `noise_scale` uses. The mechanism runs
    on a Poisson sample if `sampling_prob` < 1. If `epoch_steps` > 1, it runs on the
    rows that random allocation assigned to the release.

    The charge is in the ledger before the summer is called, and is durable unless the
    ledger is in memory. If the ledger stores values, the noisy value is durable before
    it is returned.
    """
    refuse_compilation()
    # Everything until `begin` reads public values only.
    _check_planned(statistic, rows, spec)
    if spec.private and not noise.private:
        raise ValueError(
            "Noise from a seed is not private, but the charged plan is (its spec has "
            "private=True). Remove the seed, or reserve the fit with the same seed."
        )
    transform = params.transform
    width = transform.width(rows.n_features)
    unit, sd = noise_scale(statistic, spec, transform.append)
    if spec.noise_multiplier == 0 and ledger.store is not None:
        raise ValueError(
            "Sums without noise are never stored, got a charge with a store. "
            "Reserve the fit with store=None."
        )
    # `reserve` charged the plan. `begin` accepts its next release only, and logs it.
    sequence, committed = ledger.begin(spec.row())
    if committed is not None:
        return Released(committed, sd * unit)
    steps = spec.epoch_steps
    step = ledger.step_of(sequence, steps) if steps > 1 else None
    # Sample and noise have separate keys.
    draw = noise.generator(sequence, "sample")
    if step is None:
        indices = _sampled(rows, spec, draw)
    else:
        indices = ledger.allocation.rows(step, steps, rows.n_rows, draw)
    task = SumTask(statistic, params, spec.clip_norm, rows, indices, spec)
    if not np.isfinite(spec.clip_norm):
        # A fit without noise has no guarantee, so it may read norms.
        clip_norm = statistic.unclipped(summer.largest_norm(task), params)
        task = replace(task, clip_norm=clip_norm)
        unit = statistic.unit(task.clip_norm, transform.append)
    value = summer(task)
    # The proof that no sum overflows needs this type, and a kernel can be wrong.
    if value.dtype != np.int64 or value.shape != statistic.shape(width):
        raise TypeError(
            f"Internal error: the sum is {value.dtype} of shape {value.shape}, "
            f"not int64 of shape {statistic.shape(width)}. Please report it."
        )
    if spec.noise_multiplier > 0:
        # Add noise once, to the total. An integer plus rounded noise is a rounding of
        # the Gaussian mechanism, so it is post-processing.
        generator = noise.generator(sequence, "noise")
        value = value + rounded_noise(generator, value.shape, sd, statistic.symmetric)
    released = value * unit
    # Store the value before anyone sees it, because a resume must return it again.
    ledger.commit(sequence, released)
    if step is not None:
        ledger.allocation.released(step)
    return Released(released, sd * unit)


def noise_scale(
    statistic: Statistic, spec: ReleaseSpec, append: float
) -> tuple[float, float]:
    """Return the unit of the integer sum and the standard deviation of its noise.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    spec : ReleaseSpec
        The planned release.
    append : float
        The constant appended to each row; 0 for none.

    Returns
    -------
    unit : float
        The real value of one integer unit of the sum. It is 1 if `clip_norm` is
        infinite (no privacy), because `release` computes a clip norm later.
    sd : float
        Standard deviation of the noise before rounding, in these units; 0 without
        noise.

    Raises
    ------
    ValueError
        If `sd` is outside 2**-3 to 2**44, or if a sum could reach 2**62.

    Guarantee
    ---------
    For full batches and random allocation, `sd` is at least `noise_multiplier` times
    the sensitivity under the spec's neighboring relation. For Poisson batches it is at
    least `noise_multiplier` times the zero-out sensitivity, because their accountant
    handles replace-one itself (proofs/poisson.md).
    """
    if spec.noise_multiplier == 0:
        known = np.isfinite(spec.clip_norm)  # otherwise `release` computes a clip norm
        return statistic.unit(spec.clip_norm, append) if known else 1.0, 0.0
    # For Poisson batches, the accountant's pair of distributions covers replace-one.
    relation = "zero_out" if spec.sampling_prob < 1 else spec.relation
    squared = statistic.sensitivity_sq(relation, spec.clip_norm, append)
    check_whole("sensitivity_sq", squared, 1)
    # Rounded up twice, so that sd >= sigma Delta in exact arithmetic.
    product = spec.noise_multiplier * root(squared)
    sd = float(np.nextafter(product, np.inf))
    # Off the diagonal of a symmetric sum, sd is divided by sqrt(2): 2 leaves room.
    if not 2 * SMALLEST_SD <= sd <= LARGEST_SD:
        change = "smaller" if sd < 1 else "larger"
        raise ValueError(
            "noise_multiplier must give noise of 2**-3 to 2**44 units of the sum, got "
            f"{spec.noise_multiplier}, which gives {sd:.3g} units. Use a {change} "
            "epsilon."
        )
    # Under add_remove n is private: the limit is for 2**30 rows, whatever n is.
    n = 2**30 if spec.relation == "add_remove" else spec.n_rows
    if n * statistic.max_entry > _MAX_SUM:
        raise ValueError(
            f"The sum of {n} rows could reach 2**62. Split the rows "
            "into several data sets."
        )
    return statistic.unit(spec.clip_norm, append), sd


def _check_planned(statistic: Statistic, rows: Rows, spec: ReleaseSpec) -> None:
    """Raise ValueError unless statistic and rows match the plan."""
    given = {"statistic": statistic.name, "group_cap": rows.group_cap}
    if spec.relation != "add_remove":  # under add_remove, `spec.n_rows` is nominal
        given["n_rows"] = rows.n_rows
    # No row was read yet, and all of these values are public.
    for name, value in given.items():
        planned = getattr(spec, name)
        if value != planned:
            raise ValueError(
                f"Internal error: {name} is {value}, and the charged plan has "
                f"{planned}. This release read no row. Please report it."
            )


def _sampled(
    rows: Rows, spec: ReleaseSpec, draw: np.random.Generator
) -> np.ndarray | None:
    """Return the increasing positions of the sample's rows, or None for a full batch.

    Rows beyond the group cap are left out.
    """
    if spec.sampling_prob == 1:
        return None
    indices = poisson_sample(rows.n_rows, spec.sampling_prob, draw)
    if spec.group_cap is None:
        return indices
    # Rows beyond the cap add zero to every sum and need not be read.
    return indices[cast(GroupedRows, rows).within[indices]]
