"""Which source made a run: a fact for its report. It decides nothing."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 5  # seconds for git; chosen, not measured


def commit(root: Path = ROOT) -> str | None:
    """The commit that is checked out where dphead lies, with "-dirty" where its files
    were changed; None where that is no checkout, as for an installed package.
    """
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
