"""docs/settings.md and the estimators' docstrings are what the solvers declare."""

import runpy
from pathlib import Path

import pytest

MADE = runpy.run_path(str(Path(__file__).parents[1] / "docs/settings_page.py"))


@pytest.mark.parametrize("path, text", [("PAGE", "page"), ("CLASSES", "source")])
def test_the_page_and_the_docstrings_are_the_codes(path, text):
    same = MADE[path].read_text() == MADE[text]()
    assert same, "run `python docs/settings_page.py`, which writes them"
