"""Sum blocks with XLA on all accelerators of a host.

Rows become integers on the host, by the same code as for other backends, and are sent
as 16-bit numbers. Devices do integer arithmetic, and multiply numbers by a row's
constant with one rounding each (`predictions`). Other floating-point operations are not
allowed, because a compiler could fuse them.
"""

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
from dphead.privacy.query import Chunk, Statistic, counting
from dphead.privacy.statistics import ClassSums, Gradient, Gram, SigmoidHessians
from dphead.privacy.transform import IntegerRows
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import GramAndSums, row_norms
from dphead.sums.tuning import DEVICE_ROWS, FLOAT64_EXACT, HALF_BASE

_SHORT_FACTORS = (Gradient, Gram, ClassSums)  # statistics with factors of 13 bits


@dataclass(frozen=True)
class PlacedRows:
    """Hold rows on the devices: q (k, width) int16, scale (k,) float64."""

    q: Any
    scale: Any

    def part(self, run: slice) -> IntegerRows:
        """Return a run of the rows on the host."""
        q = np.asarray(self.q[run])
        scale = np.asarray(self.scale[run])
        return IntegerRows(q, scale)


class JaxSums:
    """Sum blocks on the devices (a `BlockSum`).

    All rows, including kept rows, are in device memory.

    Guarantee
    ---------
    The integers equal the integers of `ReferenceSums`.
    """

    parallel = False

    def __init__(self) -> None:
        self._host = CpuSums()

    def is_compared(self, query: Statistic) -> bool:
        """Return True, because `verified` checks the sums of every statistic."""
        return True

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the norms of transformed rows."""
        return row_norms(ask.params, block)

    def rows(self, ask: SumTask, block: Block) -> PlacedRows:
        """Return the block's rows as integers on the devices."""
        with jax.enable_x64(True):
            made = self._host.rows(ask, block)
            where = _sharding(len(made.q))
            q = made.q.astype(np.int32) if made.q.itemsize > 4 else made.q
            placed = jax.device_put(q, where)
            scale = jax.device_put(made.scale, where)
            return PlacedRows(placed, scale)

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: Any
    ) -> Any:
        """Add the statistics of rows in used slots to `out`."""
        with jax.enable_x64(True):
            q = jnp.asarray(rows.q)
            scale = jnp.asarray(rows.scale)
            weights = ask.weights
            if weights is None:
                w = np.zeros((1, 1), np.int16)
                step = 0.0
            else:
                w = weights.w
                step = weights.step
            devices = _devices(len(y))
            sums = _compiled(ask.query, ask.clip_norm, weights is not None, devices)
            labels = y.astype(np.int64)
            added = sums(q, scale, labels, used, w, np.float64(step))
            return np.asarray(out) + np.asarray(added)


@lru_cache(maxsize=64)
def _compiled(query: Statistic, clip_norm: float, scored: bool, devices: int) -> Any:
    """Return the compiled sum of a block's statistics on `devices` devices."""

    def block_sum(q: Any, scale: Any, y: Any, used: Any, w: Any, step: Any) -> Any:
        weights = IntegerWeights(w, step) if scored else None
        rows = IntegerRows(q, scale)
        keep = counting(query, rows, y, used)
        chunk = Chunk(rows, y, keep, weights, clip_norm)
        left, right = query.factors(jnp, chunk)
        return _products(query, left, right, y, keep)

    if devices == 1:
        return jax.jit(block_sum)
    rows, same = PartitionSpec("rows"), PartitionSpec()

    def part(*arrays: Any) -> Any:
        return jax.lax.psum(block_sum(*arrays), "rows")

    specs = (rows, rows, rows, rows, same, same)
    mesh = _mesh(devices)
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=same))


def _products(query: Statistic, left: Any, right: Any, y: Any, keep: Any) -> Any:
    """Return the int64 sum of the products of the factors."""
    assert DEVICE_ROWS * query.max_entry <= FLOAT64_EXACT
    assert DEVICE_ROWS * HALF_BASE**2 < 2**31
    small = isinstance(query, _SHORT_FACTORS) and not isinstance(query, SigmoidHessians)
    if query.kind == "outer":
        return _integers(left.T, right, small)
    wide = left.astype(jnp.int64)
    squares = []
    for j in range(right.shape[1]):
        weighted = wide * right[:, j : j + 1]
        squares.append(_integers(weighted.T, wide, small))
    if isinstance(query, GramAndSums):
        same = y[:, None] == jnp.arange(query.n_classes)[None, :]
        classes = same & keep[:, None]
        sums = _integers(classes.T, left, small)
        return jnp.concatenate([squares[0], sums])
    if len(query.shape(1)) == 2:
        return squares[0]
    return jnp.stack(squares)


def _integers(a: Any, b: Any, small: bool) -> Any:
    """Return a @ b of whole numbers in int64, exact, DEVICE_ROWS rows at a time."""
    total = jnp.zeros((a.shape[0], b.shape[1]), jnp.int64)
    for i in range(0, a.shape[1], DEVICE_ROWS):
        run = slice(i, i + DEVICE_ROWS)
        total = total + _product(a[:, run], b[run], small)
    return total


def _product(a: Any, b: Any, small: bool) -> Any:
    """Return a @ b of at most DEVICE_ROWS rows, exact.

    In float64, sums stay below 2**53 and are exact in any order. Accelerators have fast
    units for 8-bit integers, so small numbers, up to RADIUS, are split into two halves.
    """
    if jax.default_backend() == "cpu" or not small:
        wide = (x.astype(jnp.float64) for x in (a, b))
        return jnp.matmul(*wide, precision="highest").astype(jnp.int64)
    total = jnp.zeros((a.shape[0], b.shape[1]), jnp.int64)
    for one, size in _halves(a):
        for other, times in _halves(b):
            part = jnp.matmul(one, other, preferred_element_type=jnp.int32)
            total = total + size * times * part.astype(jnp.int64)
    return total


def _halves(x: Any) -> tuple[tuple[Any, int], tuple[Any, int]]:
    """Return (low, 1), (high, HALF_BASE) in int8: x = low + HALF_BASE * high.

    |x| must be below 2**12.
    """
    x = x.astype(jnp.int32)
    middle = HALF_BASE // 2
    low = ((x + middle) & (HALF_BASE - 1)) - middle
    high = (x - low) // HALF_BASE
    low_half = (low.astype(jnp.int8), 1)
    high_half = (high.astype(jnp.int8), HALF_BASE)
    return low_half, high_half


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
