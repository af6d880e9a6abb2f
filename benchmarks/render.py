"""Render all tables and figures from stored results (`make tables`)."""

from importlib import import_module
from pathlib import Path

from benchmarks import accounting, figures, tables

# experiments with a README that is rendered from results
EXPERIMENTS = ("faults", "peers", "scale")


def write() -> list[Path]:
    """Write all tables, READMEs and pictures; return paths of READMEs and pictures."""
    tables.write()
    return [*map(readme, EXPERIMENTS), *figures.write(), *accounting.write()]


def readme(name: str) -> Path:
    """Write the README of an experiment, and return its path."""
    module = import_module(f"benchmarks.experiments.{name}")
    path = module.OUT / "README.md"
    path.write_text(module.readme(), encoding="utf-8")
    return path
