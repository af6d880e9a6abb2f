"""Connect the processes of a run: which address they listen on, what fails and why.

jax neither encrypts nor authenticates: whoever reaches a port takes part
(docs/many-hosts.md). So nothing may listen on an address that the user did not name.
"""

import ctypes
import errno
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

# Both are choices, not measured.
LATER_SECONDS = 3600  # jax gives up this much later: its error names no address
ANSWER_SECONDS = 5  # a listening address accepts a connection within this time
_ABORTED = (
    b"\nError: the processes of this run lost one another, or two have the same "
    b"--process-id; jax's lines above say which. What was charged stays charged: give "
    b"the same command again, and it continues under that charge.\n"
)


@dataclass(frozen=True)
class Place:
    """Give this process's place among those of a run.

    Attributes
    ----------
    coordinator : str
        host:port of process 0, or "auto" for what `jax.distributed` finds (from SLURM,
        for example). With "auto", `count` and `index` may be None.
    count : int or None
        Number of processes.
    index : int or None
        This process, from 0 to count - 1.
    timeout : float
        Seconds within which all processes must have connected.
    """

    coordinator: str
    count: int | None = None
    index: int | None = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        given = self.count is not None and self.index is not None
        if self.coordinator != "auto" and (
            not given or not 0 <= (self.index or 0) < (self.count or 0)
        ):
            raise ValueError(
                "a process needs its number and how many there are, 0 <= process_id < "
                f"num_processes, got num_processes={self.count}, "
                f"process_id={self.index}. Give both."
            )
        if (
            self.coordinator != "auto"
            and not self.coordinator.rpartition(":")[2].isdecimal()
        ):
            raise ValueError(
                f"coordinator must be host:port or auto, got {self.coordinator!r}. Add "
                "the port."
            )

    @property
    def host(self) -> str:
        """Return the coordinator's host, without its port."""
        return self.coordinator.rpartition(":")[0].strip("[]")

    @property
    def local(self) -> bool:
        """Return whether all processes run on this host.

        Nothing listens beyond it then.
        """
        return self.host in ("127.0.0.1", "localhost", "::1")


def require_jax(what: str) -> None:
    """Raise ValueError if jax is not installed; `what` needs it."""
    if find_spec("jax") is None:
        raise ValueError(
            f"{what} needs jax, got none. Install it: pip install 'dphead[jax]'."
        )


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _say_aborted(_: int) -> None:
    """Print why the process ends, then end it."""
    os.write(2, _ABORTED)
    os._exit(1)


def explain_aborts(on: bool) -> None:
    """Set whether a process that jaxlib aborts prints the reason first.

    jaxlib raises no error there: it aborts the process.
    """
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, _say_aborted if on else ctypes.c_void_p(0))


def connect(place: Place, only_cpu: bool) -> tuple[Any, int, int, str]:
    """Connect this process to the others of the run.

    Returns
    -------
    (store, int, int, str)
        jax's key-value store, the number of processes, this one's index, and the
        address.

    Raises
    ------
    ValueError
        If process 0 cannot listen, or "auto" finds no coordinator.

    Notes
    -----
    It ends this process if not all processes come in time.
    """
    require_jax("a fit on several processes")
    import jax
    from jax._src.distributed import global_state  # the store has no public name

    explain_aborts(True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if only_cpu:
        jax.config.update("jax_platforms", "cpu")
    if place.local:
        _sum_on_loopback()
    known: dict[str, Any] = {}
    if place.coordinator != "auto":
        bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", place.coordinator)
        if place.index == 0:
            check_free(bound)
        known = {
            "coordinator_address": place.coordinator,
            "coordinator_bind_address": bound,
            "num_processes": place.count,
            "process_id": place.index,
        }
    failed: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                **known, initialization_timeout=int(place.timeout) + LATER_SECONDS
            )
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    thread.join(place.timeout)
    address = global_state.coordinator_address or place.coordinator
    if thread.is_alive():
        _not_in_time(address, place, place.count or global_state.num_processes)
    if failed:
        raise ValueError(
            "processes need a coordinator, which auto finds under SLURM or Open MPI, "
            f"got {place} ({failed[0]}). Give --coordinator host:port, --num-processes "
            "and --process-id."
        )
    return global_state.client, jax.process_count(), jax.process_index(), str(address)


def _sum_on_loopback() -> None:
    """Make sums between processes of one host listen on loopback.

    gloo would otherwise take the address of the host's own name.
    """
    from jax._src import distributed, xla_bridge  # neither has a public name
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    def make() -> Any:
        client = distributed.global_state.client
        collectives = _jax.make_gloo_tcp_collectives(
            distributed_client=client, hostname="127.0.0.1"
        )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def check_free(address: str) -> None:
    """Raise ValueError unless process 0 can listen at host:port; jaxlib would crash."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
    except (OSError, OverflowError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        todo = "Choose another port" if in_use else "Name this host's own address"
        raise ValueError(
            "process 0 must be able to listen where --coordinator says, got "
            f"{address!r} ({error}). {todo}."
        ) from error


def _not_in_time(address: str, place: Place, count: int | None) -> None:
    """End the process, and say why the others were not reached."""
    why = "not all have come, or two have the same --process-id"
    if not _answers(address):
        why = "process 0 does not answer there"
    die(
        2,
        (
            f"{count} processes must reach {address} within {place.timeout:g} s: "
            f"{why}. Check host, port, network."
        ),
    )


def _answers(address: str) -> bool:
    """Return whether host:port accepts a connection."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection(
            (host.strip("[]"), int(port)), timeout=ANSWER_SECONDS
        ).close()
    except (OSError, ValueError):
        return False
    return True


def die(code: int, text: str) -> None:
    """End the process at once with an exit code and a message.

    An orderly end of jax would wait for processes that are gone.
    """
    # a progress bar may have hidden the cursor
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{shown}\nError: {' '.join(text.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)
