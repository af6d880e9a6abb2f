"""Describe a features file, and convert a block of its rows to the file's types."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.reading import is_id, layout
from dphead_extract.items import (
    UNGROUPED,
    GroupIds,
    declared_dtype,
    is_encodable,
    name_of,
    read_column,
    text_group,
)

# values of a column that was not given; 0 for the columns that are missing here
_DEFAULTS = {"labels": -1, "valid": 1, "group": UNGROUPED}


@dataclass
class Header:
    """Hold the sizes and attributes of a features file, known before the first row.

    The fields from `backbone` to `library_versions` record how the features were made.
    `config` has everything else that a resumed run must repeat. `dataset_id` and `salt`
    are None to draw new ones.
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
        """Return the whole configuration, without the data set's id and the salt.

        The first run draws them, unless they are given.
        """
        apart = ("config", "dataset_id", "salt")
        own = {k: v for k, v in vars(self).items() if k not in apart}
        return {**own, **self.config}

    @property
    def n_classes(self) -> int:
        """Return the number of classes, or the largest int32 without class names."""
        names = self.class_names
        return np.iinfo(np.int32).max if names is None else len(names)

    def check(self) -> None:
        """Raise FormatError if sizes, dtype, names or data set id are invalid."""
        if self.n_rows < 1 or self.n_features < 1 or self.block_rows < 1:
            raise FormatError(
                "A features file needs at least 1 row, 1 column and 1 row per block, "
                f"got {self.n_rows}, {self.n_features} and {self.block_rows}."
            )
        if self.dtype not in ("float16", "float32"):
            raise FormatError(
                f"--dtype must be float16 or float32, got {self.dtype!r}."
            )
        names = self.class_names
        if names is not None and (not names or len(set(names)) != len(names)):
            raise FormatError(
                "--classes must list at least one name, and each name once, got "
                f"{','.join(map(str, names[:8])) or 'none'}."
            )
        for name in [*(names or ()), *self.split_names]:
            if not is_encodable(name):
                raise FormatError(
                    "Names of classes and splits must be text that UTF-8 can encode, "
                    f"got {name!r}. Choose another name."
                )
        check_dataset_id(self.dataset_id)


def group_ids(groups: Any, n_rows: int) -> GroupIds:
    """Return the id of each row's group; an id depends only on the row's value.

    Parameters
    ----------
    groups : array, column or list
        Names of groups: strings or numbers, which get the same id in every format. A
        row with a missing value (None, NaN, pandas' NA, a masked item, "") is a group
        of one row. The value -1 names a group. Ids of a features file (`GroupIds`) are
        returned unchanged. A rounded number would get the id of a different person:
        refuse it by `check_exact` first.
    n_rows : int
        Number of rows.

    Returns
    -------
    (n_rows,) int64
        Group ids; UNGROUPED (-1) for a row with a missing value.

    Raises
    ------
    FormatError
        If there is not one group for each row. For booleans, dates, complex numbers and
        longdouble (float64 would merge them). The check uses the dtype of the column,
        or of each item in a list.
    """
    if isinstance(groups, GroupIds) and groups.dtype == np.int64:
        if groups.shape == (n_rows,) and int(np.min(groups, initial=-1)) == UNGROUPED:
            return groups
        groups = np.asarray(groups)
    try:
        values, dtype = read_column(groups), declared_dtype(groups)
    except TypeError:
        raise FormatError(
            f"Groups must be a list or an array, got {type(groups).__name__}."
        ) from None
    fits = dtype.kind in "OSTUiu" or (dtype.kind == "f" and dtype.itemsize <= 8)
    if not fits or values.shape != (n_rows,):
        raise FormatError(
            "Groups must be texts or numbers of at most 64 bits, one for each of "
            f"{n_rows} rows, got shape {values.shape} and dtype {dtype}. Convert other "
            "types by `groups.astype(str)`."
        )
    if values.dtype.kind == "O":
        ids = np.array([_group_item(item) for item in values.tolist()], np.int64)
        return ids.view(GroupIds)
    with np.errstate(all="ignore"):  # a signaling NaN would warn
        found, at = np.unique(values, return_inverse=True)
    ids = np.array([_group_item(item) for item in found.tolist()], np.int64)
    return ids[at].view(GroupIds)


def group_names(groups: Any) -> set[str]:
    """Return the names of the groups in a column that `group_ids` accepts."""
    return {name for item in read_column(groups).tolist() if (name := name_of(item))}


def _group_item(item: Any) -> int:
    """Return the id of the group that an item names; no method of the item runs.

    Raises FormatError for a boolean, and for an item that has no name (`name_of`).
    """
    if type(item) in (bool, np.bool_):
        raise FormatError(
            "Groups must be texts or numbers, got bool. Use `groups.astype(str)`."
        )
    return text_group(name_of(item))


def check_ids(ids: np.ndarray) -> None:
    """Raise FormatError unless the ids are whole numbers that int64 holds."""
    if ids.dtype.kind not in "iu" or not np.can_cast(ids.dtype, np.int64):
        raise FormatError(
            f"Group ids must be integers that fit int64, got {ids.dtype}. Use "
            "`group_ids(groups, n_rows)`."
        )


def check_dataset_id(dataset_id: str | None) -> None:
    """Raise FormatError unless the id is None or 32 lower-case hexadecimal digits.

    A sha256, which could identify private data, is longer and therefore refused.
    """
    if dataset_id is not None and not is_id(dataset_id):
        raise FormatError(
            "--dataset-id must be 32 lower-case hexadecimal digits, got "
            f"{dataset_id!r}. Copy the id from `dphead extract`'s output, or use "
            "--same-data-as FILE."
        )


def block_digest(block: dict[str, np.ndarray]) -> np.ndarray:
    """Return the sha256, uint8 (32,), over the bytes of a block of rows.

    The block has all columns of the file, in the order of `layout`.
    """
    digest = hashlib.sha256()
    for values in block.values():
        digest.update(np.ascontiguousarray(values).data)
    return np.frombuffer(digest.digest(), np.uint8)


def prepare_block(
    features: np.ndarray, columns: dict[str, np.ndarray], header: Header, n_rows: int
) -> dict[str, np.ndarray]:
    """Return the columns of one block in the file's dtypes.

    Parameters
    ----------
    features : (n_rows, n_features) float
        The features.
    columns : dict
        Other columns by name. "group" holds ids (`group_ids`).
    header : Header
        The file's header.
    n_rows : int
        Number of rows of the block.

    Returns
    -------
    dict
        All columns. Labels outside the classes become -1, and the features of invalid
        rows become zero.

    Raises
    ------
    FormatError
        For a wrong shape, group ids that int64 cannot hold, or a valid row that is not
        finite.
    """
    if features.shape != (n_rows, header.n_features):
        raise FormatError(
            f"A block of features must have shape {(n_rows, header.n_features)}, got "
            f"{features.shape}."
        )
    valid = np.asarray(columns.get("valid", np.ones(n_rows)), np.bool_)
    given = {**columns, "features": np.where(valid[:, None], features, 0)}
    block: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in layout(header.identity(), n_rows).items():
        if name in given:
            values = np.asarray(given[name])
        else:
            values = np.full(shape, _DEFAULTS.get(name, 0))
        if name == "labels":
            labels = values.astype(np.int64)
            values = np.where((labels >= 0) & (labels < header.n_classes), labels, -1)
        elif name == "group":
            check_ids(values)
        if values.shape != shape:
            raise FormatError(
                f"Column {name} of a block must have shape {shape}, got {values.shape}."
            )
        with np.errstate(over="ignore"):
            block[name] = values.astype(dtype, copy=False)
    finite = np.isfinite(block["features"]).all(axis=1)
    if not finite.all():
        remedy = "Check the weights for NaN."
        if header.dtype == "float16":
            remedy = "Use --dtype float32 for values above 65504, or check the weights."
        raise FormatError(
            f"{int((~finite).sum())} rows of a block are not finite in {header.dtype}. "
            f"{remedy}"
        )
    return block


def row_digest(salt: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """Return the salted blake2b, uint8 (16,), of one image or array row.

    The digest covers the shape and the bytes.
    """
    digest = hashlib.blake2b(
        repr(tuple(shape)).encode() + data, digest_size=16, salt=bytes.fromhex(salt)
    )
    return np.frombuffer(digest.digest(), np.uint8)
