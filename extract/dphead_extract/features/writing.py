"""Write a features file block by block.

A file that was resumed has the same bytes as one that got the same blocks at once.

From the start, every dataset has its final size and position in the file. Later writes
change values in place without HDF5, because HDF5 crashes on a full disk. A block counts
as written if its digest is in `/block_digest`. The digest is written after the block
itself was forced to the disk.
"""

import hashlib
import json
import os
import secrets
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from dphead_extract.errors import FormatError, ResumableError
from dphead_extract.features.disk import lock, open_own, sync_path
from dphead_extract.features.reading import (
    SCHEMA_VERSION,
    FeaturesFile,
    canonical_json,
    has_known_types,
    layout,
    open_h5,
)
from dphead_extract.features.rows import (
    Header,
    block_digest,
    group_ids,
    prepare_block,
    row_digest,
)
from dphead_extract.features.seal import BYTES, write_seal
from dphead_extract.features.verify import blocks
from dphead_extract.items import check_exact

_Places = dict[str, tuple[int, int]]  # first byte and number of bytes of each column


class _Refused(FormatError):
    """Report a file that was begun with a different configuration."""


class FeaturesWriter:
    """Append blocks of rows to PATH.part, and rename it to PATH at the end.

    `FeaturesWriter(path, header)` starts a file, or resumes one of the same
    configuration at `next_row`.

    Attributes
    ----------
    next_row : int
        The first row that is still missing.
    already_complete : bool
        Whether PATH itself exists with the same configuration, so that nothing is left
        to do.

    Raises
    ------
    FormatError
        If `header` is invalid. If the file's configuration differs; the error names the
        first key that differs. If another process is writing the file.
    """

    def __init__(self, path: str | Path, header: Header):
        header.check()
        self.path, self.header = Path(path), header
        self.part = self.path.with_name(self.path.name + ".part")
        self.config = json.loads(canonical_json(header.identity()))
        if not has_known_types(self.config):
            raise FormatError(
                "`transform`, `normalization` and `backbone_kwargs` must be dicts, and "
                "`backbone` and `weights_sha256` text that UTF-8 can encode."
            )
        self.next_row = 0
        self._file: BinaryIO | None = None
        self.already_complete = self.path.exists()
        if self.already_complete:
            with self.reading() as file:
                self._take_identifiers(file)
            self.next_row = header.n_rows
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._locked()
        if not self._resume():
            self.dataset_id = header.dataset_id or uuid.uuid4().hex
            self.salt = header.salt or secrets.token_hex(16)
            self._create()

    def reading(self) -> FeaturesFile:
        """Open the file, or its .part with the rows before `next_row`, for reading."""
        path = self.path if self.already_complete else self.part
        return FeaturesFile(path, open_h5(path)[0])

    def _resume(self) -> bool:
        """Resume the .part file at its first missing or damaged block.

        Return False if its layout or a block cannot be read, for example because a run
        was killed before the layout was on the disk. The caller then begins the file
        again. Raises _Refused as `_take_identifiers` does.
        """
        try:
            with self.reading() as file:
                self._take_identifiers(file)
                self._places = extents(file.file)
                for start, block, is_sound in blocks(file):
                    if not is_sound:
                        break
                    self.next_row = start + len(block["valid"])
            return True
        except _Refused:
            self.close()
            raise
        except FormatError:
            self.next_row = 0
            return False

    def _locked(self) -> BinaryIO:
        """Open the .part, or make an empty one, and lock it for this process.

        Raises FormatError if another process writes the file, or has just finished it.
        If the file system has no locks, nothing is locked.
        """
        try:
            opened = open_own(self.part)
        except OSError as error:
            raise self._full(error) from error
        file = open(opened, "r+b", buffering=0)  # noqa: SIM115 - until `close`
        free = True
        try:
            lock(opened, wait=False)
        except BlockingIOError:
            free = False
        ours = False
        # the file was renamed or removed before it was locked
        with suppress(FileNotFoundError):
            ours = os.path.samestat(os.fstat(opened), os.lstat(self.part))
        if free and ours and not self.path.exists():
            return file
        if free and ours:
            self.part.unlink()
        file.close()
        raise FormatError(
            f"Another process is writing {str(self.part)!r}. Wait until it ends."
        )

    def _take_identifiers(self, file: FeaturesFile) -> None:
        """Take the data set's id and salt from a file of the same configuration.

        Raises _Refused if the configuration, the id or the salt differs.
        """
        key, there, here = _first_difference(file.config, self.config)
        if there != here:
            if key in ("source_digest", "rows"):  # show no digest of private values
                there, here = "other images or labels", "these"
            raise _Refused(
                f"{str(file.path)!r} was begun with another command or other versions: "
                f"{key} was {_shown(there)}, and is now {_shown(here)}. Repeat the "
                "first command with the same versions, choose another -o, or remove "
                "the file."
            )
        self.dataset_id, self.salt = file.dataset_id, file.salt
        if self.header.salt not in (None, self.salt):
            raise _Refused(
                f"{str(file.path)!r} was begun without --same-data-as, or with another "
                "file or OUTPUT.shards.json. Choose another -o, or remove the file."
            )
        if self.header.dataset_id not in (None, self.dataset_id):
            raise _Refused(
                f"{str(file.path)!r} was begun for the data set {self.dataset_id}, and "
                "--dataset-id, --same-data-as or --people now names the data set "
                f"{self.header.dataset_id}. Choose another -o, or remove the file."
            )

    def _create(self) -> None:
        """Allocate all rows in the .part, and store the position of each column."""
        try:
            # In its oldest file layout, HDF5 ignores the mark "open for writing", so
            # the file of a killed run can be opened.
            with h5py.File(
                self._opened(),
                "w",
                libver=("earliest", "v108"),
                locking=False,
                track_order=False,
                userblock_size=BYTES,
            ) as file:
                file.attrs["schema_version"] = SCHEMA_VERSION
                file.attrs["dataset_id"] = self.dataset_id
                file.attrs["salt"] = self.salt
                file.attrs["config"] = canonical_json(self.config)
                for name, (shape, dtype) in layout(self.config).items():
                    _allocate(file, name, shape, dtype)
                n_blocks = -(-self.config["n_rows"] // self.config["block_rows"])
                _allocate(file, "block_digest", (n_blocks, 32), "uint8")
                self._places = extents(file)
            self._seal(complete=False)
        except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError on closing
            raise self._full(error) from error

    def _opened(self) -> Path:
        """Return a path to the locked file, even if a link has replaced its name.

        Without /proc, as on macOS, return the name.
        """
        assert self._file is not None
        path = Path(f"/proc/self/fd/{self._file.fileno()}")
        return path if path.exists() else self.part

    def _seal(self, complete: bool) -> None:
        """Write the seal of the .part, durably."""
        write_seal(self._opened(), self._places.values(), complete)
        sync_path(self.part)

    def _full(self, error: Exception) -> ResumableError:
        return ResumableError(
            f"{str(self.part)!r} cannot be written ({type(error).__name__}: {error}). "
            "Free some space, or get permission to write, and run the same command "
            "again to resume."
        )

    def next_block(self) -> tuple[int, int]:
        """Return the first row of the next block, and the row after its last."""
        return self.next_row, min(
            self.next_row + self.header.block_rows, self.header.n_rows
        )

    def append(self, features: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Write the next block to the disk, durably.

        Parameters
        ----------
        features : (rows, d) float
            The features of the block.
        columns : dict
            The other columns by name, with one value per row.

        Raises
        ------
        FormatError
            If the block has a wrong shape, or a valid row is not finite in the file's
            dtype.
        ResumableError
            If the block cannot be written to the disk.
        """
        start, stop = self.next_block()
        block = prepare_block(features, columns, self.header, stop - start)
        try:
            for name, values in block.items():
                self._write(name, start, values)
            sync_path(self.part)
            digest = block_digest(block)[None]
            self._write("block_digest", start // self.header.block_rows, digest)
        except OSError as error:
            raise self._full(error) from error
        self.next_row = stop

    def _write(self, name: str, first: int, rows: np.ndarray) -> None:
        """Write rows of a column into the file, from row `first` on."""
        assert self._file is not None
        left = memoryview(rows.tobytes())
        self._file.seek(self._places[name][0] + first * rows[:1].nbytes)
        while left:
            left = left[self._file.write(left) :]

    def finish(self) -> None:
        """Mark the file complete and rename it to PATH.

        Raises FormatError if rows are missing, and ResumableError if the disk fails.
        """
        if self._file is None:
            return
        if self.next_row != self.header.n_rows:
            raise FormatError(
                f"`finish` needs {self.header.n_rows} rows, got {self.next_row}. "
                "Write the missing rows with `append`."
            )
        try:
            sync_path(self.part)
            self._seal(complete=True)
            os.replace(self.part, self.path)
            sync_path(self.path.parent)
        except OSError as error:
            raise self._full(error) from error
        self.close()  # unlocks too; the .part has its final name now

    def close(self) -> None:
        """Close the file; an unfinished .part stays and can be resumed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Close and remove the unfinished file."""
        self.close()
        self.part.unlink(missing_ok=True)

    def __enter__(self) -> "FeaturesWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _allocate(file: h5py.File, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Create a contiguous dataset, and allocate its bytes in the file.

    A range of rows is then one read, which is twice as fast as chunks.
    """
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    file.create_dataset(name, shape, dtype, track_times=False, dcpl=early)


def extents(file: h5py.File) -> _Places:
    """Return the position and length of each column in a file of `FeaturesWriter`."""
    columns: Any = file
    return {k: (columns[k].id.get_offset(), columns[k].nbytes) for k in sorted(file)}


def _first_difference(
    theirs: dict[str, Any], ours: dict[str, Any]
) -> tuple[str, Any, Any]:
    """Return the first key, in sorted order, with different values, and both values.

    Keys of nested mappings are joined by dots, such as `transform.mean`. Without a
    difference, both values are None.
    """
    for key in sorted(set(theirs) | set(ours)):
        a, b = theirs.get(key), ours.get(key)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            inner, a, b = _first_difference(a, b)
            key = f"{key}.{inner}"
        return key, a, b
    return "nothing", None, None


def _shown(value: Any) -> str:
    """Return a value of the configuration as text for an error."""
    if isinstance(value, dict):
        value = [f"{key} {one}" for key, one in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "empty"
    return "not set" if value is None else str(value)


def check_facts(
    one: FeaturesFile,
    other: FeaturesFile,
    facts: Callable[[FeaturesFile], dict[str, Any]],
    remedy: str,
) -> None:
    """Raise FormatError unless `facts` returns equal values for two files.

    The error names the first difference, and ends with `remedy`.
    """
    key, a, b = _first_difference(facts(one), facts(other))
    if a != b:
        found = f"differ in {key}: {_shown(a)} and {_shown(b)}"
        # do not show these values: they would confirm guesses about rows
        if key in ("salt", "source_digest", "rows"):
            found = "come from different extractions or sources"
        raise FormatError(
            f"{str(one.path)!r} and {str(other.path)!r} {found}. {remedy}"
        )


def write_features(
    path: str | Path,
    features: np.ndarray,
    labels: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    *,
    valid: np.ndarray | None = None,
    split: np.ndarray | None = None,
    split_names: Sequence[str] = ("all",),
    group: Sequence[Any] | np.ndarray | None = None,
    **header: Any,
) -> str:
    """Write arrays as a features file and return its dataset_id.

    All rows of the arrays are written. How the caller chose these rows is not recorded.

    Parameters
    ----------
    path : str or Path
        The file to write.
    features : (n, d) float
        Unless `dtype` is given, float16 stays float16, and every other dtype becomes
        float32.
    labels : (n,) int, optional
        Class indices; -1 for none.
    class_names : sequence of str, optional
        Names of the classes. They count as declared public.
    valid : (n,) bool, optional
        False for masked rows.
    split : (n,) int, optional
        Indices into `split_names`.
    split_names : sequence of str, default ("all",)
        Names of the splits.
    group : (n,) texts or numbers, optional
        Groups (`group_ids`). A row with a missing value is its own group.
    **header
        Further fields of `Header` (backbone, transform, dataset_id, dtype, ...).

    Returns
    -------
    str
        The dataset_id.

    Raises
    ------
    FormatError
        If the file exists with a different configuration, the arrays differ in length,
        labels or groups have an invalid dtype, or a group may be a rounded number.
    """
    features = np.asarray(features)
    if features.ndim != 2:
        raise FormatError(
            f"`features` must have shape (n, d), got {features.shape}. Use "
            "`features.reshape(len(features), -1)`."
        )
    header.setdefault("dtype", "float16" if features.dtype == np.float16 else "float32")
    columns = _columns(
        len(features), labels=labels, valid=valid, split=split, group=group
    )
    content = hashlib.sha256(np.ascontiguousarray(features).tobytes())
    for name in sorted(columns):
        content.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    head = Header(
        *features.shape,
        class_names=class_names,
        classes_declared="classes-flag" if class_names is not None else "",
        split_names=split_names,
        has_group=group is not None,
        config={"source_digest": content.hexdigest(), "limit": None},
        **header,
    )
    with FeaturesWriter(path, head) as writer:
        while not writer.already_complete and writer.next_row < head.n_rows:
            start, stop = writer.next_block()
            rows = features[start:stop]
            block = {name: values[start:stop] for name, values in columns.items()}
            block["row_digest"] = np.stack(
                [row_digest(writer.salt, r.shape, r.tobytes()) for r in rows]
            )
            writer.append(rows, block)
        writer.finish()
        return writer.dataset_id


def _columns(n_rows: int, **given: Any) -> dict[str, np.ndarray]:
    """Return the given columns as arrays.

    "group" is replaced by ids. Raises FormatError unless each column is (n_rows,) and
    labels are whole numbers. Also for groups that `check_exact` or `group_ids` refuses.
    """
    columns = {
        name: np.asarray(values) for name, values in given.items() if values is not None
    }
    if "labels" in columns and columns["labels"].dtype.kind not in "iub":
        raise FormatError(
            f"`labels` must be integers, got {columns['labels'].dtype}. Use the "
            "index of the row's class, or -1."
        )
    if "group" in columns:
        check_exact(given["group"])
        columns["group"] = group_ids(given["group"], n_rows)
    for name, values in columns.items():
        if values.shape != (n_rows,):
            raise FormatError(
                f"`{name}` must have shape {(n_rows,)}, got {values.shape}."
            )
    return columns
