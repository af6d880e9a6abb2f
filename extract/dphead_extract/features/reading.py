"""Open a features file, and refuse an invalid file before any row is read."""

import hashlib
import json
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.seal import read_seal
from dphead_extract.items import GroupIds, is_encodable

SCHEMA_VERSION = 2  # version of the format in extract/dphead_extract/features/format.py
# keys of the configuration that decide what a column of `features` means
FEATURE_SPACE = (
    *("backbone", "backbone_kwargs", "weights_sha256", "transform"),
    "normalization",
)
_Layout = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of each column


def layout(config: dict[str, Any], n_rows: int | None = None) -> _Layout:
    """Return the columns of a file with this configuration, in the digest's order.

    `n_rows` is the length of a block; None gives whole columns.
    """
    n = config["n_rows"] if n_rows is None else n_rows
    columns: _Layout = {
        "features": ((n, config["n_features"]), config["dtype"]),
        "labels": ((n,), "int32"),
        "valid": ((n,), "bool"),
        "split": ((n,), "uint8"),
        "group": ((n,), "int64"),
        "row_digest": ((n, 16), "uint8"),
    }
    if not config["has_group"]:
        del columns["group"]
    return columns


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces. Equal values give equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _sha256_json(value: Any) -> str:
    """Return the hexadecimal sha256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _stored(name: str) -> cached_property[np.ndarray]:
    """Return a property that reads a whole column on first use."""
    return cached_property(lambda file: file._read(name, slice(None)))


class FeaturesFile:
    """Give access to an open, complete features file.

    Use it as a context manager. All arrays but `features` are read on first use.

    Attributes
    ----------
    file : h5py.File
        The HDF5 file itself.
    n_rows, n_features : int
        Size of the file.
    dtype : dtype
        float16 or float32.
    class_names : list of str or None
        The class names.
    classes_declared : str
        How they were declared public: "classes-flag", "folder-names-flag", or "".
    dataset_id, config_hash : str
        The data set's public id, and the private digest of the configuration.
    config : dict
        The configuration: sizes, backbone and all options (private).
    salt : str
        Key of the row digests (private).
    holdout : dict
        If hashes of names chose the test images: their "fraction", "by" ("group" or
        "image") and "positions" (see `features.format`). Else {}.
    people : dict or None
        The id system of the groups ("system"), and whether its people are declared to
        be in no other data set of the system ("new"). None without a declaration.
    features : h5py.Dataset
        (n, d); read it in blocks.
    labels : (n,) int32
        Class indices; -1 for none.
    valid : (n,) bool
        False for masked rows.
    split : (n,) uint8
        Indices into `split_names`.
    split_names : list of str
        Names of the splits.
    group : (n,) int64 or None
        Group ids.
    row_digest : (n, 16) uint8
        Salted digests of the images. They are private: they confirm guesses about rows.
    block_digest : (blocks, 32) uint8
        Digest of each block. Private.
    """

    def __init__(self, path: str | Path, file: h5py.File):
        self.path, self.file = Path(path), file
        attributes: Any = file.attrs
        self.config: dict[str, Any] = json.loads(attributes["config"])
        self.features: h5py.Dataset = file["features"]  # type: ignore[assignment]
        self.n_rows, self.n_features = (int(s) for s in self.features.shape)
        self.dtype: np.dtype = self.features.dtype
        self.class_names: list[str] | None = self.config["class_names"]
        declared = self.class_names is not None
        self.classes_declared: str = self.config["classes_declared"] if declared else ""
        self.classes_public = bool(self.classes_declared)
        self.dataset_id = str(file.attrs["dataset_id"])
        self.salt = str(file.attrs["salt"])
        self.config_hash = _sha256_json(self.config)
        self.split_names: list[str] = self.config["split_names"]
        self.holdout: dict[str, Any] = self.config.get("holdout", {})
        self.people: dict[str, Any] | None = self.config.get("people")
        space = {key: self.config[key] for key in FEATURE_SPACE}
        self.feature_space = _sha256_json(space)

    labels = _stored("labels")
    valid = _stored("valid")
    split = _stored("split")
    row_digest = _stored("row_digest")
    block_digest = _stored("block_digest")

    @cached_property
    def group(self) -> GroupIds | None:
        """Return the group ids, int64 (n,), or None without groups.

        `write_features`, estimators and `group_ids` accept this array and its slices as
        ids. Converted to another type, such as a pandas column, the ids would be read
        as names of groups.
        """
        if not self.config["has_group"]:
            return None
        ids = self._read("group", slice(None)).view(GroupIds)
        ids.flags.writeable = False
        return ids

    def _read(self, name: str, rows: slice) -> np.ndarray:
        """Return some rows of a column, or raise FormatError for a damaged file."""
        columns: Any = self.file
        try:
            return columns[name][rows]
        except OSError as error:
            raise _damaged(self.path) from error

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the features (stop - start, d) of a range of rows.

        Raises FormatError if the file is damaged there.
        """
        return self._read("features", slice(start, stop))

    def block(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return every column of a range of rows, by name.

        Raises FormatError if the file is damaged there.
        """
        columns = {name: getattr(self, name) for name in layout(self.config)}
        rows = {name: values[start:stop] for name, values in columns.items()}
        return rows | {"features": self.rows(start, stop)}

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> "FeaturesFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _damaged(path: str | Path) -> FormatError:
    return FormatError(
        f"The features file {str(path)!r} is damaged or cut short. Copy or extract it "
        "again."
    )


def is_id(text: object) -> bool:
    """Return whether this is the form of a data set's id, as `uuid4().hex`."""
    return re.fullmatch(r"[0-9a-f]{32}", str(text)) is not None


def has_known_types(config: dict[str, Any]) -> bool:
    """Return whether each value of a configuration has the type that readers expect."""
    classes, shard = config["class_names"], config.get("shard", {})
    lists = [[] if classes is None else classes, config["split_names"]]
    options = config["backbone_kwargs"]
    parts = [config]
    if isinstance(options, dict):
        parts += options.get("parts", [])
    nested = [part[key] for part in parts for key in ("transform", "normalization")]
    nested += [options, config.get("holdout", {}), shard]
    people = config.get("people", {"system": "", "new": False})
    texts = [name for names in lists for name in names]
    texts += [part[key] for part in parts for key in ("backbone", "weights_sha256")]
    return (
        all(isinstance(names, list) for names in lists)
        and all(map(is_encodable, texts))
        and all(isinstance(fact, dict) for fact in nested)
        and all(isinstance(number, int) for number in shard.values())
        and isinstance(config["block_rows"], int)
        and isinstance(config.get("limit"), int | None)
        and isinstance(people, dict)
        and {name: type(value) for name, value in people.items()}
        == {"system": str, "new": bool}
    )


def open_h5(path: str | Path) -> tuple[h5py.File, bool]:
    """Return a features file, opened without locks, and whether it is complete.

    Raises FormatError if it is missing, not HDF5 or cut short, does not match its seal,
    or has columns in other files.
    """
    path = Path(path)
    if not path.is_file():
        part = path.with_name(path.name + ".part")
        todo = "Type the path of a file that `dphead extract` wrote."
        if path.is_dir():
            todo = f"For a folder of images, type `dphead extract {path}` first."
        elif part.exists():
            todo = f"{part.name} is unfinished. Run the command that wrote it again."
        raise FormatError(f"{str(path)!r} is not a features file. {todo}")
    try:
        complete = read_seal(path)
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise _damaged(path) from error
    if not _holds_its_columns(file):
        file.close()
        raise FormatError(
            f"{str(path)!r} is damaged or forged: some columns are links, or lie in "
            "other files. Extract it again."
        )
    return file, complete


def _holds_its_columns(file: h5py.File) -> bool:
    """Return whether every entry of a file is a dataset whose bytes lie in this file.

    A forged file could refer to any other file: by an external or soft link, a virtual
    dataset, or a dataset with external storage. The bytes of that file would be read as
    features. No link is followed here.
    """
    root: Any = file
    for name in file:
        if not isinstance(root.get(name, getlink=True), h5py.HardLink):
            return False
        column = root[name]
        if not isinstance(column, h5py.Dataset) or column.id.get_offset() is None:
            return False
    return True


def begun_id(path: Path) -> str | None:
    """Return the data set's id in a features file or its .part; None if unreadable."""
    for place in (path, path.with_name(path.name + ".part")):
        with suppress(FormatError, OSError, KeyError), open_h5(place)[0] as file:
            return str(file.attrs["dataset_id"])
    return None


def open_features(path: str | Path) -> FeaturesFile:
    """Open a complete features file for reading.

    The rows are not read here. `dphead_extract.features.verify.check_blocks` reads and
    checks them.

    Parameters
    ----------
    path : str or Path
        The features file.

    Returns
    -------
    FeaturesFile
        The open file.

    Raises
    ------
    FormatError
        If the file is missing, is not HDF5, was changed outside its columns, has a
        different schema version, or is not finished.
    """
    file, complete = open_h5(path)
    try:
        version = file.attrs["schema_version"]
        if version != SCHEMA_VERSION:
            raise FormatError(
                f"{str(path)!r} has schema version {version}, and this dphead reads "
                f"version {SCHEMA_VERSION}. Extract the features again."
            )
        if not complete:
            raise FormatError(
                f"{str(path)!r} is not finished. Run the same extract command again to "
                "resume."
            )
        columns: Any = file
        found = FeaturesFile(path, file)
        for name, stored in layout(found.config).items():
            if (columns[name].shape, columns[name].dtype) != stored:
                raise _damaged(path)
        digests = columns.get("block_digest")
        # the index names its files by the id
        named = is_id(found.dataset_id) and has_known_types(found.config)
        if not isinstance(digests, h5py.Dataset) or not named:
            raise _damaged(path)
        return found
    except FormatError:
        file.close()
        raise
    except Exception as error:  # HDF5 may raise anything for a damaged or hostile file
        file.close()
        raise _damaged(path) from error


def open_same(path: str | Path, dataset_id: str | None, n_rows: int) -> FeaturesFile:
    """Open the features file that a user gives as `--same-data-as`.

    Raises FormatError as `open_features` does. Also if its number of rows or, unless
    `dataset_id` is None, its id differs.
    """
    file = open_features(path)
    if dataset_id in (None, file.dataset_id) and file.n_rows == n_rows:
        return file
    file.close()
    if file.n_rows != n_rows:
        raise FormatError(
            f"--same-data-as names a file with {file.n_rows} rows, and this source has "
            f"{n_rows}. Use the same source, --split and --limit as for that file."
        )
    raise FormatError(
        f"--same-data-as names a file of the data set {file.dataset_id}, got "
        f"--dataset-id {dataset_id}. Remove --dataset-id."
    )
