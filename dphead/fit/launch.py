"""Start the processes of a run on this host, and end them together."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

from dphead.fit.processes import REASON_READ_SECONDS

POLL_SECONDS = 0.05  # time between checks whether a process has ended; a choice
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def launch(count: int, command: list[str]) -> int:
    """Run `command` as `count` processes of this host and return their exit code.

    Each process gets its share of the cores. Only the first one's output is shown. If
    one ends with an error, the others are stopped. All are stopped if this process is
    killed.
    """
    # open until the processes have ended
    said = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
    running: list[subprocess.Popen[Any]] = []
    try:
        _start(running, count, command, said)
        while any(p.poll() is None for p in running) and not any(
            p.poll() for p in running
        ):
            time.sleep(POLL_SECONDS)
        bad = next((i for i, p in enumerate(running) if p.returncode), None)
        return 0 if bad is None else _failed(bad, running, said)
    finally:
        for p in running:
            p.kill()
            p.wait()
        for file in said:
            file.close()


def _start(
    running: list[subprocess.Popen[Any]],
    count: int,
    command: list[str],
    said: list[Any],
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = [
            "--coordinator",
            f"127.0.0.1:{free.getsockname()[1]}",
            "--num-processes",
            str(count),
        ]
    cores = sorted(os.sched_getaffinity(0))
    libc = ctypes.CDLL(None)
    for i in range(count):
        mine = cores[i::count] or cores
        quiet: dict[str, Any] = {} if i == 0 else {"stdout": said[i], "stderr": said[i]}
        arguments = [*command, *place, "--process-id", str(i)]
        begin = partial(_begin, libc, os.getpid(), mine)
        # own session: a signal from the terminal reaches the launcher, which ends all
        process = subprocess.Popen(
            arguments, preexec_fn=begin, start_new_session=True, **quiet
        )
        running.append(process)


def _begin(libc: Any, parent: int, cores: list[int]) -> None:
    """Set a new process's cores, and make it end with its parent.

    If the parent alone were killed, processes with private rows would stay.
    """
    os.sched_setaffinity(0, cores)
    libc.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _failed(bad: int, running: list[subprocess.Popen[Any]], said: list[Any]) -> int:
    """Wait for processes that know the reason, else print it; return the code."""
    count = len(running)
    # processes that learn of it end by themselves, the first with a message
    _wait(running, 3 * REASON_READ_SECONDS)
    code = running[bad].returncode
    if code < 0:
        print(
            f"Error: process {bad} of {count} was killed by signal {-code}.",
            file=sys.stderr,
        )
    elif running[0].poll() is None:
        said[bad].seek(0)
        text = said[bad].read().decode(errors="replace").strip()
        print(
            f"Error: process {bad} of {count} ended with exit code {code}: {text}",
            file=sys.stderr,
        )
    return code if code > 0 else 1


def _wait(running: list[Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(p.poll() is None for p in running) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
