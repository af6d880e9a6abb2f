"""Register families, and check the options of a backbone without PyTorch.

PyTorch takes seconds to import, and a wrong option is refused before. Help texts read
`TRAITS`, so this file needs no package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphead_extract.errors import ExtractError

if TYPE_CHECKING:
    from dphead_extract.backbones.base import BackboneOptions


@dataclass(frozen=True)
class Traits:
    """Hold facts of a family of backbones that are needed before PyTorch.

    Attributes
    ----------
    takes : frozenset of str
        Fields of `BackboneOptions` that only some families have, including this one.
    needs_size : bool
        Whether image files need a declared size.
    normalization : str
        Default of `--normalize`.
    """

    takes: frozenset[str]
    needs_size: bool = False
    normalization: str = "none"


_FILTERS = Traits(
    frozenset({"colors", "interpolation=none", "scatter_j", "scatter_l"}), True, "local"
)
_TIMM = Traits(
    frozenset({"weights", "random_weights", "model_args", "axes", "crop_pct"})
)
TRAITS = {"scatternet": _FILTERS, "deep-patches": _FILTERS}


def traits_of(name: str) -> Traits:
    """Return the traits of a backbone's family, which is timm's for other names."""
    return TRAITS.get(name, _TIMM)


def check_options(options: BackboneOptions) -> None:
    """Raise ExtractError for an option that the backbone does not have."""
    usual = type(options)(options.name)
    some = _TIMM.takes.union(*(traits.takes for traits in TRAITS.values()))
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in sorted(some - {"interpolation=none"})
        if getattr(options, name) != getattr(usual, name)
    }
    if options.interpolation == "none":
        given["interpolation=none"] = True
    for name, value in given.items():
        if name not in traits_of(options.name).takes:
            flag = "--" + name.removesuffix("s" if name == "model_args" else "")
            flag = flag.replace("_", "-").replace("=", " ")
            shown = "" if value is True else f" (got {value})"
            raise ExtractError(
                f"{flag} is not an option of --backbone {options.name}{shown}. Remove "
                f"{flag}."
            )
