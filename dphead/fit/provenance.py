"""Record the source code version of a run for its report."""

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
PATIENCE = 5  # seconds to wait for git; chosen, not measured


def commit(root: Path = _ROOT) -> str | None:
    """Return the checked-out commit of dphead, or None if it is not a git checkout.

    The name ends with "-dirty" if files were changed.
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
