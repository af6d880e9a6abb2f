"""Check paths before libraries are loaded, because loading takes seconds."""

from pathlib import Path

from dphead_extract.bounds import check_ends


def check_there(what: str, *paths: Path | None) -> None:
    """Raise ValueError for a path that does not exist, or is a pipe or a device.

    None (an omitted path) passes.
    """
    for path in paths:
        if path is None:
            continue
        check_ends(path)
        if _exists(path):
            continue
        hint = ""
        if _exists(path.with_name(path.name + ".part")):
            hint = (
                " An unfinished .part file exists. Run the same extract command again."
            )
        raise ValueError(f"{path} does not exist. Type the path of {what}.{hint}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name
        return False
