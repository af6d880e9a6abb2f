"""Whom a guarantee protects, in words: images where dphead made the rows of them, else
rows. From public facts of the source alone.
"""

from typing import Any


def made_of_images(extraction: dict[str, Any] | None) -> bool:
    """Whether a report's or a head's `extraction` shows that dphead made the rows, each
    of its own image.

    Not so of imported rows and of arrays, whatever network they name: an extraction
    alone records the shift of the pixels, if only that there was none.
    """
    return "mean" in ((extraction or {}).get("transform") or {})


def thing_of(extraction: dict[str, Any] | None) -> str:
    """What a row is called: "image" or "row"."""
    return "image" if made_of_images(extraction) else "row"


def thing_in(report: dict[str, Any]) -> str:
    """What a training row of a report is called."""
    return thing_of(report["data"].get("extraction"))


def protected_unit(group_cap: int | None, thing: str) -> str:
    """The unit of a plan whose rows are called `thing`."""
    if group_cap is None:
        return f"one {thing}"
    return f"one group with all its {thing}s, of which at most {group_cap} count"
