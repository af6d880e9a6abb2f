"""Hold the public options that decide the training of a network."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from dphead_extract.images import PixelRange
from dphead_extract.numerals import map_shape, of_colors
from dphead_extract.options import (
    BITS,
    DATASET_ID,
    INTENSITY,
    LAYOUT,
    NEW_DATA_SET,
    NEW_PEOPLE,
    PEOPLE,
    SAME_DATA_AS,
    image_option,
)
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import COLUMNS, Columns

from dphead.finetune.settings import Settings
from dphead.fit.options import (
    ACCOUNTANT,
    FEATURES,
    GROUP_CAP,
    MEMORY,
    PRESET,
    RunOptions,
    memory_option,
)
from dphead.planning.calibration import OF_SAMPLES
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.solvers.settings import MOST_RELEASES, NOT_NEGATIVE, Range

_MOST_SIDE = 2**14  # longest side of an image in pixels; chosen, not measured
Scale = float | tuple[float, ...]  # mean or std: one number, or one per channel


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """Hold all options of a training.

    `source` names the source of the settings. `dry_run` charges nothing, and keeps
    neither images nor people in an index.

    Raises
    ------
    ValueError
        If options contradict each other, or a value is out of range.
    """

    features: Annotated[
        Path, replace(FEATURES, flags=("IMAGES",), existing="the source")
    ]
    settings: Settings
    source: str = "dphead's defaults"
    classes: Classes = field(default_factory=Classes)
    layout: Annotated[str | None, LAYOUT] = None
    columns: Annotated[Columns, COLUMNS] = field(default_factory=Columns)
    bits: Annotated[int | None, BITS] = None
    intensity: Annotated[tuple[float, float] | None, INTENSITY] = None
    image_size: Annotated[
        int | None,
        image_option(
            "Resize images to a square with this side in pixels.",
            Range(f"from 1 to {_MOST_SIDE}", lambda v: 1 <= v <= _MOST_SIDE),
        ),
    ] = None
    shape: Annotated[
        tuple[int, ...] | None,
        image_option(
            "Shape of a row in a features file: CHANNELS,H,W of feature maps, "
            "STEPS,CHANNELS of a series. Default: one dimension.",
            read=map_shape,
            resumed=True,
        ),
    ] = None
    mean: Annotated[
        Scale | None,
        image_option(
            "Public mean of pixels in [0, 1], as one value or one per channel. "
            "Default: the mean of the model.",
            read=of_colors,
            resumed=True,
        ),
    ] = None
    std: Annotated[
        Scale | None,
        image_option(
            "Public standard deviation of pixels in [0, 1], as one value or one per "
            "channel. Default: the value of the model.",
            read=of_colors,
            resumed=True,
        ),
    ] = None
    same_data_as: Annotated[Path | None, SAME_DATA_AS] = None
    dataset_id: Annotated[str | None, DATASET_ID] = None
    new_data_set: Annotated[bool, NEW_DATA_SET] = False
    people: Annotated[str | None, PEOPLE] = None
    new_people: Annotated[bool, NEW_PEOPLE] = False
    group_cap: Annotated[
        int | None,
        replace(
            GROUP_CAP,
            help="Protect groups (patients). A group counts once in a batch, with the "
            "mean gradient of at most this many of its images. --batch-size counts "
            "groups.",
        ),
    ] = None
    accountant: Annotated[
        str | None,
        replace(
            ACCOUNTANT,
            help="Accountant that computes the missing option: --noise-multiplier, "
            "--batch-size or --steps. Default: auto.",
            choices=OF_SAMPLES,
        ),
    ] = None
    preset: Annotated[
        str | None,
        replace(
            PRESET,
            help="Preset with a paper's settings: de22-13, de22-16, tb21-cnn/mnist, "
            "tan23-5, ...",
        ),
    ] = None
    memory: Annotated[
        int | None,
        replace(
            MEMORY,
            help="Memory for the per-example gradients of a chunk of images, such as "
            "2GB. Default: on a CPU, free memory up to 2 GB; on a GPU, half of "
            "the free memory.",
        ),
    ] = None
    device: Annotated[
        str, memory_option("Device: cpu, cuda, cuda:1, ...", shared=False)
    ] = "cpu"
    bf16: Annotated[
        bool,
        memory_option(
            "Compute gradients in bfloat16. Clipping and noise are unchanged."
        ),
    ] = False
    checkpoint: Annotated[
        int,
        memory_option(
            "Number of steps between checkpoints.",
            Range(f"from 1 to {MOST_RELEASES}", lambda v: 1 <= v <= MOST_RELEASES),
            shared=False,
        ),
    ] = 20
    evaluate_every: Annotated[
        int,
        memory_option(
            "Number of steps between measurements on test rows declared public. 0 "
            "means no measurements.",
            NOT_NEGATIVE,
            shared=False,
        ),
    ] = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings.check_complete()
        if self.evaluate_every and self.test_is != "public":
            raise ValueError(
                "--evaluate-every needs --test-is public, got --test-is "
                f"{self.test_is}. Add --test-is public, or drop --evaluate-every."
            )
        if self.people is not None and self.ledger == IN_MEMORY:
            raise ValueError(
                f"--people {self.people} needs a stored ledger, because the data sets "
                "of an id system share a ledger. Drop --people, or drop --ledger "
                f"{IN_MEMORY}."
            )
        named = (self.same_data_as, self.dataset_id, self.new_data_set or None)
        if len(named) - named.count(None) > 1:
            raise ValueError(
                "--same-data-as, --dataset-id and --new-data-set cannot be combined. "
                "Drop all but one of these options."
            )

    @property
    def groups(self) -> tuple[int | None, bool]:
        """Return the group cap of the plan, and whether group means are used.

        A group is one row of the training, whatever its number of images.
        """
        return (None, False) if self.group_cap is None else (1, True)

    @property
    def pixels(self) -> PixelRange:
        """Return the declared range of pixels."""
        return PixelRange(self.bits, self.intensity)
