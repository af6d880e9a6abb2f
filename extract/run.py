"""The extraction loop: images in their fixed order, through a frozen network, into a features file; resumable."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extract.backbones import Backbone, BackboneOptions, load_backbone
from extract.errors import ExtractError
from extract.format import FeaturesWriter, Header, open_features, row_digest, verify
from extract.images import Classes, Source, UnreadableImage, image_hash, open_source
from extract.rowwise import RowNorm

_LISTED = 10  # unreadable images named in an error
Progress = Callable[[int, int], None]  # rows done, rows in all


@dataclass
class ExtractOptions:
    """Everything `dphead extract` can be told. limit: use the first rows only (for trials)."""

    source: str | Path
    output: str | Path
    backbone: BackboneOptions
    classes: Classes = field(default_factory=Classes)
    split: str = "all"
    normalize: RowNorm = field(default_factory=RowNorm)
    dtype: str = "float32"
    device: str = "auto"
    amp: bool = False
    batch_size: int = 64
    block_rows: int = 1024
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    skip_unreadable: bool = False
    dataset_id: str | None = None
    same_data_as: str | Path | None = None
    limit: int | None = None
    check: bool = True


@dataclass
class Summary:
    """What was written, for the data holder's screen. problems: see `extract.format.verify`."""

    path: Path
    n_rows: int
    n_features: int
    class_names: list[str] | None
    dataset_id: str
    backbone: str
    rows_per_second: float
    rows_done: int
    already_complete: bool
    problems: list[str]


@dataclass
class _Batch:
    features: torch.Tensor  # or, before a GPU has run, the network's inputs
    valid: np.ndarray
    digests: np.ndarray
    hashes: np.ndarray


def extract(options: ExtractOptions, progress: Progress | None = None) -> Summary:
    """Extract features of every image of the source into `options.output`; run it again to resume.

    ExtractError or FormatError, before anything is written, for an unusable source, unreadable images (unless
    skip_unreadable), a backbone that does not load, too little disk, or an output of another configuration.
    """
    if options.batch_size < 1 or options.workers < 1 or (options.limit is not None and options.limit < 1):
        raise ExtractError(
            "batch size, workers and limit must be at least 1, got "
            f"batch_size={options.batch_size}, workers={options.workers}, limit={options.limit}. Raise them."
        )
    source = open_source(options.source, options.classes, options.split)
    n_rows = min(source.n_rows, options.limit or source.n_rows)
    device = choose_device(options.device)
    if options.amp and device.type != "cuda":
        raise ExtractError(f"mixed precision needs a GPU, got device={device.type!r}. Leave --amp out.")
    example = check_images(source, n_rows, options)
    backbone = load_backbone(options.backbone, example)
    options.normalize.check_channels(backbone.channels)
    header = make_header(options, source, backbone, n_rows, device)
    check_disk(Path(options.output), header)
    with FeaturesWriter(options.output, header) as writer:
        done_before, began = writer.next_row, time.perf_counter()
        if not writer.already_complete:
            _write_names(Path(options.output), source, n_rows)
            _Loop(options, source, backbone, device, writer, progress).run()
            writer.finish()
        seconds = time.perf_counter() - began
    return Summary(
        path=Path(options.output),
        n_rows=n_rows,
        n_features=backbone.n_features,
        class_names=source.class_names,
        dataset_id=writer.dataset_id,
        backbone=backbone.name,
        rows_per_second=(n_rows - done_before) / seconds if seconds > 0 else 0.0,
        rows_done=n_rows - done_before,
        already_complete=writer.already_complete,
        problems=verify(options.output) if options.check else [],
    )


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if torch sees one. ExtractError if cuda is asked for and missing."""
    if name not in ("auto", "cpu", "cuda"):
        raise ExtractError(f"device must be auto, cpu or cuda, got device={name!r}. Choose one of these.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ExtractError("device cuda needs a GPU that torch can use, got none. Use --device cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_images(source: Source, n_rows: int, options: ExtractOptions) -> np.ndarray:
    """Decode every image once before anything is written; return the first readable one.

    ExtractError that lists unreadable images (unless they are to be skipped), or if none is readable.
    """
    if source.arrays is not None:
        return source.arrays[0]
    example, unreadable = None, []
    with ThreadPoolExecutor(options.workers) as pool:
        for row, image in enumerate(_ahead(pool, source, range(n_rows), lambda raw: _decoded(source, raw), 64)):
            if image is None:
                unreadable.append(row)
            elif example is None:
                example = image
    if unreadable and not options.skip_unreadable:
        first = ", ".join(source.names[row] for row in unreadable[:_LISTED])
        raise ExtractError(
            f"every image must be readable, got unreadable={len(unreadable)}: {first}"
            f"{', ...' if len(unreadable) > _LISTED else ''}. "
            "Repair them, or use --skip-unreadable to keep them as masked rows."
        )
    if example is None:
        raise ExtractError(f"at least one image must be readable, got unreadable={len(unreadable)}. Check the source.")
    return example


def _decoded(source: Source, raw: np.ndarray | bytes) -> np.ndarray | None:
    try:
        return source.decode(raw)
    except UnreadableImage:
        return None


def _ahead(
    pool: ThreadPoolExecutor, source: Source, rows: range, work: Callable[[np.ndarray | bytes], Any], depth: int
) -> Iterator[Any]:
    """work(raw row) in order, computed a few rows ahead; files are read here, in order, and decoded in the pool."""
    waiting: deque[Future[Any]] = deque()
    for row in rows:
        waiting.append(pool.submit(work, source.raw(row)))
        if len(waiting) >= depth:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def make_header(
    options: ExtractOptions, source: Source, backbone: Backbone, n_rows: int, device: torch.device
) -> Header:
    """Sizes and attributes of the file. The configuration holds all that can change a value in it."""
    import PIL
    import timm

    dataset_id, salt = options.dataset_id, None
    if options.same_data_as is not None:
        with open_features(options.same_data_as) as other:
            if dataset_id not in (None, other.dataset_id) or other.n_rows != n_rows:
                raise ExtractError(
                    f"--same-data-as must name a file of the same images, got n_rows={other.n_rows} for {n_rows}. "
                    "Extract from the same source."
                )
            dataset_id, salt = other.dataset_id, other.attrs["salt"]
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "pillow": PIL.__version__,
    }
    return Header(
        n_rows=n_rows,
        n_features=backbone.n_features,
        dtype=options.dtype,
        class_names=source.class_names,
        classes_declared=source.classes_declared,
        split_names=source.split_names,
        has_group=source.group is not None,
        backbone=backbone.name,
        backbone_kwargs=backbone.kwargs,
        weights_sha256=backbone.weights_sha256,
        transform=backbone.transform,
        normalization=options.normalize.record(),
        library_versions=versions,
        config={
            "source_digest": source.digest,
            "split": options.split,
            "batch_size": options.batch_size,
            "device": device.type,
            "amp": options.amp,
            "skip_unreadable": options.skip_unreadable,
        },
        block_rows=options.block_rows,
        dataset_id=dataset_id,
        salt=salt,
    )


def check_disk(output: Path, header: Header) -> None:
    """ExtractError unless the file fits on the disk with a little to spare."""
    folder = next(p for p in (output.absolute().parent, *output.absolute().parents) if p.exists())
    needed = header.n_rows * (header.n_features * np.dtype(header.dtype).itemsize + 64) + (8 << 20)
    part = output.with_name(output.name + ".part")
    there = sum(p.stat().st_blocks * 512 for p in (part, output) if p.exists())
    free = shutil.disk_usage(folder).free
    if needed - there > free:
        raise ExtractError(
            f"the output must fit on the disk, got needed={needed - there} bytes and free={free} in {str(folder)!r}. "
            "Make room, choose another folder, or use --dtype float16."
        )


def _write_names(output: Path, source: Source, n_rows: int) -> None:
    """The private map ordinal -> name, readable by its owner only."""
    path = output.with_name(output.name + ".names.csv")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(["row", "name"])
        table.writerows((row, source.names[row]) for row in range(n_rows))


class _Loop:
    """Blocks of rows. A job is one batch; batches never cross a block, and several jobs run at the same time.

    On a CPU a job decodes and runs the network, with one torch thread each: the threads of one batch would wait for each
    other, badly so on a busy machine, and a batch's numbers do not depend on how many jobs run. With a GPU the jobs
    decode and this thread runs the network.
    """

    def __init__(
        self,
        options: ExtractOptions,
        source: Source,
        backbone: Backbone,
        device: torch.device,
        writer: FeaturesWriter,
        progress: Progress | None,
    ):
        self.options, self.source, self.backbone, self.writer = options, source, backbone, writer
        self.device, self.progress = device, progress
        self.module = backbone.module.to(device)
        self.layout = torch.channels_last if backbone.input_shape[0] == 3 else torch.contiguous_format
        self.expected = None
        if options.same_data_as is not None:
            with open_features(options.same_data_as) as other:
                self.expected = other.row_digest

    def run(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(self.options.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                jobs = self._jobs(pool)
                try:
                    self._tell()
                    while self.writer.next_row < self.writer.header.n_rows:
                        self._block(jobs, *self.writer.next_block())
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
        finally:
            torch.set_num_threads(threads)

    def _jobs(self, pool: ThreadPoolExecutor) -> Iterator[_Batch]:
        """Results of all batches in order, a few jobs ahead. Files are read here, in order; the rest is in the pool."""
        n, size = self.writer.header.n_rows, self.options.batch_size
        waiting: deque[Future[_Batch]] = deque()
        for block in range(self.writer.next_row, n, self.options.block_rows):
            end = min(block + self.options.block_rows, n)
            for first in range(block, end, size):
                raw = [self.source.raw(row) for row in range(first, min(first + size, end))]
                waiting.append(pool.submit(self._batch, raw))
                if len(waiting) > self.options.workers + 1:
                    yield self._finish(waiting.popleft().result())
        while waiting:
            yield self._finish(waiting.popleft().result())

    def _tell(self, extra: int = 0) -> None:
        if self.progress is not None:
            self.progress(self.writer.next_row + extra, self.writer.header.n_rows)

    def _batch(self, raw: list[np.ndarray | bytes]) -> _Batch:
        n = len(raw)
        valid, digests, hashes = np.zeros(n, bool), np.zeros((n, 16), np.uint8), np.zeros(n, np.uint64)
        inputs = torch.zeros(n, *self.backbone.input_shape)
        for row, data in enumerate(raw):
            try:
                image = self.source.decode(data)
            except UnreadableImage:
                if not self.options.skip_unreadable:
                    raise ExtractError(
                        "images must not change while they are read, got one that became unreadable. Run it again."
                    ) from None
                continue
            valid[row], hashes[row] = True, image_hash(image)
            digests[row] = row_digest(self.writer.salt, image.shape, image.tobytes())
            inputs[row] = self.backbone.prepare(image)
        features = self._forward(inputs) if self.device.type == "cpu" else inputs
        return _Batch(features, valid, digests, hashes)

    def _finish(self, batch: _Batch) -> _Batch:
        if self.device.type != "cpu":
            batch.features = self._forward(batch.features)
        return batch

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=self.options.amp):
            output = self.module(inputs.to(self.device, memory_format=self.layout))
            return self.options.normalize(output).cpu()

    def _block(self, jobs: Iterator[_Batch], start: int, stop: int) -> None:
        batches: list[_Batch] = []
        for first in range(start, stop, self.options.batch_size):
            batches.append(next(jobs))
            self._tell(min(first + self.options.batch_size, stop) - start)
        columns = {
            "valid": np.concatenate([b.valid for b in batches]),
            "row_digest": np.concatenate([b.digests for b in batches]),
            "image_hash": np.concatenate([b.hashes for b in batches]),
        }
        if self.expected is not None and not np.array_equal(columns["row_digest"], self.expected[start:stop]):
            self.writer.discard()
            raise ExtractError(
                "--same-data-as must name a file of the same images in the same order, got other images. "
                "Extract from the same source, or leave the option out."
            )
        for name in ("labels", "split", "group"):
            values = getattr(self.source, name)
            if values is not None:
                columns[name] = values[start:stop]
        self.writer.append(np.concatenate([b.features.numpy() for b in batches]), columns)
