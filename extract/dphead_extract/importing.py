"""Import embeddings of texts, tables, sounds or slides into a features file.

No row may affect how another row is stored. No backbone and no image is needed.
"""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dphead_extract.declared import Option
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.reading import begun_id, canonical_json, open_same
from dphead_extract.features.rows import Header, group_names, row_digest
from dphead_extract.features.verify import verify
from dphead_extract.features.writing import FeaturesWriter
from dphead_extract.options import (
    BLOCK_ROWS,
    DATASET_ID,
    DTYPE,
    OUTPUT,
    SAME_DATA_AS,
    data_set_option,
)
from dphead_extract.people import People
from dphead_extract.sources.classes import (
    Classes,
    alike_groups,
    interpreted,
    possible_splits,
)
from dphead_extract.sources.columns import COLUMNS, Columns
from dphead_extract.sources.holdout import HOLDOUT, Holdout
from dphead_extract.sources.npz import array_files
from dphead_extract.sources.schema import Schema
from dphead_extract.sources.tables import RowBlock, Table, open_embeddings

# Increase this number if a file would be read differently than before. An import that
# an earlier version began is then refused, because a person could otherwise get two ids
# in one file.
_READING = 2


@dataclass
class ImportOptions:
    """Hold the options of `dphead features import`."""

    source: Annotated[Path, Option("", flags=("FILE",))]
    output: Annotated[Path, OUTPUT]
    columns: Annotated[Columns, COLUMNS] = field(default_factory=Columns)
    classes: Classes = field(default_factory=Classes)
    holdout: Annotated[Holdout, HOLDOUT] = field(default_factory=Holdout)
    backbone: Annotated[
        str,
        Option(
            "Name of the embedding model. Heads need files with the same name.",
            section="Features",
            metavar="NAME",
        ),
    ] = "imported"
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        replace(
            DTYPE,
            help=f"{DTYPE.help} Default: float16 if FILE has float16, else float32.",
        ),
    ] = None
    schema: Annotated[
        Schema | None,
        Option(
            "TOML file that declares the columns of a table: age = [0, 120] for a "
            'public range, sex = ["f", "m"] for public categories, or {values = [0, '
            "120], missing = true}. Numbers are scaled to -1 to 1, and each category "
            "becomes a column.",
            section="Features",
            read=Schema.read,
            metavar="FILE",
        ),
    ] = None
    block_rows: Annotated[int, BLOCK_ROWS] = 1024
    dataset_id: Annotated[str | None, DATASET_ID] = None
    same_data_as: Annotated[Path | None, SAME_DATA_AS] = None
    people: People = field(default_factory=People)
    attested: Annotated[
        bool,
        data_set_option(
            "Attest that the model reads each row alone and was not fitted to these "
            "rows. Reports repeat this statement, and `dphead check` accepts it.",
            flags=("--not-fitted-on-these-rows",),
        ),
    ] = False


@dataclass(frozen=True)
class Imported:
    """Describe the written file, for the data holder's screen only.

    `people` is `People.record` of the file. `problems` lists arrays that were not read,
    groups that look alike, and the findings of `dphead_extract.features.format.verify`.
    """

    path: Path
    n_rows: int
    n_features: int
    class_names: list[str] | None
    roles: tuple[str, ...]
    columns: tuple[str, ...]
    dataset_id: str
    already_complete: bool
    grouped: bool
    people: dict[str, object] | None
    problems: list[str]


def import_features(
    options: ImportOptions, progress: Callable[[int, int], None] | None = None
) -> Imported:
    """Write the rows of `options.source` to `options.output`; run it again to resume.

    A row that is not finite in the file's dtype is masked.

    Raises
    ------
    ExtractError, FormatError
        Before anything is written, if the file cannot be used, its labels have no
        declared classes, or a label or split is not declared. Later, if all rows are
        masked, or a text is not clearly a number. The unfinished file is then removed.
    """
    table = open_embeddings(options.source, options.columns, options.schema)
    n_rows, groups, doubts = _survey(table, options)
    people = options.people.of_same(options.same_data_as, groups)
    options = replace(options, people=people)
    header = _make_header(table, options, n_rows)
    with ExitStack() as stack:
        with people.held():
            begun = begun_id(options.output)
            if begun is None or people.system is not None:
                people.check(header.dataset_id or begun, groups)
            writer = stack.enter_context(FeaturesWriter(options.output, header))
            people.keep(writer.dataset_id, writer.salt, groups)
        if not writer.already_complete:
            try:
                fill(table, options, writer, progress)
                writer.finish()
            # the same command would fail again, so nothing can be resumed
            except FormatError as error:
                writer.discard()
                after = people.after_failure(header.dataset_id, writer.dataset_id)
                raise ExtractError(f"{error}{after}") from None
    unread = [f"array that is not read: {name}" for name in table.unread]
    return Imported(
        path=options.output,
        n_rows=n_rows,
        n_features=table.n_features,
        class_names=options.classes.names,
        roles=table.roles,
        columns=table.columns,
        dataset_id=writer.dataset_id,
        already_complete=writer.already_complete,
        grouped=groups is not None,
        people=people.record,
        problems=unread + doubts + verify(options.output),
    )


def _survey(
    table: Table, options: ImportOptions
) -> tuple[int, np.ndarray | None, list[str]]:
    """Read the label, group and split of each row.

    Return the number of rows, their groups, and warnings about groups that look alike.

    Raises ExtractError for a file without rows, or for a text that is not a declared
    class or split.
    """
    n_rows, groups, names = 0, [], set()
    for block in table.read(options.block_rows, False):
        count = len(next(iter(block.values())))
        own = encoded(block, table, options, range(n_rows, n_rows + count))
        groups.append(own.get("group"))
        names |= group_names(block.get("group", []))
        n_rows += count
    if n_rows == 0:
        raise ExtractError(f"{str(options.source)!r} has no rows.")
    found = np.concatenate(groups) if "group" in table.roles else None
    return n_rows, found, alike_groups(names)


def encoded(
    block: RowBlock, table: Table, options: ImportOptions, rows: range
) -> dict[str, np.ndarray]:
    """Return the labels, splits and groups of some rows as a features file stores them.

    Each value depends on its own row only.
    """
    columns = {role: block[role] for role in table.roles}
    splits = possible_splits("split" in table.roles)
    _, said = interpreted(columns, len(rows), options.classes, splits)
    split = options.holdout.codes([str(row) for row in rows], said.group, said.split)
    own = {"labels": said.labels, "split": split}
    return own if said.group is None else own | {"group": said.group}


def _make_header(table: Table, options: ImportOptions, n_rows: int) -> Header:
    """Return the sizes and attributes of the file to write.

    A hash of the column names, if there are any, is part of the feature space, so that
    a head cannot be used on different columns.
    """
    names = hashlib.sha256(canonical_json(list(table.columns)).encode()).hexdigest()
    named: dict[str, Any] = {"columns_sha256": names} if table.columns else {}
    if options.schema is not None:
        named["schema"] = options.schema.declared
    dtype = "float16" if table.dtype == np.float16 else "float32"
    grouped = "group" in table.roles
    header = Header(
        n_rows=n_rows,
        n_features=table.n_features,
        dtype=options.dtype or dtype,
        class_names=options.classes.names,
        classes_declared="classes-flag" if options.classes.names is not None else "",
        split_names=options.holdout.split_names(
            grouped, possible_splits("split" in table.roles)
        ),
        has_group=grouped,
        backbone=options.backbone,
        transform=named,
        library_versions={"numpy": np.__version__},
        config={
            "source_digest": _digest(options),
            "ignore_labels": options.classes.ignore_labels,
            "allow_unlabeled": options.classes.allow_unlabeled,
            "limit": None,
            **options.holdout.record(grouped, positions=True),
            **({"attested": True} if options.attested else {}),
            **({"people": options.people.record} if options.people.system else {}),
        },
        block_rows=options.block_rows,
        dataset_id=options.dataset_id,
    )
    if options.same_data_as is not None:
        # digests of different embeddings differ, so the caller must ensure that the
        # rows are the same
        with open_same(options.same_data_as, options.dataset_id, n_rows) as other:
            header.dataset_id = other.dataset_id
    else:
        header.dataset_id = options.people.data_set(options.dataset_id)
    return header


def _digest(options: ImportOptions) -> str:
    """Return the sha256 of source, declared columns, schema and _READING."""
    kind = options.source.suffix.lower()[1:]
    chosen = (
        kind,
        _READING,
        options.columns,
        *([options.schema] if options.schema else []),
    )
    digest = hashlib.sha256(repr(chosen).encode())
    for path in array_files(options.source):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def fill(
    table: Table,
    options: ImportOptions,
    writer: FeaturesWriter,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Append the blocks of rows that the features file lacks."""
    n_rows, start, any_valid = writer.header.n_rows, 0, writer.next_row > 0
    for block in table.read(options.block_rows, True):
        count = len(block["features"])
        if start >= writer.next_row:
            columns = encoded(block, table, options, range(start, start + count))
            stored, columns["valid"] = finite(block["features"], writer.header.dtype)
            columns["row_digest"] = np.stack(
                [row_digest(writer.salt, r.shape, r.tobytes()) for r in stored]
            )
            any_valid |= bool(columns["valid"].any())
            writer.append(stored, columns)
        start += count
        if progress is not None:
            progress(min(start, n_rows), n_rows)
    if not any_valid:
        raise ExtractError(_all_masked(options, writer.header))


def _all_masked(options: ImportOptions, header: Header) -> str:
    """Return the error for a file without a valid row."""
    rows = f"Each of the {header.n_rows} rows has"
    if options.schema is not None:
        return (
            f"{rows} a cell without a number or a declared category. Remove the "
            "columns with such cells from --schema, or declare missing = true."
        )
    if options.columns.width is not None:
        return (
            f"{rows} a cell that is not a number or not finite in {header.dtype}, or a "
            f"list whose length is not {options.columns.width}. Leave out the columns "
            "with such cells by --columns features=A,B,..., or correct the length of "
            "the lists (width=N)."
        )
    more = ", or use --dtype float32" if header.dtype == "float16" else ""
    return (
        f"{rows} a cell that is not a number, or not finite in {header.dtype}. Leave "
        f"out the columns with such cells by --columns features=A,B,...{more}."
    )


def finite(features: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features (k, d) in the file's dtype, and which rows (k,) are finite.

    A row is finite if all its values are finite in that dtype. Other rows become zero.
    """
    with np.errstate(over="ignore"):
        stored = np.asarray(features).astype(dtype)
    valid = np.asarray(np.isfinite(stored).all(axis=1))
    return np.where(valid[:, None], stored, 0).astype(dtype), valid
