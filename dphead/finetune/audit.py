"""Train a network for `dphead audit`, with the usual chunks, clips and sums.

An audit has only a few rows.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dphead.finetune.gradients import ModelGradient
from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.finetune.solver import NetworkDescent
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Statistic
from dphead.solvers.base import ProblemInfo


class _UsedRows(TorchSums):
    """Sum clipped gradients, leaving out padding slots."""

    def is_compared(self, statistic: Statistic) -> bool:
        """Return False, since no second computation checks the sum."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms of `TorchSums`."""
        return super().norms(self._own(ask), block)

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
        return super().add(self._own(ask), block, y[place], place >= 0, out)

    def _own(self, ask: SumTask) -> SumTask:
        return replace(ask, statistic=self.network.statistic)


@dataclass(frozen=True)
class _AuditedGradient(ModelGradient):
    """Describe a `ModelGradient` with its own summation backend.

    An audit takes the block sum from the statistic. `sums` is the backend of the
    network.
    """

    sums: _UsedRows | None = field(default=None, repr=False, compare=False)

    def block_sum(self) -> _UsedRows:
        """Return the summation backend of its blocks."""
        assert self.sums is not None
        return self.sums


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
            f"{facts.n_features}."
        )
    spec = NetworkSpec(ModelSpec(model), shape, facts.n_classes, pixels=False)
    network = Network(spec)
    statistic = network.statistic
    given = {f.name: getattr(statistic, f.name) for f in fields(ModelGradient)}
    statistic = _AuditedGradient(**given, sums=_UsedRows(network, chunk=16))
    return NetworkDescent(statistic, network.start, **settings)
