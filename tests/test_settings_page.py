"""docs/settings.md is what the solvers declare."""

import runpy
from pathlib import Path

MADE = runpy.run_path(str(Path(__file__).parents[1] / "docs/settings_page.py"))


def test_the_page_is_the_codes():
    same = MADE["PAGE"].read_text() == MADE["page"]()
    assert same, "run `python docs/settings_page.py`, which writes it"
