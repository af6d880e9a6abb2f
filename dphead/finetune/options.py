"""Hold the public options that decide the training of a network."""

from dataclasses import dataclass, field
from pathlib import Path

from dphead_extract.images import PixelRange
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import Columns

from dphead.finetune.settings import Settings
from dphead.fit.options import RunOptions
from dphead.solvers.settings import MOST_RELEASES

Scale = float | tuple[float, ...]  # of pixels: one number, or one for each channel


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """Hold all options of a training.

    The options of `RunOptions` apply too; `features` is a source of images, or a
    features file of maps.

    Parameters
    ----------
    settings : Settings
        The training's settings.
    classes : Classes
        Declaration of the public classes (images).
    layout : str, optional
        Meaning of folder levels, also for the test images
        (`dphead_extract.sources.listing`). None means split/class if a split is given,
        else class.
    columns : Columns
        Roles of the columns of a table of images, also for the test images.
    bits, intensity : int and (float, float), optional
        Declared range of pixels, also for the test images
        (`dphead_extract.images.PixelRange`).
    source : str, default "dphead's defaults"
        Source of the settings.
    image_size : int, optional
        Side to resize images to.
    shape : tuple of int, optional
        (channels, h, w) of the rows of a features file.
    mean, std : float or tuple of float, optional
        Public mean and standard deviation of pixels in [0, 1]: one number for all
        channels, or one for each. None uses the model's.
    same_data_as : Path, optional
        Features file of the same images. The run uses its data set and ledger.
    dataset_id : str, optional
        Id of the images' data set.
    new_data_set : bool, default False
        Whether to start a new data set, although another one has some of these images.
    people : str, optional
        Public name of the id system of the groups.
    new_people : bool, default False
        Whether nobody is in another data set of the id system.
    device : str, default "cpu"
        Device of the network.
    bf16 : bool, default False
        Whether products are computed in bfloat16.
    checkpoint : int, default 20
        Steps between checkpoints.
    evaluate_every : int, default 0
        Steps between measurements on public test rows; 0 measures at the end only.
    dry_run : bool, default False
        Whether to charge nothing, and keep neither images nor people in an index.

    Raises
    ------
    ValueError
        If options contradict each other, or `checkpoint` is out of range.
    """

    settings: Settings
    classes: Classes = field(default_factory=Classes)
    layout: str | None = None
    columns: Columns = field(default_factory=Columns)
    bits: int | None = None
    intensity: tuple[float, float] | None = None
    source: str = "dphead's defaults"
    image_size: int | None = None
    shape: tuple[int, int, int] | None = None
    mean: Scale | None = None
    std: Scale | None = None
    same_data_as: Path | None = None
    dataset_id: str | None = None
    new_data_set: bool = False
    people: str | None = None
    new_people: bool = False
    device: str = "cpu"
    bf16: bool = False
    checkpoint: int = 20
    evaluate_every: int = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings.check_complete()
        if not 1 <= self.checkpoint <= MOST_RELEASES:
            raise ValueError(
                f"--checkpoint must be from 1 to {MOST_RELEASES} steps, got "
                f"{self.checkpoint}. Use 20, the default."
            )
        if self.evaluate_every and self.test_is != "public":
            raise ValueError(
                "--evaluate-every needs --test-is public, got --test-is "
                f"{self.test_is}. Add --test-is public, or drop --evaluate-every."
            )
        named = (self.same_data_as, self.dataset_id, self.new_data_set or None)
        if len(named) - named.count(None) > 1:
            raise ValueError(
                "--same-data-as, --dataset-id and --new-data-set cannot be "
                "combined, got two or more. Keep one of these options."
            )

    @property
    def pixels(self) -> PixelRange:
        """Return the declared range of pixels."""
        return PixelRange(self.bits, self.intensity)
