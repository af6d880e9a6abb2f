"""Progress on standard error: nothing of what is quick, plain lines in pipes, a bar on
a terminal.
"""

import threading

import pytest

from dphead.cli import progress


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
