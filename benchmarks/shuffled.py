"""Draw shuffled batches in place of Poisson batches, for TB21's Table 19.

These fits are NOT PRIVATE at the epsilon that they are calibrated for. Most
implementations shuffle the rows once per epoch and cut them into batches, but account
for Poisson batches. The accountant's amplification does not hold for shuffled batches.
The epsilon of `true_epsilon` holds: a row is in one batch per epoch, so `epochs`
Gaussian releases compose without amplification.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from dphead.planning.plan import Plan
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.noise import NoiseSource


class ShuffledBatches(NoiseSource):
    """Draw a fit's noise, and batches that are parts of a shuffled epoch.

    The sizes of batches differ by at most one row.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed)
        self._first = next(i for i, s in enumerate(plan.specs) if s.sampling_prob < 1)
        self._parts = batches_per_epoch(plan.specs[self._first].sampling_prob)

    def generator(self, sequence: int, purpose: str) -> Any:
        """Return a generator; for samples, its `random` is 0 for rows in the batch."""
        if purpose != "sample":
            return super().generator(sequence, purpose)
        epoch, part = divmod(sequence - self._first, self._parts)
        return _Batch(super().generator(epoch, "shuffle"), part, self._parts)


class _Batch:
    def __init__(self, generator: np.random.Generator, part: int, parts: int) -> None:
        self._generator, self._part, self._parts = generator, part, parts

    def random(self, n_rows: int) -> np.ndarray:
        uniforms = np.ones(n_rows)
        uniforms[self._generator.permutation(n_rows)[self._part :: self._parts]] = 0.0
        return uniforms


def batches_per_epoch(sampling_prob: float) -> int:
    """Return the number of batches of a shuffled epoch."""
    return math.ceil(1 / sampling_prob - 1e-9)


def true_epsilon(events: Sequence[GaussianEvent], delta: float) -> float:
    """Return epsilon with shuffled batches, which use each row once per epoch.

    No amplification is used.
    """
    full = [
        GaussianEvent(
            e.noise_multiplier,
            1.0,
            math.ceil(e.count / batches_per_epoch(e.sampling_prob)),
        )
        for e in events
    ]
    return accounting.epsilon_from_mu(cast(float, accounting.total_mu(full)), delta)
