"""A network's training for `dphead audit`: the same chunks, clips and sums, on the few rows that an audit has."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dphead.endtoend.gradients import Engine, ModelGradient
from dphead.endtoend.models import ModelSpec
from dphead.endtoend.network import Network, NetworkSpec, TorchSums
from dphead.endtoend.solver import NetworkDescent
from dphead.privacy.contract import Block
from dphead.privacy.statistics import Params
from dphead.solvers.base import PublicFacts


@dataclass(frozen=True)
class AuditedGradient(ModelGradient):
    """`ModelGradient` that brings its own block sum, since an audit asks a query for it. sums: of the network."""

    sums: TorchSums | None = field(default=None, repr=False, compare=False)

    def clipped_sum(
        self,
        params: Params,
        x: Any,
        y: Any,
        keep: Any,
        clip_norm: float,
        out: Any,
        xp: Any = np,
        prepared: Any = None,
        in_place: bool = False,
    ) -> Any:
        """Add the clipped gradients of the rows that have a class; the slots that only fill up are left out."""
        assert self.sums is not None
        used = np.flatnonzero(keep & (y >= 0))
        return self.sums(self.sums.network.query, params, Block(used, x[used], y[used]), used >= 0, clip_norm, out)


def audited(
    model: str,
    shape: tuple[int, int, int],
    facts: PublicFacts,
    *,
    engine: Engine = "vmap",
    groups: int = 16,
    **settings: Any,
) -> NetworkDescent:
    """A solver for `dphead.analysis.audit`. shape: (channels, h, w) of a row. settings: of `NetworkDescent`."""
    if int(np.prod(shape)) != facts.n_features:
        raise ValueError(f"n_features must be the shape's, got n_features={facts.n_features}, {shape=}. Correct one.")
    network = Network(NetworkSpec(ModelSpec(model, shape[0], groups=groups), shape, facts.n_classes, pixels=False))
    own = {f.name: getattr(network.query, f.name) for f in fields(ModelGradient)}
    query = AuditedGradient(**own, sums=TorchSums(network, engine=engine, chunk=16))
    return NetworkDescent(query, network.start, **settings)
