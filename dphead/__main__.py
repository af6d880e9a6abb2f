"""Run the `dphead` command, with its signals, streams and exit codes.

Signal handlers are installed before the imports that take seconds.
"""

import codecs
import io
import os
import signal
import sys
import traceback
from typing import Any

from dphead_extract.safe_text import printable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# seconds until `Interrupted` is raised again, if a library dropped it; chosen, longer
# than a regular exit
_AGAIN_AFTER = 1.0
_UNCHARGED = "nothing was charged by this process. Run the same command again."


class Interrupted(BaseException):
    """Report that a signal asks the process to end."""


class _Output(io.FileIO):
    """Wrap a standard stream, and keep the command running if the stream fails.

    A closed pipe (`dphead ... | head`) is ignored. `failed` is the first other error,
    such as a full disk.
    """

    failed: OSError | None = None

    def write(self, data: Any) -> int | None:
        """Write bytes, or drop them if the stream failed."""
        try:
            return super().write(data)
        except BrokenPipeError:
            pass
        except OSError as error:
            self.failed = self.failed or error
        return len(data)


class _Screen(io.TextIOWrapper):
    """Write text with escaped control characters (`printable`).

    File names, class names and server messages can contain control characters.
    """

    def write(self, text: str, /) -> int:
        """Write the printable text."""
        # downloads show progress by writes that begin with a carriage return
        start = "\r" if text.startswith("\r") else ""
        return super().write(start + printable(text.removeprefix("\r")))

    def draw(self, text: str) -> int:
        """Write the text of a progress bar, with its control characters."""
        return super().write(text)


def main() -> None:
    """Run the command line and end the process.

    The exit code is 2 for any error, including bugs and a failed standard output. If a
    signal ends the command, the code is 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).
    Otherwise it is the command's own exit code. A fit on several processes can end with
    1 (`processes.joined`).
    """
    received = handle_signals()
    output = _tolerant_streams()
    told = _UNCHARGED
    try:
        code = _run()
    except BaseException as error:
        code = 2
        told = about_charge(error) or _UNCHARGED
        if not received:
            traceback.print_exc()
    for number in (*_SIGNALS, signal.SIGALRM):  # the command has ended: ignore signals
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    if received and code:
        print(f"Ended by {received[0].name}: {told}", file=sys.stderr, flush=True)
        os._exit(128 + received[0])  # do not wait for threads
    if output.failed is not None and code != 2:
        reason = output.failed.strerror
        print(
            f"Error: standard output could not be written ({reason}). The command has "
            "finished: its charges stand, and its files are complete.",
            file=sys.stderr,
        )
        code = 2
    sys.exit(code)


def _run() -> int:
    """Run the command and return its exit code."""
    from dphead.cli import main as command

    try:
        command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def handle_signals() -> list[signal.Signals]:
    """Raise `Interrupted` for a signal, and return the list of received signals.

    Some libraries drop exceptions, so `Interrupted` is raised again until the command
    ends. A signal ignored by the caller (nohup) stays ignored.
    """
    received: list[signal.Signals] = []
    report = sys.unraisablehook

    def handle(number: int, _: Any) -> None:
        if number != signal.SIGALRM:
            received.append(signal.Signals(number))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER)
        raise Interrupted

    def unraisable(lost: Any) -> None:
        if not isinstance(lost.exc_value, Interrupted):
            report(lost)

    sys.unraisablehook = unraisable
    signal.signal(signal.SIGALRM, handle)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    return received


def _tolerant_streams() -> _Output:
    """Replace standard output and standard error, and return the new output file.

    Characters that the encoding lacks are escaped. In UTF-8, a file name that is not
    UTF-8 keeps its bytes, except control characters (`printable`).
    """
    for number in range(3):  # the next opened file would get a closed stream's number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    files = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        old: Any = getattr(sys, name)
        files.append(_Output(number, "w", closefd=False))
        encoding = "utf-8" if old is None else old.encoding
        if codecs.lookup(encoding).name == "ascii":
            # otherwise click writes UTF-8 to the stream below this one
            encoding = "utf-8"
        stream = _Screen(
            io.BufferedWriter(files[-1]),
            encoding,
            "surrogateescape" if encoding == "utf-8" else "backslashreplace",
            line_buffering=number == 2 or files[-1].isatty(),
            write_through=old is not None and old.write_through,
        )
        setattr(sys, name, stream)
    return files[0]


def about_charge(error: BaseException | None) -> str:
    """Return the note on the charge that a run added to an exception, or ""."""
    while error is not None:
        for note in getattr(error, "__notes__", ()):
            if "charged" in note:
                return note
        error = error.__cause__ or error.__context__
    return ""


if __name__ == "__main__":
    main()
