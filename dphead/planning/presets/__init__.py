"""Load the papers' settings: a file for each paper, a table for each preset.

A preset has a `source` (paper and table) and an `accountant`. A preset for training
also has the paper's `delta`, and a table of settings for each of its methods. Other
keys are optional:

- `left_to_the_user` names settings that the user must choose. The paper does not print
  them, or has several values, which are in `columns` or `search`.
- `columns` holds a list for each quantity that changes over the columns of the paper's
  table, such as epsilon, steps and noise_multiplier.
- `search` holds the values that the paper searched.
- `equal_noise` gives all releases one noise multiplier.
- `needs` names what the preset needs and a head lacks. It then cannot train a head.
- `network` names the network, or one for each data set, for `dphead finetune`.
- `base` names the preset from which missing keys are taken.

"?" marks a number that is unreadable in the text of the paper.
"""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

_DELTA = 1e-5  # default without a preset, as in papers on CIFAR


def load(name: str) -> dict[str, Any]:
    """Return a preset, merged with its base.

    Settings of a method are merged with the settings of the base, except settings left
    to the user. `columns` and `search` replace the entries of the base. Raises
    ValueError for an unknown name.
    """
    if name not in _presets():
        raise ValueError(
            f"`--preset` {name!r} is unknown. Choose one of "
            f"{', '.join(sorted(_presets()))}, or drop --preset."
        )
    preset = dict(_presets()[name])
    base = load(preset.pop("base")) if "base" in preset else {}
    for key, value in preset.items():
        if isinstance(value, dict) and key not in ("columns", "search"):
            settings = base.get(key, {}) | value
            open_ = settings.get("left_to_the_user", [])
            preset[key] = {k: v for k, v in settings.items() if k not in open_}
    return base | preset


def delta_of(preset: str | None, given: float | None) -> float:
    """Return the user's delta, else the preset's delta, else 1e-5.

    `preset` is None or a preset's name, optionally with a column ("tb21-cnn/mnist").
    """
    if given is not None:
        return given
    data = {} if preset is None else load(preset.partition("/")[0])
    return data.get("delta", _DELTA)


def method_of(preset: str | None, method: str) -> str:
    """Return the method, or the only method of the preset if the method is "auto"."""
    data = {} if preset is None else load(preset)
    others = ("columns", "search", "network")
    have = [k for k, v in data.items() if isinstance(v, dict) and k not in others]
    return have[0] if method == "auto" and len(have) == 1 else method


def column(name: str, **where: Any) -> dict[str, Any]:
    """Return the settings in one column of a preset's table.

    Raises ValueError unless exactly one column has the values of `where`.
    """
    every = columns(name)
    found = [settings for settings in every if where.items() <= settings.items()]
    if len(found) != 1:
        given = ", ".join(f"{key}={value}" for key, value in where.items())
        raise ValueError(
            f"Exactly one column of the preset {name} must match, got {len(found)} "
            f"for {given or 'no values'}. Pass values of one of "
            f"`presets.columns({name!r})`."
        )
    return found[0]


def columns(name: str) -> list[dict[str, Any]]:
    """Return the settings in each column of a preset's table; empty without one."""
    lists = load(name).get("columns", {})
    return [
        dict(zip(lists, values, strict=True))
        for values in zip(*lists.values(), strict=True)
    ]


@cache
def _presets() -> dict[str, dict[str, Any]]:
    files = [p for p in resources.files(__name__).iterdir() if p.name.endswith(".toml")]
    return {
        name: preset
        for file in files
        for name, preset in tomllib.loads(file.read_text()).items()
    }
