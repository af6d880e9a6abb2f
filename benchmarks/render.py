"""Render all tables and figures from stored rows (`make tables`)."""

from importlib import import_module
from pathlib import Path

from benchmarks import accounting, figures, tables

# with a README of their own, rendered from rows
EXPERIMENTS = (
    "backends",
    "faults",
    "peers",
    "scale",
)


def write() -> list[Path]:
    """Write all tables, READMEs and pictures; returns the paths of the last two."""
    tables.write()
    paths = []
    for name in EXPERIMENTS:
        paths += import_module(f"benchmarks.experiments.{name}").write()
    return [*paths, *figures.write(), *accounting.write()]
