"""Combine a training's settings: De22's defaults, a preset's, then the user's."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from dphead.finetune.augment import MOST_VIEWS
from dphead.finetune.solver import Step
from dphead.planning import presets
from dphead.planning.option_aliases import BASE_LEARNING_RATE, EPOCHS, NORMALIZATION
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    POSITIVE,
    STEPS,
    Range,
    Setting,
)

_NOISE_MULTIPLIER = Setting("Noise multiplier of each step.", POSITIVE)
_BATCH_SIZE = Setting("Expected size of a batch.", AT_LEAST_ONE)
_SAMPLING = Setting("Poisson batches, or each image in one step of an epoch.")
_NORM = Setting("Place of a Wide-ResNet's norms relative to activations.")
LAYERS = Setting("Regular expressions of parameter names to train; () for all.")
_Augment = Literal["none", "crop", "rrc", "ours", "simclr"]
_FEW = Range(f"a whole number from 0 to {MOST_VIEWS}", lambda v: 0 <= v <= MOST_VIEWS)
_VIEWS = Setting("Number of augmented views per image.", _FEW)


@dataclass(frozen=True)
class Settings(Step):
    """Hold the settings of a network's training.

    If one of noise_multiplier, batch_size and steps is None, the budget determines it.
    The settings of `Step` apply too.

    Parameters
    ----------
    model : str, default "wrn-16-4"
        The network's name.
    norm : {"before", "after"}, default "before"
        Place of a Wide-ResNet's norms relative to activations.
    layers : tuple of str, default ()
        Regular expressions. A parameter is trained if its name matches one; () trains
        all.
    noise_multiplier : float, optional
        Noise multiplier of each step.
    batch_size : int, optional
        Expected size of a batch.
    sampling : {"poisson", "allocation"}, default "poisson"
        "poisson" draws each image into each batch independently. "allocation" draws
        each image into one batch of an epoch (docs/networks.md).
    steps : int, optional
        Number of steps.
    epochs : float, optional
        Alternative to `steps`, as in TB21: steps = epochs n / batch_size.
    base_learning_rate : float, optional
        Alternative to `learning_rate`, as in TB21: it is multiplied by batch_size /
        512.
    views : int, default 0
        De22's augmentation multiplicity K.
    augment : str, default "none"
        Augmentation that makes the views.
    normalization : dict, optional
        Settings of `ChannelNormalization`.
    """

    model: Annotated[str, Setting("The network's name.")] = "wrn-16-4"
    norm: Annotated[Literal["before", "after"], _NORM] = "before"
    layers: Annotated[tuple[str, ...], LAYERS] = ()
    noise_multiplier: Annotated[float | None, _NOISE_MULTIPLIER] = None
    batch_size: Annotated[int | None, _BATCH_SIZE] = None
    sampling: Annotated[Literal["poisson", "allocation"], _SAMPLING] = "poisson"
    steps: Annotated[int | None, STEPS] = None
    epochs: Annotated[float | None, EPOCHS] = None
    base_learning_rate: Annotated[float | None, BASE_LEARNING_RATE] = None
    views: Annotated[int, _VIEWS] = 0
    augment: Annotated[_Augment, Setting("Augmentation that makes the views.")] = "none"
    normalization: Annotated[dict[str, Any] | None, NORMALIZATION] = None

    def resolved(self, n_rows: int) -> "Settings":
        """Return the settings with epochs and base_learning_rate converted.

        The aliases become steps and learning_rate. Raises ValueError if `batch_size` is
        missing, or if both epochs and steps are given.
        """
        found = self
        if self.epochs is not None:
            if self.steps is not None or self.batch_size is None:
                raise ValueError(
                    f"epochs need a batch_size and no steps, got {self.steps=}, "
                    f"{self.batch_size=}. Correct them."
                )
            steps = max(1, round(self.epochs * n_rows / self.batch_size))
            if self.sampling == "allocation":  # whole epochs
                steps = max(1, round(self.epochs)) * self.epoch_steps(n_rows)
            found = replace(found, steps=steps, epochs=None)
        if self.base_learning_rate is not None:
            if self.batch_size is None:
                raise ValueError(
                    "base_learning_rate needs a batch_size, got none. Pass "
                    "learning_rate instead."
                )
            rate = self.base_learning_rate * self.batch_size / 512
            found = replace(found, learning_rate=rate, base_learning_rate=None)
        return found

    def epoch_steps(self, n_rows: int) -> int:
        """Return the steps of an epoch of random allocation; 1 for Poisson batches."""
        if self.sampling == "poisson":
            return 1
        if self.batch_size is None:
            raise ValueError(
                "sampling allocation needs a batch_size, got none. Pass it, and drop "
                "the noise multiplier or the steps."
            )
        return max(1, round(n_rows / self.batch_size))


NAMES = {f.name for f in fields(Settings)}
_RENAMED = {"augmentation_multiplicity": "views"}
# values of settings that a preset's table omits
_UNSAID_IN_PRESETS = {"normalize": False, "average": "last", "momentum": 0.9}
_HEAD_SETTINGS = {
    "loss",
    "intercept",
    "unit_norm",
    "left_to_the_user",
    "search",
    "groups",
    "dataset",
    "epsilon",
}


def make_settings(
    options: dict[str, Any], preset: str | None = None, epsilon: float | None = None
) -> tuple[Settings, str]:
    """Return (settings, source) from the user's options and a preset.

    Parameters
    ----------
    options : dict
        The user's settings. None values are ignored.
    preset : str, optional
        "NAME", or "NAME/COLUMN" if the preset's table has several columns. COLUMN is
        the data set or epsilon that heads it.
    epsilon : float, optional
        The column if `preset` names none.

    Returns
    -------
    tuple of (Settings, str)
        The settings and their source.

    Raises
    ------
    ValueError
        If a name is unknown, a value is out of range, or the preset is for heads.
    """
    given = {k: v for k, v in options.items() if v is not None}
    unknown = sorted(set(given) - NAMES)
    if unknown:
        raise ValueError(
            f"settings of a network must be among {sorted(NAMES)}, got {unknown}. "
            "Correct them."
        )
    Settings(**given)  # check values before use
    known, source = (
        ({}, "dphead's defaults") if preset is None else _from_preset(preset, epsilon)
    )
    for one, other in {
        "steps": "epochs",
        "learning_rate": "base_learning_rate",
    }.items():
        if one in given or other in given:
            known.pop(one, None)
            known.pop(other, None)
    merged = known | given
    if merged.get("views") and merged.get("augment") is None:
        merged["augment"] = "crop"
    if merged.get("augment", "none") != "none" and not merged.get("views"):
        merged["views"] = 1
    return Settings(**merged), source


def _from_preset(name: str, epsilon: float | None) -> tuple[dict[str, Any], str]:
    """Return (settings, source) of a preset, in the names of `Settings`."""
    base, _, wanted = name.partition("/")
    data = presets.load(base)
    table = _UNSAID_IN_PRESETS | data.get("dp-sgd", {})
    columns = data.get("columns", {})
    if "network" not in data:
        raise ValueError(
            f"preset must train a network, got preset={base!r}. Use it with `dphead "
            "fit`."
        )
    if columns:
        first = next(iter(columns))
        heads = {_typed(head): head for head in columns[first]}
        value = wanted.removesuffix(".0") or _typed(epsilon)
        table |= presets.column(base, **{first: heads.get(value, value)})
    network = data["network"]
    table["model"] = network[table["dataset"]] if isinstance(network, dict) else network
    if table.pop("data_norm", "none") != "none":
        table["normalization"] = presets.load(f"tb21-{table['dataset']}")["dp-sgd"][
            "normalization"
        ]
    own = {str(k): v for k, v in table.items() if k not in _HEAD_SETTINGS}
    own["layers"] = tuple(own.get("layers", ()))
    found = {_RENAMED.get(name, name): value for name, value in own.items()}
    return found, data["source"]


def _typed(head: Any) -> str:
    """Return a column's heading as a user would type it: 8 for 8.0."""
    return f"{head:g}" if isinstance(head, int | float) else str(head)
