"""Find the place of a process under `torchrun`, and its device.

`dphead.fit.processes` connects the processes, as for heads. Every process sums the
gradients of its own images. De22 Algorithm 1 draws a share of the noise on each device.
Here process 0 draws all noise, as if there were one process.
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from dphead_extract.backbones.weights import first_line
from torch.distributed import (
    TCPStore,  # pyright: ignore[reportPrivateImportUsage] - documented
)

from dphead.fit.options import Place

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


def refuse_processes() -> None:
    """Raise ValueError if torchrun or a torch group has several processes.

    With `PrivateTraining`, each process would charge and release a separate training.
    """
    others = os.environ.get("WORLD_SIZE", "") not in ("", "1")
    if others or (
        dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    ):
        raise ValueError(
            "`PrivateTraining` runs in one process, and this process is one of "
            "several. Start one process with WORLD_SIZE unset, or use `dphead "
            "finetune`."
        )


def torchrun_place() -> Place | None:
    """Return this process's place under torchrun, or None if it is the only process.

    Processes of one torchrun command, or of a loopback MASTER_ADDR, connect on
    loopback.

    Raises
    ------
    ValueError
        If a variable of torchrun is missing, or process 0 publishes no address.
    """
    given = {name: os.environ.get(name, "") for name in _NAMES}
    if given["WORLD_SIZE"] in ("", "1"):
        return None
    if missing := [name for name, value in given.items() if not value]:
        raise ValueError(
            f"{', '.join(missing)} is not set, but WORLD_SIZE is "
            f"{given['WORLD_SIZE']}. Start all processes with torchrun, or unset "
            "WORLD_SIZE."
        )
    rank, count = int(given["RANK"]), int(given["WORLD_SIZE"])
    host, port = given["MASTER_ADDR"], given["MASTER_PORT"]
    one_host = os.environ.get("LOCAL_WORLD_SIZE") == given["WORLD_SIZE"]
    one_host |= Place(f"{host}:{port}").local
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = _published(rank, host, int(port), one_host).rsplit(":", 1)
    # other hosts can reach torchrun's port: on one host, take no address from there
    return Place(f"{'127.0.0.1' if one_host else host}:{port}", count, rank)


def _published(rank: int, host: str, port: int, one_host: bool) -> str:
    """Return host:port of process 0, which it publishes through torchrun.

    torchrun itself listens on MASTER_PORT, so process 0 needs another port.
    """
    key = f"dphead {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        store = TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=Place.timeout)
        )
        if rank == 0:
            # gloo listens on this address too
            own = socket.gethostbyname(
                "localhost" if one_host else socket.gethostname()
            )
            with socket.socket() as free:
                free.bind((own, 0))
                store.set(key, f"{own}:{free.getsockname()[1]}")
        return store.get(key).decode()
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"process {rank} found no address of process 0 at torchrun's {host}:{port} "
            f"({first_line(error)}). Start all processes with one torchrun command, "
            "and make each host's name resolve to an address of this host."
        ) from error


def usable_device(device: str) -> str:
    """Return the device to use. "auto" means a GPU if there is one, else the CPU.

    Raises ValueError if torch cannot use the device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"torch cannot use --device {device} ({first_line(error)}). Use cpu, cuda "
            "or cuda:N."
        ) from error
    return device
