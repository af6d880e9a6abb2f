"""Name the families of backbones and their options.

Wrong options are refused before PyTorch is imported, because this import takes seconds.
Help texts read `TRAITS`, so this file imports no third-party package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from dphead_extract.declared import Declared, Option, Range, is_a, settings_of
from dphead_extract.errors import ExtractError
from dphead_extract.numerals import separated

_MOST_SCALE = 1e6  # largest |mean|, std and 1 / std, as in `finetune`; a choice


@dataclass(frozen=True)
class Traits:
    """Describe a family of backbones without importing PyTorch.

    Attributes
    ----------
    takes : frozenset of str
        The fields of `BackboneOptions` that this family accepts and other families may
        refuse. "interpolation=none" stands for this one value.
    settings : mapping of str to Declared
        The family's settings. `dphead extract` has an option for each. A features file
        records their values, and `predict` restores them.
    needs_size : bool
        Whether image files need a declared size.
    normalization : str
        Default of `--normalize`.
    """

    takes: frozenset[str]
    settings: Mapping[str, Declared] = field(default_factory=dict)
    needs_size: bool = False
    normalization: str = "none"


# up to 14, because 2**14 pixels are the longest side of an image
_SCALES = Range(
    "whole numbers from 1 to 14, such as 2 or 1,2",
    lambda v: len(v) > 0 and all(is_a(j, int) and 1 <= j <= 14 for j in v),
)
_fixed = partial(Option, section="Fixed filters")


@dataclass
class _Scattering:
    scatter_j: Annotated[
        tuple[int, ...],
        _fixed(
            "Scale J of ScatterNet, which averages over 2**J pixels. Type 1,2 to use "
            "both scales.",
            _SCALES,
            read=separated(int, 1, "one whole number or several: 2 or 1,2"),
        ),
    ] = (2,)
    scatter_l: Annotated[
        int,
        _fixed(
            "Number of orientations of ScatterNet's filters.",
            Range("a whole number from 1 to 64", lambda v: 1 <= v <= 64),  # a choice
        ),
    ] = 8


_SCATTERING = settings_of(_Scattering)
_FILTERS = frozenset({"colors", "interpolation=none"})
_PIXELS = frozenset({"mean", "std"})
_MODEL = frozenset({"weights", "random_weights", "model_args", "axes", "crop_pct"})
TIMM = Traits(_MODEL | _PIXELS)
TRAITS = {
    "scatternet": Traits(_FILTERS | _PIXELS, _SCATTERING, True, "local"),
    "deep-patches": Traits(_FILTERS, _SCATTERING, True, "local"),
}


def traits_of(name: str) -> Traits:
    """Return the traits of a backbone's family, which is timm's for other names."""
    return TRAITS.get(name, TIMM)


def settings_of_families() -> dict[str, Declared]:
    """Return the settings of all families."""
    return {k: v for traits in TRAITS.values() for k, v in traits.settings.items()}


def check_scale(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ExtractError for a mean or std that could make inputs infinite."""
    for name, values, least in (
        ("mean", mean, -_MOST_SCALE),
        ("std", std, 1 / _MOST_SCALE),
    ):
        for value in values:
            if not least <= value <= _MOST_SCALE:
                raise ExtractError(
                    f"--{name} must be from {least:g} to {_MOST_SCALE:g}, for pixels "
                    f"from 0 to 1, got {value:g}. Remove --{name} to use the default."
                )
