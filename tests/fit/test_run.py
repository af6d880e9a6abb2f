"""Runs from files to files: killed and continued, streamed, sharing a ledger."""

import io
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from commands import (
    CLASSES,
    NOT_PRIVATE,
    charges,
    contents,
    features_file,
    fit,
    fitted,
    ledger_of,
    refusal,
    report_of,
    rows,
)
from dphead_extract.features.format import write_features
from features import edited

from dphead.data.features import open_features
from dphead.fit.files import file_facts
from dphead.fit.head_file import open_head
from dphead.fit.options import FitOptions
from dphead.fit.run import fit_files

# 8 releases: mean, gram, 6 gradients
FC = ("--method", "dp-fc", "--steps", 6, "--backend", "numpy")

DYING = textwrap.dedent("""
    import os, signal, sys
    from dphead.cli import main
    from dphead.privacy.ledger.charge import Charge

    when, last = sys.argv.pop(1), int(sys.argv.pop(1))
    commit = Charge.commit

    def dying(self, sequence, value):
        if when == "before" and sequence == last:
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, sequence, value)
        if when == "after" and sequence == last:
            os.kill(os.getpid(), signal.SIGKILL)

    Charge.commit = dying
    main()
""")


def killed(when, sequence, *arguments):
    """Run a command that is killed (SIGKILL) before or after it commits its release
    `sequence`.
    """
    command = [sys.executable, "-c", DYING, when, sequence, *arguments]
    done = subprocess.run(
        [str(a) for a in command], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == -9, done.stderr


# --- killed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when, sequence, committed", [("before", 4, 4), ("after", 7, 8)]
)
def test_a_killed_fit_continues_under_the_same_charge(
    features, run, tmp_path, when, sequence, committed
):
    """In the middle, or after the last release; in seeded mode the head is bit for bit
    that of an unkilled run.
    """
    command = ("fit", features, "-o", run, *FC, "--seed", 4, NOT_PRIVATE)
    own = ("--ledger", tmp_path / "whole.sqlite")
    fitted(
        "fit", features, "-o", tmp_path / "whole", *FC, "--seed", 4, NOT_PRIVATE, *own
    )
    killed(when, sequence, *command)
    book = ledger_of(features)
    states = [r["state"] for r in book.fits()[0]["releases"]]
    assert states.count("committed") == committed
    assert not (run / "report.json").exists()
    fitted(*command)
    (fit,) = book.fits()
    assert {r["state"] for r in fit["releases"]} == {"committed"}
    assert report_of(run)["ledger"]["fits"] == 1
    assert set(contents(run)) == set(contents(tmp_path / "whole"))
    for name in ("head.safetensors", "head.json"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_killed_fit_continues_with_its_own_settings_only(features, run, tmp_path):
    """Every other command on its folder is refused and changes nothing; what was
    released is used again.
    """
    killed("after", 3, "fit", features, "-o", run, *FC)
    before = contents(run)
    fits = ledger_of(features).fits()
    assert {name for name in before if name.endswith(".npy")} == {
        f"releases/00000{i}.npy" for i in range(4)
    }
    other = features_file(tmp_path / "other.h5", seed=1)
    for change in (
        "--epsilon 2",
        "--delta 1e-6",
        "--ridge 0.1",
        "--steps 5",
        "--seed 1 --i-know-this-is-not-private",
        "--epsilon inf --i-know-this-is-not-private",
    ):
        refusal("fit", features, "-o", run, *FC, *change.split())
    refusal("fit", other, "-o", run, *FC)
    before.pop(
        "lock"
    )  # of the killed process: nobody holds it, and the next removes it
    assert contents(run) == before
    assert ledger_of(features).fits() == fits
    fitted("fit", features, "-o", run, *FC)
    assert len(ledger_of(features).fits()) == 1
    assert report_of(run)["guarantee"]["private"]
    loaded = open_head(run)[0].transform.center
    mean = np.load(io.BytesIO(before["releases/000001.npy"]), allow_pickle=False)[:, 0]
    # the same draw, scaled; the first is of how many rows it is the mean
    assert loaded is not None
    assert np.corrcoef(loaded, mean)[0, 1] == pytest.approx(1.0)


# --- streamed, threads, backends ------------------------------------------------------


def test_a_split_is_the_rows_of_that_split(tmp_path, monkeypatch):
    """Interleaved splits, streamed or not, give the head of a file that holds the split
    alone.
    """
    x, y = rows(300, 10)
    split = np.arange(300) % 3 // 2
    both, alone = tmp_path / "both.h5", tmp_path / "alone"
    names = {"split": split, "split_names": ("train", "test")}
    write_features(both, x, y, CLASSES, **names)
    for k, name in enumerate(names["split_names"]):
        own = split == k
        write_features(tmp_path / f"{name}.h5", x[own], y[own], CLASSES)
    given = ("--seed", 2, NOT_PRIVATE, "--test-is", "public")
    here = ("--test-split", "test")
    assert "--split" in refusal("fit", both, "-o", tmp_path / "none", *given, *here)
    fit(tmp_path / "train.h5", alone, *given, "--test", tmp_path / "test.h5")
    for memory in (1 << 30, 1000):
        monkeypatch.setattr("dphead.fit.memory.DEFAULT_BYTES", memory)
        run = tmp_path / str(memory)
        fit(both, run, *given, "--split", "train", *here)
        assert report_of(run)["data"]["n_rows"] == 200
        assert report_of(run)["test"] == report_of(alone)["test"]
        heads = [open_head(folder)[0].weights for folder in (run, alone)]
        assert np.array_equal(*heads)


def test_all_backends_give_one_head(features, tmp_path):
    """One seed, so one noise, and one sum of integers: `tests/sums` has each kind.

    jax's algebra differs in float64's last bits (tests/fit/test_backends.py).
    """
    heads = []
    for backend in ("numpy", "reference", "jax"):
        options = ("--method", "dp-ls", "--seed", 2, NOT_PRIVATE, "--backend", backend)
        fitted("fit", features, "-o", tmp_path / backend, *options)
        heads.append(open_head(tmp_path / backend)[0].weights)
    assert np.array_equal(heads[0], heads[1])
    np.testing.assert_allclose(heads[2], heads[0], rtol=0, atol=1e-9)


# --- as a function --------------------------------------------------------------------


def test_what_will_be_released_is_announced_before_the_charge(features, run):
    seen = []
    options = FitOptions(features=features, out=run, method="dp-ls")
    result = fit_files(
        options,
        lambda fit, _: seen.append(
            (charges(), fit.announced.summary(), fit.about.settings_from)
        ),
    )
    assert seen == [(0, result["report"]["guarantee"]["releases"], "dphead's defaults")]
    assert report_of(run)["statement"] == result["report"]["statement"]


def test_processes_agree_on_every_block_of_their_features(tmp_path):
    """Ten blocks: a file that differs in one of them is another."""
    path = features_file(tmp_path / "x.h5", n=160, block_rows=16)
    found = set()
    for block in (None, *range(10)):
        if block is not None:
            edited(path, lambda f, row=16 * block: f["features"].__setitem__(row, 0))
        with open_features(path) as file:
            found.add(file_facts(file)["features"])
    assert len(found) == 11
