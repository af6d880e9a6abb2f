"""Find the split and the class of an image in the folders of its path.

The meaning is declared: no path may affect how another path is read, because paths are
private.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from dphead_extract.errors import ExtractError
from dphead_extract.sources.classes import SPLITS

EXAMPLES = "class, split/class, any/class or any/split/class"


@dataclass(frozen=True)
class Layout:
    """Hold the meaning of each folder from the outside in: "class", "split" or "any".

    "any" folders, folders after the last part, and the name of the file have no
    meaning. Guarantee: the class and the split of a path depend only on that path and
    on the declared parts.
    """

    parts: tuple[str, ...] = ("class",)

    @classmethod
    def parse(cls, text: str | None, split: str = "all") -> Layout:
        """Return the declared layout.

        None is split/class if one split is asked for, else class. Raises ExtractError
        for a text that is not a layout.
        """
        if text is None:
            return cls(("class",) if split == "all" else ("split", "class"))
        parts = tuple(text.split("/"))
        known = set(parts) <= {"any", "split", "class"}
        if not known or parts.count("class") != 1 or parts.count("split") > 1:
            raise ExtractError(
                "--layout must name the folders of a path from the outside in, with "
                f"class once and split at most once, got {text!r}. Examples: "
                f"{EXAMPLES}, webdataset."
            )
        return cls(parts)

    def __str__(self) -> str:
        return "/".join(self.parts)

    @property
    def has_splits(self) -> bool:
        """Return whether a folder of the layout is a split."""
        return "split" in self.parts

    def read(self, name: str) -> tuple[str, str]:
        """Return the label and the split of a relative path; "" for none."""
        folders = PurePosixPath(name).parts[:-1]
        said = dict(zip(self.parts, folders, strict=False))
        split = said.get("split", "")
        return said.get("class", ""), split if split.lower() in SPLITS else ""
