"""Classes and splits: what is declared of them, and what a row's own text says.

They may not be inferred from rows, which are private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from extract.bounds import is_plain
from extract.errors import ExtractError

SPLITS = {
    "train": "train",
    "test": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
MOST_CLASSES = 2**20  # names that a number stands for, at most; chosen, not measured
# of a source whose layout or header says that it has splits
SPLIT_NAMES = ("train", "validation", "test", "none")


@dataclass
class Classes:
    """How the classes were declared: as names, or by making the folder names public, or
    not at all.

    allow_unlabelled: rows whose label is no declared class stay, without a class; else
    they are refused.
    """

    names: list[str] | None = None
    folder_names_public: bool = False
    ignore_labels: bool = False
    allow_unlabelled: bool = False

    @classmethod
    def parse(
        cls,
        text: str | None,
        folder_names_public: bool = False,
        ignore_labels: bool = False,
        allow_unlabelled: bool = False,
    ) -> Classes:
        """From the command line: "a,b,c", "10" (names "0" to "9") or "@file" with a
        name a line.

        ExtractError if a name is empty or repeated, or if the classes are declared in
        both ways.
        """
        if text is None:
            return cls(None, folder_names_public, ignore_labels, allow_unlabelled)
        if folder_names_public:
            raise ExtractError(
                "classes must be declared in one way, got --classes and "
                "--folder-names-are-public. Leave one out."
            )
        if text.startswith("@"):
            names = _listed_names(Path(text[1:]))
        elif text.strip().isdecimal():
            names = _numbered(text.strip())
        else:
            names = [name.strip() for name in text.split(",")]
        if not names or "" in names or len(set(names)) != len(names):
            raise ExtractError(
                f"class names must be distinct and not empty, got --classes={text!r}. "
                "Correct the list."
            )
        return cls(names, False, ignore_labels, allow_unlabelled)

    def encode(
        self, labels: Sequence[str] | np.ndarray | None, n_rows: int
    ) -> tuple[np.ndarray, list[str] | None, str]:
        """(int32 labels, class names, how declared) of raw labels: texts, or integers
        in label order.
        """
        declared = "classes-flag" if self.names is not None else ""
        if labels is None or self.ignore_labels:
            return np.full(n_rows, -1, np.int32), self.names, declared
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
            codes = labels.astype(np.int64)
            high = len(self.names) if self.names is not None else np.iinfo(np.int32).max
            self.check_known({str(code) for code in codes if code >= high})
            known = (codes >= 0) & (codes < high)
            return np.where(known, codes, -1).astype(np.int32), self.names, declared
        texts, names = [str(label) for label in labels], self.names
        if names is None and self.folder_names_public:
            names, declared = (
                sorted({text for text in texts if text}),
                "folder-names-flag",
            )
        if names is None and any(texts):
            raise ExtractError(
                "the classes must be declared public before labels are stored, got "
                "classes=None. Pass --classes a,b,c, or --folder-names-are-public, or "
                "--ignore-labels."
            )
        index = {name: code for code, name in enumerate(names or [])}
        self.check_known({text for text in texts if text and text not in index})
        labels = np.array([index.get(text, -1) for text in texts], np.int32)
        return labels, names, declared

    def check_known(self, others: set[str]) -> None:
        """ExtractError if rows have labels that are no declared class: a typing error
        there would cost a budget for a head that has learnt nothing.
        """
        if not others or self.allow_unlabelled:
            return
        first = min(others)
        near = get_close_matches(first, self.names or [], 1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ExtractError(
            "every label must be a declared class or empty, got "
            f"label={first!r}{more}.{hint} Correct --classes, "
            "or keep such rows without a class by --allow-unlabelled."
        )


def _numbered(count: str) -> list[str]:
    """The names "0", "1", ... of so many classes."""
    # its length first: a number of thousands of digits cannot be read
    if len(count) > len(str(MOST_CLASSES)) or int(count) > MOST_CLASSES:
        raise ExtractError(
            f"a number of classes must be at most {MOST_CLASSES}, got "
            f"--classes={count[:20]}. List their names."
        )
    return [str(i) for i in range(int(count))]


def _listed_names(path: Path) -> list[str]:
    """The lines of a file that are not empty."""
    try:
        if not is_plain(path):
            raise OSError("no plain file")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExtractError(
            f"--classes @FILE must be readable text, got file={str(path)!r}. Check it."
        ) from error
    return [line.strip() for line in lines if line.strip()]


def possible_splits(declared: bool) -> list[str]:
    """The splits of a source: all that there can be if it is declared to have some,
    whatever its rows say; else one.
    """
    return list(SPLIT_NAMES) if declared else ["all"]


def split_codes(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """uint8 codes into the public names, of a split's text for each row; the last is
    that of a row without one ("").

    ExtractError for another text.
    """
    unknown = sorted({text for text in texts if text and text.lower() not in SPLITS})
    if unknown:
        raise ExtractError(
            f"a split must be one of {sorted(SPLITS)}, got split={unknown[0]!r}. "
            "Rename it."
        )
    codes = {name: code for code, name in enumerate(names)}
    without = len(names) - 1
    splits = [SPLITS.get(text.lower(), "") for text in texts]
    return np.array([codes.get(name, without) for name in splits], np.uint8)


def split_texts(values: np.ndarray | None, n_rows: int) -> list[str]:
    """Each row's split in its own words, "" for none; codes 0, 1 and 2 are train, test
    and validation, and -1, which a missing one is read as, none.
    """
    if values is None:
        return [""] * n_rows
    if values.dtype.kind in "iub":
        names = {0: "train", 1: "test", 2: "validation", -1: ""}
        return [names.get(int(v), f"code {int(v)}") for v in values]
    return [str(v) for v in values]


def check_found(split: str, found: Sequence[str], path: Path) -> None:
    """ExtractError unless the wanted split is there."""
    if split != "all" and split not in found:
        raise ExtractError(
            f"the source must hold the split asked for, got split={split!r}, "
            f"source={str(path)!r} with {list(found)}. Leave --split out or name one "
            "of these."
        )
