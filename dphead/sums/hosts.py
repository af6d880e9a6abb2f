"""Sum rows held by several processes, with jax's collectives.

Every process runs the same solver on released values and sums its own part of the rows.
Processes exchange the integer sums of their parts; process 0 sends the sample and the
released value. Only process 0 has the ledger, draws the sample and the noise, and calls
`release`.

jax neither encrypts nor authenticates messages (docs/many-hosts.md).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.privacy.contract import Released, Rows, SumTask
from dphead.privacy.ledger import LedgerError
from dphead.privacy.statistic_base import Params
from dphead.solvers.on_device import own_settings
from dphead.sums.caches import KeptRows
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum, largest_norm

# Commands from process 0 to the others.
_SUM, _NORM, _RELEASED = range(3)
_LONGEST_WAIT = 7 * 24 * 3600 * 1000  # longest wait in milliseconds; chosen


# Combinations of all processes' values: named functions, which jax compiles once.
def _sum(values: Any) -> Any:
    return values.sum(axis=0)


def _first(values: Any) -> Any:
    return values[0]


def _all(values: Any) -> Any:
    return values


class LostProcess(OSError):
    """Report that the fit lost a process."""


class Hosts:
    """Exchange arrays and texts between the processes of a run.

    All processes must make the same calls in the same order.

    Parameters
    ----------
    index : int
        Index of this process. Process 0 leads.
    count : int
        Number of processes.
    """

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        self.count = count
        self._waits = 0
        self._compiled: dict[Callable[[Any], Any], Any] = {}

    @property
    def first(self) -> bool:
        """Return whether this process is process 0."""
        return self.index == 0

    def part(self, n_rows: int) -> tuple[int, int]:
        """Return this process's first row and the end of its rows (exclusive)."""
        start, stop = bounds(n_rows, self.count)[self.index : self.index + 2]
        return start, stop

    def everywhere(self, value: np.ndarray, combine: Callable[[Any], Any]) -> Any:
        """Return `combine` of all processes' values, stacked along the first axis.

        Raises LostProcess if a process was lost.
        """
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        # Sums are on the host, so one CPU device per process exchanges them, even with
        # accelerators.
        devices: dict[int, Any] = {}
        for device in jax.devices("cpu"):
            devices.setdefault(device.process_index, device)
        # one axis, so that a collective over it is a sum or a broadcast over processes
        mesh = Mesh(np.array([devices[i] for i in range(self.count)]), ("process",))
        shared = NamedSharding(mesh, PartitionSpec("process"))
        same = NamedSharding(mesh, PartitionSpec())
        shape = (self.count, *value.shape)
        try:
            # Without x64 jax would convert int64 to int32. Without jit each process
            # would get its own value only.
            with own_settings():
                mine = [jax.device_put(value[None], devices[self.index])]
                whole = jax.make_array_from_single_device_arrays(shape, shared, mine)
                # a new jit for each call would compile again for each release
                if combine not in self._compiled:
                    self._compiled[combine] = jax.jit(combine, out_shardings=same)
                found = self._compiled[combine](whole)
                return np.asarray(found.addressable_data(0))
        except Exception as error:  # jax's own error class has no public name
            raise self._lost(error) from error

    def wait(self) -> None:
        """Wait until all processes call this method, for at most a week.

        A sum waits for 30 minutes only, and jax's shutdown for 5 minutes. Raises
        LostProcess if a process was lost, or after the week.
        """
        from jax._src import distributed  # jax has no public barrier without a sum

        self._waits += 1
        try:
            client: Any = distributed.global_state.client
            client.wait_at_barrier(f"dphead {self._waits}", _LONGEST_WAIT)
        except Exception as error:  # jax's own error class has no public name
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> LostProcess:
        return LostProcess(
            f"The run lost one of its {self.count} processes "
            f"({str(error).splitlines()[0][:200]}). Start all processes again with "
            "the same commands. A fit with a run folder then resumes under its charge. "
            "A fit without a run folder is charged again."
        )

    def total(self, value: np.ndarray) -> np.ndarray:
        """Return the exact sum of all processes' int64 values."""
        return self.everywhere(value, _sum)

    def gathered(self, value: np.ndarray) -> np.ndarray:
        """Return all processes' values, stacked along the first axis."""
        return self.everywhere(value, _all)

    def from_first(self, value: np.ndarray) -> np.ndarray:
        """Return process 0's value, bit for bit, on all processes."""
        # Send integers, because an all-reduce of floats loses the sign of a zero.
        bits = np.ascontiguousarray(value).view(f"u{value.itemsize}")
        return self.everywhere(bits, _first).view(value.dtype)

    def bytes_from_first(self, own: bytes) -> bytes:
        """Return process 0's bytes on all processes. Only process 0's `own` is used."""
        (size,) = self.from_first(np.array([len(own)])).tolist()
        sent = own if self.first else bytes(size)
        if not size:
            return b""
        return self.from_first(np.frombuffer(sent, np.uint8)).tobytes()

    def texts(self, own: str) -> list[str]:
        """Return all processes' texts."""
        data = own.encode()
        sizes = self.gathered(np.array(len(data))).tolist()
        padded = np.frombuffer(data.ljust(max(sizes), b"\0"), np.uint8)
        every = self.gathered(padded)
        return [
            row[:size].tobytes().decode()
            for row, size in zip(every, sizes, strict=True)
        ]

    def next(
        self, kind: int, indices: np.ndarray | None, n_rows: int
    ) -> tuple[int, np.ndarray | None]:
        """Return process 0's next command and sample on all processes.

        Parameters
        ----------
        kind : int
            _SUM, _NORM or _RELEASED. Only process 0's value is used.
        indices : ndarray of int or None
            Positions of the sample's rows, or None for all. Only process 0's value is
            used.
        n_rows : int
            Total number of rows.
        """
        # The size of the message does not depend on the sample: one bit per row, so
        # 125 kB for a million rows.
        mask = np.zeros(n_rows, bool)
        if indices is not None:
            mask[indices] = True
        head = np.array([kind, indices is not None], np.uint8)
        told = self.from_first(np.concatenate([head, np.packbits(mask)]))
        sampled = np.flatnonzero(np.unpackbits(told[2:], count=n_rows))
        return int(told[0]), sampled if told[1] else None

    def share(self, released: Released, n_rows: int) -> Released:
        """Return process 0's released value on all processes.

        Other processes use only the shape of their `released`.
        """
        # The others wait in `follow` for a command. A resumed run may release a
        # committed value without a sum, so tell them.
        if self.first:
            self.next(_RELEASED, None, n_rows)
        # send value and noise_sd in one message, because each exchange takes a round
        # trip
        flat = np.append(released.value.ravel(), released.noise_sd)
        flat = self.from_first(flat)
        value = flat[:-1].reshape(released.value.shape)
        return Released(value, float(flat[-1]))


@contextmanager
def all_or_none(hosts: Hosts | None) -> Iterator[None]:
    """Run a block on each process, and raise an error on all if one block fails.

    Otherwise the other processes would wait for the one that failed, and would take the
    messages of its next fit for those of this fit. The block must not exchange
    messages.

    Raises
    ------
    LedgerError or ValueError
        If the block failed on another process only. It is a LedgerError if that process
        raised one, so that all processes can try another budget.
    """
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    if hosts is not None:
        hosts.wait()  # a block may take hours, but `gathered` waits only 30 minutes
        kind = 0 if own is None else 1 + isinstance(own, LedgerError)
        kinds = hosts.gathered(np.array(kind))
        if own is None and kinds.any():
            raised = LedgerError if kinds.max() == 2 else ValueError
            raise raised(
                f"Process {kinds.argmax()} stopped this fit before it began, so all "
                "processes stop. Read the error of that process."
            )
    if own is not None:
        raise own


def bounds(n_rows: int, processes: int) -> list[int]:
    """Return the bounds of the processes' parts of the rows.

    Process i holds the rows bounds[i] to bounds[i + 1] - 1.
    """
    # Python's integers: n_rows times processes cannot overflow
    return [i * n_rows // processes for i in range(processes + 1)]


class SumOfParts:
    """Sum the rows of all processes.

    Parameters
    ----------
    hosts : Hosts
        The processes.
    own : Rows
        This process's own part of the rows.

    Guarantee
    ---------
    Each row belongs to one part. The process with this part adds the row exactly once,
    or raises an error (`checked_sum`). If the release uses a sample, this holds for the
    sampled rows. Each process's sum is added once, in int64. In sums for heads, all
    parts have process 0's transform and weights.
    """

    def __init__(self, hosts: Hosts, own: Rows) -> None:
        self._hosts = hosts
        self._own = own
        # the key of kept rows has the transform's identity, so keep one object for it
        self._transform: tuple[Any, Any] = (None, None)

    def __call__(
        self, tasks: Sequence[SumTask], block_sum: BlockSum, kept: KeptRows = NO_ROWS
    ) -> list[np.ndarray]:
        """Return the sums over all processes' rows, on each process."""
        first = self._own_task(_SUM, tasks[0])
        own = [replace(first, statistic=task.statistic) for task in tasks]
        return [self._hosts.total(one) for one in checked_sum(own, block_sum, kept)]

    def largest_norm(self, task: SumTask, block_sum: BlockSum) -> float:
        """Return the largest norm among the rows of all processes."""
        norm = largest_norm(self._own_task(_NORM, task), block_sum)
        # Send the float's bits, so that all processes get exactly the same clip norm: a
        # row at the norm must not be clipped on one of them.
        every = self._hosts.gathered(np.array([norm]).view(np.int64))
        return float(every.view(np.float64).max())

    def _own_task(self, kind: int, task: SumTask) -> SumTask:
        """Return the task for this process's rows. Process 0 sends it."""
        assert task.rows is not None and task.spec is not None
        hosts, n_rows = self._hosts, task.rows.n_rows
        start, stop = hosts.part(n_rows)
        same_cap = self._own.group_cap == task.spec.group_cap
        if self._own.n_rows != stop - start or not same_cap:
            raise RuntimeError(
                f"Internal error: process {hosts.index} must hold rows {start} to "
                f"{stop - 1} under one group cap, got {self._own.n_rows} rows and the "
                f"cap {self._own.group_cap}. Please report it."
            )
        indices = task.indices
        # The others reach this line after `follow` received the command.
        if hosts.first:
            hosts.next(kind, indices, n_rows)
        # every process holds the whole sample, and takes the rows of its own part
        if indices is not None:
            indices = indices[(indices >= start) & (indices < stop)] - start
        params = self._params_of_first(task.params)
        return replace(task, rows=self._own, indices=indices, params=params)

    def _params_of_first(self, params: Params) -> Params:
        """Return process 0's transform and weights of a head, bit for bit.

        The last bits of weights can differ between processors, but all parts of a sum
        must have the same integer weights.
        """
        weights, transform = params.weights, params.transform
        if weights is not None and weights.ndim == 1:
            return params  # a network's weights, which have the same bits everywhere
        first = self._hosts.from_first
        if self._transform[0] is not transform:
            arrays = {"center": transform.center, "scale": transform.scale}
            sent = {k: None if v is None else first(v) for k, v in arrays.items()}
            self._transform = transform, replace(transform, **sent)
        weights = None if weights is None else first(weights)
        return replace(params, transform=self._transform[1], weights=weights)


def follow(tasks: Sequence[SumTask], summer: Any, hosts: Hosts) -> Iterator[Released]:
    """Take part in process 0's releases of one request, and yield the released values.

    Parameters
    ----------
    tasks : sequence of SumTask
        The releases requested by this process's solver. Process 0 sends their samples.
    summer : VerifiedSum
        This process's verified sum, with its `SumOfParts`.
    hosts : Hosts
        The processes.
    """
    rows = tasks[0].rows
    assert rows is not None
    n_rows, released = rows.n_rows, 0
    while released < len(tasks):
        kind, indices = hosts.next(_RELEASED, None, n_rows)
        if kind == _RELEASED:
            shape = tasks[released].shape(rows.n_features)
            yield hosts.share(Released(np.zeros(shape), 0.0), n_rows)
            released += 1
            continue
        tasks = [replace(task, indices=indices) for task in tasks]
        if kind == _NORM:
            # the same clip norm as `release` uses for fits without noise
            task = tasks[released]
            norm = summer.largest_norm(task)
            clip_norm = task.statistic.unclipped(norm, task.params)
            tasks = [replace(task, clip_norm=clip_norm) for task in tasks]
        else:
            # Drop the totals: only process 0 adds noise to them.
            summer.sums(tasks if indices is None else tasks[released : released + 1])
