"""Compute a solver's algebra with jax arrays."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from dphead.privacy.contract import Released
from dphead.solvers.base import PlannedRelease, ProblemInfo, Request, Solver, changed

_T = TypeVar("_T")


@dataclass(frozen=True)
class OnDevice(Generic[_T]):
    """Give a solver its released values as jax arrays, in float64."""

    solver: Solver[_T]

    @property
    def name(self) -> str:
        """Return the solver's name."""
        return self.solver.name

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the solver's plan."""
        return self.solver.plan(facts)

    def solve(self, facts: ProblemInfo) -> Generator[Request, Released, _T]:
        """Pass the solver's requests on, and return what it returns."""
        steps: Any = self.solver.solve(facts)  # None begins a generator
        answer: Any = None
        while True:
            # only while the solver computes, so that other code keeps its settings
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


@contextmanager
def own_settings() -> Iterator[Any]:
    """Compute in float64, with dphead's settings of jax in place of the process's own.

    Some settings, such as strict types, would make a charged fit fail.
    """
    import jax

    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.default_matmul_precision("highest"),
        jax.debug_nans(False),  # a factor of an indefinite matrix is NaN
        jax.debug_infs(False),
        jax.debug_key_reuse(False),
        jax.array_garbage_collection_guard("allow"),
        jax.transfer_guard("allow"),
        jax.no_tracing(False),
        # a step in Python could fail, though jax traced it
        jax.disable_jit(False),
        _no_mesh(),
    ):
        yield jax.numpy


def _no_mesh() -> AbstractContextManager[None]:
    """Leave the mesh of `jax.set_mesh`, which would place the arrays."""
    import jax

    try:
        return jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))
    except ValueError:  # within jit, the caller's mesh applies
        return nullcontext()
