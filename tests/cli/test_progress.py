"""Progress on standard error: nothing of what is quick, plain lines in pipes, a bar on
a terminal.
"""

import os
import pty
import subprocess
import sys
import time

import pytest

from dphead.cli import progress

SCRIPT = """
import time
from dphead.cli import progress
progress.SHOWN_AFTER = 0.2
progress.LINE_EVERY = 0.2
with progress.shown("reading rows") as told:
    told(3, 7, "fits")
    time.sleep(0.7)
    told.say("said above the bar")
    time.sleep(0.3)
print("done")
"""


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.05)
    monkeypatch.setattr(progress, "LINE_EVERY", 60)


def test_what_takes_less_than_two_seconds_shows_nothing(capsys):
    with progress.shown("reading rows") as told:
        told(1, 2, "fits")
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_plain_lines_of_what_was_told(quick, capsys):
    with progress.shown("reading rows") as told:
        told(3, 7, "fits")
        time.sleep(0.5)
    assert capsys.readouterr() == ("", "fits 3 of 7 (0 s)\n")


@pytest.mark.parametrize("name", progress.RANKS)
def test_one_of_many_processes_speaks(quick, capsys, monkeypatch, name):
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv(name, rank)
        with progress.shown("reading rows") as told:
            told(3, 7, "fits")
            time.sleep(0.3)
        assert capsys.readouterr().err.count("\n") == lines
    monkeypatch.delenv(name)
    with progress.shown("reading rows", first=False):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_what_is_not_counted_has_no_number():
    told = progress.Progress("reading rows")
    assert told.line(2.1) == "reading rows (2 s)"
    told(3, 7)
    assert told.line(9.0) == "reading rows 3 of 7 (9 s)"
    told.begin("charging")
    assert told.line(9.9) == "charging (10 s)"


def test_an_error_ends_the_progress(quick, capsys):
    with pytest.raises(ValueError, match="bad"), progress.shown("reading rows"):
        raise ValueError("bad")
    time.sleep(0.2)
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
    out, _ = child.communicate(timeout=30)
    os.close(ours)
    assert out == b"said above the bar\ndone\n"
    assert b"fits" in seen and b"3/7" in seen
    assert seen.rstrip().endswith(b"\x1b[2K")  # the line is wiped
