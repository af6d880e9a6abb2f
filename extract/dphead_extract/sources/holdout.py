"""Choose test images by a keyed hash of the name of each group or image.

The key is fixed and public. Every extraction of the same images therefore gives the
same split, and a row does not affect how another row is split. This does not hold for
rows without a group that are named by their position (`record`): rows of arrays, of
tables that hold the bytes of images, and of embeddings.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dphead_extract.errors import ExtractError
from dphead_extract.items import UNGROUPED
from dphead_extract.numerals import typed_number
from dphead_extract.options import image_option

if TYPE_CHECKING:  # Pillow is not needed for embeddings
    from dphead_extract.sources.image import Source

_KEY = b"dphead: test split of groups or images, version 1"


@dataclass(frozen=True)
class Holdout:
    """Describe the test images that are set apart.

    Attributes
    ----------
    fraction : float
        Expected fraction of groups (or images) in the split "test"; 0 for no split.
    by_group : bool
        Whether the source must have groups. Groups always stay whole.
    """

    fraction: float = 0.0
    by_group: bool = False

    @classmethod
    def parse(cls, text: str) -> "Holdout":
        """Read a text such as "0.2" or "0.2:groups".

        Raises ExtractError if the text is invalid.
        """
        number, _, by = text.partition(":")
        try:
            fraction = typed_number(number, float)
        except ValueError:
            fraction = -1.0
        if not 0 <= fraction <= 0.9 or (by and (by != "groups" or not fraction)):
            raise ExtractError(
                "write a fraction from 0 to 0.9, such as 0.2, or one above 0 with "
                f":groups, such as 0.2:groups, got {text!r}."
            )
        return cls(fraction, bool(by))

    def record(self, grouped: bool, positions: bool) -> dict[str, dict[str, object]]:
        """Return the entry of the file's configuration; {} without a split.

        Parameters
        ----------
        grouped : bool
            Whether the source has groups.
        positions : bool
            Whether rows without a group are named by their position. Removing a row
            then moves other rows between the splits.
        """
        if not self.fraction:
            return {}
        by = "group" if grouped else "image"
        facts = {"fraction": self.fraction, "by": by, "positions": positions}
        return {"holdout": facts}

    def split_names(self, grouped: bool, names: list[str]) -> list[str]:
        """Return the splits train and test, or `names` if no test images are set apart.

        Raises ExtractError if groups are required and missing, or if the source has
        splits.
        """
        if not self.fraction:
            return names
        if self.by_group and not grouped:
            raise ExtractError(
                "--test-fraction F:groups needs a column of groups, such as patients. "
                "Type --columns group=NAME."
            )
        if names != ["all"]:
            raise ExtractError(
                "--test-fraction cannot be combined with --split, or with a source "
                "that has splits. Remove --test-fraction."
            )
        return ["train", "test"]

    def split(self, source: "Source") -> "Source":
        """Return a source with the splits "train" and "test" if a fraction is set.

        Raises ExtractError as `split_names` does.
        """
        names = self.split_names(source.group is not None, source.split_names)
        codes = self.codes(source.names, source.group, source.split)
        return replace(source, split=codes, split_names=names)

    def codes(
        self, names: Sequence[str], groups: np.ndarray | None, split: np.ndarray
    ) -> np.ndarray:
        """Return 1 for test and 0 for train, uint8 (n,), or `split` unchanged."""
        if not self.fraction:
            return split
        ids = [UNGROUPED] * len(names) if groups is None else groups.tolist()
        return np.array(
            [
                _draw(f"image {name}" if group == UNGROUPED else f"group {group}")
                < self.fraction
                for name, group in zip(names, ids, strict=True)
            ],
            np.uint8,
        )


def _draw(text: str) -> float:
    """Return a pseudorandom number from 0 to 1 that depends only on the text."""
    data = text.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(data, digest_size=8, key=_KEY).digest()
    return int.from_bytes(digest, "big") / 2**64


HOLDOUT = image_option(
    "Reserve this fraction of the images, such as 0.2, as the split `test`. The other "
    "images form the split `train`. If the source has groups, whole groups are "
    "reserved. 0.2:groups refuses a source without groups.",
    flags=("--test-fraction",),
    read=Holdout.parse,
    metavar="F|F:groups",
)
