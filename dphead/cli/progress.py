"""Show a command's progress on standard error: a bar on a terminal, else plain lines.

Only a terminal gets control characters. Callers must not pass private values.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from dphead_extract.safe_text import one_line

LINE_EVERY = 15.0  # seconds between lines if there is no terminal; chosen
# variables that torchrun, SLURM and Open MPI set to a process's number
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class Progress:
    """Show the current phase and how much of it is done.

    The object is a callback (done, total, label) for `fit_files` and `extract`. The
    label is optional. None as total means unknown. If not `visible`, the object shows
    nothing.
    """

    def __init__(self, label: str, visible: bool, bar: Any = None) -> None:
        self._label, self._visible, self._bar = label, visible, bar
        self._began = self._told = time.monotonic()

    def __call__(self, done: int, total: int | None, label: str | None = None) -> None:
        """Update the bar. Without a terminal, print a line after LINE_EVERY seconds."""
        self._label = label or self._label
        now = time.monotonic()
        if self._bar is not None:
            (task,) = self._bar.tasks
            task.total = total  # `update` takes None for no change
            shown = one_line(self._label)
            self._bar.update(task.id, description=shown, completed=done)
        elif self._visible and now - self._told >= LINE_EVERY:
            self._told = now
            counted = "" if total is None else f" {done} of {total}"
            click.echo(f"{self._label}{counted} ({now - self._began:.0f} s)", err=True)

    def begin(self, label: str) -> None:
        """Start a phase of unknown length."""
        self(0, None, label)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar in a block that prints, or that asks the user."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    def say(self, text: str) -> None:
        """Print text to standard output, above the bar if one is shown."""
        with self.paused():
            click.echo(text)


class _Drawing:
    """Write a bar's control codes to a stream that escapes those of other text."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write = getattr(stream, "draw", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_first() -> bool:
    """Return whether this is the first process of a command."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


@contextmanager
def shown(label: str, first: bool = True) -> Iterator[Progress]:
    """Yield a `Progress`, and show it until the block ends.

    Parameters
    ----------
    label : str
        Name of the first phase.
    first : bool, default True
        Pass False on processes that must show nothing. `is_first` is checked too.
    """
    visible = first and is_first()
    if not (visible and sys.stderr.isatty()):
        yield Progress(label, visible)
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    console = Console(file=_Drawing(sys.stderr), highlight=False)  # type: ignore[arg-type]
    with rich.Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(label, total=None)
        yield Progress(label, visible, bar)
