"""Declare the settings of a network's training, and merge them with a preset's.

This module does not import torch, so that `dphead finetune` refuses wrong settings at
once.
"""

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from dphead.planning import presets
from dphead.planning.methods import BASE_LEARNING_RATE, EPOCHS, NORMALIZATION
from dphead.solvers.gradient import (
    AVERAGE,
    BETA2,
    EMA_DECAY,
    MOMENTUM,
    NORMALIZE,
    OPTIMIZER,
    WEIGHT_DECAY,
    Optimizer,
)
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    CLIP_NORM,
    LEARNING_RATE,
    OFF,
    POSITIVE,
    STEPS,
    Range,
    Setting,
    check_settings,
)

_MOST_VIEWS = 2**16  # bound on views per image; chosen, not measured
_TB21 = ("mnist", "cifar10", "cifar10-small", "sn-mnist", "sn-cifar10")
_DE22 = "De22"
_MODEL = Setting(
    "wrn-DEPTH-WIDTH, tb21-NAME, a timm model, or package.module:function that "
    "returns a module for a number of classes.",
    source=_DE22,
    option=True,
)
_NORM = Setting("Place of a Wide-ResNet's norms relative to activations.", source=_DE22)
_GROUPS = Setting(
    "Number of groups in a Wide-ResNet's group norms; 0: no norms.",
    # every width of a Wide-ResNet is a multiple of 16
    Range("0, 1, 2, 4, 8 or 16", lambda v: v in (0, 1, 2, 4, 8, 16)),
    _DE22,
    option=True,
)
_STANDARDIZE = Setting("Standardize a Wide-ResNet's weights.", source=_DE22)
_BATCH_NORM = Setting(
    "Treatment of batch norms, which mix images. freeze: use their public statistics. "
    "group: replace each by a group norm. refuse: raise an error.",
    source=OFF,
    option=True,
)
_INIT_SEED = Setting(
    "Public seed of the initial weights.",
    Range("a 64-bit number", lambda v: -(2**63) <= v < 2**63),
)
_LAYERS = Setting(
    "Comma-separated regular expressions; train only parameters with a matching name "
    "(default: all).",
    source=OFF,
    option=True,
)
_WEIGHTS = Setting(
    "File of public weights to start from.",
    source=OFF,
    shared=False,  # processes compare digests of the weights instead
    option=True,
)
VOCABULARY = Setting(
    "Public number N of tokens. Rows are then integers from 0 to N - 1, such as words "
    "of a text. A row with another number adds zero.",
    # float32 holds larger whole numbers with an error
    Range(f"a whole number from 2 to {2**24}", lambda v: 2 <= v <= 2**24),
    OFF,
    option=True,
)
_ADAPTER = Setting(
    "lora: train low-rank updates of the layers. bias: train the biases (BiTFiT). Both "
    "also train the last layer.",
    source=OFF,
    option=True,
)
_RANK = Setting("Rank of the updates of lora.", AT_LEAST_ONE, option=True)
_OF_WIDE = ("norm", "groups", "standardize")
_RATES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda step, steps: 1.0,
    "cosine": lambda step, steps: (1 + math.cos(math.pi * step / steps)) / 2,
    "step": lambda step, steps: 0.1 ** ((2 * step >= steps) + (4 * step >= 3 * steps)),
}
_RATE = Setting(
    "Factor by which the learning rate is multiplied at each step. cosine: it falls "
    "to 0. step: it is divided by 10 at 1/2 and 3/4 of the steps.",
    source=_DE22,
)
_AVERAGE = replace(
    AVERAGE,
    help="Weights to return: the last, or the moving average.",
    source=_DE22,
)
_OPTIMIZER = replace(OPTIMIZER, source=_DE22, option=True)
_DAMPENING = Setting(
    "Dampening of SGD's momentum, as in PyTorch.",
    Range("from 0 to 1", lambda v: 0 <= v <= 1),
    OFF,
)
_WEIGHT_DECAY = replace(WEIGHT_DECAY, option=False)
_DECOUPLED = Setting("Decouple weight decay, as AdamW does.", source=OFF)
_FROM_BUDGET = "None: set from the budget"
_NOISE_MULTIPLIER = Setting(
    "Noise multiplier of each step.", POSITIVE, _FROM_BUDGET, option=True
)
_BATCH_SIZE = Setting(
    "Expected size of a batch.", AT_LEAST_ONE, _FROM_BUDGET, option=True
)
_SAMPLING = Setting(
    "poisson: each image is drawn into each batch independently. allocation: each "
    "image is in one random step of an epoch.",
    option=True,
)
VIEWS = Setting(
    "Number of augmented views per image, averaged before clipping.",
    Range(f"a whole number from 0 to {_MOST_VIEWS}", lambda v: 0 <= v <= _MOST_VIEWS),
    OFF,
    option=True,
)
AUGMENT = Setting("Augmentation that makes the views.", source=OFF, option=True)
Augment = Literal["none", "crop", "rrc", "ours", "simclr"]
_Rate = Literal["constant", "cosine", "step"] | Callable[[int, int], float]


@dataclass(frozen=True)
class ModelSpec:
    """Describe a network by its name and options.

    Parameters
    ----------
    model : str, default "wrn-16-4"
        "wrn-DEPTH-WIDTH", "tb21-NAME", a timm name, or "package.module:function".
    norm : {"before", "after"}, default "before"
        Place of a Wide-ResNet's norms relative to activations.
    groups : int, default 16
        Groups of a Wide-ResNet's group norms; 0 for no norms.
    standardize : bool, default True
        Whether a Wide-ResNet's weights are standardized.
    batch_norm : {"refuse", "freeze", "group"}, default "refuse"
        What to do with batch norms, which mix rows. "freeze" uses the statistics in the
        public weights; weight and bias stay parameters. "group" replaces each by a
        new group norm, as Opacus' `ModuleValidator.fix` does.
    init_seed : int, default 0
        Seed of the initial weights, which are public.
    layers : tuple of str, default ()
        Regular expressions. A parameter is trained if its name matches one of them; ()
        trains all.
    adapter : {"none", "lora", "bias"}, default "none"
        "lora" trains low-rank updates of linear layers and of convolutions with one
        group. "bias" trains biases. Both also train the last linear layer, and
        `layers` chooses the layers to adapt.
    rank : int, default 8
        Rank of the updates of "lora".
    weights : str, optional
        A local file of public weights (safetensors or a state dict).
    vocabulary : int, optional
        Public number of tokens. Rows are then integer tokens from 0 to vocabulary - 1,
        and the network gets them as int64. None means images or floats.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    model: Annotated[str, _MODEL] = "wrn-16-4"
    norm: Annotated[Literal["before", "after"], _NORM] = "before"
    groups: Annotated[int, _GROUPS] = 16
    standardize: Annotated[bool, _STANDARDIZE] = True
    batch_norm: Annotated[Literal["refuse", "freeze", "group"], _BATCH_NORM] = "refuse"
    init_seed: Annotated[int, _INIT_SEED] = 0
    layers: Annotated[tuple[str, ...], _LAYERS] = ()
    adapter: Annotated[Literal["none", "lora", "bias"], _ADAPTER] = "none"
    rank: Annotated[int, _RANK] = 8
    weights: Annotated[str | None, _WEIGHTS] = None
    vocabulary: Annotated[int | None, VOCABULARY] = None

    def __post_init__(self) -> None:
        check_settings(self)
        name = self.model
        if self.is_wide:
            sizes = re.fullmatch(r"wrn-(\d+)-[1-9]\d*", name)
            depth = int(sizes[1]) if sizes else 0
            if depth < 10 or (depth - 4) % 6:
                raise ValueError(
                    "--model wrn-DEPTH-WIDTH needs a depth of 10, 16, 22, ... and a "
                    f"width of at least 1, got {name}. Try wrn-16-4."
                )
        if name.startswith("tb21-") and name.removeprefix("tb21-") not in _TB21:
            raise ValueError(
                f"--model tb21-NAME needs one of {', '.join(_TB21)}, got {name}. Try "
                "tb21-cifar10."
            )

    @property
    def is_wide(self) -> bool:
        """Return whether the name is a Wide-ResNet's."""
        return self.model.startswith("wrn-")

    @property
    def of_timm(self) -> bool:
        """Return whether the name must be the name of a timm model."""
        return not self.model.startswith(("wrn-", "tb21-")) and not self.of_user

    @property
    def of_user(self) -> bool:
        """Return whether the name is package.module:function."""
        return re.fullmatch(r"[\w.]+:\w+", self.model) is not None


@dataclass(frozen=True, kw_only=True)
class Step:
    """Describe the update of the weights from a released gradient.

    Parameters
    ----------
    optimizer : {"sgd", "adam"}, default "sgd"
        The optimizer.
    learning_rate : float, default 2.0
        Factor on the mean clipped gradient: the noisy sum, divided by the expected
        batch size.
    learning_rate_schedule : {"constant", "cosine", "step"} or callable
        Factor of the learning rate at each step, or a function of (step, number of
        steps) that returns it. Default: "constant".
    momentum, beta2 : float, default 0.0 and 0.999
        Momentum of the optimizer, and Adam's beta2.
    dampening : float, default 0.0
        As in TAN23 and PyTorch. It has no effect on the first step, nor without
        momentum.
    clip_norm : float, default 1.0
        Bound on the norm of a row's gradient.
    normalize : bool, default True
        Whether the gradient is also divided by the clip norm [De22].
    average : {"last", "ema"}, default "ema"
        "last" keeps the last weights. "ema" keeps a moving average of the weights. Its
        decay at step t = 0, 1, ... is min(ema_decay, (1 + t) / (10 + t)) [De22].
    ema_decay : float, default 0.9999
        Largest decay of the moving average.
    weight_decay : float, default 0.0
        Multiple of the weights that each step adds to the gradient, or to the
        optimizer's direction if `decoupled`.
    decoupled : bool, default False
        Whether weight decay is separate from the gradient (AdamW).

    Raises
    ------
    ValueError
        If a setting is out of range, or `dampening` is given without "sgd".
    """

    optimizer: Annotated[Optimizer, _OPTIMIZER] = "sgd"
    learning_rate: Annotated[float, LEARNING_RATE.default_from(_DE22)] = 2.0
    learning_rate_schedule: Annotated[_Rate, _RATE] = "constant"
    momentum: Annotated[float, MOMENTUM.default_from(_DE22)] = 0.0
    dampening: Annotated[float, _DAMPENING] = 0.0
    beta2: Annotated[float, BETA2] = 0.999
    clip_norm: Annotated[float, CLIP_NORM.default_from(_DE22)] = 1.0
    normalize: Annotated[bool, NORMALIZE.default_from(_DE22)] = True
    average: Annotated[Literal["last", "ema"], _AVERAGE] = "ema"
    ema_decay: Annotated[float, EMA_DECAY] = 0.9999
    weight_decay: Annotated[float, _WEIGHT_DECAY] = 0.0
    decoupled: Annotated[bool, _DECOUPLED] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.dampening and self.optimizer != "sgd":
            raise ValueError(
                f"`dampening` needs --optimizer sgd, got {self.optimizer}. Drop "
                "`dampening`."
            )

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step (0, 1, ...) in a training of `steps`."""
        kind = self.learning_rate_schedule
        factor = _RATES[kind] if isinstance(kind, str) else kind
        return self.learning_rate * factor(step, steps)


@dataclass(frozen=True)
class Settings(Step, ModelSpec):
    """Hold the settings of a network's training.

    The budget determines noise_multiplier, batch_size or the number of steps (`steps`
    or `epochs`) if one of these is not given. The settings of `ModelSpec` and `Step`
    apply too.

    Parameters
    ----------
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
        Alternative to `steps`, as in TB21: steps = epochs n / batch_size, rounded.
        "allocation" rounds it to whole epochs.
    base_learning_rate : float, optional
        Alternative to `learning_rate`, as in TB21: learning_rate = base_learning_rate
        batch_size / 512.
    views : int, default 0
        De22's augmentation multiplicity K.
    augment : str, default "none"
        Augmentation that makes the views.
    normalization : dict, optional
        Settings of `ChannelNormalization`, for feature maps.
    """

    noise_multiplier: Annotated[float | None, _NOISE_MULTIPLIER] = None
    batch_size: Annotated[int | None, _BATCH_SIZE] = None
    sampling: Annotated[Literal["poisson", "allocation"], _SAMPLING] = "poisson"
    steps: Annotated[int | None, STEPS.default_from(_FROM_BUDGET)] = None
    epochs: Annotated[float | None, EPOCHS] = None
    base_learning_rate: Annotated[float | None, BASE_LEARNING_RATE] = None
    views: Annotated[int, VIEWS] = 0
    augment: Annotated[Augment, AUGMENT] = "none"
    normalization: Annotated[dict[str, Any] | None, NORMALIZATION] = None

    def __post_init__(self) -> None:
        ModelSpec.__post_init__(self)
        Step.__post_init__(self)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                f"--epochs cannot be combined with --steps, got {self.epochs:g} and "
                f"{self.steps}. Drop one of the two."
            )

    def check_complete(self) -> None:
        """Raise ValueError if settings are missing that the budget cannot give."""
        need = {
            "--noise-multiplier": self.noise_multiplier,
            "--batch-size": self.batch_size,
            "--steps": self.steps or self.epochs,
        }
        missing = [name for name, value in need.items() if value is None]
        if len(missing) > 1:
            raise ValueError(
                "dphead computes one of --noise-multiplier, --batch-size and --steps "
                f"from the other two, but {' and '.join(missing)} are missing. Add "
                f"{' and '.join(missing[1:])}."
            )
        if self.adapter != "none" and not self.of_user and self.weights is None:
            raise ValueError(
                f"--adapter {self.adapter} needs pretrained weights. Add --weights, or "
                "drop --adapter."
            )
        if self.batch_norm == "freeze" and self.of_timm and self.weights is None:
            raise ValueError(
                "--batch-norm freeze needs public statistics. Add --weights, or use "
                "--batch-norm group."
            )
        uses = {
            "--epochs": self.epochs is not None,
            "`base_learning_rate`": self.base_learning_rate is not None,
            "--sampling allocation": self.sampling == "allocation",
        }
        for name, used in uses.items():
            if used and self.batch_size is None:
                raise ValueError(f"{name} needs a batch size. Add --batch-size.")

    def resolved(self, n_rows: int) -> "Settings":
        """Return the settings with `steps` and `learning_rate` in place of aliases.

        The aliases are `epochs` and `base_learning_rate`. Raises ValueError as
        `check_complete` does.
        """
        self.check_complete()
        found, batch = self, self.batch_size
        if self.epochs is not None and batch is not None:
            steps = max(1, round(self.epochs * n_rows / batch))
            if self.sampling == "allocation":  # allocation needs whole epochs
                steps = max(1, round(self.epochs)) * self.epoch_steps(n_rows)
            found = replace(found, steps=steps, epochs=None)
        if self.base_learning_rate is not None and batch is not None:
            found = replace(
                found,
                learning_rate=self.base_learning_rate * batch / 512,
                base_learning_rate=None,
            )
        return found

    def epoch_steps(self, n_rows: int) -> int:
        """Return the steps per epoch of random allocation, or 1 without allocation."""
        if self.sampling == "poisson" or self.batch_size is None:
            return 1
        return max(1, round(n_rows / self.batch_size))

    def of(self, kind: type[ModelSpec | Step]) -> dict[str, Any]:
        """Return the settings that are fields of a base class."""
        return {one.name: getattr(self, one.name) for one in fields(kind)}

    def record(self) -> dict[str, Any]:
        """Return the settings that apply, as JSON data.

        A function is replaced by its name, and the file of weights by its sha256,
        because its path may contain a user's name.
        """
        found = asdict(self)
        if self.weights:
            found["weights"] = sha256(Path(self.weights).read_bytes()).hexdigest()
        if not self.is_wide:
            found = {k: v for k, v in found.items() if k not in _OF_WIDE}
        if self.adapter != "lora":
            found.pop("rank")
        rate = self.learning_rate_schedule
        if callable(rate):
            found["learning_rate_schedule"] = code_name(rate)
        return found


def code_name(code: Any) -> str:
    """Return the name of a function, even of a partial one, or of an object's type."""
    code = code.func if isinstance(code, partial) else code
    return getattr(code, "__qualname__", type(code).__name__)


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
    if unknown := sorted(set(given) - NAMES):
        raise ValueError(
            f"a network has no setting {', '.join(unknown)}. Its settings are "
            f"{', '.join(sorted(NAMES))}."
        )
    known, source = (
        ({}, "dphead's defaults") if preset is None else _from_preset(preset, epsilon)
    )
    for pair in ({"steps", "epochs"}, {"learning_rate", "base_learning_rate"}):
        if pair & set(given):
            known = {k: v for k, v in known.items() if k not in pair}
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
        raise ValueError(f"--preset {base} is for heads. Use it with `dphead fit`.")
    if columns:
        first = next(iter(columns))
        heads = {_typed(head): head for head in columns[first]}
        value = wanted.removesuffix(".0") or _typed(epsilon)
        if value not in heads:
            got = value if wanted or first == "epsilon" else "none"
            raise ValueError(
                f"--preset {base} needs one {first} of {', '.join(heads)}, got {got}. "
                f"Try --preset {base}/{next(iter(heads))}."
            )
        table |= presets.column(base, **{first: heads[value]})
    network = data["network"]
    table["model"] = network[table["dataset"]] if isinstance(network, dict) else network
    if table.pop("data_norm", "none") != "none":
        table["normalization"] = presets.load(f"tb21-{table['dataset']}")["dp-sgd"][
            "normalization"
        ]
    own = {str(k): v for k, v in table.items() if k not in _HEAD_SETTINGS}
    own["layers"] = tuple(own.get("layers", ()))
    return {_RENAMED.get(k, k): v for k, v in own.items()}, data["source"]


def _typed(head: object) -> str:
    """Return a column's heading as a user would type it: 8 for 8.0."""
    return f"{head:g}" if isinstance(head, int | float) else str(head)
