"""Store results as JSON lines in results/, with commit, date and machine."""

import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.sealed import plain

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, Any]:
    """Return the commit, date and machine of a result."""
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines()
        if Path("/proc/cpuinfo").exists()
        else []
    )
    cpu = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "commit": commit_of("."),
        "date": time.strftime("%Y-%m-%d"),
        "machine": (
            f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy "
            f"{np.__version__}"
        ),
    }


def commit_of(folder: str | Path) -> str:
    """Return the short name of the commit that is checked out in a folder."""
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def append(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a JSON-lines file, which is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(plain(row), sort_keys=True) + "\n")


def heads(name: str, method: str) -> dict[float, list[float]]:
    """Return the accuracies in % of stored heads of some features, by epsilon."""
    cells: dict[float, list[float]] = defaultdict(list)
    for row in read(RESULTS / "heads" / f"{name}.jsonl"):
        if row["method"] == method:
            cells[row["epsilon"]].append(100 * row["accuracy"])
    return cells


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file, or []. Epsilons become floats again."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for key in ("epsilon", "exact_epsilon"):
            if key in row:
                row[key] = float(row[key])
    return rows
