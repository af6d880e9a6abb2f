"""Connect and compare the processes of one fit, and end them if one is lost."""

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
from dphead_extract.declared import settings_of

from dphead.fit.options import Place, RunOptions
from dphead.sums.hosts import Hosts, LostProcess

# values that `agree` does not print: digests, and the number of rows, which is private
# under add_remove
_NOT_SHOWN = {
    *("n_rows", "features", "labels", "config", "settings", "weights"),
    "ledger",
    "gradients of random images",
}


@contextmanager
def joined(place: Place, only_cpu: bool) -> Iterator[Hosts]:
    """Connect the processes of a run until the block ends.

    If the processes do not connect in time, or the block raises an exception, this
    process ends at once with exit code 1 or 2. The other processes detect the loss and
    end too.

    Parameters
    ----------
    place : Place
        This process's place.
    only_cpu : bool
        Whether jax must use the CPU.

    Raises
    ------
    ValueError
        If process 0 cannot listen at its address.
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
        _die(
            2,
            f"not all processes reached {place.coordinator} within {place.timeout:g} s "
            f"({str(error).splitlines()[0][:200]}). Start each process with "
            "--process I/N@HOST:PORT, with a different I for each, and the address of "
            "process 0. Under SLURM or Open MPI, use --process auto.",
        )
    try:
        hosts = Hosts(jax.process_index(), jax.process_count())
        _connect(hosts)
        yield hosts
        hosts.wait()  # wait until process 0 has measured and written the results
    except Exception as error:
        wrong = isinstance(error, ValueError | OSError)
        lost = isinstance(error, LostProcess)
        _die(2 if wrong and not lost else 1, str(error) or type(error).__name__)
    jax.distributed.shutdown()


def _connect(hosts: Hosts) -> None:
    """Connect all processes, and send the line that gloo prints on stdout to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    hosts.gathered(np.zeros(1, np.int64))
    os.dup2(out, 1)
    os.close(out)


def agree(hosts: Hosts, facts: Mapping[str, str | list[str]]) -> None:
    """Compare the inputs of all processes before the charge.

    Parameters
    ----------
    hosts : Hosts
        The processes.
    facts : dict
        Values that must be equal on all processes, by name. A list has one digest for
        each process: entry i is the digest of the rows that process i sums. Process 0
        has all entries, and the others need only their own. Lists and numbers of rows
        are private, and not printed.

    Raises
    ------
    ValueError
        If an entry differs. All processes raise it, with the first name that differs.
    """
    first, *others = map(json.loads, hosts.texts(json.dumps(facts)))
    for i, other in enumerate(others, 1):
        for name in {**first, **other}:
            # a different version may send different names
            ours, theirs = first.get(name), other.get(name)
            if isinstance(ours, list) and isinstance(theirs, list):
                ours, theirs = (given[i : i + 1] for given in (ours, theirs))
            if ours == theirs:
                continue
            shown = isinstance(ours, str) and name not in _NOT_SHOWN
            values = f" ({theirs} and {ours})" if shown else ""
            raise ValueError(
                f"process {i} and process 0 differ in {name}{values}. Use the same "
                "files, options and software on all hosts."
            )


def given_options(options: RunOptions) -> dict[str, str]:
    """Return the options that all processes of a run must share, as text by name.

    Options that are declared as not shared (`Setting.shared`) are left out, and so is
    `processes`.
    """
    given, declared = dict(vars(options)), settings_of(type(options))
    settings = given.pop("settings")
    if not isinstance(settings, dict):
        declared |= settings_of(type(settings))
        settings = vars(settings)
    own = {name for name, one in declared.items() if not one.setting.shared}
    names = sorted({*given, *settings} - own - {"processes"})
    values = given | settings
    return {f"settings: --{n.replace('_', '-')}": str(values[n]) for n in names}


def software(*more: str) -> dict[str, str]:
    """Return the versions of libraries that must be equal on all processes."""
    names = ("dphead", "numpy", "jax", *more)
    return {"version": " ".join(f"{name} {version(name)}" for name in names)}


def _die(code: int, text: str) -> None:
    """End the process at once with an exit code and a message.

    A regular shutdown of jax would wait for lost processes.
    """
    # A progress bar may have hidden the cursor.
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h")
    print(f"\nError: {' '.join(text.split())}", file=sys.stderr, flush=True)
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
            f"process 0 cannot listen at {address} ({error}). {todo}."
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
