"""Train a network for `dphead audit`, with the clips and sums of a real training.

An audit has few rows, so its chunks are small.
"""

import math
from dataclasses import replace

import numpy as np

from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.settings import ModelSpec, Settings, Step
from dphead.finetune.solver import NetworkDescent
from dphead.privacy.contract import Block, SumTask
from dphead.solvers.base import ProblemInfo


class _UsedRows(TorchSums):
    """Sum the clipped gradients of used rows with a class, in chunks of these rows."""

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the clipped gradients of the used rows that have a class."""
        place = np.flatnonzero(used & (y >= 0))
        x, images = rows.x[place], self.network.spec.images
        if images:  # every image of a finite row gets the row's class
            size = x.shape[1] // images
            labels = np.where(np.isfinite(x).all(axis=1), y[place], -1)
            x[:, size - 1 :: size] = labels[:, None]
        own = y[place]
        return super().add(ask, Block(place, x, own), own, place >= 0, out)


def audited(
    settings: Settings,
    shape: tuple[int, ...],
    facts: ProblemInfo,
    group_cap: int | None = None,
) -> tuple[NetworkDescent, ProblemInfo]:
    """Return a solver for `dphead.analysis.audit`, and the sizes of audited rows.

    Parameters
    ----------
    settings : Settings
        The training's settings, with a batch size.
    shape : tuple of int
        (channels, h, w) of a row.
    facts : ProblemInfo
        Public sizes of the audit's rows.
    group_cap : int, optional
        Number of images of a row, if groups are protected.

    Raises
    ------
    ValueError
        If `shape` does not have `facts.n_features` numbers, or if the settings or the
        network are unusable.
    """
    if (size := math.prod(shape)) != facts.n_features:
        raise ValueError(
            f"--sizes must have {size} features, the product of "
            f"--shape, got {facts.n_features}. Correct one of the two."
        )
    s = settings.resolved(facts.n_rows)
    network = Network(
        NetworkSpec(
            ModelSpec(**s.of(ModelSpec)),
            shape,
            facts.n_classes,
            pixels=False,
            images=group_cap or 0,
        )
    )
    sums = _UsedRows(network, batch=16)
    # an audit takes the summation backend from the statistic
    statistic = replace(network.statistic, block_sum=lambda: sums)
    prob = (s.batch_size or 0) / facts.n_rows if s.sampling == "poisson" else 1.0
    solver = NetworkDescent(
        statistic,
        network.start,
        steps=s.steps or 1,
        epoch_steps=s.epoch_steps(facts.n_rows),
        sampling_prob=prob,
        noise_multiplier=s.noise_multiplier,
        **s.of(Step),
    )
    return solver, replace(facts, n_features=network.spec.n_features)
