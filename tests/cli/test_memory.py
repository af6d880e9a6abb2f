"""What does not fit in memory is one line; other errors of a program are not hidden."""

import click
import pytest
from commands import (
    dphead,
    refusal,
)

from dphead import cli


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 909. TiB for an array"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 5 bytes"),
    ],
)
def test_what_does_not_fit_is_one_line(error, monkeypatch):
    monkeypatch.setattr(cli, "cli", raising(error))
    assert "must fit in memory" in refusal("fit")


def test_a_defect_is_no_lack_of_memory(monkeypatch):
    monkeypatch.setattr(cli, "cli", raising(RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        dphead("fit")


def raising(error):
    @click.command()
    def command():
        raise error

    return lambda: command(["--"], standalone_mode=False)
