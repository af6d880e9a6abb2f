"""Name the families of backbones and their options.

PyTorch takes seconds to import, and a wrong option is refused before. Help texts read
`TRAITS`, so this file needs no package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dphead_extract.errors import ExtractError

_MOST_SCALE = 1e6  # largest mean, and largest 1 / std, as in `finetune`; a choice


@dataclass(frozen=True)
class Traits:
    """Describe a family of backbones without importing PyTorch.

    Attributes
    ----------
    takes : frozenset of str
        Fields of `BackboneOptions` that only some families have, including this one.
    settings : mapping of str to object
        The family's settings, with their defaults. `dphead extract` has an option for
        each. A features file records them, and `predict` restores them.
    needs_size : bool
        Whether image files need a declared size.
    normalization : str
        Default of `--normalize`.
    """

    takes: frozenset[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_size: bool = False
    normalization: str = "none"


_SCATTERING = {"scatter_j": (2,), "scatter_l": 8}
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


def settings_of_families() -> dict[str, Any]:
    """Return the settings of all families, with their defaults."""
    return {k: v for traits in TRAITS.values() for k, v in traits.settings.items()}


def check_scale(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ExtractError for a mean or std by which inputs would not be finite."""
    for name, values, least in (
        ("mean", mean, -_MOST_SCALE),
        ("std", std, 1 / _MOST_SCALE),
    ):
        for value in values:
            if not least <= value <= _MOST_SCALE:
                raise ExtractError(
                    f"--{name} must be from {least:g} to {_MOST_SCALE:g}, for pixels "
                    f"from 0 to 1, got {value:g}. Remove --{name} for the model's own."
                )
