"""Progress on standard error: nothing of what is quick, plain lines in pipes, a bar on
a terminal.
"""

import os
import pty
import subprocess
import sys
import threading

import pytest

from dphead.cli import progress

SCRIPT = """
import time
from dphead.cli import progress
progress.SHOWN_AFTER = 0.2
progress.LINE_EVERY = 0.2
with progress.shown("reading rows") as told:
    told(3, 7, "fits")
    while told.bar is None or told.bar.tasks[0].fields["counted"] != "3/7":
        time.sleep(0.01)
    told.bar.refresh()
    told.say("said above the bar")
print("done")
"""


@pytest.fixture
def spoken(monkeypatch):
    """Set when a line was made, at once and then no other, as of 0.2 seconds."""
    made = threading.Event()
    real = progress.Progress.line

    def line(self, _):
        made.set()
        return real(self, 0.2)

    monkeypatch.setattr(progress.Progress, "line", line)
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0)
    monkeypatch.setattr(progress, "LINE_EVERY", 3600)
    return made


def test_what_takes_less_than_two_seconds_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 3600)
    with progress.shown("reading rows") as told:
        told(1, 2, "fits")
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_plain_lines_of_what_was_told(spoken, capsys):
    with progress.shown("reading rows"):
        assert spoken.wait(600)
    assert capsys.readouterr() == ("", "reading rows (0 s)\n")


@pytest.mark.parametrize("name", progress.RANKS)
def test_one_of_many_processes_speaks(spoken, capsys, monkeypatch, name):
    monkeypatch.setenv(name, "0")
    with progress.shown("reading rows"):
        assert spoken.wait(600)
    assert capsys.readouterr().err.count("\n") == 1
    spoken.clear()
    for rank, first in (("1", True), ("0", False)):
        monkeypatch.setenv(name, rank)
        with progress.shown("reading rows", first=first):
            assert not spoken.wait(0.2)  # nothing could set it
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end():
    """A pseudo-terminal for standard error, and a pipe for standard output."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    out, _ = child.communicate(timeout=600)
    os.close(ours)
    assert out == b"said above the bar\ndone\n"
    assert b"fits" in seen and b"3/7" in seen
    assert seen.rstrip().endswith(b"\x1b[2K")  # the line is wiped
