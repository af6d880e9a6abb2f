"""Render all tables and figures from stored rows (`make tables`)."""

from importlib import import_module
from pathlib import Path

from benchmarks import accounting, figures, tables

# with a README of their own, rendered from rows
EXPERIMENTS = ("faults", "peers", "scale")


def write() -> list[Path]:
    """Write all tables, READMEs and pictures; returns the paths of the last two."""
    tables.write()
    return [*map(readme, EXPERIMENTS), *figures.write(), *accounting.write()]


def readme(name: str) -> Path:
    """Write the README of an experiment; returns its path."""
    module = import_module(f"benchmarks.experiments.{name}")
    path = module.OUT / "README.md"
    path.write_text(module.readme(), encoding="utf-8")
    return path
