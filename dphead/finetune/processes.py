"""Run one training on many processes with `torchrun`.

The first process samples, charges and adds noise; all processes sum gradients. De22
Algorithm 1 draws a share of the noise on each device. Here one process draws all noise.
The result equals the result of a run on one process. Rows are sent to the processes
block by block.
"""

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from dphead_extract.backbones.weights import first_line

from dphead.finetune.network import StepParams, TorchSums, network_rows, own_step
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.transform import RowTransform


def is_alone() -> bool:
    """Return whether no other process takes part in the training."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def join() -> int:
    """Join the other processes, and return this process's rank: 0 without torchrun.

    Gradients are sent over gloo, on every device.
    """
    if is_alone():
        return 0
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def local_device(device: str) -> str:
    """Return the device to use, with this process's GPU for "cuda".

    Raises ValueError if torch cannot use the device.
    """
    local = os.environ.get("LOCAL_RANK")
    return usable_device(
        f"cuda:{local}" if device == "cuda" and local is not None else device
    )


def usable_device(device: str) -> str:
    """Return the device to use, with a GPU for "auto" if there is one, else the CPU.

    Raises ValueError if torch cannot use the device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"--device must be a device that torch can use, got {device!r}: "
            f"{first_line(error)}. Use cpu, cuda or cuda:N."
        ) from error
    return device


def agreed(value: Any) -> Any:
    """Return the first process's value on all processes.

    Processes must agree, because a row's gradient must have the same bits on every
    process.
    """
    if not dist.is_initialized():
        return value
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


class SharedSums(TorchSums):
    """Sum gradients on all processes, as the `BlockSum` of each.

    The first process calls `add`, and the other processes call `serve`. Each process
    sums an equal part of a block's slots. Only the first process computes norms, for
    fits without privacy.
    """

    _sent: StepParams | None = None
    _step = StepParams()

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the block's clipped gradients to `out` (size,) int64."""
        if self.is_compared(ask.statistic):
            return super().add(ask, rows, y, used, out)
        params, weights = own_step(self.network, ask)
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

    def _part(
        self,
        weights: np.ndarray | None,
        step: int,
        clip_norm: float,
        x: np.ndarray,
        y: np.ndarray,
        index: np.ndarray,
        keep: np.ndarray,
    ) -> np.ndarray:
        """Return the sum of a part, or on the first process the total of all parts.

        `weights` are the weights of the step, or None if unchanged since the previous
        part.
        """
        if weights is not None:
            self._step = StepParams(RowTransform(), weights, step)
        statistic = self.network.statistic
        ask = SumTask(statistic, self._step, clip_norm)
        out = np.zeros(statistic.size, np.int64)
        total = torch.from_numpy(super().add(ask, Block(index, x, y), y, keep, out))
        dist.reduce(total, dst=0)
        return total.numpy()

    def serve(self) -> None:
        """Sum parts for the first process until it sends None."""
        while True:
            mine: list[Any] = [None]
            dist.scatter_object_list(mine, None, src=0)
            if mine[0] is None:
                _leave()
                return
            self._part(*mine[0])


def finish() -> None:
    """Tell the other processes to end, if this is the first process."""
    if dist.is_initialized() and dist.get_rank() == 0:
        dist.scatter_object_list([None], [None] * dist.get_world_size(), src=0)
        _leave()


def _leave() -> None:
    """Leave the process group when all processes do.

    A process that ends during communication can abort.
    """
    dist.barrier()
    dist.destroy_process_group()
