"""Register families, and check the options of a backbone without PyTorch.

PyTorch takes seconds to import. A wrong name or option, or a missing connection to the
hub, is refused before. Help texts read `TRAITS`, so this file needs no package.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from dphead_extract.errors import ExtractError

if TYPE_CHECKING:
    from dphead_extract.backbones.base import BackboneOptions

_HUB_SECONDS = 3.0  # the longest wait for a connection to the hub; a choice


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
    """Raise ExtractError for an unknown backbone, or an option that it does not have.

    Also if the weights are neither local nor cached, and the hub is unreachable.
    """
    if options.name not in TRAITS:
        _check_model(options.name)
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
    timm = options.name not in TRAITS
    if timm and options.weights is None and not options.random_weights:
        _check_hub(options.name)


def _check_model(name: str) -> None:
    """Raise ExtractError if no source file of timm defines or renames the model."""
    spec = find_spec("timm")
    folders = (spec and spec.submodule_search_locations) or []
    text = "".join(
        file.read_text(encoding="utf-8")
        for folder in folders
        for file in Path(folder, "models").glob("*.py")
    )
    stem, models = name.split(".")[0], re.findall(r"^def ([a-z]\w+)\(", text, re.M)
    # "hf-hub:owner/name" is looked up by timm, and old names are keys of a mapping
    if ":" in name or stem in models or f"'{name}':" in text or not text:
        return
    close = get_close_matches(stem, models, 5)
    raise ExtractError(
        f"--backbone must be {', '.join(TRAITS)} or a timm model, got {name!r}. "
        f"Similar models: {', '.join(close) or 'none'}."
    )


def _check_hub(name: str) -> None:
    """Raise ExtractError if a model is not in the cache of the hub, and offline."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    model = name.rpartition(":")[2].replace("/", "--")
    if any(folder.glob(f"models--*{model}*")):
        return
    host = urlsplit(constants.ENDPOINT)
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        if not getproxies():
            port = host.port or (80 if host.scheme == "http" else 443)
            socket.create_connection((host.hostname, port), _HUB_SECONDS).close()
    except OSError as error:
        raise ExtractError(
            f"The weights of {name} are not on this machine, and {host.hostname} is "
            f"unreachable ({error}). Download the weights elsewhere and type --weights "
            "FILE, or extract with --backbone scatternet."
        ) from error
