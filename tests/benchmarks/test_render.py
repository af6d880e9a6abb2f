"""`make tables` renders all that can be, and what is stored is what it gives."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import render

SOURCES = Path(render.__file__).parent / "experiments"


@pytest.mark.parametrize("name", render.EXPERIMENTS)
def test_a_readme_of_results_is_what_its_rows_give(name):
    module = import_module(f"benchmarks.experiments.{name}")
    assert (module.OUT / "README.md").read_text(encoding="utf-8") == module.readme()


def test_every_experiment_that_has_a_readme_is_rendered():
    """Read from the sources: to import them all takes torch."""
    writers = {p.stem for p in SOURCES.glob("*.py") if "\ndef write(" in p.read_text()}
    assert writers == set(render.EXPERIMENTS)
