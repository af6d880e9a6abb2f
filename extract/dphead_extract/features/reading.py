"""Open a features file, and refuse another file before any of its rows is read."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.seal import read_seal

SCHEMA_VERSION = 1  # version of the format in extract/dphead_extract/features/format.py
JSON_ATTRIBUTES = (
    *("backbone_kwargs", "transform", "normalization", "views"),
    *("library_versions", "config"),
)
FEATURE_SPACE = (
    "backbone",
    "backbone_kwargs",
    "weights_sha256",
    "transform",
    "normalization",
)
ATTRIBUTES = (
    *FEATURE_SPACE,
    *(
        "block_rows",
        "dataset_id",
        "salt",
        "class_names",
        "classes_public",
        "classes_declared",
    ),
    *("library_versions", "config", "config_hash"),
)
# in the order of a block's digest; None: float16 or float32, as the file says
COLUMN_TYPES = {
    "features": None,
    "labels": "int32",
    "valid": "bool",
    "split": "uint8",
    "group": "int64",
    "row_digest": "uint8",
    "image_hash": "uint64",
}
ROW_COLUMNS = tuple(COLUMN_TYPES)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def sha256_json(value: Any) -> str:
    """Return the hexadecimal sha256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


class FeaturesFile:
    """Give access to an open, complete features file.

    Use it as a context manager. All arrays but `features` are read on first use.

    Attributes
    ----------
    n_rows, n_features : int
        Size of the file.
    dtype : dtype
        float16 or float32.
    class_names : list of str or None
        The class names.
    dataset_id, config_hash : str
        The data set's id, and the digest of the configuration (private).
    attrs : dict
        All attributes.
    features : h5py.Dataset
        (n, d); read it in blocks.
    labels : (n,) int32
        Class positions; -1 for none.
    valid : (n,) bool
        False for masked rows.
    split : (n,) uint8
        Codes into `split_names`.
    split_names : list of str
        Names of the splits.
    group : (n,) int64 or None
        Group ids.
    """

    def __init__(self, path: str | Path, file: h5py.File):
        self.path, self._file = Path(path), file
        self.attrs = read_attributes(file)
        self.features: h5py.Dataset = file["features"]  # type: ignore[assignment]
        self.n_rows, self.n_features = (int(s) for s in self.features.shape)
        self.dtype: np.dtype = self.features.dtype
        names = self.attrs["class_names"]
        self.class_names: list[str] | None = json.loads(names) if names else None
        self.classes_public = bool(self.attrs["classes_public"])
        self.dataset_id: str = self.attrs["dataset_id"]
        self.config_hash: str = self.attrs["config_hash"]
        self.split_names: list[str] = json.loads(
            str(file["split"].attrs["split_names"])
        )

    def _column(self, name: str, dtype: Any) -> np.ndarray:
        try:
            return np.asarray(self._file[name][:], dtype)  # type: ignore[index]
        except OSError as error:
            raise FormatError(_damaged(self.path)) from error

    @cached_property
    def labels(self) -> np.ndarray:
        """Return the class positions, int32 (n,); -1 for none."""
        return self._column("labels", np.int32)

    @cached_property
    def valid(self) -> np.ndarray:
        """Return whether each row is valid, bool (n,); masked rows are not."""
        return self._column("valid", np.bool_)

    @cached_property
    def split(self) -> np.ndarray:
        """Return the codes of the splits, uint8 (n,)."""
        return self._column("split", np.uint8)

    @cached_property
    def group(self) -> np.ndarray | None:
        """Return the group ids, int64 (n,), or None without groups."""
        return self._column("group", np.int64) if "group" in self._file else None

    @cached_property
    def row_digest(self) -> np.ndarray:
        """Return the salted digests, uint8 (n, 16).

        They are private: they confirm guesses about rows.
        """
        return self._column("row_digest", np.uint8)

    @cached_property
    def image_hash(self) -> np.ndarray:
        """Return the coarse image hashes, uint64 (n,). They are private.

        They are zero if the rows were not images.
        """
        return self._column("image_hash", np.uint64)

    @cached_property
    def block_digest(self) -> np.ndarray:
        """Return the digest of each block, uint8 (blocks, 32). They are private."""
        return self._column("block_digest", np.uint8)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the features (stop - start, d) of a range of rows.

        Raises FormatError if the file is damaged there.
        """
        try:
            return self.features[start:stop]
        except OSError as error:
            raise FormatError(_damaged(self.path)) from error

    def block(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return every column of a range of rows, by name.

        Raises FormatError if the file is damaged there.
        """
        columns = {name: getattr(self, name) for name in ROW_COLUMNS[1:]}
        rows = {
            name: values[start:stop]
            for name, values in columns.items()
            if values is not None
        }
        return {"features": self.rows(start, stop), **rows}

    @property
    def views(self) -> dict[str, Any]:
        """Return how rows are means of views; {} if they are not.

        The keys are count, flip and keyed_by ("image" or "slot"). Files that are older
        than this attribute have their views in the configuration. These views followed
        the slot: under add_remove a removed row changes all later ones.
        """
        if "views" in self.attrs:
            return self.attrs["views"]
        old = self.attrs["config"].get("views")
        return {} if old is None else {"keyed_by": "slot", **old}

    def fingerprint(self) -> dict[str, Any]:
        """Return the public description of the feature space.

        A head fits these features exactly if ``feature_space`` is equal.
        """
        space = {key: self.attrs[key] for key in FEATURE_SPACE}
        return {
            **space,
            "n_features": self.n_features,
            "feature_space": sha256_json(space),
        }

    @property
    def feature_space(self) -> str:
        """Return the sha256 of the facts in FEATURE_SPACE.

        These are backbone, its arguments, weights, transform and normalization. No fact
        of the data is among them.
        """
        return self.fingerprint()["feature_space"]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FeaturesFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _damaged(path: Path) -> str:
    return (
        f"a features file must be a readable HDF5 file, got path={str(path)!r} damaged "
        "or cut short. Extract it again."
    )


def read_attributes(file: h5py.File) -> dict[str, Any]:
    """Return all file attributes as plain Python values, with JSON parsed."""
    attrs: dict[str, Any] = {
        k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()
    }
    for key in JSON_ATTRIBUTES:
        if key in attrs:
            attrs[key] = json.loads(attrs[key])
    return attrs


def open_h5(path: str | Path, mode: str = "r") -> h5py.File:
    """Open an HDF5 file without locks.

    Raises FormatError if it is missing, not HDF5, cut short, or does not match its
    seal.
    """
    path = Path(path)
    if not path.is_file():
        part = path.with_name(path.name + ".part")
        hint = (
            " A .part file is there: run the same extract command again to finish it."
            if part.exists()
            else ""
        )
        if path.is_dir():
            hint = " It is a folder: dphead extract makes a features file of images."
        raise FormatError(
            f"a features file must exist, got path={str(path)!r}. Check the path.{hint}"
        )
    try:
        read_seal(path)
        return h5py.File(path, mode, locking=False)
    except OSError as error:
        raise FormatError(_damaged(path)) from error


def open_features(path: str | Path) -> FeaturesFile:
    """Open a complete features file for reading.

    No row is read: `dphead_extract.features.verify.check_blocks` reads and checks them.

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
        If the file is missing, not HDF5, not as it was written, of another schema
        version, or was never finished.
    """
    file = open_h5(path)
    try:
        _check_schema(path, file)
        opened = FeaturesFile(path, file)
        _check_config(path, opened.attrs)
        return opened
    except FormatError:
        file.close()
        raise
    except Exception as error:  # HDF5 may raise anything for a damaged or hostile file
        file.close()
        raise FormatError(_damaged(Path(path))) from error


def _check_schema(path: str | Path, file: h5py.File) -> None:
    """Raise FormatError unless datasets and attributes are those of this version.

    The rows must be in this file, and the file must be finished.
    """
    version = file.attrs.get("schema_version")
    if version != SCHEMA_VERSION:
        got = "no schema_version" if version is None else f"schema_version={version}"
        raise FormatError(
            f"a features file must have schema_version={SCHEMA_VERSION}, got {got} in "
            f"{str(path)!r}. Write it with this version of `dphead extract`."
        )
    known = [name for name in (*COLUMN_TYPES, "block_digest") if name in file]
    outside = [name for name in known if not _is_stored(file, name)]
    if outside:
        raise FormatError(
            "every column of a features file must be in it, whole and uncompressed, "
            f"got columns={outside} of {str(path)!r}. Extract it again."
        )
    datasets: Any = file
    shapes = {name: datasets[name].shape for name in known}
    missing = sorted({*COLUMN_TYPES, "block_digest"} - {"group"} - set(shapes)) + [
        name for name in ATTRIBUTES if name not in file.attrs
    ]
    n = shapes.get("features", (0,))[0]
    wrong = sorted(k for k, s in shapes.items() if k != "block_digest" and s[0] != n)
    if missing or wrong or len(shapes["features"]) != 2:
        raise FormatError(
            "a features file must hold all its attributes and columns with one entry "
            f"a row, got missing={missing}, wrong_length={wrong} in {str(path)!r}. "
            "Extract it again."
        )
    dtype = datasets["features"].dtype
    if dtype not in (np.float16, np.float32):
        raise FormatError(
            f"features must be float16 or float32, got {dtype=} in {str(path)!r}. "
            "Extract it again."
        )
    sealed = read_seal(Path(path))
    if not (file.attrs.get("complete", False) if sealed is None else sealed):
        raise FormatError(
            f"a features file must be finished, got complete=False in {str(path)!r}. "
            "Run the same extract command again: it resumes."
        )


def _is_stored(file: h5py.File, name: str) -> bool:
    """Return whether a column is in this file, with the bytes that its shape needs.

    Reading it then takes no more memory than that.
    """
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return False
    column: Any = file[name]
    made = column.id.get_create_plist()
    if made.get_external_count() or made.get_nfilters():
        return False
    whole = column.nbytes <= column.id.get_storage_size()
    return whole and COLUMN_TYPES.get(name) in (None, column.dtype)


def _check_config(path: str | Path, attrs: dict[str, Any]) -> None:
    """Raise FormatError unless attributes, configuration and its digest agree."""
    config = attrs["config"]
    if sha256_json(config) != attrs["config_hash"]:
        raise FormatError(_damaged(Path(path)))
    names = attrs["class_names"]
    said = {key: attrs[key] for key in (*FEATURE_SPACE, "block_rows")}
    said["class_names"] = json.loads(names) if names else None
    changed = [key for key, value in said.items() if config.get(key) != value]
    if changed:
        raise FormatError(
            "a features file must say what its configuration says, got "
            f"changed={changed} in {str(path)!r}. Extract it again."
        )
