"""A digest is of the head and its report, and says when a command was refused."""

from pathlib import Path

import pytest

from benchmarks import seeded


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a fit with these options."""
    monkeypatch.setenv("DPHEAD_HOME", "")  # it is set by each fit, and restored after
    rows = seeded.write_rows(tmp_path / "features.h5", n=100, d=6, m=2)
    return lambda options: seeded.fitted(Path(tmp_path), rows, options)


def test_a_digest_is_of_the_head_and_of_its_report(digest):
    head, report = digest("--method prototypes").split()
    assert digest("--method prototypes").split() == [head, report]
    others = digest("--method prototypes --epsilon 2").split()
    assert head != others[0]
    assert report != others[1]


@pytest.mark.parametrize("options", ["--method none", "--method dp-sgd --momentum 7"])
def test_a_refusal_is_a_digest_of_what_was_said(digest, options):
    found = digest(options)
    assert found.startswith("refused ")
    assert found == digest(options)
    assert found != digest("--method dp-fc --ridge -1")
