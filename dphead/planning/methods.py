"""From a method's name, a preset and options to a solver and what was decided."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from dphead.planning import presets
from dphead.solvers import (
    DPFC,
    Auto,
    GradientDescent,
    LeastSquares,
    Newton,
    Prototypes,
    PublicFacts,
    Solver,
)
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import read_prior

SOLVERS: dict[str, Any] = {
    "auto": Auto,
    "dp-fc": DPFC,
    "dp-ls": LeastSquares,
    "dp-newton": Newton,
    "dp-adam": GradientDescent,
    "dp-sgd": GradientDescent,
    "prototypes": Prototypes,
}
ADAM = {"optimizer": "adam", "learning_rate": 0.1}
UNSET = {
    "auto": {"scale", "steps", "move", "descent"},
    "dp-sgd": {"prior"},
    "dp-adam": {"prior"},
}  # what a method's rules set: for benchmarks alone
PREPARATION = {"unit_norm", "center_share", "normalization"}
INSTEAD = {
    "epochs": "steps",
    "base_learning_rate": "learning_rate",
    "batch_size": "sampling_prob",
}
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ["steps"], ("a whole number of at least 1", lambda v: v >= 1 and v % 1 == 0)
    ),
    **dict.fromkeys(
        ["batch_size", "epochs", "learning_rate", "base_learning_rate", "ridge"],
        ("positive and finite", lambda v: 0 < v < float("inf")),
    ),
    **dict.fromkeys(
        ["alpha", "weight_decay", "intercept"],
        ("at least 0, finite", lambda v: 0 <= v < float("inf")),
    ),
    **dict.fromkeys(
        ["momentum", "beta2", "center_share"], ("in [0, 1)", lambda v: 0 <= v < 1)
    ),
    **dict.fromkeys(
        ["gram_share", "hessian_share"], ("in (0, 1)", lambda v: 0 < v < 1)
    ),
}


@dataclass(frozen=True)
class Method:
    """A solver ready to run, with the accountant its preset asks for ("auto" without
    one) and where it comes from.
    """

    solver: Solver
    accountant: str
    source: str


def make_method(
    name: str, facts: PublicFacts, options: dict[str, Any], preset: str | None = None
) -> Method:
    """Build the solver `name` from a preset's settings, overridden by `options` (None
    values are ignored).

    Besides the solver's own fields: unit_norm, center_share, normalization (a table),
    batch_size and epochs (Poisson batches of that expected size), base_learning_rate
    (scaled by batch_size/512, as TB21 does). prior: auto's, an array or a .npy file of
    public weights (n_features, n_classes).
    Raises ValueError for an unknown name, an option the method does not have, or what
    the preset leaves to the user.
    """
    if name not in SOLVERS:
        raise ValueError(
            f"method must be one of {sorted(SOLVERS)}, got method={name!r}. Choose one "
            "of them."
        )
    options = {k: v for k, v in options.items() if v is not None}
    for one, other in INSTEAD.items():
        if one in options and other in options:
            raise ValueError(
                f"{one} and {other} say the same thing twice, got both. Give one of "
                "them."
            )
    settings: dict[str, Any] = dict(ADAM) if name == "dp-adam" else {}
    accountant, source = "auto", "dphead's defaults"
    if preset is not None:
        data = presets.load(preset)
        if "needs" in data:
            raise ValueError(
                f"preset must be a head's, got preset={preset!r}, which needs "
                f"{data['needs']}. Choose another."
            )
        if name not in data:
            have = sorted(k for k in data if k in SOLVERS)
            raise ValueError(
                f"preset {preset} must have the method, got method={name!r}. It has "
                f"{have}."
            )
        settings |= data[name]
        missing = [
            k
            for k in settings.pop("left_to_the_user", [])
            if not {k, INSTEAD.get(k, k)} & set(options)
        ]
        if missing:
            printed = {
                k: v
                for k, v in data.get("columns", {}).items()
                if k == "epsilon" or k in missing
            }
            why = (
                f"the paper has several {printed}"
                if printed
                else f"the paper does not print {missing}"
            )
            raise ValueError(
                f"{why}, got preset={preset} without {missing}. Give each one."
            )
        if settings.pop("equal_noise", False):
            settings |= (
                {"hessian_share": 0.5} if name == "dp-newton" else {"gram_share": None}
            )
        accountant, source = data["accountant"], data["source"]
    # a user's setting also replaces one of the preset that says it otherwise
    for one, other in INSTEAD.items():
        settings.pop(other if one in options else one if other in options else "", None)
    settings |= options
    _check_settings(name, settings)
    _resolve_batches(settings, facts)
    settings["centering"] = _row_preparation(settings)
    if "prior" in settings:
        settings["prior"] = read_prior(settings["prior"])
    return Method(SOLVERS[name](**settings), accountant, source)


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    """Raise ValueError for a setting that the method does not have, or one out of its
    range.
    """
    own = {f.name for f in fields(SOLVERS[name])} - UNSET.get(name, set())
    known = (
        (own - {"name", "centering"})
        | PREPARATION
        | {one for one, other in INSTEAD.items() if other in own}
    )
    if "sampling_prob" not in own:
        known.discard("base_learning_rate")
    unknown = sorted(set(settings) - known)
    if unknown:
        hint = " Name the method that has them." if name == "auto" else ""
        raise ValueError(
            f"{name} must have every option given, got {unknown}. It has "
            f"{sorted(known)}.{hint}"
        )
    for key, value in settings.items():
        text, holds = RANGES.get(key, ("", lambda _: True))
        if (name, key, value) == ("dp-ls", "ridge", "stein"):
            continue
        if value is not None and (
            (isinstance(value, str) and key in RANGES) or not holds(value)
        ):
            raise ValueError(f"{key} must be {text}, got {key}={value}. Correct it.")


def _resolve_batches(settings: dict[str, Any], facts: PublicFacts) -> None:
    """Turn batch_size, epochs and base_learning_rate into sampling_prob, steps and
    learning_rate, in place.
    """
    batch = settings.pop("batch_size", None)
    epochs = settings.pop("epochs", None)
    base = settings.pop("base_learning_rate", None)
    if batch is not None:
        settings["sampling_prob"] = min(1.0, batch / facts.n_rows)
    prob = settings.get("sampling_prob", 1.0)
    if epochs is not None and "steps" not in settings:
        settings["steps"] = max(1, round(epochs / prob))
    if base is not None and "learning_rate" not in settings:
        settings["learning_rate"] = base * prob * facts.n_rows / 512


def _row_preparation(settings: dict[str, Any]) -> Centering | ChannelNormalization:
    unit_norm, share = (
        settings.pop("unit_norm", True),
        settings.pop("center_share", None),
    )
    normalization = settings.pop("normalization", None)
    if share and (normalization is not None or not unit_norm):
        raise ValueError(
            "center_share needs unit_norm and no normalization, got "
            f"center_share={share}. Leave it out."
        )
    if normalization is not None:
        return ChannelNormalization(**normalization)
    return Centering(Centering.share if share is None else share, unit_norm)
