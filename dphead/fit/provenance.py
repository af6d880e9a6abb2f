"""Record the source code version of a run for its report."""

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PATIENCE = 5  # seconds to wait for git; chosen, not measured


@cache
def commit(root: Path = _ROOT) -> str | None:
    """Return the commit of dphead, or None if it is unknown.

    A git checkout gives its own commit, with "-dirty" if files were changed. An
    installed package has the commit that was recorded when it was built. The first
    result is kept until the process ends.
    """
    if not (root / ".git").exists():
        recorded = root / "dphead" / "commit.txt"
        return recorded.read_text() if recorded.exists() else None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
