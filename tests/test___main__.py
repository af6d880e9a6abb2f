"""The command's process: its signals, streams and exit codes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from commands import charges, dphead, features_file, fitted

COMMAND = (sys.executable, "-m", "dphead")
ACCOUNT = ("account", "--delta", "1e-3", "--epsilon", "1")
# a fit that gets a signal where it says so: while libraries are imported, and while a
# sum is compiled, by code that drops what is raised
STRUCK = textwrap.dedent("""
    import os, signal, sys

    def strike(*_):
        os.kill(os.getpid(), int(os.environ["NUMBER"]))
        return 0

    def importing(event, given):
        if event == "import" and given[0] == os.environ["WHERE"]:
            strike()

    def in_a_callback():
        import ctypes
        called = ctypes.CFUNCTYPE(ctypes.c_int)(strike)
        called()

    from dphead.__main__ import main
    if os.environ["WHERE"] == "callback":
        import dphead.fit.run as fit
        charge = fit.charge
        def charged(*given):
            found = charge(*given)
            in_a_callback()
            while True:
                pass
        fit.charge = charged
    else:
        sys.addaudithook(importing)
    main()
""")


@pytest.fixture
def finished(tmp_path):
    features_file(tmp_path / "f.h5")
    run = tmp_path / "run"
    fitted("fit", tmp_path / "f.h5", "-o", run, "--method", "dp-ls", "--delta", "1e-3")
    return run


def ended(*arguments, command=COMMAND, **more):
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, **more
    )


NOTHING, ONE = "nothing was charged", "epsilon 1 at delta 1e-05 is charged for the run"


@pytest.mark.parametrize(
    "number, code, where, said, count",
    [
        ("SIGTERM", 143, "click", NOTHING, 0),
        ("SIGHUP", 129, "click", NOTHING, 0),
        ("SIGINT", 130, "dphead.fit.loop", NOTHING, 0),
        ("SIGINT", 130, "callback", ONE, 1),
        ("SIGTERM", 143, "callback", ONE, 1),
    ],
)
def test_a_signal_is_one_line_that_says_what_was_charged(
    where, said, count, number, code, tmp_path
):
    features_file(tmp_path / "f.h5")
    given = ("fit", tmp_path / "f.h5", "-o", tmp_path / "run", "--method", "dp-ls")
    env = os.environ | {"WHERE": where, "NUMBER": str(getattr(signal, number).value)}

    def heeding():  # whoever runs these tests in the background ignores SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    struck = (sys.executable, "-c", STRUCK)
    done = ended(*given, command=struck, env=env, preexec_fn=heeding, timeout=300)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Ended by {number}: {said}")
    assert charges() == count
    assert dphead(*given).code == 0
    assert charges() == 1


def test_a_signal_that_the_caller_ignores_stays_ignored():
    def ignoring():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    script = (
        "import os, signal, dphead.__main__ as d; d.handle_signals();"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    command = (sys.executable, "-c", script)
    assert ended(command=command, preexec_fn=ignoring).returncode == 0


def test_a_reader_that_goes_away_is_no_error(finished):
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (ACCOUNT, ("check", finished)):
        plain = dphead(*arguments)
        command = [*COMMAND, *map(str, arguments)]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (plain.code, b"")
    os.close(writing)


def test_a_full_standard_output_is_an_error_and_the_run_is_whole(tmp_path):
    features_file(tmp_path / "f.h5")
    given = ("fit", tmp_path / "f.h5", "-o", tmp_path / "run", "--method", "dp-ls")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *map(str, given), "-v"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("Error: standard output could not be written (No space")
    assert (tmp_path / "run" / "report.json").exists()
    assert dphead("check", tmp_path / "run").code != 2


def test_closed_streams_are_no_error(tmp_path):
    script = 'exec "$0" -m dphead account --delta 1e-3 --epsilon 1 <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", script, sys.executable]).returncode == 0


def test_a_defect_of_the_program_has_the_exit_code_of_an_error():
    """Exit code 1 of `check` and `verify` is for findings."""
    script = (
        "import dphead.cli as cli\n"
        "def broken(): raise KeyError('x')\n"
        "cli.main = broken\n"
        "from dphead.__main__ import main\nmain()"
    )
    done = ended(command=(sys.executable, "-c", script))
    assert done.returncode == 2
    assert "KeyError" in done.stderr


def test_what_the_terminal_cannot_write_is_escaped():
    """A finished command must not fail for a letter that its terminal lacks."""
    script = (
        "import click, dphead.cli as cli\n"
        "cli.main = lambda: click.echo('\\u03b5')\n"
        "from dphead.__main__ import main\nmain()"
    )
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = ended(command=(sys.executable, "-c", script), env=env)
    assert (done.returncode, done.stdout) == (0, "\\u03b5\n")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_code_of_a_terminal_comes_through_from_a_name(encoding):
    """Whoever names a file or a class must not write to the reader's terminal."""
    script = (
        "import click, dphead.cli as cli, sys, warnings\n"
        "name = 'a\\x1b[31m\\x9b1m\\u202e\\r\\udc9b\\x07'\n"
        "def shown():\n"
        "    click.echo(name, color=True)\n"
        "    click.echo(name, err=True, color=True)\n"
        "    print(name, file=sys.stderr)\n"
        "    warnings.warn(name)\n"
        "    from dphead.cli.text import table\n"
        "    click.echo(table([name], [[name]]), color=True)\n"
        "    print('\\r50 %', end='', file=sys.stderr)\n"
        "    raise ValueError(name)\n"
        "cli.main = shown\n"
        "from dphead.__main__ import main\nmain()"
    )
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, env=env, check=False
    )
    said = done.stdout + done.stderr
    assert said.count(b"a\\x1b[31m\\x9b1m\\u202e\\x0d\\x9b\\x07") == 7
    assert said.count(b"\r") == 1  # of the download's progress
    assert not set(said.replace(b"\r", b"")) & {*range(9), *range(11, 32), 127}
    assert "\u202e" not in said.decode() and "\x9b" not in said.decode()
