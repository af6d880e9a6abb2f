"""Everything that is drawn or written from stored rows, in one go: `make tables`."""

from importlib import import_module
from pathlib import Path

from benchmarks import accounting, figures, tables
from benchmarks.experiments import audit
from benchmarks.store import RESULTS

EXPERIMENTS = {  # with a README of their own, rendered from rows, and its folder
    "ablation": "ablation",
    "audit": "audit",
    "compare": "auto",
    "expected": "expected",
    "peers": "peers",
    "scale": "scale",
}


def write() -> list[Path]:
    """Write all tables, READMEs and pictures; returns the pictures and READMEs."""
    tables.write()
    paths = []
    for name, folder in EXPERIMENTS.items():
        import_module(f"benchmarks.experiments.{name}").write()
        paths.append(RESULTS / folder / "README.md")
    return [*paths, *figures.write(), *accounting.write(), *audit.draw()]
