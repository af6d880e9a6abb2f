"""Defects that reading the private core as an attacker brought up, each with the value
that showed it.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from core import M, integer_sum, release_many, reserve, spec_of
from randomgen import ChaCha

import dphead.privacy
from dphead.data.arrays import ArrayRows
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums, Gradient


def test_the_sign_of_zero_tells_nothing():
    """-1e-9 is rounded to -0.0 on a grid of float64: where the noise is too, its sign
    would be released.
    """
    rows = ArrayRows(np.full((1, 1), -1e-9, np.float32), np.array([0]))
    values = release_many(ClassSums(M), Params(), rows, 200, seed=1, sigma=1e-4)
    assert not np.any(np.signbit(values) & (values == 0))
    assert np.sum(values == 0) > 100


def test_a_committed_charge_survives_a_loss_of_power(tmp_path):
    """FULL leaves the removal of SQLite's journal unsynced: the journal could come back
    and undo the last charge.
    """
    assert (
        Ledger(tmp_path / "l.sqlite")._db.execute("PRAGMA synchronous").fetchone()[0]
        == 3
    )


def test_the_ledger_does_not_time_the_releases(tmp_path):
    """A release's duration follows the size of its Poisson batch."""
    ledger = Ledger(tmp_path / "l.sqlite")
    fit = reserve([spec := spec_of(ClassSums(M), 10)], ledger)
    sequence, _ = fit.begin(spec.row())
    fit.commit(sequence, np.zeros(3))
    assert all(
        at % 3600 == 0 for (at,) in ledger._db.execute("SELECT at FROM progress")
    )


def test_the_generator_is_chacha20():
    """The first words of its cipher [Bernstein 2008]: 20 rounds, nonce 0, for a key of
    zeros (the first published test vector) and another.
    """
    streams = {
        bytes(32): "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        bytes(range(7, 39)): "19bf46ea7de8833258f0183c0e249768413e5623b25052183d574617"
        "5d6bac1349844d30d0657d50f05bc6fdfb181b8a16472d75bbbda8c1d60c9eb912ddfb83",
    }
    for key, stream in streams.items():
        cipher = ChaCha(key=int.from_bytes(key, "little"), rounds=20)
        words = np.random.Generator(cipher).bit_generator.random_raw(8)
        assert words.astype("<u8").tobytes().hex() == stream


def test_every_test_named_in_the_audit_exists():
    """AUDIT.md and proofs/ name tests as `file::name`: tests/privacy/test_file.py,
    test_name, or `folder/file::name`
    """
    folder = Path(dphead.privacy.__file__).parent
    pages = [*folder.glob("*.md"), *folder.glob("proofs/*.md")]
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"`([\w/]+)::(\w+)`", text))
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if f"def test_{name}(" not in _source(file)
    ]
    assert missing == []


def _source(file: str) -> str:
    folder, _, name = f"privacy/{file}".rpartition("/")
    path = (
        Path(__file__).parents[1]
        / folder.removeprefix("privacy/" if "/" in file else "")
        / f"test_{name}.py"
    )
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("size", np.linspace(1e18, 1.8e19, 12))
def test_a_clip_factor_too_small_for_float32_clips_all_the_same(size):
    """C / (||r|| ||x||) near 1e-45 was a multiple of the smallest denormal: rounded up,
    a row weighed 1.2 C.
    """
    params = Params(weights=np.full((1, M), 0.57, np.float32))
    statistic = Gradient(M, "squared")
    total = integer_sum(
        statistic, params, np.array([[size]], np.float32), np.array([0]), 1e-6
    ).ravel()
    assert 0 < total @ total <= statistic.sensitivity_sq("zero_out", 1e-6)


def test_a_ledger_refuses_releases_of_another_relation():
    """Their noise is over another sensitivity than the one that is charged."""
    spec = spec_of(ClassSums(M), 10, relation="zero_out")
    other = spec_of(ClassSums(M), 10, relation="replace_one")
    with pytest.raises(LedgerError, match="relation"):
        Ledger().reserve(
            [spec.row(), other.row()],
            epsilon=1.0,
            delta=1e-5,
            description="",
            plan_hash="",
        )
    assert reserve([spec]).fit_id
