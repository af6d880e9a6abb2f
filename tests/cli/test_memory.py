"""What does not fit in memory is one line; other errors of a program are not hidden."""

import resource

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
        ImportError("libscipy.so: failed to map segment from shared object"),
    ],
)
def test_what_does_not_fit_is_one_line(error, monkeypatch):
    monkeypatch.setattr(cli, "cli", raising(error))
    assert "memory ran out" in refusal("fit")


@pytest.mark.parametrize(
    "limit, name, said",
    [
        (400 << 20, "RLIMIT_AS", "`ulimit -v` allows 400 MB of memory"),
        (8, "RLIMIT_NOFILE", "`ulimit -n` allows 8 open files"),
    ],
)
def test_a_limit_of_the_shell_that_no_command_can_keep_is_one_line(
    limit, name, said, monkeypatch
):
    """Libraries would crash, or SQLite would ask for permission."""
    asked = getattr(resource, name)
    limits = {resource.RLIMIT_AS: -1, resource.RLIMIT_NOFILE: -1, asked: limit}
    monkeypatch.setattr(resource, "getrlimit", lambda one: (limits[one], -1))
    assert said in refusal("account", "--delta", "1e-3", "--epsilon", "1")


def test_a_defect_is_no_lack_of_memory(monkeypatch):
    monkeypatch.setattr(cli, "cli", raising(RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        dphead("fit")


def raising(error):
    @click.command()
    def command():
        raise error

    return lambda: command(["--"], standalone_mode=False)
