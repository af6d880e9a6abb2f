"""The papers' settings, once, as data: `load(name)` reads `<name>.toml`."""

import tomllib
from importlib import resources
from typing import Any


def names() -> list[str]:
    """The presets there are."""
    return sorted(p.name[:-5] for p in resources.files(__name__).iterdir() if p.name.endswith(".toml"))


def load(name: str) -> dict[str, Any]:
    """A preset: `source`, `accountant`, and a table of settings for each method.

    A table's `left_to_the_user` names settings that the paper does not print. A preset with a `base` changes that one.
    Raises ValueError for an unknown name.
    """
    if name not in names():
        raise ValueError(f"preset must be one of {names()}, got preset={name!r}. Choose one of them.")
    preset = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text())
    if "base" not in preset:
        return preset
    merged = load(preset.pop("base"))
    for key, value in preset.items():
        merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    return merged
