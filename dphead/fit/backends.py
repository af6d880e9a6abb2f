"""Choose what computes the sums and the solver's algebra: this host's CPU, or JAX."""

from importlib.util import find_spec
from typing import TypeVar

from dphead.solvers.base import Solver
from dphead.solvers.on_device import OnDevice
from dphead.sums import kernels
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import BlockSum, ReferenceSums

_T = TypeVar("_T")
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")


def uses_jax(backend: str) -> bool:
    """Return whether a backend computes with JAX.

    "auto" does if JAX finds an accelerator. jax is not imported without its plugins.
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
        numpy. On a CPU, all but "reference" use the compiled kernels.
    memory : int
        Bytes for kept rows on this host. On accelerators, half of the device memory is
        used instead.
    """
    if backend == "reference":
        return ReferenceSums(), 0
    if not uses_jax(backend):
        return CpuSums(), memory
    import jax

    from dphead.sums.jax import JaxSums

    if jax.default_backend() == "cpu":
        # XLA's sums take three times as long. The kernels use all host devices' cores.
        return JaxSums() if kernels.library is None else CpuSums(), memory
    devices = sum(
        (d.memory_stats() or {}).get("bytes_limit", 0) for d in jax.local_devices()
    )
    return JaxSums(), devices // 2


def on_device(solver: Solver[_T], backend: str) -> Solver[_T]:
    """Return a solver that computes with jax arrays, if the backend is JAX.

    A solver of another package computes with numpy, unless it sets `takes_jax`.
    """
    takes_jax = uses_jax(backend) and getattr(solver, "takes_jax", False)
    return OnDevice(solver) if takes_jax or hasattr(solver, "needs_jax") else solver
