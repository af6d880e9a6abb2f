"""Define alternative settings, such as epochs for steps.

The alternatives cover epochs, batch sizes and the preparation of rows.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from dphead.solvers import ProblemInfo
from dphead.solvers.centering import CENTER_SHARE, UNIT_NORM, Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.settings import (
    OFF,
    POSITIVE,
    Setting,
    check_settings,
    settings_of,
    typed,
)

_T = TypeVar("_T", "Batches", "RowPreparation")
# each alternative setting, and the solver's setting that it replaces
STANDS_FOR = {
    "epochs": "steps",
    "base_learning_rate": "learning_rate",
    "batch_size": "sampling_prob",
}
_BATCH_SIZE = Setting(
    "Expected size of Poisson batches (default: the full batch).",
    POSITIVE,
    OFF,
    option=True,
)
EPOCHS = Setting("Number of epochs, instead of steps.", POSITIVE, option=True)
BASE_LEARNING_RATE = Setting(
    "Learning rate for batches of 512 rows, scaled in proportion to the batch size; "
    "replaces learning_rate.",
    POSITIVE,
    "TB21 Table 13",
)
NORMALIZATION = Setting(
    "Normalize channels instead of centering: a table of n_channels, mean_clip, "
    "square_clip, noise_multiplier and threshold.",
    source=OFF,
)
_BASE_BATCH = 512  # rows of a batch; TB21 Table 13


@dataclass(frozen=True)
class Batches:
    """Describe Poisson batches by their expected size in rows, and by epochs."""

    batch_size: Annotated[int | float | None, _BATCH_SIZE] = None
    epochs: Annotated[float | None, EPOCHS] = None
    base_learning_rate: Annotated[float | None, BASE_LEARNING_RATE] = None

    def __post_init__(self) -> None:
        check_settings(self)

    def resolve(self, settings: dict[str, Any], facts: ProblemInfo) -> dict[str, Any]:
        """Return the settings with the sampling_prob, steps and learning_rate set.

        Existing values of steps and learning_rate stay.
        """
        found = dict(settings)
        if self.batch_size is not None:
            found["sampling_prob"] = min(1.0, self.batch_size / facts.n_rows)
        prob = found.get("sampling_prob", 1.0)
        batches = found.get("epoch_steps") or 1  # 0 is refused with the other settings
        if self.epochs is not None:
            found.setdefault("steps", max(1, round(self.epochs * batches / prob)))
        if self.base_learning_rate is not None:
            rate = self.base_learning_rate * prob * facts.n_rows / _BASE_BATCH / batches
            found.setdefault("learning_rate", rate)
        return found


@dataclass(frozen=True)
class RowPreparation:
    """Describe how rows are scaled before other transforms."""

    unit_norm: Annotated[bool | None, UNIT_NORM] = None
    center_share: Annotated[float | None, CENTER_SHARE] = None
    normalization: Annotated[dict[str, Any] | None, NORMALIZATION] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.center_share and self.normalization is not None:
            raise ValueError(
                "`center_share` cannot be combined with `normalization`. Drop one of "
                "the two."
            )
        if self.center_share and self.unit_norm is False:
            raise ValueError("`center_share` needs `unit_norm`. Drop one of the two.")

    def centering(self) -> Centering | ChannelNormalization:
        """Return the solver's `centering`."""
        if self.normalization is not None:
            return _normalization(self.normalization)
        share = Centering.share if self.center_share is None else self.center_share
        return Centering(share, self.unit_norm is not False)


def _normalization(table: dict[str, Any]) -> ChannelNormalization:
    try:
        return ChannelNormalization(**table)
    except TypeError:
        names = ", ".join(settings_of(ChannelNormalization))
        raise ValueError(
            f"`normalization` must be a table of {names}, got {typed(table)}. Use only "
            "these names. The last two are optional."
        ) from None


def taken(kind: type[_T], settings: dict[str, Any], names: set[str]) -> _T:
    """Build `kind` from the settings in `names`, and remove these from `settings`."""
    own = {f.name for f in fields(kind)} & names & set(settings)
    return kind(**{name: settings.pop(name) for name in own})
