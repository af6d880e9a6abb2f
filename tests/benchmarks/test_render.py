"""`make tables` renders all that can be, and what is stored is what it gives."""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import render

BENCHMARKS = Path(render.__file__).parent
LINK = re.compile(r"\]\(([^):#]+)\)")


@pytest.mark.parametrize("name", render.EXPERIMENTS)
def test_a_readme_of_results_is_what_its_rows_give(name):
    module = import_module(f"benchmarks.experiments.{name}")
    assert (module.OUT / "README.md").read_text(encoding="utf-8") == module.readme()


def test_a_page_shows_no_picture_that_git_ignores():
    """Those are there once `make tables` has run, and not on a fresh clone."""
    pages = [*BENCHMARKS.parent.glob("*.md"), *BENCHMARKS.rglob("*.md")]
    for page in pages:
        for name in LINK.findall(page.read_text(encoding="utf-8")):
            linked = page.parent / name
            assert linked.exists(), page
            done = subprocess.run(["git", "check-ignore", "-q", linked], cwd=BENCHMARKS)
            assert done.returncode != 0, (page, name)
