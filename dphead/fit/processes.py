"""Start and connect the processes of one fit, and end them if one is lost."""

import errno
import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from dphead.sums.hosts import Hosts, LostProcess


@dataclass(frozen=True)
class Place:
    """Hold this process's place among the processes of a run.

    Attributes
    ----------
    coordinator : str
        host:port of process 0, or "auto" to detect it with `jax.distributed` (such as
        under SLURM). With "auto", `count` and `index` may be None.
    count : int or None
        Number of processes.
    index : int or None
        Index of this process, from 0 to count - 1.
    timeout : float
        Seconds to wait for all processes to connect.
    """

    coordinator: str
    count: int | None = None
    index: int | None = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.coordinator == "auto":
            return
        given = self.count is not None and self.index is not None
        if not given or not 0 <= (self.index or 0) < (self.count or 0):
            count, own = ("none" if v is None else v for v in (self.count, self.index))
            raise ValueError(
                "--coordinator needs --num-processes N and --process-id from 0 to "
                f"N - 1, got {count} and {own}. Pass both, or use --coordinator auto "
                "under SLURM or Open MPI."
            )
        if not self.coordinator.rpartition(":")[2].isdecimal():
            raise ValueError(
                "--coordinator must be host:port or auto, got "
                f"{self.coordinator!r}. Add a port, such as host0:8476."
            )

    @property
    def local(self) -> bool:
        """Return whether all processes run on this host."""
        host = self.coordinator.rpartition(":")[0].strip("[]")
        return host in ("127.0.0.1", "localhost", "::1")


@contextmanager
def joined(place: Place, only_cpu: bool) -> Iterator[Hosts]:
    """Connect the processes of a run until the block ends.

    An exception ends this process at once, with exit code 1 or 2. The other processes
    detect the loss and end too.

    Parameters
    ----------
    place : Place
        This process's place.
    only_cpu : bool
        Whether jax must use the CPU.

    Raises
    ------
    ValueError
        If process 0 cannot listen, processes do not connect in time, or "auto" finds no
        coordinator.
    """
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if only_cpu:
        jax.config.update("jax_platforms", "cpu")
    if place.local:
        _sum_on_loopback()
    known: dict[str, Any] = {}
    if place.coordinator != "auto":
        bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", place.coordinator)
        if place.index == 0:
            _check_free(bound)
        known = {
            "coordinator_address": place.coordinator,
            "coordinator_bind_address": bound,
            "num_processes": place.count,
            "process_id": place.index,
        }
    try:
        jax.distributed.initialize(**known, initialization_timeout=int(place.timeout))
    except Exception as error:  # jax's own error class has no public name
        die(
            2,
            f"not all processes reached {place.coordinator} within {place.timeout:g} s "
            f"({str(error).splitlines()[0][:200]}). Start each process with another "
            "--process-id and with the address of process 0. Under SLURM or Open MPI, "
            "use --coordinator auto.",
        )
    try:
        yield Hosts(jax.process_index(), jax.process_count())
    except Exception as error:
        wrong = isinstance(error, ValueError | OSError)
        lost = isinstance(error, LostProcess)
        die(2 if wrong and not lost else 1, str(error) or type(error).__name__)
    jax.distributed.shutdown()


def agree(hosts: Hosts, facts: dict[str, str]) -> None:
    """Check that all processes hold the same facts.

    Raises
    ------
    ValueError
        If a field differs. The message names the first one, without the value of
        "features".
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in facts.values()]
    own = np.frombuffer(b"".join(digests), np.uint8).reshape(len(facts), -1)
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # gloo prints a connection message on standard output
    every = hosts.gathered(own)
    os.dup2(out, 1)
    os.close(out)
    for i, theirs in enumerate(every):
        for name, value, mine, other in zip(
            facts, facts.values(), every[0], theirs, strict=True
        ):
            if not np.array_equal(mine, other):
                here = f" ({value} on process {hosts.index})"
                here = "" if name == "features" else here
                raise ValueError(
                    f"process {i} and process 0 differ in {name}{here}. Use the same "
                    "file, settings and software on all hosts."
                )


def software() -> dict[str, str]:
    """Return the software versions that must be equal on all processes.

    Processors may differ, because a row's integers do not depend on them.
    """
    names = ("dphead", "numpy", "jax")
    return {"version": " ".join(f"{name} {version(name)}" for name in names)}


def die(code: int, text: str) -> None:
    """End the process at once with an exit code and a message.

    A regular shutdown of jax would wait for lost processes.
    """
    # A progress bar may have hidden the cursor.
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{shown}\nError: {' '.join(text.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def _check_free(address: str) -> None:
    """Raise ValueError if process 0 cannot listen at host:port.

    Without this check, jaxlib would crash.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
    except (OSError, OverflowError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        todo = "Choose another port" if in_use else "Type an address of this host"
        raise ValueError(
            f"process 0 cannot listen at --coordinator {address} ({error}). {todo}."
        ) from error


def _sum_on_loopback() -> None:
    """Make sums between processes of one host listen on loopback.

    By default gloo listens on the address of the host's name, where others could read
    sums without noise. jax has no public setting for this.
    """
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    def make() -> Any:
        client = distributed.global_state.client
        collectives = _jax.make_gloo_tcp_collectives(
            distributed_client=client, hostname="127.0.0.1"
        )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)
