"""Plots that need no data go where the READMEs look for them."""

from pathlib import Path

import pytest

from benchmarks import accounting

RESULTS = Path("benchmarks/results")


@pytest.fixture
def drawn(monkeypatch):
    """The paths of pictures, in order, none of which is drawn."""
    paths = []

    def note(path, *_, **__):
        paths.append(path)

    for name in ("figure9", "tradeoff_plot", "draw"):
        monkeypatch.setattr(accounting, name, note)
    return paths


def test_what_is_returned_is_what_is_drawn(drawn):
    assert accounting.write(RESULTS) == drawn
    assert [path.name for path in drawn[:2]] == ["figure9.png", "tradeoff.png"]


def test_the_page_of_networks_shows_figures_of_both_epsilons(drawn):
    page = (accounting.RESULTS / "finetune" / "README.md").read_text()
    for path in accounting.tan23(Path()):
        assert f"({path})" in page
