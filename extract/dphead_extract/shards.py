"""Extract one features file with several processes, and join their shards.

A shard is a range of whole blocks, with the batches of a single process. On a CPU, the
joined file therefore has the same features, bit for bit, as the file of a single
process. OUTPUT.shards.json has the dataset_id and salt of all shards. The first process
writes this file. Like the features, the file is private.
"""

import hashlib
import json
import os
import re
import secrets
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.disk import (
    read_names,
    write_names,
    write_private,
)
from dphead_extract.features.reading import FeaturesFile, open_features
from dphead_extract.features.rows import Header, check_dataset_id
from dphead_extract.features.verify import sound_blocks
from dphead_extract.features.writing import FeaturesWriter, check_facts
from dphead_extract.index import Block

_REMEDY = (
    "Extract all shards by the same command, with the same versions and one "
    "OUTPUT.shards.json."
)


@dataclass(frozen=True)
class Shard:
    """Select part `index` (from 0) of `count` of the rows; all of them by default."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ExtractError(
                f"--shard I/K needs 0 <= I < K, got {self.index}/{self.count}. Without "
                "--shard, I is the environment variable RANK, and K is WORLD_SIZE."
            )

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read a text "I/K". Raises ExtractError if it is invalid."""
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None:
            raise ExtractError(
                f"--shard must be I/K, such as 0/4 for the first of four, got {text!r}."
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_process(cls) -> "Shard":
        """Return this process's shard under torchrun (RANK of WORLD_SIZE).

        Without torchrun, the shard is the whole file.
        """
        return cls(
            int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        )

    def rows(self, n_rows: int, block_rows: int) -> tuple[int, int]:
        """Return the first row of this shard and the row after its last.

        Raises ExtractError if there are fewer blocks than shards.
        """
        blocks = -(-n_rows // block_rows)
        if blocks < self.count:
            raise ExtractError(
                f"--shard needs at least one block of rows per shard, got {blocks} "
                f"blocks for {self.count} shards. Use fewer shards, or --block-rows "
                f"{max(1, n_rows // self.count)}."
            )
        first, stop = (
            blocks * i // self.count * block_rows for i in (self.index, self.index + 1)
        )
        return first, min(stop, n_rows)

    def path(self, output: Path) -> Path:
        """Return the path of this shard of `output`.

        The first of 4 shards of train.h5 is train.shard-0-of-4.h5.
        """
        if self.count == 1:
            return output
        return output.with_name(
            f"{output.stem}.shard-{self.index}-of-{self.count}{output.suffix}"
        )

    def record(self, n_rows: int) -> dict[str, Any]:
        """Return the shard's entry of the configuration; {} for a whole file.

        `n_rows` counts the rows of all shards.
        """
        return (
            {"shard": {"index": self.index, "count": self.count, "n_rows": n_rows}}
            if self.count > 1
            else {}
        )


def shards_path(output: Path) -> Path:
    """Return the file with the id and salt that all shards of `output` share."""
    return output.with_name(output.name + ".shards.json")


def shared_identifiers(
    output: Path,
    source_digest: str,
    dataset_id: str | None,
    known: str | None = None,
) -> tuple[str, str]:
    """Return the dataset_id and salt that all shards of `output` share.

    The first call stores both in `shards_path`. The id is `dataset_id`, else `known`,
    which the index has for these images, else a random one. The salt is random.

    Raises
    ------
    ExtractError
        If the stored file is damaged, or belongs to different images or to a different
        dataset_id. If it cannot be written.
    FormatError
        If `dataset_id` is invalid.
    """
    check_dataset_id(dataset_id)
    path = shards_path(output)
    drawn = {
        "dataset_id": dataset_id or known or uuid.uuid4().hex,
        "salt": secrets.token_hex(16),
        "source": source_digest,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # write the whole file at once, and only if no process has written it
        write_private(path, json.dumps(drawn).encode(), once=True)
    except FileExistsError:
        drawn = _read_shared(path)
    if drawn["source"] != source_digest:
        what = "other images or labels"
    elif dataset_id not in (None, drawn["dataset_id"]):
        what = f"a data set other than {dataset_id}"
    else:
        return drawn["dataset_id"], drawn["salt"]
    raise ExtractError(
        f"{str(path)!r} belongs to {what}. Choose another -o, or remove the file and "
        "the shards."
    )


def _read_shared(path: Path) -> dict[str, str]:
    """Return the identifiers that the first shard drew.

    Raises ExtractError if the file is damaged.
    """
    try:
        drawn = json.loads(path.read_text())
        check_dataset_id(drawn["dataset_id"])
        check_dataset_id(drawn["salt"])
        return {key: str(drawn[key]) for key in ("dataset_id", "salt", "source")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ExtractError(
            f"{str(path)!r} is damaged. Remove this file and the shards, and extract "
            "again."
        ) from error


def blocks_of(file: FeaturesFile) -> list[Block]:
    """Return the blocks of a file, with rows counted over all shards."""
    size, shard, first = file.config["block_rows"], file.config.get("shard"), 0
    if shard is not None:
        own = Shard(shard["index"], shard["count"])
        first, _ = own.rows(shard["n_rows"], size)
    blocks = []
    for start in range(0, file.n_rows, size):
        stop = min(start + size, file.n_rows)
        digest = hashlib.blake2b(file.row_digest[start:stop].tobytes())
        digest.update(file.valid[start:stop].tobytes())
        blocks.append(Block(first + start, first + stop, digest.hexdigest()))
    return blocks


def join_shards(paths: Sequence[str | Path], output: str | Path) -> None:
    """Write all shards of a features file into `output`; the shards stay.

    Run it again to resume.

    Parameters
    ----------
    paths : sequence of str or Path
        The files of all shards, in any order.
    output : str or Path
        The features file to write.

    Raises
    ------
    FormatError
        If a shard is missing, given twice or damaged, or its configuration differs from
        the first shard's.
    """
    output = Path(output)
    with ExitStack() as stack:
        files = _in_order([stack.enter_context(open_features(path)) for path in paths])
        header = _whole_header(files[0])
        with FeaturesWriter(output, header) as writer:
            first = 0
            for file in files:
                todo = "Remove the file, extract this shard again and join again."
                for start, block in sound_blocks(file, todo):
                    if first + start == writer.next_row:
                        writer.append(block.pop("features"), block)
                first += file.n_rows
            writer.finish()
        # write no table if the table of one shard is missing
        tables = [read_names(file.path, file.n_rows) or [] for file in files]
        if all(tables):
            write_names(output, [name for table in tables for name in table])


def _in_order(files: list[FeaturesFile]) -> list[FeaturesFile]:
    """Return all shards of one run in their order."""
    for file in files:
        if "shard" not in file.config:
            raise FormatError(
                f"{str(file.path)!r} is a whole features file. Remove it from SHARDS."
            )
        check_facts(files[0], file, _shared_facts, _REMEDY)
    files = sorted(files, key=lambda file: file.config["shard"]["index"])
    count = files[0].config["shard"]["count"]
    found = [file.config["shard"]["index"] for file in files]
    if found != [*range(count)]:
        raise FormatError(
            f"SHARDS must list each of the shards 0 to {count - 1} once, got the "
            f"shards {', '.join(map(str, found))}."
        )
    return files


def _shared_facts(file: FeaturesFile) -> dict[str, Any]:
    """Return everything that all shards of a file share."""
    own = {"n_rows": None, "shard": file.config["shard"] | {"index": None}}
    return file.config | own | {"dataset_id": file.dataset_id, "salt": file.salt}


def _whole_header(file: FeaturesFile) -> Header:
    """Return the header that a single process would have written."""
    config = dict(file.config)
    config["n_rows"] = config.pop("shard")["n_rows"]
    names = {field.name for field in fields(Header)} & set(config)
    known = {name: config.pop(name) for name in names}
    return Header(**known, config=config, dataset_id=file.dataset_id, salt=file.salt)
