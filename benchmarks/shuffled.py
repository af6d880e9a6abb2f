"""NOT PRIVATE at the epsilon it is calibrated for: shuffled batches in place of Poisson
ones, for TB21's Table 19.

Most implementations shuffle the rows once an epoch and cut them into batches, and
account for Poisson batches, which they do not draw. The accountant's amplification does
not hold for them. What does hold is printed beside: a row is in one batch an epoch, so
that `epochs` Gaussian releases compose without any amplification.
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
    """Noise of a fit, and batches that are parts of a shuffled epoch, equal in size up
    to one row.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed)
        self._first = next(i for i, s in enumerate(plan.specs) if s.sampling_prob < 1)
        self._parts = batches_per_epoch(plan.specs[self._first].sampling_prob)

    def generator(self, sequence: int, purpose: str) -> Any:
        """For a sample, uniforms that are 0 for the rows of the next batch and 1 for
        the others.
        """
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
    """Batches that a shuffled epoch is cut into."""
    return math.ceil(1 / sampling_prob - 1e-9)


def true_epsilon(events: Sequence[GaussianEvent], delta: float) -> float:
    """Epsilon of releases with shuffled batches, without amplification: each row is
    used once an epoch.
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
