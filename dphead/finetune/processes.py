"""Run one training on many processes (`torchrun`).

The first process samples, charges and adds noise; all processes sum gradients.
De22 Algorithm 1 draws each device's share of the noise on that device. Here one process
makes the one draw, so the result is that of one process. Rows are sent to the processes
block by block.
"""

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from dphead_extract.backbones.weights import first_line

from dphead.finetune.network import StepParams, TorchSums, network_rows, own_step
from dphead.privacy.contract import Block
from dphead.privacy.query import Statistic
from dphead.privacy.transform import RowTransform
from dphead.sums.reference import SumTask


def join() -> int:
    """Join the other processes, and return this one's rank: 0 without torchrun.

    Gradients are sent over gloo, on every device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def local_device(device: str) -> str:
    """Return the device to use: "cuda" becomes this process's own GPU.

    Raises ValueError if torch cannot use the device.
    """
    local = os.environ.get("LOCAL_RANK")
    return usable_device(
        f"cuda:{local}" if device == "cuda" and local is not None else device
    )


def usable_device(device: str) -> str:
    """Return the device to use: "auto" becomes a GPU if there is one, else the CPU.

    Raises ValueError if torch cannot use the device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device must be one that torch can use, got {device=}: "
            f"{first_line(error)}. Use cpu, cuda or cuda:N."
        ) from error
    return device


def agreed(value: Any) -> Any:
    """Return the first process's value on all processes.

    A row's gradient must have the same bits on whichever process it is computed.
    """
    if not dist.is_initialized():
        return value
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


class SharedSums:
    """Sum gradients on all processes (the `BlockSum` of the first process).

    Each process gets an equal part of a block's slots.
    """

    parallel = False

    def __init__(self, sums: TorchSums) -> None:
        self._part, self._sent = _PartSum(sums), None

    def is_compared(self, query: Statistic) -> bool:
        """Return the same as `TorchSums`."""
        return self._part.sums.is_compared(query)

    def rows(self, ask: SumTask, block: Block) -> Any:
        """Return the same as `TorchSums`."""
        return self._part.sums.rows(ask, block)

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the same as `TorchSums`, computed on this process alone.

        Only fits without privacy need norms.
        """
        return self._part.sums.norms(ask, block)

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the block's clipped gradients to `out` (size,) int64."""
        sums = self._part.sums
        if sums.is_compared(ask.query):
            return sums.add(ask, rows, y, used, out)
        params, weights = own_step(sums.network, ask)
        x = network_rows(params.transform, rows.x)
        weights = None if params is self._sent else weights
        self._sent = params
        slots = np.array_split(np.arange(len(x)), dist.get_world_size())
        known = (weights, params.step, ask.clip_norm)
        columns = (x, y, rows.index, used)
        parts = [(*known, *(column[s] for column in columns)) for s in slots]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, parts, src=0)
        out += self._part(*mine[0])
        return out


def shared(sums: TorchSums) -> "TorchSums | SharedSums":
    """Return the sums of all processes; without torchrun, this process's own."""
    return SharedSums(sums) if dist.is_initialized() else sums


def serve(sums: TorchSums) -> None:
    """Sum what the first process sends, until it says that it has finished."""
    part = _PartSum(sums)
    while True:
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, None, src=0)
        if mine[0] is None:
            _leave()
            return
        part(*mine[0])


def finish() -> None:
    """Tell the other processes to end. Only the first process does so."""
    if dist.is_initialized() and dist.get_rank() == 0:
        dist.scatter_object_list([None], [None] * dist.get_world_size(), src=0)
        _leave()


def _leave() -> None:
    """Leave the group together.

    A process that ends while others still talk to it can abort.
    """
    dist.barrier()
    dist.destroy_process_group()


class _PartSum:
    """Sum this process's part, and add up all processes' sums on the first."""

    def __init__(self, sums: TorchSums) -> None:
        self.sums, self._params = sums, StepParams()

    def __call__(
        self,
        weights: np.ndarray | None,
        step: int,
        clip_norm: float,
        x: np.ndarray,
        y: np.ndarray,
        index: np.ndarray,
        keep: np.ndarray,
    ) -> np.ndarray:
        """Return the sum of a part; on the first process, that of all parts.

        `weights` are the step's, or None if they are those of the part before.
        """
        if weights is not None:
            self._params = StepParams(RowTransform(), weights, step)
        query = self.sums.network.query
        ask = SumTask(query, self._params, None, clip_norm)
        out = self.sums.add(
            ask, Block(index, x, y), y, keep, np.zeros(query.size, np.int64)
        )
        total = torch.from_numpy(out)
        dist.reduce(total, dst=0)
        return total.numpy()
