"""A network's training for `dphead audit`: the same chunks, clips and sums, on the few
rows that an audit has.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dphead.endtoend.gradients import ModelGradient
from dphead.endtoend.models import ModelSpec
from dphead.endtoend.network import Network, NetworkSpec, TorchSums
from dphead.endtoend.solver import NetworkDescent
from dphead.privacy.contract import Block
from dphead.privacy.query import Query
from dphead.solvers.base import PublicFacts
from dphead.sums.reference import Ask


class UsedRows:
    """A `BlockSum`: the network's, without the slots that only fill up."""

    parallel = False

    def __init__(self, sums: TorchSums) -> None:
        self.sums = sums

    def is_compared(self, query: Query) -> bool:
        """As `TorchSums`."""
        return False

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """As `TorchSums`."""
        return self.sums.norms(self._own(ask), block)

    def rows(self, ask: Ask, block: Block) -> Block:
        """The block itself."""
        return block

    def add(
        self, ask: Ask, rows: Block, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the clipped gradients of the rows that have a class."""
        place = np.flatnonzero(used & (y >= 0))
        block = Block(place, rows.x[place], y[place])
        return self.sums.add(self._own(ask), block, y[place], place >= 0, out)

    def _own(self, ask: Ask) -> Ask:
        return replace(ask, query=self.sums.network.query)


@dataclass(frozen=True)
class AuditedGradient(ModelGradient):
    """`ModelGradient` that brings its own block sum, since an audit asks a query for
    it. sums: of the network.
    """

    sums: TorchSums | None = field(default=None, repr=False, compare=False)

    def block_sum(self) -> UsedRows:
        """How its blocks are summed."""
        assert self.sums is not None
        return UsedRows(self.sums)


def audited(
    model: str,
    shape: tuple[int, int, int],
    facts: PublicFacts,
    *,
    groups: int = 16,
    **settings: Any,
) -> NetworkDescent:
    """A solver for `dphead.analysis.audit`. shape: (channels, h, w) of a row.

    settings: of `NetworkDescent`.
    """
    if int(np.prod(shape)) != facts.n_features:
        raise ValueError(
            f"n_features must be the shape's, got n_features={facts.n_features}, "
            f"{shape=}. Correct one."
        )
    network = Network(
        NetworkSpec(
            ModelSpec(model, shape[0], groups=groups),
            shape,
            facts.n_classes,
            pixels=False,
        )
    )
    own = {f.name: getattr(network.query, f.name) for f in fields(ModelGradient)}
    query = AuditedGradient(**own, sums=TorchSums(network, chunk=16))
    return NetworkDescent(query, network.start, **settings)
