"""`release`: charge, sample, sum, add noise, commit.

Nothing else may hand out private sums.

The noise, the sample and the event that the accountant sees are all computed from one
`ReleaseSpec`, so the guarantee cannot differ from what ran.
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
    SumRequest,
)
from dphead.privacy.noise import NoiseSource, rounded_noise
from dphead.privacy.normal import LARGEST_SD, SMALLEST_SD
from dphead.privacy.query import Params, Query, check_whole, root
from dphead.privacy.reserved import FitLedger
from dphead.privacy.sampling import poisson_sample

MAX_SUM = 2**62  # sums stay below it in int64 (proofs/exactness.md)


def release(
    query: Query,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    *,
    ledger: FitLedger,
    noise: NoiseSource,
    summer: Summer,
) -> Released:
    """Charge, sample, sum integers, add rounded noise once, commit, return.

    Guarantee: the returned value is a Gaussian mechanism (on a Poisson sample where
    sampling_prob < 1, on an epoch's random share where epoch_steps > 1) of the query's
    integer sum, with sd >= noise_multiplier times its sensitivity, rounded to integers
    afterwards. The charge is durable before the summer is asked, and the noisy value is
    durable, where the ledger stores values, before it is returned. ValueError, before
    anything is read, for what was not planned, and for noise from a seed unless the
    spec, and so the charge, says that it is not private.
    """
    _check_planned(query, rows, spec)
    if spec.private and not noise.private:
        raise ValueError(
            "a release with a seed must be charged as not private, got private=True "
            "in its spec. Use no seed, or give the seed to `reserve` too."
        )
    transform = params.transform
    width = transform.width(rows.n_features)
    unit, sd = noise_scale(query, spec, transform.append)
    if spec.noise_multiplier == 0 and getattr(ledger, "store", None) is not None:
        raise ValueError(
            "sums without noise must not reach the disk, got a ledger with a store. "
            "Reserve the fit without one."
        )
    sequence, committed = ledger.begin(spec.row())
    if committed is not None:
        return Released(committed, sd * unit)
    step = ledger.step_of(sequence, spec.epoch_steps) if spec.epoch_steps > 1 else None
    if step is None:
        indices = _sampled(rows, spec, noise, sequence)
    else:
        draw = noise.generator(sequence, "sample")
        given = ledger.allocation
        indices = given.rows(step, spec.epoch_steps, rows.n_rows, draw)
    request = SumRequest(query, params, rows, spec, spec.clip_norm, indices)
    if np.isfinite(spec.clip_norm):
        request = replace(request, following=_following(ledger))
    else:  # no noise, hence no secret to keep
        clip_norm = query.no_clip(summer.largest_norm(request), params)
        request = replace(request, clip_norm=max(clip_norm, 1e-100))
        unit = query.unit(request.clip_norm, transform.append)
    value = summer(request)
    if value.dtype != np.int64 or value.shape != query.shape(width):
        raise TypeError(
            "a sum must be int64 of the query's shape, got "
            f"{value.dtype=}, {value.shape=}. This is a defect in the sums."
        )
    if spec.noise_multiplier > 0:
        generator = noise.generator(sequence, "noise")
        value = value + rounded_noise(generator, value.shape, sd, query.symmetric)
    released = value * unit
    ledger.commit(sequence, released)
    if step is not None:
        ledger.allocation.released(step)
    return Released(released, sd * unit)


def noise_scale(query: Query, spec: ReleaseSpec, append: float) -> tuple[float, float]:
    """(unit of the sum, standard deviation of its noise in these units).

    Guarantee: the deviation is not below noise_multiplier times the relation's own
    sensitivity for full batches; for Poisson batches times the zero-out one, because
    their accountant handles replace-one itself (proofs/poisson.md).
    """
    if spec.noise_multiplier == 0:
        known = np.isfinite(spec.clip_norm)  # else `release` finds a clip norm
        return query.unit(spec.clip_norm, append) if known else 1.0, 0.0
    relation = "zero_out" if spec.sampling_prob < 1 else spec.relation
    squared = query.squared_sensitivity(relation, spec.clip_norm, append)
    check_whole("squared_sensitivity", squared, 1)
    product = spec.noise_multiplier * root(squared)
    sd = float(np.nextafter(product, np.inf))
    if not 2 * SMALLEST_SD <= sd <= LARGEST_SD:  # twice: off a diagonal it is halved
        raise ValueError(
            "noise must be of 2**-3 to 2**44 units of the sum, got noise_multiplier="
            f"{spec.noise_multiplier} and {sd=} units. Choose another budget."
        )
    # Under add_remove n is private: room for 2**30 rows.
    n = 2**30 if spec.relation == "add_remove" else spec.n_rows
    if n * query.most() > MAX_SUM:
        raise ValueError(
            f"sums must stay below 2**62, got n_rows={spec.n_rows}. Split the data."
        )
    return query.unit(spec.clip_norm, append), sd


def _check_planned(query: Query, rows: Rows, spec: ReleaseSpec) -> None:
    """ValueError unless the query and the rows are those of the plan."""
    if query.name != spec.query:
        raise ValueError(
            f"the query must be the planned one, got query={query.name}. "
            f"The plan says {spec.query}."
        )
    if spec.relation != "add_remove" and rows.n_rows != spec.n_rows:
        raise ValueError(
            f"n_rows must be the planned one, got {rows.n_rows}. "
            f"The plan says {spec.n_rows}."
        )
    if rows.group_cap != spec.group_cap:
        raise ValueError(
            f"group_cap must be the planned one, got {rows.group_cap}. "
            f"The plan says {spec.group_cap}."
        )


def _sampled(
    rows: Rows, spec: ReleaseSpec, noise: NoiseSource, sequence: int
) -> np.ndarray | None:
    """Increasing slots of the Poisson sample, or None for the full batch."""
    if spec.sampling_prob == 1:
        return None
    generator = noise.generator(sequence, "sample")
    indices = poisson_sample(rows.n_rows, spec.sampling_prob, generator)
    if spec.group_cap is None:
        return indices
    return indices[cast(GroupedRows, rows).within[indices]]


def _following(ledger: FitLedger) -> ReleaseSpec | None:
    """The release reserved next."""
    reserved = ledger.following()
    return None if reserved is None else ReleaseSpec(**reserved)
