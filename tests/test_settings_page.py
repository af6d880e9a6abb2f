"""docs/settings.md and the estimators' docstrings are what the solvers declare."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
MADE = runpy.run_path(str(DOCS / "settings_page.py"))


def test_the_page_is_the_codes():
    """`python docs/settings_page.py` writes it."""
    assert (DOCS / "settings.md").read_text() == MADE["page"]()


def test_the_parameters_in_docstrings_are_the_codes():
    """`python docs/settings_page.py` writes them."""
    assert MADE["CLASSES"].read_text() == MADE["source"]()
