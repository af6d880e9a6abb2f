"""Run the inner loop: decode, transform, run the backbone in batches, append blocks.

Before the loop, `survey` checks all images.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dphead_extract.backbones.base import Backbone
from dphead_extract.errors import ExtractError, ResumableError
from dphead_extract.features.rows import row_digest
from dphead_extract.features.writing import FeaturesWriter
from dphead_extract.images import UnreadableImage
from dphead_extract.index import ImageIndex
from dphead_extract.normalization import RowNorm
from dphead_extract.sources.image import DeepImages, Source
from dphead_extract.threads import one_thread, pool_of
from dphead_extract.vectors import WholeVectors, are_alike

# a row before it is decoded, and its digest from the survey, or None without one
_RawRow = tuple[np.ndarray | bytes | None, bytes | None]
# called with the number of finished rows and of all rows
RowProgress = Callable[[int, int], None]


@dataclass
class Survey:
    """Hold the results of a first pass over all images.

    The results show whether the images match the declarations. They never replace a
    declaration.
    """

    # unreadable rows, with the reason
    unreadable: dict[int, str] = field(default_factory=dict)
    shapes: set[tuple[int, ...]] = field(default_factory=set)  # (height, width)
    has_color: bool = False
    # keyed digests for the index
    digests: list[list[int]] = field(default_factory=list)
    # digests (16 bytes) of all rows: b"" for unreadable ones, None if none was decoded
    rows: list[bytes | None] = field(default_factory=list)
    deep: DeepImages = field(default_factory=DeepImages)


def survey(
    source: Source,
    workers: int,
    index: ImageIndex | None,
    progress: RowProgress,
) -> Survey:
    """Return the results of a first pass over the images of a source.

    Nothing is written. Every image is decoded once, except for 8-bit arrays without an
    `index`: their header gives shape and color. With an `index`, the result has the
    keyed digests of the readable images.
    """
    found, arrays = Survey(), source.arrays
    if arrays is not None and arrays.dtype == np.uint8 and index is None:
        found.has_color = arrays.ndim == 4
        found.shapes.add(arrays.shape[1:3])
        found.rows = [None] * source.n_rows
        return found

    def look(raw: np.ndarray | bytes | None) -> Any:
        """Return an image's shape, digests and highest level, or UnreadableImage."""
        try:
            image = source.decode(raw)
        except UnreadableImage as error:
            return error
        forms = source.forms(raw, image)
        known = index and index.digests(forms)
        own = _row_digest("", forms, image).tobytes()
        return image.shape, known, source.highest_level(raw, image), own

    for row, seen in enumerate(_each(source, look, source.n_rows, workers)):
        progress(row + 1, source.n_rows)
        if isinstance(seen, UnreadableImage):
            found.unreadable[row] = str(seen)
            found.rows.append(b"")
            continue
        shape, digest, level, own = seen
        found.rows.append(own)
        found.shapes.add(shape[:2])
        found.has_color |= len(shape) == 3
        found.deep.add(level)
        if digest is not None:
            found.digests.append(digest)
    return found


def _row_digest(
    salt: str, forms: Sequence[np.ndarray], image: np.ndarray
) -> np.ndarray:
    """Return the digest of a decoded image, and of its canonical pixels if they differ.

    `forms` is `Source.forms`. The index of images identifies an image by its canonical
    pixels, which can differ even if the decoded levels are equal: outside a declared
    range, or in the lowest bits.
    """
    own = forms[0] if forms[0].ndim == image.ndim else forms[0][..., None]
    data = image.tobytes()
    if (own != image).any():
        data += own.tobytes()
    return row_digest(salt, image.shape, data)


def check_same(found: np.ndarray, expected: np.ndarray | None, start: int = 0) -> None:
    """Raise ExtractError if row digests differ from those of --same-data-as."""
    if expected is None or np.array_equal(found, expected[start : start + len(found)]):
        return
    raise ExtractError(
        "--same-data-as must name a file of the same images in the same order. These "
        "images differ from those of the file, or an earlier version of dphead wrote "
        "it from images of more than 8 bits. Remove --same-data-as, or use the same "
        "source."
    )


def read_digests(
    source: Source, salt: str, n_rows: int, workers: int, unreadable: Collection[int]
) -> np.ndarray:
    """Return the row digests of a source's first images; 0 for unreadable ones.

    Raises ResumableError if an image became unreadable: `unreadable` has the rows that
    were unreadable before.
    """

    def digest(raw: np.ndarray | bytes | None) -> Any:
        try:
            image = source.decode(raw)
        except UnreadableImage:
            return np.zeros(16, np.uint8)
        return _row_digest(salt, source.forms(raw, image), image)

    found = _each(source, digest, n_rows, workers)
    digests = np.fromiter(found, np.dtype((np.uint8, 16)), n_rows)
    if not set(np.flatnonzero(~digests.any(axis=1))) <= set(unreadable):
        raise ResumableError(
            "An image became unreadable while images were compared. Run the same "
            "command again."
        )
    return digests


def _each(
    source: Source, work: Callable[[Any], Any], n_rows: int, workers: int
) -> Iterator[Any]:
    """Yield work(raw image) for each of a source's first rows, in order."""
    rows = map(source.raw, range(n_rows))
    with ThreadPoolExecutor(workers) as pool:
        yield from _in_order(pool, work, rows, ahead=8 * workers)


def _in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[Any], Any],
    inputs: Iterable[Any],
    ahead: int,
) -> Iterator[Any]:
    """Yield work(input) in the inputs' order, computed in the pool a few inputs ahead.

    The inputs are read in this thread.
    """
    waiting: deque[Future[Any]] = deque()
    for value in inputs:
        waiting.append(pool.submit(work, value))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(frozen=True)
class LoopSettings:
    """Hold the settings that turn images into features.

    `amp` is the type of mixed precision, or None. `expected_digests` has the row
    digests (n, 16) that the images must have, or is None.
    """

    device: torch.device
    batch_size: int
    workers: int
    normalize: RowNorm
    amp: torch.dtype | None
    skip_unreadable: bool
    expected_digests: np.ndarray | None


def _forward(
    backbone: Backbone, settings: LoopSettings, pixels: torch.Tensor
) -> torch.Tensor:
    """Return features (n, n_features), float32, of pixels, on the device.

    A GPU may still be computing them. Pixels are uint8 (n, height, width, channels).
    """
    with (
        torch.inference_mode(),
        torch.autocast(
            settings.device.type, settings.amp, enabled=settings.amp is not None
        ),
    ):
        # pinned pixels are copied while earlier batches are computed
        inputs = backbone.inputs(pixels.to(settings.device, non_blocking=True))
        output = settings.normalize(backbone.module(inputs))
        if backbone.mirror:
            mirrored = settings.normalize(backbone.module(inputs.flip(-1)))
            output = (output + mirrored) / 2
        return output.float()


def _blank(backbone: Backbone, images: int, pinned: bool = False) -> torch.Tensor:
    """Return pixels of black images, uint8 (images, height, width, channels)."""
    channels, height, width = backbone.input_shape
    shape = images, height, width, channels
    return torch.zeros(shape, dtype=torch.uint8, pin_memory=pinned)


def with_equal_places(backbone: Backbone, settings: LoopSettings) -> LoopSettings:
    """Set a batch size at which a CPU computes the same bits at every position.

    Take the smallest size with whole vectors (`vectors`), from the given size on. If a
    random image has different bits at some positions of such a batch, use batches of
    one image. On a GPU, the settings stay the same.
    """
    if settings.device.type != "cpu":
        return settings
    generator = torch.Generator().manual_seed(0)
    image = _blank(backbone, 1).random_(256, generator=generator)
    with one_thread():
        with WholeVectors() as seen:
            _forward(backbone, settings, image)
        size = seen.rounded(settings.batch_size)
        if size > 1:
            batch = image.repeat(size, 1, 1, 1)
            size = size if are_alike(_forward(backbone, settings, batch)) else 1
    return replace(settings, batch_size=size)


@dataclass(frozen=True)
class Target:
    """Hold a backbone, and the features file that its rows go into."""

    backbone: Backbone
    writer: FeaturesWriter
    settings: LoopSettings

    def blank(self, images: int) -> torch.Tensor:
        """Return black pixels of whole batches, for at least this number of images."""
        size, pinned = self.settings.batch_size, self.settings.device.type == "cuda"
        return _blank(self.backbone, -(-images // size) * size, pinned)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the features of pixels of whole batches, on the device."""
        batches = pixels.split(self.settings.batch_size)
        return torch.cat([_forward(self.backbone, self.settings, b) for b in batches])


class Loop:
    """Compute the rows of features files, block by block.

    Each file has its own backbone. An image is decoded once for all files. `checked`
    has the digests of `Survey.rows`. An image with a different digest ends the loop.

    A job is one batch of the backbone with the largest batches. A batch never crosses a
    block, and several jobs run at the same time.

    On a CPU, a job decodes images and runs the backbone with one torch thread. Several
    threads for one batch would wait for each other, most of all on a busy machine. The
    features of a batch do not depend on the number of jobs. With a GPU, the jobs decode
    to pinned memory, and the main thread starts the copies and the backbone. The main
    thread waits for the GPU once per block.
    """

    def __init__(
        self,
        source: Source,
        targets: Sequence[Target],
        progress: RowProgress,
        checked: Sequence[bytes | None],
    ):
        self.source, self.targets, self.progress = source, targets, progress
        self.checked = checked
        self.settings, self.header = targets[0].settings, targets[0].writer.header
        self.device, self.salt = self.settings.device, targets[0].writer.salt
        self.job_rows = max(target.settings.batch_size for target in targets)
        for target in targets:
            target.backbone.module.to(self.device)

    @property
    def behind(self) -> FeaturesWriter:
        """Return the writer of the file with the fewest rows.

        A killed run may have written the last block of some files only.
        """
        return min((one.writer for one in self.targets), key=lambda one: one.next_row)

    def run(self) -> None:
        """Append all blocks that the features files do not have yet."""
        workers = self.settings.workers
        with one_thread(), pool_of(workers) as pool:
            # While a block is written, a CPU computes the features of the next block.
            # With a GPU, this is one job, because its pixels are larger than features.
            on_cpu = self.device.type == "cpu"
            more = -(-self.header.block_rows // self.job_rows) if on_cpu else 1
            jobs = _in_order(pool, self._batch, self._raw_batches(), workers + more)
            try:
                self._tell()
                while self.behind.next_row < self.header.n_rows:
                    self._block(jobs, *self.behind.next_block())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _raw_batches(self) -> Iterator[list[_RawRow]]:
        """Yield the undecoded rows of each job, with their digests from the survey.

        They are read in order, because a table has no fast access to a single row.
        """
        n, size, block_rows = self.header.n_rows, self.job_rows, self.header.block_rows
        for block in range(self.behind.next_row, n, block_rows):
            end = min(block + block_rows, n)
            for first in range(block, end, size):
                rows = range(first, min(first + size, end))
                yield [(self.source.raw(row), self.checked[row]) for row in rows]

    def _tell(self, extra: int = 0) -> None:
        self.progress(self.behind.next_row + extra, self.header.n_rows)

    def _batch(
        self, rows: list[_RawRow]
    ) -> tuple[list[torch.Tensor], dict[str, np.ndarray]]:
        """Return a job's features (on a GPU its pixels instead) and its other columns.

        There is one tensor of features or pixels for each backbone.
        """
        n = len(rows)
        columns = {
            "valid": np.zeros(n, bool),
            "row_digest": np.zeros((n, 16), np.uint8),
        }
        # Every batch has the same shape, however few rows are left for it. Otherwise,
        # after a row is added or removed, a different kernel could round the other rows
        # of the last batch differently.
        pixels = [target.blank(n) for target in self.targets]
        for row, (raw, checked) in enumerate(rows):
            try:
                image = self.source.decode(raw)
            except UnreadableImage:
                if not self.settings.skip_unreadable:
                    raise ResumableError(
                        "An image became unreadable during the extraction. Run the "
                        "same command again."
                    ) from None
                continue
            forms = self.source.forms(raw, image)
            # only the image that the survey decoded is in the index
            if checked not in (None, _row_digest("", forms, image).tobytes()):
                raise ResumableError(
                    "An image changed after dphead checked it. Run the same command "
                    "again when no other program writes the images."
                )
            columns["valid"][row] = True
            columns["row_digest"][row] = _row_digest(self.salt, forms, image)
            for target, batch in zip(self.targets, pixels, strict=True):
                batch.numpy()[row] = target.backbone.prepare(image)
        return self._features(pixels) if self.device.type == "cpu" else pixels, columns

    def _features(self, pixels: list[torch.Tensor]) -> list[torch.Tensor]:
        pairs = zip(self.targets, pixels, strict=True)
        return [target.features(batch) for target, batch in pairs]

    def _block(self, jobs: Iterator[Any], start: int, stop: int) -> None:
        """Append the next block to every file that lacks it."""
        batches: list[dict[str, np.ndarray]] = []
        outputs: list[list[torch.Tensor]] = []
        for first in range(start, stop, self.job_rows):
            output, columns = next(jobs)
            if self.device.type != "cpu":
                output = self._features(output)
            outputs.append([part[: len(columns["valid"])] for part in output])
            batches.append(columns)
            self._tell(min(first + self.job_rows, stop) - start)
        block = {
            name: np.concatenate([b[name] for b in batches]) for name in batches[0]
        }
        check_same(block["row_digest"], self.settings.expected_digests, start)
        for name in ("labels", "split", "group"):
            values = getattr(self.source, name)
            if values is not None:
                block[name] = values[start:stop]
        for target, parts in zip(self.targets, zip(*outputs, strict=True), strict=True):
            if target.writer.next_row == start:
                target.writer.append(torch.cat(parts).cpu().numpy(), block)
