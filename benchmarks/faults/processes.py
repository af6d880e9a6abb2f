"""Run commands in processes that are killed, or get a full disk, at an event.

An event is an SQL statement, or a file opened for writing, renamed, removed or flushed,
or a folder made or removed, in the folder of the try.
"""

import io
import multiprocessing
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.event import listen

from dphead.__main__ import Interrupted, about_charge, handle_signals

SECONDS = 600  # time limit of a command that is not interrupted
ROOM = 4 << 30  # bytes of memory that a command may take beyond its libraries
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["benchmarks.faults.loaded"]
AUDITED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


class Ended(NamedTuple):
    """Hold a command's exit code, its number of events and its output.

    A negative exit code is the signal that killed the command.
    """

    code: int
    events: int
    said: str


class Strike(NamedTuple):
    """Describe what happens at the count-th event with `text` in its description.

    how: "kill" (SIGKILL), "stop" (SIGTERM), "full" (no file can be written from then
    on), or "never".
    """

    count: int = 1
    text: str = ""
    how: str = "kill"


NEVER = Strike(how="never")
kill_at = partial(Strike, how="kill")
stop_at = partial(Strike, how="stop")
full_at = partial(Strike, how="full")


def started(
    folder: Path,
    arguments: tuple[str, ...],
    strike: Strike = NEVER,
    env: dict[str, str] | None = None,
) -> Any:
    """Start a process that runs `dphead arguments` until it ends or is interrupted.

    `env` has environment variables; "" removes one. DPHEAD_LEDGER is inherited. The
    command may take ROOM bytes of memory beyond its libraries.
    """
    FORKS.set_forkserver_preload(PRELOADED)
    ours, theirs = FORKS.Pipe(duplex=False)
    env = {"DPHEAD_LEDGER": os.environ.get("DPHEAD_LEDGER", "")} | (env or {})
    given = (folder, arguments, strike, env, theirs)
    process: Any = FORKS.Process(target=_once, args=given)
    process.answer = ours
    process.start()
    theirs.close()
    return process


def ended(process: Any) -> Ended:
    """Wait for a process. Raise AssertionError if it takes more than SECONDS."""
    answer = None
    with suppress(EOFError):
        if not process.answer.poll(SECONDS):
            process.kill()
            raise AssertionError(f"a command must end in {SECONDS} s")
        answer = process.answer.recv()
    process.answer.close()
    process.join()
    return answer or Ended(process.exitcode, 0, "")


def run_to_end(folder: Path, arguments: tuple[str, ...]) -> Ended:
    """Run a command to its end, without interruption."""
    return ended(started(folder, arguments))


def _once(
    folder: Path,
    arguments: tuple[str, ...],
    strike: Strike,
    env: dict[str, str],
    pipe: Any,
) -> None:
    """Run `dphead arguments` in the child process, and count its events."""
    os.environ |= {"DPHEAD_HOME": str(folder / "home")} | env
    for name in [name for name, value in env.items() if not value]:
        del os.environ[name]
    os.chdir(folder)
    _bound_memory()
    seen = [0, 0]  # events, and those that the strike counts

    def event(description: str) -> None:
        seen[0] += 1
        seen[1] += strike.text in description
        if seen[1] == strike.count and strike.text in description:
            _struck(strike.how)

    _watch(folder, event)
    handle_signals()
    code, said = _captured(arguments)
    pipe.send(Ended(code, seen[0], said))
    pipe.close()
    os._exit(0)


def _struck(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "full":
        # any write to a file fails from now on, also those of SQLite and HDF5
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


def _captured(arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run `dphead arguments` in this process, and return its exit code and output.

    The output of an uncaught error is its traceback.
    """
    import traceback

    from dphead.cli import main

    sys.argv = ["dphead", *arguments]
    code = 0
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        except Interrupted as error:
            code = 128 + signal.SIGTERM
            print(about_charge(error))
        except BaseException:
            traceback.print_exc()
            code = 1
    return code, stream.getvalue()


def _watch(folder: Path, event: Callable[[str], None]) -> None:
    """Call `event` before each SQL statement and change of a file in the folder."""
    inside = str(folder)

    def audited(name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            path, mode, flags = args
            writes = isinstance(mode, str) and any(c in mode for c in "wax+")
            writes |= mode is None and bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            path, writes = args[:1][0] if name in AUDITED else "", name in AUDITED
        if writes and os.path.abspath(str(path)).startswith(inside):
            event(f"{name} {os.path.abspath(str(path))}")

    flush, connect = os.fsync, sqlite3.connect

    def fsync(descriptor: int) -> None:
        event(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        flush(descriptor)

    def connected(*args: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*args, **more)
        connection.set_trace_callback(lambda text: event(f"sql {text}"))
        return connection

    def executed(connection: Any, _: Any, text: str, *more: Any) -> None:
        if connection.dialect.name == "postgresql":
            event(f"sql {text}")

    os.fsync = fsync
    sqlite3.connect = connected  # type: ignore[assignment]
    listen(Engine, "before_cursor_execute", executed)
    listen(Engine, "commit", lambda one: executed(one, None, "COMMIT"))
    sys.addaudithook(audited)


def _bound_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, hard))


def killed_after(process: Any, seconds: float) -> None:
    """Kill a process after some seconds."""
    time.sleep(seconds)
    process.kill()
    process.join()
    process.answer.close()
