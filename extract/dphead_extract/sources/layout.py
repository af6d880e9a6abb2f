"""Say which folders of a path are its split and its class.

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
    """Say what each folder is, from the outside in: "class", "split", or "any".

    "any" is a folder that says nothing. So do folders after the last named one, and the
    file's own name. Guarantee: what a path says depends only on that path and on the
    declared parts.
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
                "a layout must say what each folder of a path is, from the outside "
                f"in, with class once and split at most once, got layout={text!r}. "
                f"Write {EXAMPLES}; or webdataset for tars of samples."
            )
        return cls(parts)

    def __str__(self) -> str:
        return "/".join(self.parts)

    @property
    def has_splits(self) -> bool:
        """Return whether a folder of the layout is a split."""
        return "split" in self.parts

    def read(self, name: str) -> tuple[str, str]:
        """Return the label and split of a relative path; "" where it says none."""
        folders = PurePosixPath(name).parts[:-1]
        said = dict(zip(self.parts, folders, strict=False))
        split = said.get("split", "")
        return said.get("class", ""), split if split.lower() in SPLITS else ""
