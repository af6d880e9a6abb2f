"""Choose what computes the sums and the solver's algebra: this host's CPU, or JAX."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import numpy as np

from dphead.privacy.contract import Released
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Solver, changed
from dphead.solvers.on_device import own_settings
from dphead.sums import kernels
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import BlockSum, ReferenceSums

_T = TypeVar("_T")
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")


def uses_jax(backend: str) -> bool:
    """Return whether a backend computes with JAX.

    "auto" does if JAX finds an accelerator. jax is imported only if a plug-in for
    accelerators is installed.
    """
    if backend != "auto" or not any(find_spec(name) for name in _PLUGINS):
        return backend == "jax"
    import jax

    return jax.default_backend() != "cpu"


def block_sum(backend: str, memory: int) -> tuple[BlockSum, int]:
    """Return the block sum of a backend, and the bytes available for kept rows.

    Parameters
    ----------
    backend : str
        "numpy", "jax", "reference", or "auto": jax if it finds an accelerator, else
        numpy. On a CPU, all but "reference" use the compiled kernels, if installed.
    memory : int
        Bytes for kept rows on this host. On accelerators, half of the device memory is
        used instead. "reference" keeps none.
    """
    if backend == "reference":
        return ReferenceSums(), 0
    if not uses_jax(backend):
        return CpuSums(), memory
    import jax

    from dphead.sums.jax import JaxSums

    if jax.default_backend() == "cpu":
        # XLA's sums take three times as long. The kernels use all cores of this host.
        return JaxSums() if kernels.library is None else CpuSums(), memory
    devices = sum(
        (d.memory_stats() or {}).get("bytes_limit", 0) for d in jax.local_devices()
    )
    return JaxSums(), devices // 2


def on_device(solver: Solver[_T], backend: str) -> Solver[_T]:
    """Return a solver that computes with jax arrays, or the given solver.

    A solver computes with jax arrays if it has `needs_jax`, or if the backend is JAX
    and it sets `takes_jax`.
    """
    takes_jax = uses_jax(backend) and getattr(solver, "takes_jax", False)
    return _OnDevice(solver) if takes_jax or hasattr(solver, "needs_jax") else solver


@dataclass(frozen=True)
class _OnDevice(Generic[_T]):
    """Run a solver on released values that are jax arrays, in float64."""

    solver: Solver[_T]

    @property
    def name(self) -> str:
        """Return the solver's name."""
        return self.solver.name

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the solver's plan."""
        return self.solver.plan(facts)

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, _T]:
        """Pass on the solver's requests, and return its result."""
        steps: Any = self.solver.solve(facts)
        answer: Any = None  # the first `send` to a generator must be None
        while True:
            # set jax only while the solver computes, so that other code is unaffected
            with own_settings() as jnp:
                if answer is not None:
                    answer = changed(answer, partial(_placed, jnp))
                try:
                    ask = steps.send(answer)
                except StopIteration as stop:
                    return stop.value
                if ask.params.weights is not None:  # `release` computes with numpy
                    weights = np.asarray(ask.params.weights)
                    ask = replace(ask, params=replace(ask.params, weights=weights))
            answer = yield ask


def _placed(jnp: Any, one: Released) -> Released:
    return replace(one, value=jnp.asarray(one.value))
