"""Train a network for `dphead audit`, with the usual chunks, clips and sums.

An audit has only a few rows.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.finetune.solver import NetworkDescent
from dphead.privacy.contract import Block, SumTask
from dphead.solvers.base import ProblemInfo


class _UsedRows(TorchSums):
    """Sum clipped gradients, leaving out padding slots."""

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the clipped gradients of the rows that have a class."""
        place = np.flatnonzero(used & (y >= 0))
        block = Block(place, rows.x[place], y[place])
        return super().add(ask, block, y[place], place >= 0, out)


def audited(
    model: str,
    shape: tuple[int, int, int],
    facts: ProblemInfo,
    **settings: Any,
) -> NetworkDescent:
    """Return a solver for `dphead.analysis.audit`.

    Parameters
    ----------
    model : str
        The network's name.
    shape : tuple of int
        (channels, h, w) of a row.
    facts : ProblemInfo
        The public facts of the audit's rows.
    **settings
        Settings of `NetworkDescent`.

    Raises
    ------
    ValueError
        If `shape` does not give `facts.n_features` numbers.
    """
    if int(np.prod(shape)) != facts.n_features:
        raise ValueError(
            f"--n-features must be {int(np.prod(shape))}, the product of --shape, got "
            f"{facts.n_features}. Correct one of the two."
        )
    spec = NetworkSpec(ModelSpec(model), shape, facts.n_classes, pixels=False)
    network = Network(spec)
    sums = _UsedRows(network, batch=16)
    # an audit takes the summation backend from the statistic
    statistic = replace(network.statistic, block_sum=lambda: sums)
    return NetworkDescent(statistic, network.start, **settings)
