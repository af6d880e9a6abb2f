"""Extract features: apply a frozen backbone to images, and write a features file.

Images are read in their fixed order. A run that was stopped can be resumed.
"""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dphead_extract.backbones.base import Backbone, BackboneOptions
from dphead_extract.backbones.families import traits_of
from dphead_extract.backbones.registry import family_of, load_backbone
from dphead_extract.errors import ExtractError, FormatError, ResumableError
from dphead_extract.extract_options import ExtractOptions
from dphead_extract.features.disk import write_names
from dphead_extract.features.reading import open_features, open_same
from dphead_extract.features.rows import Header
from dphead_extract.features.verify import verify
from dphead_extract.features.writing import FeaturesWriter
from dphead_extract.identity import Identity, identify
from dphead_extract.index import ImageIndex, Overlap
from dphead_extract.loop import (
    Loop,
    LoopSettings,
    RowProgress,
    Survey,
    Target,
    check_same,
    read_digests,
    survey,
    with_equal_places,
)
from dphead_extract.people import rows_name
from dphead_extract.shards import blocks_of
from dphead_extract.sources.image import MISSING, Source

# Decoding threads of a process with a GPU. Of 4, 8 and 16 on 16 cores, 8 gave the most
# images a second (ViT-B/16, H200): more threads wait for the interpreter's lock.
_GPU_WORKERS = 8
_LISTED_IMAGES = 10  # images that an error names; a choice, not measured

_LabeledProgress = Callable[[int, int, str], None]


@dataclass
class Summary:
    """Describe the written file, for the data holder's screen only.

    Attributes
    ----------
    path : Path
        The features file.
    n_rows, n_features : int
        Its size.
    class_names : list of str or None
        The public classes.
    dataset_id : str
        The data set's id.
    backbone : str
        The backbone's name.
    transform : dict
        The transform of images to the backbone's input, and declared options.
    weights : (str, Path) or None
        The digest and the private path of local weights.
    note : str
        Text on the use of config.json beside local weights; private.
    rows_per_second : float
        Speed of this run.
    already_complete : bool
        Whether the file was finished before.
    recognized : bool
        Whether the id belongs to images that were seen before.
    overlaps : list of Overlap
        Other data sets that hold some of these images; private.
    grouped : bool
        Whether there is a group column.
    people : dict or None
        `People.record` of the file.
    problems : list of str
        Warnings about rows of the source, and the results of
        `dphead_extract.features.format.verify`; private.
    left_out : Counter
        Numbers of items of the source without a row, by reason; private.
    """

    path: Path
    n_rows: int
    n_features: int
    class_names: list[str] | None
    dataset_id: str
    backbone: str
    transform: dict[str, Any]
    weights: tuple[str, Path] | None
    note: str
    rows_per_second: float
    already_complete: bool
    recognized: bool
    overlaps: list[Overlap]
    grouped: bool
    people: dict[str, object] | None
    problems: list[str]
    left_out: Counter[str]


def extract(
    options: ExtractOptions,
    progress: _LabeledProgress | None = None,
    source: Source | None = None,
    beside: Sequence[ExtractOptions] = (),
) -> Summary:
    """Extract features of the selected images into `options.output`.

    The images are checked first (`survey`), then decoded again for their features. Call
    this again to resume.

    Parameters
    ----------
    options : ExtractOptions
        Options of the extraction.
    progress : callable, optional
        Called with (rows done, rows in all, name of the phase).
    source : Source, optional
        `options.source`, if it is already open.
    beside : sequence of ExtractOptions
        Options for more files of the same images. They may differ from `options` in
        backbone, normalization, dtype and output.

    Returns
    -------
    Summary
        Description of `options.output`.

    Raises
    ------
    ExtractError, FormatError
        Before anything is written, if the source cannot be used, images are unreadable
        (unless skip_unreadable), the backbone does not load, or the output has a
        different configuration. Later, if features are not finite, or the images differ
        from the images of same_data_as. The unfinished file is then removed.
    ResumableError
        If a file cannot be written, such as on a full disk, or if an image changed or
        became unreadable after it was checked.
    """
    device = choose_device(options.device)
    if options.amp and device.type != "cuda":
        raise ExtractError(
            "--amp needs a GPU, and this extraction uses the CPU. Remove --amp."
        )
    source = source or options.opened()
    n_rows = min(source.n_rows, options.limit or source.n_rows)
    beyond = source.n_rows - n_rows
    part = source.part(*options.shard.rows(n_rows, options.block_rows))
    people = options.people.of_same(options.same_data_as, part.group, part.first)
    options = replace(options, people=people)
    if not options.skip_unreadable:  # check before hours of decoding
        _refuse_unreadable(source, dict.fromkeys(source.missing, MISSING))
    several = [options, *beside]
    backbones = [
        load_backbone(one.backbone, *_declared_input(one.backbone, source))
        for one in several
    ]
    workers = options.workers or _usual_workers(device)
    checking = _named(progress, "checking images")
    found = survey(part, workers, options.index, checking)
    for one, backbone in zip(several, backbones, strict=True):
        _check_images(found, part, one, backbone)
    if options.same_data_as is not None and options.index is not None:
        # check before a file gets the id of that data set, and the index these images
        with open_same(options.same_data_as, options.dataset_id, n_rows) as other:
            salt, rows = other.salt, slice(part.first, part.first + part.n_rows)
            expected = other.row_digest[rows]
        again = read_digests(part, salt, part.n_rows, workers, found.unreadable)
        check_same(again, expected)
    seen = np.array(found.digests, np.uint64)
    targets: list[Target] = []
    with ExitStack() as stack:
        with people.held():
            identity = identify(options, part, n_rows, seen)
            for one, backbone in zip(several, backbones, strict=True):
                own = _loop_settings(one, device, backbone, identity, workers)
                header = _make_header(one, part, n_rows, backbone, own, identity)
                writer = FeaturesWriter(one.shard.path(Path(one.output)), header)
                targets.append(Target(backbone, stack.enter_context(writer), own))
                given = {"dataset_id": writer.dataset_id, "salt": writer.salt}
                identity = replace(identity, **given)
            writer = targets[0].writer
            rows = rows_name(writer.salt, options.shard.record(n_rows))
            people.keep(writer.dataset_id, rows, part.group)
        overlaps: list[Overlap] = []
        if options.index is not None:
            _check_written(options.index, part, targets, workers, found)
            # add before the first row, so that the index has the images of a killed run
            options.index.add(writer.dataset_id, seen)
            overlaps = options.index.overlaps(seen, but=writer.dataset_id)
        done_before, began = writer.next_row, time.perf_counter()
        already_complete = all(target.writer.already_complete for target in targets)
        if not already_complete:
            extracting = _named(progress, "extracting features")
            _fill(part, targets, found.rows, extracting)
        seconds = time.perf_counter() - began
        if options.index is not None:  # now it has all images of the written rows
            for target in targets:
                with open_features(target.writer.path) as file:
                    known = file.dataset_id, file.salt, blocks_of(file)
                options.index.mark_blocks(*known)
    local = backbones[0].weights
    masked = Counter(f"unreadable images ({why})" for why in found.unreadable.values())
    return Summary(
        path=writer.path,
        n_rows=part.n_rows,
        n_features=backbones[0].n_features,
        class_names=source.class_names,
        dataset_id=writer.dataset_id,
        backbone=backbones[0].name,
        transform=backbones[0].transform,
        weights=local and (backbones[0].weights_sha256, local),
        note=backbones[0].note,
        rows_per_second=(part.n_rows - done_before) / seconds if seconds > 0 else 0.0,
        already_complete=already_complete,
        recognized=writer.dataset_id == identity.recognized,
        overlaps=overlaps,
        grouped=source.group is not None,
        people=people.record,
        problems=[
            *source.doubts,
            *found.deep.doubts(),
            *(verify(writer.path) if options.check else []),
        ],
        left_out=source.left_out + Counter({"rows beyond --limit": beyond}) + masked,
    )


def _named(progress: _LabeledProgress | None, phase: str) -> RowProgress:
    """Return `progress` with the phase as its last argument; None does nothing."""
    return lambda done, total: progress and progress(done, total, phase)


def _loop_settings(
    options: ExtractOptions,
    device: torch.device,
    backbone: Backbone,
    identity: Identity,
    workers: int,
) -> LoopSettings:
    """Return the settings of the loop that turns images into features."""
    usual = 128 if device.type == "cuda" else family_of(backbone.name).cpu_batch
    settings = LoopSettings(
        device,
        min(options.batch_size or usual, options.block_rows),
        workers,
        options.normalize.fitted(backbone),
        getattr(torch, options.amp) if options.amp else None,
        options.skip_unreadable,
        identity.expected_digests,
    )
    return with_equal_places(backbone, settings)


def _usual_workers(device: torch.device) -> int:
    """Return this process's share of the cores, and at most 8 with a GPU.

    torchrun sets the number of processes of this machine.
    """
    share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, share if device.type == "cpu" else min(share, _GPU_WORKERS))


def _check_written(
    index: ImageIndex,
    source: Source,
    targets: Sequence[Target],
    workers: int,
    found: Survey,
) -> None:
    """Raise ExtractError if a resumed file has rows that the index may lack.

    If `has_blocks` does not confirm all rows that were written before, they must be
    equal to the source's present images, which the caller adds to the index.
    """
    writers = [target.writer for target in targets]
    with ExitStack() as stack:
        files = [stack.enter_context(writer.reading()) for writer in writers]
        if all(
            index.has_blocks(file.dataset_id, file.salt, blocks_of(file))
            for file in files
        ):
            return
        n_rows = max(writer.next_row for writer in writers)
        salt, unreadable = writers[0].salt, found.unreadable
        now = read_digests(source, salt, n_rows, workers, unreadable)
        for writer, file in zip(writers, files, strict=True):
            read = np.flatnonzero(file.valid[: writer.next_row])
            if not np.array_equal(file.row_digest[read], now[read]):
                raise ExtractError(
                    f"{str(writer.path)!r} has rows of images that have changed in the "
                    "source since. Choose another -o, or remove the file."
                )


def _fill(
    source: Source,
    targets: Sequence[Target],
    checked: Sequence[bytes | None],
    progress: RowProgress,
) -> None:
    writers = [target.writer for target in targets]
    names = [write_names(writer.path, source.names, source.first) for writer in writers]
    try:
        Loop(source, targets, progress, checked).run()
        for writer in writers:
            writer.finish()
    except ResumableError:
        raise
    except FormatError:  # the same command would fail again, so nothing can be resumed
        for writer, table in zip(writers, names, strict=True):
            writer.discard()
            table.unlink(missing_ok=True)
        raise


def choose_device(name: str) -> torch.device:
    """Return the torch device of a name.

    "auto" is a GPU if torch finds one, else the CPU. Under torchrun, each process uses
    its own GPU.

    Raises
    ------
    ExtractError
        If cuda is missing, or there are too few GPUs.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ExtractError(
            "--device cuda needs a GPU that torch can use. Use --device cpu."
        )
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    own, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if own >= there:
        raise ExtractError(
            f"Each process needs its own GPU, got local rank {own} and {there} GPUs. "
            f"Use torchrun --nproc-per-node {there}, or --device cpu."
        )
    return torch.device("cuda", own)


def _declared_input(
    options: BackboneOptions, source: Source
) -> tuple[tuple[int, int], bool]:
    """Return the size of a backbone's input, if it needs one, and whether it has color.

    No image is read, because a size or channels found in the images would let one image
    change every row. Declared values come first. Without them, the header of arrays
    (IDX, CIFAR, npz) gives the shape of all rows, and image files count as 3 channels.
    Backbones that need no size ignore the size.

    Returns
    -------
    ((int, int), bool)
        (height, width), or (0, 0) if unknown, and whether there are 3 channels.

    Raises
    ------
    ExtractError
        If the backbone needs a size, and none is declared for image files.
    """
    arrays = source.arrays
    header = (0, 0) if arrays is None else arrays.shape[1:3]
    channels = 1 if arrays is not None and arrays.ndim == 3 else 3
    needs_size = traits_of(options.name).needs_size
    if needs_size and options.sides is None and arrays is None:
        raise ExtractError(
            f"--image-size is required for {options.name} and image files. If all "
            "images are gray, add --channels 1."
        )
    sides = options.sides or (header[0], header[1])
    return sides, (options.channels or channels) == 3


def _check_images(
    found: Survey, source: Source, options: ExtractOptions, backbone: Backbone
) -> None:
    """Refuse a source that contradicts the options, by the results of the first pass.

    Raises
    ------
    ExtractError
        If images are unreadable and not skipped, with their names; if no image is
        readable; if an image has colors and the backbone's input has one channel; or if
        an image has a different size and images are not resized.
    """
    if not options.skip_unreadable:
        _refuse_unreadable(source, found.unreadable)
    if len(found.unreadable) == source.n_rows:
        raise ExtractError(
            f"all {source.n_rows} images of the source are unreadable, such as "
            f"{source.names[0]} ({found.unreadable[0]}). Correct this, or type the "
            "path of another source."
        )
    channels, *size = backbone.input_shape
    if channels == 1 and found.has_color:
        raise ExtractError(
            "The backbone's input has one channel, and some images have colors. Type "
            "--channels 3 for fixed filters, or --model-arg in_chans=3 for a timm "
            'model, or convert these images by `Image.convert("L")`.'
        )
    if backbone.transform["interpolation"] is None and found.shapes - {tuple(size)}:
        raise ExtractError(
            f"--interpolation none needs images of {size[0]} x {size[1]} pixels, and "
            "some have another size. Omit --interpolation none, and type --image-size "
            "H,W."
        )


def _refuse_unreadable(source: Source, found: Mapping[int, str]) -> None:
    """Raise ExtractError unless `found`, a mapping of rows to reasons, is empty."""
    listed = [f"{source.names[row]} ({why})" for row, why in found.items()]
    more = ["..."] * (len(listed) > _LISTED_IMAGES)
    if listed:
        raise ExtractError(
            f"{len(listed)} of {source.n_rows} images are unreadable: "
            f"{', '.join(listed[:_LISTED_IMAGES] + more)}. Correct the paths, replace "
            "the files, or type --skip-unreadable to mask them."
        )


def _make_header(
    options: ExtractOptions,
    source: Source,
    n_rows: int,
    backbone: Backbone,
    settings: LoopSettings,
    identity: Identity,
) -> Header:
    """Return the header of a features file.

    `source` has the rows of this file, and `n_rows` counts the rows of all shards. The
    header's configuration holds every option that can change a value in the file.
    """
    import PIL

    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        # read without importing it: the import takes seconds, and few backbones need it
        "timm": version("timm"),
        "pillow": PIL.__version__,
    }
    return Header(
        n_rows=source.n_rows,
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
            "split": "all" if options.split is None else options.split,
            **({"layout": source.layout} if source.layout else {}),
            "batch_size": settings.batch_size,
            "device": settings.device.type,
            "amp": options.amp or False,
            "skip_unreadable": options.skip_unreadable,
            **({"local_weights": True} if backbone.weights else {}),
            "limit": options.limit,
            **options.holdout.record(source.group is not None, source.by_position),
            **options.shard.record(n_rows),
            **({"people": options.people.record} if options.people.system else {}),
        },
        block_rows=options.block_rows,
        dataset_id=identity.dataset_id,
        salt=identity.salt,
    )
