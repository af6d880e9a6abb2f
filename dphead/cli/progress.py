"""Show a command's progress on standard error: a bar on a terminal, else plain lines.

Work of less than two seconds shows no progress. Only a terminal gets control
characters. Callers must not pass private values.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

import click

SHOWN_AFTER = 2.0  # seconds; chosen, not measured
LINE_EVERY = 15.0  # seconds between lines where there is no terminal; chosen
# variables that torchrun, SLURM and Open MPI set to a process's number
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class Progress:
    """Hold the current phase and how much of it is done.

    The object is a callback (done, total, label) for `fit_files` and `extract`. The
    label is optional. None as total means unknown.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.done = 0
        self.total: int | None = None
        self.bar: Any = None  # the bar, while one is on the screen
        self.lock = Lock()

    def __call__(self, done: int, total: int | None, label: str | None = None) -> None:
        """Update the progress, as often as the working code calls this."""
        self.done = done
        self.total = total
        self.label = label or self.label

    def begin(self, label: str) -> None:
        """Start a phase of unknown length."""
        self(0, None, label)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar in a block that prints, or that asks the user."""
        with self.lock:
            if self.bar is not None:
                self.bar.stop()
            yield
            if self.bar is not None:
                self.bar.start()

    def say(self, text: str) -> None:
        """Print text to standard output, above the bar if one is shown."""
        with self.paused():
            click.echo(text)

    def line(self, seconds: float) -> str:
        """Return the progress as a line of text."""
        counted = "" if self.total is None else f" {self.done} of {self.total}"
        return f"{self.label}{counted} ({seconds:.0f} s)"


def is_first() -> bool:
    """Return whether this is the first process of a command."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


@contextmanager
def shown(label: str, first: bool = True) -> Iterator[Progress]:
    """Yield a `Progress`, and show it from the third second until the block ends.

    Parameters
    ----------
    label : str
        Name of the first phase.
    first : bool, default True
        Pass False on processes that must show nothing. `is_first` is checked too.
    """
    from rich.console import Console

    state = Progress(label)
    if not (first and is_first()):
        yield state
        return
    console = Console(stderr=True, highlight=False)
    show = _bar if console.is_terminal else _lines
    ended = Event()
    thread = Thread(target=show, args=(state, ended, console), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        ended.set()
        thread.join()


def _lines(state: Progress, ended: Event, _: Any) -> None:
    """Print a line after two seconds and every 15 seconds, until the work ends."""
    began = time.monotonic()
    wait = SHOWN_AFTER
    while not ended.wait(wait):
        click.echo(state.line(time.monotonic() - began), err=True)
        wait = LINE_EVERY


def _bar(state: Progress, ended: Event, console: Any) -> None:
    """Show a bar from the third second until the work ends."""
    from rich import progress as rich

    if ended.wait(SHOWN_AFTER):
        return
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[counted]}"),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    bar = rich.Progress(*columns, console=console, transient=True)
    task = bar.add_task(state.label, total=None, counted="")
    with state.lock:
        bar.start()
        state.bar = bar
    while not ended.wait(0.1):
        counted = "" if state.total is None else f"{state.done}/{state.total}"
        bar.update(
            task,
            description=state.label,
            completed=state.done,
            total=state.total,
            counted=counted,
        )
    with state.lock:
        state.bar = None
        bar.stop()
