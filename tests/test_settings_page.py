"""docs/settings.md is what the solvers declare."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_the_codes():
    """`python docs/settings_page.py` writes it."""
    page = runpy.run_path(str(DOCS / "settings_page.py"))["page"]
    assert (DOCS / "settings.md").read_text() == page()
