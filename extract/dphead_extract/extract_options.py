"""Define the options of an extraction, without PyTorch.

The command line checks options before it imports PyTorch, which takes seconds.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.families import TRAITS
from dphead_extract.declared import Option
from dphead_extract.images import PixelRange
from dphead_extract.index import ImageIndex
from dphead_extract.normalization import RowNorm
from dphead_extract.options import (
    BITS,
    BLOCK_ROWS,
    DATASET_ID,
    DTYPE,
    INTENSITY,
    LAYOUT,
    NATURAL,
    NEW_DATA_SET,
    OUTPUT,
    SAME_DATA_AS,
    image_option,
)
from dphead_extract.people import People
from dphead_extract.shards import Shard
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import COLUMNS, Columns
from dphead_extract.sources.holdout import HOLDOUT, Holdout
from dphead_extract.sources.image import Source

_SPLIT = image_option(
    "Split of SOURCE to extract.", choices=("all", "train", "test", "validation")
)
_speed = partial(Option, section="Speed and processes")


@dataclass
class ExtractOptions:
    """Hold the options of `dphead extract`.

    `index` finds the data set of images that were extracted before, and the file gets
    its id. None disables the search. `check` verifies the file at the end.
    """

    source: Annotated[str | Path, Option("", flags=("SOURCE",), existing="the source")]
    output: Annotated[str | Path, OUTPUT]
    backbone: BackboneOptions
    classes: Classes = field(default_factory=Classes)
    split: Annotated[str | None, _SPLIT] = "all"
    layout: Annotated[str | None, LAYOUT] = None
    columns: Annotated[Columns, COLUMNS] = field(default_factory=Columns)
    holdout: Annotated[Holdout, HOLDOUT] = field(default_factory=Holdout)
    normalize: Annotated[
        RowNorm,
        Option(
            "Per-image normalization of the feature map: none, unit, synthetic, local "
            "or group:G. group:G normalizes G groups of channels. synthetic: scale "
            "channels by statistics of random images. local: signed square root, then "
            "synthetic, then scaling at each position. Default: "
            + ", ".join(f"{one.normalization} for {k}" for k, one in TRAITS.items())
            + ", else none.",
            section="Features",
            read=RowNorm.parse,
            metavar="KIND",
        ),
    ] = field(default_factory=RowNorm)
    dtype: Annotated[Literal["float16", "float32"], DTYPE] = "float32"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _speed("Device of the backbone. auto: a GPU if there is one."),
    ] = "auto"
    amp: Annotated[
        Literal["bfloat16", "float16"] | None,
        _speed("Use mixed precision of this type (GPU only)."),
    ] = None
    batch_size: Annotated[
        int | None,
        _speed(
            "Number of images per batch. Default: 16 on a CPU, 128 on a GPU or for "
            "fixed filters.",
            NATURAL,
        ),
    ] = None
    block_rows: Annotated[int, BLOCK_ROWS] = 1024
    workers: Annotated[
        int | None,
        _speed(
            "Number of threads. Default: one per processor core, shared among the "
            "processes of torchrun, and at most 8 with a GPU.",
            NATURAL,
        ),
    ] = None
    skip_unreadable: Annotated[
        bool,
        image_option(
            "Mask unreadable and missing images instead of ending with an error."
        ),
    ] = False
    dataset_id: Annotated[str | None, DATASET_ID] = None
    same_data_as: Annotated[str | Path | None, SAME_DATA_AS] = None
    new_data_set: Annotated[bool, NEW_DATA_SET] = False
    people: People = field(default_factory=People)
    index: ImageIndex | None = None
    limit: Annotated[
        int | None,
        image_option(
            "Use only the first N images, for trials. `dphead fit` refuses such a file "
            "under --relation add_remove, and under replace_one with --group-cap or "
            "several splits. Default: all images.",
            NATURAL,
        ),
    ] = None
    check: bool = True
    shard: Annotated[
        Shard,
        _speed(
            "Extract part I of K, counted from 0. `dphead features join` joins the "
            "parts. Default: RANK/WORLD_SIZE of torchrun.",
            read=Shard.parse,
            metavar="I/K",
        ),
    ] = field(default_factory=Shard)
    bits: Annotated[int | None, BITS] = None
    intensity: Annotated[tuple[float, float] | None, INTENSITY] = None

    def __post_init__(self) -> None:
        if (self.bits, self.intensity) != (None, None):
            pixels = PixelRange(self.bits, self.intensity)
            self.backbone = replace(self.backbone, pixels=pixels)

    def opened(self) -> Source:
        """Return the opened source, with a split "test" if `holdout` declares one."""
        # imports pyarrow, which `dphead extract --help` does not need
        from dphead_extract.sources.opening import open_source

        source = open_source(
            self.source,
            self.classes,
            self.split,
            self.layout,
            self.columns,
            self.backbone.pixels,
        )
        return self.holdout.split(source)
