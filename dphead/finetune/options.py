"""Hold what decides the training of a network: plain data, all of it public."""

from dataclasses import dataclass, field
from pathlib import Path

from dphead_extract.images import PixelRange
from dphead_extract.sources.classes import Classes

from dphead.finetune.models import Scale
from dphead.finetune.settings import Settings
from dphead.fit.options import RunOptions
from dphead.solvers.settings import RELEASES


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """Hold everything that decides a training.

    The options of `RunOptions` apply too; `features` is a source of images, or a
    features file of maps.

    Parameters
    ----------
    settings : Settings
        The training's settings.
    classes : Classes
        How the classes are declared public (images).
    layout : str, optional
        Meaning of the folders of image files, also of the test's
        (`dphead_extract.sources.layout`).
        None is split/class with a split, else class.
    bits, intensity : int and (float, float), optional
        Declared range of the images' samples, also of the test's
        (`dphead_extract.images.PixelRange`).
    source : str, default "dphead's defaults"
        Where the settings come from.
    weights : str, optional
        A file of public weights.
    groups, standardise, init_seed
        As `groups`, `standardise` and `seed` of `ModelSpec`.
    image_size : int, optional
        Side to which images are resized.
    shape : tuple of int, optional
        (channels, h, w) of the rows of a features file.
    mean, std : float or tuple of float, optional
        Of pixels in [0, 1], for all channels or one each; public numbers. None uses the
        model's own.
    same_data_as : Path, optional
        A features file of the same images. Its data set's ledger counts the run.
    dataset_id : str, optional
        The same, by the data set's id.
    new_data_set : bool, default False
        Whether these images are a new data set, although another one holds some of
        them.
    vote : int, default 0
        Augmented views of each test image that vote.
    device : str, default "cpu"
        Where the network runs.
    bf16 : bool, default False
        Whether products are computed in bfloat16.
    checkpoint : int, default 20
        Steps between checkpoints.

    Raises
    ------
    ValueError
        If `checkpoint` is out of range.
    """

    settings: Settings
    classes: Classes = field(default_factory=Classes)
    layout: str | None = None
    bits: int | None = None
    intensity: tuple[float, float] | None = None
    source: str = "dphead's defaults"
    weights: str | None = None
    groups: int = 16
    standardise: bool = True
    image_size: int | None = None
    shape: tuple[int, int, int] | None = None
    mean: Scale | None = None
    std: Scale | None = None
    same_data_as: Path | None = None
    dataset_id: str | None = None
    new_data_set: bool = False
    init_seed: int = 0
    vote: int = 0
    device: str = "cpu"
    bf16: bool = False
    checkpoint: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.checkpoint <= RELEASES:
            raise ValueError(
                f"there must be 1 to {RELEASES} steps between checkpoints, got "
                f"checkpoint={self.checkpoint}. Correct it."
            )

    @property
    def pixels(self) -> PixelRange:
        """Return what is declared of the images' samples."""
        return PixelRange(self.bits, self.intensity)
