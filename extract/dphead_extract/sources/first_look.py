"""Find missing and unreadable images before a backbone is loaded."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping

from PIL import Image

from dphead_extract.errors import ExtractError
from dphead_extract.images import UnreadableImage
from dphead_extract.sources.image import MissingImage, Source

_LISTED_IMAGES = 10  # images that an error names; a choice, not measured
_SECONDS = 1.0  # of a first look; a choice
# the last bytes of a whole PNG and of a whole JPEG
_ENDS = (b"IEND\xaeB`\x82", b"\xff\xd9")


def first_look(source: Source) -> None:
    """Refuse missing images, and unreadable images that are found within a second.

    The header and the last bytes of each file are checked. A file that looks damaged is
    decoded.

    Raises
    ------
    ExtractError
        If images are missing or unreadable, with their names.
    """
    refuse_unreadable(source, dict.fromkeys(source.missing, MissingImage.reason))
    end, found = time.monotonic() + _SECONDS, {}
    for row in range(0 if source.arrays is None else source.n_rows, source.n_rows):
        if time.monotonic() > end:
            break
        raw = source.raw(row)
        if not (isinstance(raw, bytes) and _looks_whole(raw)):
            try:
                source.decode(raw)
            except UnreadableImage as error:
                found[row] = str(error)
    refuse_unreadable(source, found)


def _looks_whole(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)):
            return data.endswith(_ENDS)
    except Exception:  # Pillow raises many kinds for broken files
        return False


def refuse_unreadable(source: Source, found: Mapping[int, str]) -> None:
    """Raise ExtractError if `found` has unreadable images: reasons by row."""
    if not found:
        return
    missing = [row for row, why in found.items() if why == MissingImage.reason]
    rows = missing or found
    names = [str(source.names[row]) for row in rows]
    shown = (
        names if missing else [f"{source.names[row]} ({found[row]})" for row in rows]
    )
    listed = ", ".join(shown[:_LISTED_IMAGES] + ["..."] * (len(rows) > _LISTED_IMAGES))
    what = "do not exist" if missing else "are unreadable"
    advice = _path_advice(names) if missing else "Repair them"
    raise ExtractError(
        f"{len(rows)} of {source.n_rows} images {what}: {listed}. {advice}, or type "
        "--skip-unreadable to mask them."
    )


def _path_advice(names: list[str]) -> str:
    """Return the advice for paths that do not exist."""
    if any("\\" in name for name in names):
        return "Write the paths with / instead of \\"
    if not all(name.isascii() for name in names):
        return (
            "Compare the accents: they may be composed in one, decomposed in the other"
        )
    return "Correct the paths, which are relative to the table"
