"""A bound on memory is divided by public sizes, refused if it is too small, and kept by
a fit that streams.
"""

import re
import textwrap

import numpy as np
import pytest
from commands import (
    charges,
    features_file,
    fitted,
    refusal,
    report_of,
    rows,
)
from core import python
from dphead_extract.features.format import FeaturesWriter, Header

from dphead import DPLeastSquaresClassifier
from dphead.fit import memory
from dphead.fit.memory import DEFAULT_BYTES, share
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.ledger import Ledger
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ChannelMoment
from dphead.solvers import DPFC, GradientDescent, LeastSquares, Newton, ProblemInfo
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ReferenceSums

MB = 10**6
FACTS = ProblemInfo(1_281_167, 1664, 1000)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(memory, "cores", lambda: 2)
    monkeypatch.setattr(memory, "resident", lambda: 150 * MB)
    monkeypatch.setattr(memory, "available", lambda: 16_000 * MB)


def divided(bound, solver=None, facts=FACTS, **more):
    return share(
        bound,
        facts,
        (solver or LeastSquares()).plan(facts),
        n_rows=facts.n_rows,
        **more,
    )


# its batches serve themselves from features, not from kept rows
POISSON = GradientDescent(sampling_prob=0.01)


def test_imagenet_streams_in_two_gigabytes_and_is_loaded_where_it_fits():
    assert divided(2000 * MB).features == 0
    loaded = 4 * FACTS.n_rows * FACTS.n_features
    found = divided(12_000 * MB, POISSON)
    assert found.features == loaded
    assert 0 < found.kept < 12_000 * MB - loaded


def test_without_a_bound_two_gigabytes_of_rows_are_kept():
    assert (divided(None).features, divided(None).kept) == (0, DEFAULT_BYTES)
    few = ProblemInfo(1000, 64, 10)
    assert divided(None, POISSON, few).kept == DEFAULT_BYTES - 4 * 64 * 1000


def test_without_a_bound_the_fit_must_fit_into_the_machine(monkeypatch):
    """300 rows of 20,000 columns took 12.7 GB, and the refusal said 36 GB."""
    wide = ProblemInfo(300, 20_000, 10)
    assert divided(None, facts=wide).kept > 0
    monkeypatch.setattr(memory, "available", lambda: 12_000 * MB)
    with pytest.raises(ValueError, match=r"can use 12150 MB \(of the machine") as no:
        divided(None, facts=wide)
    need = int(re.search(r"classes need (\d+) MB", str(no.value))[1])
    gram = 8 * 20_001**2 // MB
    assert 4 * gram < need < 5 * gram
    # what is told under add/remove does not change with a private n
    with pytest.raises(ValueError) as rounded:
        divided(None, facts=wide, private_n=True)
    assert int(re.search(r"need (\d+) MB", str(rounded.value))[1]) % 100 == 0


def test_features_take_what_is_left_of_a_small_machine(monkeypatch):
    need = memory.sums(FACTS, LeastSquares().plan(FACTS)) + memory.streaming(FACTS)
    monkeypatch.setattr(memory, "available", lambda: need + 700 * MB)
    assert 0 < divided(None).kept < DEFAULT_BYTES


@pytest.mark.parametrize(
    "controllers, limit, used, freed",
    [
        ("", "memory.max", "memory.current", "inactive_file"),
        (
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_the_limits_of_a_container_count(
    controllers, limit, used, freed, tmp_path, monkeypatch
):
    top = tmp_path / controllers
    inner = top / "job" / "step"
    inner.mkdir(parents=True)
    for folder, most in ((inner, "max"), (inner.parent, f"{900 * MB}"), (top, "")):
        (folder / limit).write_text(most)
        (folder / used).write_text(f"{500 * MB}")
        (folder / "memory.stat").write_text(f"other 5\n{freed} {100 * MB}\n")
    monkeypatch.setattr(memory, "GROUPS", str(tmp_path))
    assert list(memory.left_in_groups(controllers, "/job/step")) == [500 * MB]
    # a container does not see the groups above its own
    (top / limit).write_text(f"{800 * MB}")
    assert list(memory.left_in_groups(controllers, "/not/seen")) == [400 * MB]


def test_the_limit_of_the_shell_counts():
    script = (
        "import resource as r; from dphead.fit.memory import available;"
        "r.setrlimit(r.RLIMIT_AS, (4 << 30, 4 << 30)); print(available())"
    )
    assert 0 < int(python(script).out) < 4 << 30


@pytest.mark.parametrize("relation", ["zero_out", "add_remove"])
def test_an_estimator_that_does_not_fit_is_refused_before_the_charge(
    relation, monkeypatch
):
    monkeypatch.setattr(memory, "available", lambda: 50 * MB)
    x, y = rows()
    ledger = Ledger()
    given = {"nominal_n": 240} if relation == "add_remove" else {}
    model = DPLeastSquaresClassifier(
        classes=range(3), ledger=ledger, delta=1e-3, relation=relation, **given
    )
    with pytest.raises(ValueError, match=r"need \d+ MB of memory"):
        model.fit(x, y)
    assert ledger.count_fits() == 0


def test_a_block_of_moments_is_made_in_pieces_and_is_the_same(monkeypatch):
    x = np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32)
    ask = SumTask(ChannelMoment(2), Params(), 1.0)
    block = Block(np.arange(300), x, np.zeros(300, np.int32))
    whole = ReferenceSums().rows(ask, block)
    monkeypatch.setattr("dphead.sums.cpu.CONVERTED_ENTRIES", 7 * 64)
    made = CpuSums(compiled=False).rows(ask, block)
    assert np.array_equal(made.q, whole.q)
    assert np.array_equal(made.scale, whole.scale)
    assert made.q.itemsize == 4


@pytest.mark.parametrize("solver", [LeastSquares(class_grams=True), Newton(), DPFC()])
def test_what_a_refusal_says_is_needed_is_enough(solver, monkeypatch):
    with pytest.raises(ValueError, match="cannot hold blocks") as refusal:
        divided(100 * MB, solver)
    need = int(re.search(r"Use --memory (\d+)MB", str(refusal.value))[1])
    assert divided(need * MB, solver).features == 0
    # another start may keep 60 MB more of freed blocks
    monkeypatch.setattr(memory, "resident", lambda: 210 * MB)
    assert divided(need * MB, solver).features == 0
    with pytest.raises(ValueError, match=f"Use --memory {need + 60}MB"):
        divided((need - 10) * MB, solver)


def test_a_refusal_does_not_tell_a_private_n():
    """Its number is the same for half a million rows more; it is still enough."""
    releases = LeastSquares().plan(FACTS)
    said = []
    for n_rows in (1_000_000, 1_000_001, 1_500_000):
        with pytest.raises(ValueError, match="cannot hold blocks") as refusal:
            share(MB, FACTS, releases, n_rows=n_rows, private_n=True)
        said.append(str(refusal.value))
    assert len(set(said)) == 1
    need = int(re.search(r"Use --memory (\d+)MB", said[0])[1])
    assert need % 100 == 0
    assert (
        share(need * MB, FACTS, releases, n_rows=n_rows, private_n=True).features == 0
    )


@pytest.mark.parametrize(
    "more", [{"backend": "jax"}, {"n_test": 10**6}, {"processes": 2}]
)
def test_all_that_a_run_holds_counts(more):
    need = [memory.sums(FACTS, LeastSquares().plan(FACTS)) + memory.streaming(FACTS)]
    for options in ({}, more):
        with pytest.raises(ValueError) as refusal:
            divided(MB, **options)
        need.append(int(re.search(r"Use --memory (\d+)MB", str(refusal.value))[1]))
    assert need[0] // MB < need[1] < need[2]


def test_a_bound_that_is_too_small_is_refused_before_the_charge(tmp_path):
    features = features_file(tmp_path / "f.h5")
    run = tmp_path / "run"
    command = ("fit", features, "-o", run, "--method", "dp-ls", "--memory")
    need = re.search(r"Use --memory (\d+)MB", refusal(*command, "100MB"))[1]
    assert charges() == 0
    assert not run.exists()
    fitted(*command, f"{need}MB")
    assert report_of(run)["guarantee"]["private"]


FIT = textwrap.dedent("""
    import os, re, sys
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    from dphead.cli import main
    try:
        main()
    finally:
        print(re.search("VmHWM:\\\\s+(\\\\d+) kB", open("/proc/self/status").read())[1])
""")


def test_a_streamed_fit_keeps_its_bound(tmp_path):
    """The peak of the whole process, with a file that is larger than the bound.

    (VmHWM, as getrusage's maximum starts from the peak of this process.)
    """
    n, d, block = 1_204_224, 128, 8192  # 643 MB; the bound varies by a few MB
    names = {"class_names": ["a", "b", "c"], "classes_declared": "classes-flag"}
    header = Header(n, d, block_rows=block, **names)
    x = np.random.default_rng(0).standard_normal((block, d)).astype(np.float32)
    y = np.arange(block) % 3
    with FeaturesWriter(tmp_path / "f.h5", header) as writer:
        while writer.next_row < n:
            writer.append(x, {"labels": y})
        writer.finish()
    options = "--method dp-ls --delta 1e-7 --backend numpy --memory"
    command = ("fit", tmp_path / "f.h5", "-o", tmp_path / "run", *options.split())
    small = python(FIT, *command, "1MB")
    need = int(re.search(r"Use --memory (\d+)MB", small.err)[1])
    assert 1.25 * need * MB < (tmp_path / "f.h5").stat().st_size
    done = python(FIT, *command, f"{need}MB")
    assert done.returncode == 0, done.err
    peak = int(done.out.split()[-1]) * 1024
    assert 0.3 * need * MB < peak < need * MB
