"""What decides the training of a network: plain data, all of it public."""

from dataclasses import dataclass, field
from pathlib import Path

from dphead.endtoend.models import Scale
from dphead.endtoend.settings import Settings
from dphead.runs.options import RunOptions
from dphead.solvers.settings import RELEASES
from extract.classes import Classes
from extract.images import PixelRange


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """Everything that decides a training.

    features: images, or a features file of maps. source: where the settings come from.
    classes: how they are declared public (images). layout: what the folders of image
    files are (`extract.layout`), of the test's too; None is split/class with a split,
    else class. bits, intensity: what is declared of the images' samples, of the test's
    too (`extract.images.PixelRange`). shape: (channels, h, w) of the rows of a features
    file. same_data_as: a features file of the same images, whose ledger counts.
    dataset_id: the same by its id. new_data_set: these are others, although a data set
    holds some of them. mean, std: of pixels in [0, 1], of all channels or one each;
    public numbers; None takes the model's own. vote: augmented views of each test image
    that vote. checkpoint: steps between checkpoints.
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
