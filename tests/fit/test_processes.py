"""Fits on several processes: the head of one process, and what happens when one is
lost.
"""

import re
import shutil
import socket
import sys
import textwrap

import numpy as np
import pytest
from commands import (
    NOT_PRIVATE,
    Fork,
    charges,
    features_file,
    fitted,
    refusal,
    report_of,
)
from features import edited
from together import LOOPBACK

from benchmarks.faults.servers import free_port
from dphead.fit.head_file import open_head
from dphead.fit.options import Place
from dphead.privacy.ledger import Ledger

# 5 releases: mean, Gram, 3 gradients
FC = ("--method", "dp-fc", "--steps", 3, "--backend", "numpy", "--seed", 4, NOT_PRIVATE)
SGD = ("--method", "dp-sgd", "--steps", 3, "--batch-size", 200, *FC[4:])
# each process plans, and PLD would take most of the time
SGD = (*SGD, "--accountant", "rdp")
TIMEOUT = 600  # seconds: a busy machine is no failure

# `dphead` with the process that DYING names killed at its third sum.
COMMAND = textwrap.dedent("""
    import os, signal, sys
    from dphead.cli import main
    from dphead.sums import hosts

    part, sums = hosts.checked_sum, []

    def last(*arguments):
        sums.append(part(*arguments))
        place = sys.argv[-1].partition("/")[0]
        if place == os.environ.get("DYING") and len(sums) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return sums[-1]

    hosts.checked_sum = last
    main()
""")


def started(folder, count, *arguments, each=None, **env):
    """`dphead arguments` on `count` processes of a group; each: arguments of one
    process, by its number.
    """
    address = f"127.0.0.1:{free_port()}"
    running = []
    for i in range(count):
        place = ("--process", f"{i}/{count}@{address}")
        given = (*arguments, *(each or {}).get(i, ()), *place)
        running.append(Fork(folder, COMMAND, *given, **env))
    return [process.wait(TIMEOUT) for process in running]


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "train.h5", n=1000, block_rows=128)


def test_processes_give_the_head_of_one(features, tmp_path):
    """One seed, so one noise and one Poisson sample; integers add up to the same: byte
    for byte. Full batches are in the test of a lost process.
    """
    command = ("fit", features, *SGD, "-o")
    fitted(*command, tmp_path / "one", "--ledger", tmp_path / "one.sqlite")
    code, out, err = started(tmp_path, 2, *command, tmp_path / "many")[0]
    assert code == 0, err
    assert "Gloo" not in out
    assert "Trained    a head" in out
    one, head = (
        (tmp_path / name / "head.safetensors").read_bytes() for name in ("one", "many")
    )
    assert head == one
    assert charges() == 1  # once, and not by each
    ours, theirs = (report_of(tmp_path / name)["guarantee"] for name in ("many", "one"))
    assert ours == theirs


def test_sums_of_any_size_travel_as_they_are(tmp_path):
    """Beyond 2**53, and what would be NaN or subnormal if the bits were taken for
    float64's.
    """
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from dphead.fit.options import Place
        from dphead.fit.processes import joined

        address, index = sys.argv[1:]
        sent = np.array([[2**62 + 1, -(2**53) - 1], [-1, 1], [2**63 - 1, 0]], np.int64)
        with joined(Place(address, 2, int(index)), True) as hosts:
            mine = sent if index == "1" else np.zeros_like(sent)
            total, first = hosts.total(mine), hosts.from_first(sent * hosts.first)
            print(total.dtype == np.int64 and np.array_equal(total, sent))
            print(np.array_equal(first, sent))
    """)
    address = f"127.0.0.1:{free_port()}"
    done = [
        p.wait(TIMEOUT) for p in [Fork(tmp_path, script, address, i) for i in range(2)]
    ]
    assert [d.code for d in done] == [0, 0]
    for process in done:
        assert process.out.split()[-2:] == ["True", "True"]


@pytest.mark.parametrize("lost", [1, 0])
def test_a_lost_process_ends_all_and_the_run_continues_under_its_charge(
    features, tmp_path, lost
):
    """Killed at the third of 6 releases.

    The same command continues, on one process or two, and is charged once.
    """
    run = tmp_path / "run"
    book = tmp_path / "book.sqlite"
    command = ("fit", features, *FC, "-o")
    done = started(tmp_path, 2, *command, run, "--ledger", book, DYING=str(lost))
    assert done[lost].code == -9
    other = done[1 - lost]
    assert other.code not in (0, -9)
    # jax may say it first
    said = "lost one of its 2 processes|leader task was|unhealthy"
    assert re.search(said, other.err), other.err
    (fit,) = Ledger(book).fits()
    assert [r["state"] for r in fit["releases"]] == ["committed"] * 2 + ["started"] + [
        "reserved"
    ] * 3
    assert not (run / "report.json").exists()
    if lost:
        fitted(*command, run, "--ledger", book)
    else:  # on two, of which the first releases what it had committed without a sum
        done = started(tmp_path, 2, *command, run, "--ledger", book)
        assert [one.code for one in done] == [0, 0], done
    fitted(*command, tmp_path / "whole", "--ledger", tmp_path / "whole.sqlite")
    head, whole = (open_head(folder)[0].weights for folder in (run, tmp_path / "whole"))
    assert np.array_equal(head, whole)
    assert len(Ledger(book).fits()) == 1


@pytest.mark.parametrize("field", ["features", "settings"])
def test_processes_that_do_not_hold_the_same_are_refused_before_the_charge(
    features, tmp_path, field
):
    other = tmp_path / "other.h5"
    shutil.copy(features, other)
    more = ("--epsilon", 2)
    if field == "features":  # in the second block of 128 rows
        edited(other, lambda file: file["features"].__setitem__(200, 0))
        more = ()
    each = {0: (features,), 1: (other, *more)}
    done = started(tmp_path, 2, "fit", "-o", tmp_path / "run", *FC, each=each)
    for code, _, err in done:
        assert code == 2
        assert f"and process 0 differ in {field}" in err
        assert more == () or "--epsilon (2.0 and 1.0)" in err
    assert charges() == 0
    assert not (tmp_path / "run").exists()


def test_a_host_that_cannot_be_reached_times_out_with_its_address(features, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    place = ("--process", f"1/2@{address},1")
    command = ("fit", features, "-o", tmp_path / "run", *FC, *place)
    done = Fork(tmp_path, COMMAND, *command).wait(TIMEOUT)
    assert done.code not in (0, -9)
    assert address in done.err or "DEADLINE_EXCEEDED" in done.err, done.err
    assert charges() == 0
    assert not (tmp_path / "run").exists()


LISTENING = textwrap.dedent("""
    import sys
    import numpy as np
    from dphead.fit.options import Place
    from dphead.fit.processes import joined
    from together import listening

    address, index = sys.argv[1:]
    with joined(Place(address, 2, int(index)), True) as hosts:
        hosts.total(np.zeros(1, np.int64))
        print(*listening(), file=sys.stderr, flush=True)
        hosts.total(np.zeros(1, np.int64))
""")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_of_one_host_listen_on_loopback_alone(tmp_path):
    """Nobody else on the network can read a sum without noise, or send one."""
    address = f"127.0.0.1:{free_port()}"
    running = [Fork(tmp_path, LISTENING, address, i) for i in range(2)]
    done = [process.wait(TIMEOUT) for process in running]
    assert [d.code for d in done] == [0, 0], done
    found = [d.err.split() for d in done]
    hexadecimal = [
        word for d in found for word in d if re.fullmatch("[0-9A-F]{8,}", word)
    ]
    assert len(hexadecimal) >= 2  # the coordinator, and gloo
    assert set(hexadecimal) <= LOOPBACK


def test_a_port_in_use_and_an_address_of_another_host_are_refused(features, tmp_path):
    """jaxlib would end in a segmentation fault."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for where, todo in (
            (address, "Choose another port"),
            ("192.0.2.1:1", "Type an"),
        ):
            place = ("--process", f"0/2@{where}")
            command = ("fit", features, "-o", tmp_path / "run", *FC, *place)
            done = Fork(tmp_path, COMMAND, *command).wait(TIMEOUT)
            assert done.code == 2, done
            assert "process 0 cannot listen" in done.err
            assert todo in done.err
    assert charges() == 0


def test_a_place_is_read_or_refused(features, tmp_path):
    """A wrong place could be a fit of its own, with a charge of its own."""
    assert Place.parse("1/2@[::1]:8476,60") == Place("[::1]:8476", 2, 1, 60.0)
    assert Place.parse("auto") == Place("auto")
    for text in ("2/2@host:1", "0/2@host", "0/2", "1", "auto,x", "host:1"):
        assert "I/N@HOST:PORT" in refusal(
            "fit", features, "-o", tmp_path / "run", *FC, "--process", text
        )
    assert charges() == 0
