"""Progress on standard error: plain lines in pipes, a bar on a terminal."""

import sys

import pytest

from dphead.cli import progress


def told(first=True):
    """A phase with a count, and one of unknown length."""
    with progress.shown("reading rows", first) as show:
        show(1, 2, "fits")
        show.begin("charging")
        show.say("text")


def test_what_takes_less_than_a_few_seconds_shows_nothing(capsys):
    told()
    assert capsys.readouterr() == ("text\n", "")


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_one_of_many_processes_writes_lines(capsys, monkeypatch, name):
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    monkeypatch.setenv(name, "0")
    told()
    assert capsys.readouterr().err == "fits 1 of 2 (0 s)\ncharging (0 s)\n"
    for rank, first in (("1", True), ("0", False)):
        monkeypatch.setenv(name, rank)
        told(first)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    told()
    found = capsys.readouterr()
    assert found.out == "text\n"
    assert "reading rows" in found.err and "charging" in found.err
    assert found.err.endswith("\x1b[2K")  # the line is cleared
