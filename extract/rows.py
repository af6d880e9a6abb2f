"""What a features file says about itself, and a block of its rows in its own types."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from extract.errors import FormatError
from extract.items import declared_dtype, is_missing, read_column
from extract.reading import ROW_COLUMNS

_INTEGERS = {np.dtype(code).type for code in np.typecodes["AllInteger"]}


@dataclass
class Header:
    """What is known before the first row: sizes, public attributes, and what else makes
    two runs the same (config).
    """

    n_rows: int
    n_features: int
    dtype: str = "float32"
    class_names: Sequence[str] | None = None
    classes_declared: str = ""
    split_names: Sequence[str] = ("all",)
    has_group: bool = False
    backbone: str = "arrays"
    backbone_kwargs: dict[str, Any] = field(default_factory=dict)
    weights_sha256: str = ""
    transform: dict[str, Any] = field(default_factory=dict)
    normalization: dict[str, Any] = field(default_factory=dict)
    library_versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    block_rows: int = 1024
    dataset_id: str | None = None
    salt: str | None = None

    def identity(self) -> dict[str, Any]:
        """The whole configuration: everything but the random id and salt, which a first
        run draws.
        """
        return {
            **{
                k: v
                for k, v in vars(self).items()
                if k not in ("config", "dataset_id", "salt")
            },
            **self.config,
        }

    def check(self) -> None:
        if self.n_rows < 1 or self.n_features < 1 or self.block_rows < 1:
            raise FormatError(
                "features need at least one row, one column and one row a block, got "
                f"n_rows={self.n_rows}, n_features={self.n_features}, "
                f"block_rows={self.block_rows}. Check the source."
            )
        if self.dtype not in ("float16", "float32"):
            raise FormatError(
                f"dtype must be float16 or float32, got dtype={self.dtype!r}. Use "
                "--dtype float32."
            )
        names = self.class_names
        if names is not None and (not names or len(set(names)) != len(names)):
            raise FormatError(
                "class names must be distinct and at least one, got "
                f"class_names={list(names)[:8]}. Check --classes."
            )
        check_dataset_id(self.dataset_id)


def text_group(text: str) -> int:
    """The id of a group that has a text for a name: 63 bits of a digest of that text,
    -1 for an empty one, a row on its own.

    It depends on no other row: an order of all texts would change with one of them.
    """
    name = text.strip().encode("utf-8", "surrogatepass")
    if not name:
        return -1
    digest = hashlib.blake2b(name, digest_size=8, person=b"dphead group").digest()
    return int.from_bytes(digest, "big") >> 1


def group_ids(groups: Any, n_rows: int) -> np.ndarray:
    """(n_rows,) int64 ids of groups, negative for a row on its own.

    groups: whole numbers, which are the ids, or texts (`text_group`); a list, an array
        of objects, or a column of pandas or pyarrow may hold both, and a missing value
        (None, NaN, pandas' NA, a masked item) for a row on its own.

    Groups must be told apart exactly: cast, large unsigned ids would turn negative (a
    row on its own), and fractions would become one group. They are refused by their
    dtype, and in what declares none item by item.
    """
    try:
        ids, dtype = read_column(groups), declared_dtype(groups)
    except TypeError:
        raise FormatError(
            f"groups must be a list or an array, got {type(groups).__name__}. Give "
            "one for each row."
        ) from None
    texts = dtype.kind in "OSTU"
    whole = dtype.kind == "i" or (dtype.kind == "u" and dtype.itemsize < 8)
    if not (texts or whole) or ids.shape != (n_rows,):
        raise FormatError(
            "groups must be (n,) texts, or integers of a dtype that int64 holds, got "
            f"shape={ids.shape}, dtype={dtype}. Number them from 0, such as by "
            "np.unique(groups, return_inverse=True)[1]."
        )
    if ids.dtype.kind in "OSU":
        return np.array([_group_item(item) for item in ids.tolist()], np.int64)
    return ids.astype(np.int64, copy=False)


def _group_item(item: Any) -> int:
    """The id of one group of a list or of objects. No code of its own runs."""
    kind = type(item)
    if issubclass(kind, bytes):
        item, kind = bytes.decode(item, "utf-8", "surrogateescape"), str
    if issubclass(kind, str):
        return text_group(str.__str__(item))
    if is_missing(item):
        return -1
    # the class's own conversion, since a subclass may have another
    number = int.__index__(item) if issubclass(kind, int) else None
    number = int(item) if kind in _INTEGERS else number
    if number is None or kind is bool or not -(2**63) <= number < 2**63:
        raise FormatError(
            "each group must be a text or an integer that int64 holds, got "
            f"type={kind.__name__}. Convert the groups to texts."
        )
    return number


def check_dataset_id(dataset_id: str | None) -> None:
    """FormatError unless the id is None or 32 lower-case hexadecimal digits (a digest
    would be longer).
    """
    if dataset_id is not None and not re.fullmatch(r"[0-9a-f]{32}", dataset_id):
        raise FormatError(
            "dataset_id must be 32 lower-case hexadecimal digits (a uuid4), got "
            f"dataset_id={dataset_id!r}. Copy it from the other features file, or use "
            "--same-data-as."
        )


def block_digest(block: dict[str, np.ndarray]) -> np.ndarray:
    """sha256, uint8 (32,), over the bytes of a block of rows: every column, in the
    schema's order.
    """
    digest = hashlib.sha256()
    for name in ROW_COLUMNS:
        if name in block:
            digest.update(np.ascontiguousarray(block[name]).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def prepare_block(
    features: np.ndarray, columns: dict[str, np.ndarray], header: Header, n_rows: int
) -> dict[str, np.ndarray]:
    """Columns of one block in the file's dtypes; FormatError for a wrong shape or a
    valid row that is not finite.

    Labels outside the classes become -1; invalid rows become zero.
    """
    if features.shape != (n_rows, header.n_features):
        raise FormatError(
            f"a block of features must have shape {(n_rows, header.n_features)}, got "
            f"shape={features.shape}. Append whole blocks in order."
        )
    valid = np.asarray(columns.get("valid", np.ones(n_rows)), np.bool_)
    with np.errstate(over="ignore"):
        stored = np.where(valid[:, None], features, 0).astype(header.dtype)
    if not np.isfinite(stored).all():
        bad = int((~np.isfinite(stored)).any(axis=1).sum())
        raise FormatError(
            f"features must be finite in the file's dtype, got dtype={header.dtype!r}, "
            f"{bad} bad rows in a block. Check the images and the weights; if values "
            "exceed 65504 use --dtype float32."
        )
    labels = np.asarray(columns.get("labels", np.full(n_rows, -1)), np.int64)
    high = (
        len(header.class_names)
        if header.class_names is not None
        else np.iinfo(np.int32).max
    )
    block = {
        "features": stored,
        "labels": np.where((labels >= 0) & (labels < high), labels, -1).astype(
            np.int32
        ),
        "valid": valid,
        "split": np.asarray(columns.get("split", np.zeros(n_rows)), np.uint8),
        "row_digest": np.asarray(
            columns.get("row_digest", np.zeros((n_rows, 16))), np.uint8
        ),
        "image_hash": np.asarray(
            columns.get("image_hash", np.zeros(n_rows)), np.uint64
        ),
    }
    if header.has_group:
        block["group"] = group_ids(columns.get("group", np.full(n_rows, -1)), n_rows)
    for name, values in block.items():
        if len(values) != n_rows:
            raise FormatError(
                f"column {name} must have {n_rows} rows, got rows={len(values)}. "
                "Append whole blocks."
            )
    return block


def row_digest(salt: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """Salted blake2b, uint8 (16,), of one decoded image or array row: its shape and its
    bytes.
    """
    digest = hashlib.blake2b(
        repr(tuple(shape)).encode() + data, digest_size=16, salt=bytes.fromhex(salt)
    )
    return np.frombuffer(digest.digest(), np.uint8)
