"""Sum blocks with XLA on all devices of a host.

Rows become integers on the host, by the same code as for other backends, and are sent
as 16-bit numbers (moments: 32-bit). Devices add and multiply whole numbers, exactly
even in float64, and multiply numbers by a row's constant with one rounding each
(`predictions`). Other floating-point operations are not allowed, because a compiler
could fuse them. An H200 gave the host's integers for every statistic. On an H100, a
trial that also computed norms and factors on the device did not
(benchmarks/results/gpu).

Devices work while the host reads the next block. `add` waits for the sum of the
previous block, so at most two blocks are in flight.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dphead.privacy.contract import Block, SumTask
from dphead.privacy.predictions import IntegerWeights
from dphead.privacy.statistic_base import Chunk, Statistic, counting
from dphead.privacy.statistics import ClassSums, Gradient, Gram, SigmoidHessians
from dphead.privacy.transform import IntegerRows
from dphead.solvers.on_device import own_settings
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import cores
from dphead.sums.tuning import FLOAT64_EXACT

_SHORT_FACTORS = (Gradient, Gram, ClassSums)  # statistics with factors of 13 bits
# Bounds of exactness (dphead/privacy/proofs/exactness.md has each). Never raise them.
_HALF_BASE = 64  # XLA's row integer is _HALF_BASE * high + low, both of 8 bits
_MAX_HALVES = 96  # largest |low + high|: 32 + 64
_DEVICE_ROWS = 1 << 17  # rows of one product on a device: 2**17 * 96**2 < 2**31

# On a CPU, a symmetric product is computed in 4 strips, without the blocks below the
# diagonal: 10 of 16 blocks. The number affects speed only. Chosen, not measured.
_STRIPS = 4


@dataclass(frozen=True)
class _PlacedRows:
    """Hold rows on the devices: q (k, width) as int16 or int32, scale (k,) float64."""

    q: Any
    scale: Any

    def part(self, run: slice) -> IntegerRows:
        """Return the rows of a slice, on the host."""
        q = np.asarray(self.q[run])
        scale = np.asarray(self.scale[run])
        return IntegerRows(q, scale)


class JaxSums:
    """Sum blocks on the devices (a `BlockSum`).

    The integers of rows, and of kept rows, are in device memory. The host computes
    them.

    Guarantee
    ---------
    The integers equal the integers of `ReferenceSums`.
    """

    parallel = False
    has_unknown_rate = True  # `duration` has rates for processors only

    def __init__(self) -> None:
        self._host = CpuSums()
        self._threads = ThreadPoolExecutor(cores())
        self._weights: tuple[IntegerWeights | None, Any] = (None, None)

    def is_compared(self, statistic: Statistic) -> bool:
        """Return True, because `verified` checks the sums of every statistic."""
        return True

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms (k,) of transformed rows."""
        return self._host.norms(ask, block)

    def rows(self, ask: SumTask, block: Block) -> _PlacedRows:
        """Return the block's rows as integers on the devices."""
        with own_settings():
            made = self._rounded(ask, block)
            where = _sharding(len(made.q))
            q = made.q.astype(np.int32) if made.q.itemsize > 4 else made.q
            return _PlacedRows(
                jax.device_put(q, where), jax.device_put(made.scale, where)
            )

    def _rounded(self, ask: SumTask, block: Block) -> IntegerRows:
        """Return the block's rows as integers, computed on all cores."""
        k = len(block.x)
        step = max(1, -(-k // cores()))

        def rounded(i: int) -> IntegerRows:
            run = slice(i, i + step)
            own = Block(block.index[run], block.x[run], block.y[run])
            return self._host.rows(ask, own)

        made = list(self._threads.map(rounded, range(0, max(1, k), step)))
        q = np.concatenate([rows.q for rows in made])
        return IntegerRows(q, np.concatenate([rows.scale for rows in made]))

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: Any
    ) -> Any:
        """Add the statistics of a block's used rows to `out`."""
        with own_settings():
            jax.block_until_ready(out)
            w, step = self._placed(ask.weights)
            devices = _devices(len(y))
            scored = ask.weights is not None
            sums = compiled(ask.statistic, ask.clip_norm, scored, devices)
            q = jnp.asarray(rows.q)
            scale = jnp.asarray(rows.scale)
            added = sums(q, scale, y.astype(np.int64), used, w, step)
            return jnp.asarray(out) + added.addressable_data(0)

    def _placed(self, weights: IntegerWeights | None) -> tuple[Any, np.float64]:
        """Return w and step of the weights, zeros without weights.

        The last w stays on the device for the next block.
        """
        if weights is None:
            return np.zeros((1, 1), np.int16), np.float64(0.0)
        if self._weights[0] is not weights:
            self._weights = weights, jnp.asarray(weights.w)
        return self._weights[1], np.float64(weights.step)


@lru_cache(maxsize=64)
def compiled(statistic: Statistic, clip_norm: float, scored: bool, devices: int) -> Any:
    """Return the compiled sum of a block's statistics on `devices` devices."""

    def block_sum(q: Any, scale: Any, y: Any, used: Any, w: Any, step: Any) -> Any:
        weights = IntegerWeights(w, step) if scored else None
        rows = IntegerRows(q, scale)
        keep = counting(statistic, rows, y, used)
        chunk = Chunk(rows, y, keep, weights, clip_norm)
        left, right = statistic.factors(jnp, chunk)
        return _products(statistic, left, right)

    if devices == 1:
        return jax.jit(block_sum)
    rows, same = PartitionSpec("rows"), PartitionSpec()

    def part(*arrays: Any) -> Any:
        return jax.lax.psum(block_sum(*arrays), "rows")

    specs = (rows, rows, rows, rows, same, same)
    mesh = _mesh(devices)
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=same))


def _products(statistic: Statistic, left: Any, right: Any) -> Any:
    """Return the int64 sum of the products of the factors.

    Only the upper triangles of symmetric sums are defined.
    """
    assert _DEVICE_ROWS * statistic.max_entry <= FLOAT64_EXACT
    short = isinstance(statistic, _SHORT_FACTORS) and not isinstance(
        statistic, SigmoidHessians
    )
    product = short_product if short else wide_product
    if statistic.kind == "outer":
        return in_runs(product, left.T, right)
    if not short:
        left = left.astype(jnp.float64)
    # the weights of short factors are 0 and 1
    weights = right.astype(left.dtype)
    columns = range(right.shape[1])
    squares = [_symmetric(product, left * weights[:, j : j + 1], left) for j in columns]
    if len(statistic.shape(1)) == 2:
        return squares[0]
    return jnp.stack(squares)


def _symmetric(product: Any, a: Any, b: Any) -> Any:
    """Return the symmetric aᵀ b; on a CPU, most entries below its diagonal are zero."""
    d = a.shape[1]
    step = d if on_accelerator() else -(-d // _STRIPS)
    strips = []
    for i in range(0, d, step):
        strip = in_runs(product, a[:, i : i + step].T, b[:, i:])
        strips.append(jnp.pad(strip, ((0, 0), (i, 0))))
    return jnp.concatenate(strips)


def in_runs(product: Any, a: Any, b: Any) -> Any:
    """Return the sum of product(a, b) over runs of _DEVICE_ROWS rows, in int64."""
    total = jnp.zeros((a.shape[0], b.shape[1]), jnp.int64)
    for i in range(0, a.shape[1], _DEVICE_ROWS):
        run = slice(i, i + _DEVICE_ROWS)
        total = total + product(a[:, run], b[run])
    return total


def wide_product(a: Any, b: Any) -> Any:
    """Return a @ b in float64: sums stay below 2**53, exact in any order."""
    a, b = a.astype(jnp.float64), b.astype(jnp.float64)
    return jnp.matmul(a, b, precision="highest").astype(jnp.int64)


def short_product(a: Any, b: Any) -> Any:
    """Return a @ b exactly, for whole numbers of at most RADIUS in absolute value.

    Accelerators have fast units for 8-bit integers. They compute three products of
    halves: low low', high high' and (low + high) (low' + high'). The last product minus
    the other two is low high' + high low' [Karatsuba].
    """
    assert _DEVICE_ROWS * _MAX_HALVES**2 < 2**31
    if not on_accelerator():
        return wide_product(a, b)

    def times(one: Any, other: Any) -> Any:
        product = jnp.matmul(one, other, preferred_element_type=jnp.int32)
        return product.astype(jnp.int64)

    (low_a, high_a), (low_b, high_b) = halves(a), halves(b)
    of_low = times(low_a, low_b)
    of_high = times(high_a, high_b)
    mixed = times(low_a + high_a, low_b + high_b) - of_low - of_high
    return of_low + _HALF_BASE * mixed + _HALF_BASE**2 * of_high


def on_accelerator() -> bool:
    """Return whether jax computes on a GPU or a TPU."""
    return jax.default_backend() != "cpu"


def halves(x: Any) -> tuple[Any, Any]:
    """Return low and high in int8: x = low + _HALF_BASE * high.

    |x| must be below 2**12. Then |low + high| is at most _MAX_HALVES.
    """
    x = x.astype(jnp.int32)
    middle = _HALF_BASE // 2
    low = ((x + middle) & (_HALF_BASE - 1)) - middle
    high = (x - low) // _HALF_BASE
    return low.astype(jnp.int8), high.astype(jnp.int8)


def _devices(rows: int) -> int:
    return gcd(rows, len(jax.local_devices()))


def _mesh(devices: int) -> Mesh:
    own = jax.local_devices()[:devices]
    return Mesh(np.array(own), ("rows",))


def _sharding(rows: int) -> Any:
    devices = _devices(rows)
    if devices == 1:
        return None
    return NamedSharding(_mesh(devices), PartitionSpec("rows"))
