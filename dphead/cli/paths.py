"""What a user is told of a path before libraries are loaded, which takes seconds."""

from pathlib import Path

from extract.bounds import check_ends


def check_there(what: str, *paths: Path | None) -> None:
    """ValueError for a path that does not exist, or is a pipe or a device; None is none
    that was given.
    """
    for path in paths:
        if path is None:
            continue
        check_ends(path)
        if _exists(path):
            continue
        hint = ""
        if _exists(path.with_name(path.name + ".part")):
            hint = " A .part file is there: run the same extract command again."
        raise ValueError(f"{what} must exist, got {path}. Check the path.{hint}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
