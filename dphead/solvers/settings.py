"""Declare each setting once, at a field of a solver.

The field has the type and default. Its annotation has range, help and source:

    steps: Annotated[int, STEPS.default_from("FC23 Table 6")] = 10

The declaration gives the check in the solver (`check_settings`), the options of
`dphead fit`, the estimators' documentation and docs/settings.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dphead_extract.declared import (
    CHOSEN,
    Declared,
    Range,
    Setting,
    is_a,
    settings_of,
    typed,
)

from dphead.privacy.loss import LOSSES
from dphead.privacy.python_values import python_value

# on held-out training rows of CIFAR-10 (MobileNetV2) and digits: commit 135ded1
TRIALS = "trials on training rows, not stored"
OFF = "off"

# imported from dphead_extract.declared for modules that import this one
__all__ = ["CHOSEN", "Declared", "Range", "Setting", "is_a", "settings_of", "typed"]

# largest valid number: its square fits a float32; chosen, not measured
_LARGEST = 1e15
_FINITE = Range(f"from {-_LARGEST:g} to {_LARGEST:g}", lambda v: abs(v) <= _LARGEST)
POSITIVE = Range(f"positive, at most {_LARGEST:g}", lambda v: 0 < v <= _LARGEST)
NOT_NEGATIVE = Range(f"from 0 to {_LARGEST:g}", lambda v: 0 <= v <= _LARGEST)
AT_LEAST_ONE = Range("a whole number of at least 1", lambda v: v >= 1)
# largest number of releases: a plan of this length takes a minute
MOST_RELEASES = 2**20
COUNT = Range(
    f"a whole number from 1 to {MOST_RELEASES}", lambda v: 1 <= v <= MOST_RELEASES
)
BELOW_ONE = Range("in [0, 1)", lambda v: 0 <= v < 1)
SHARE = Range("in (0, 1)", lambda v: 0 < v < 1)
PROBABILITY = Range("in (0, 1]", lambda v: 0 < v <= 1)

# Settings that several solvers share.
STEPS = Setting("Number of training steps.", COUNT, option=True)
LEARNING_RATE = Setting("Learning rate.", POSITIVE, option=True)
RIDGE = Setting(
    "Ridge penalty in units of the mean Gram matrix, or of the mean Hessian in Newton "
    "steps (default: set from the noise); stein (dp-ls): set by Stein's estimate of "
    "the risk of the released sums.",
    POSITIVE,
    "None: `ridge_for`, a rule without data",
    option=True,
)
SHRINK = Setting(
    "Shrink the Gram matrix's eigenvalues by the distribution of its noise.",
    source="held-out training rows: results/ablation",
    option=True,
)
_UNCALIBRATED = " or ".join(n for n, loss in LOSSES.items() if not loss.calibrated)
LOSS = Setting(
    f"Training loss. With {_UNCALIBRATED}, probabilities are not calibrated.",
    option=True,
    choices=tuple(LOSSES),
)
CLIP_NORM = Setting("Clip norm of gradients.", POSITIVE, option=True)
FEATURE_CLIP = Setting(
    "Clip norm of features.", POSITIVE, "the norm of unit rows", option=True
)
INTERCEPT = Setting(
    "Constant appended to each row (0: none; prototypes need a positive constant).",
    NOT_NEGATIVE,
    OFF,
    option=True,
)
INITIAL_BIAS = Setting(
    "Score of every class before the first step, if there is an intercept.",
    _FINITE,
    OFF,
)


def check_settings(settings: Any) -> None:
    """Replace settings by their `python_value`, and check their types and ranges.

    A text becomes a Path if the setting takes paths but no text. Call it in
    `__post_init__` of a dataclass of settings. Raises ValueError for an invalid
    setting.
    """
    for name, declared in settings_of(type(settings)).items():
        value = python_value(getattr(settings, name))
        if (
            isinstance(value, str)
            and Path in declared.types
            and str not in declared.types
        ):
            value = Path(value)
        if not declared.holds(value):
            raise ValueError(f"{name} must be {declared.must_be}, got {typed(value)}.")
        object.__setattr__(settings, name, value)  # the class may be frozen


def given_once(own: Mapping[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that have an option or parameter of their own, and all others.

    `own` has None for settings that were not given. Raises ValueError for a setting in
    both.
    """
    given = {name: value for name, value in own.items() if value is not None}
    if twice := given.keys() & settings:
        raise ValueError(
            "--set (`settings`) cannot repeat an option (a parameter), got "
            f"{min(twice)!r} in both. Drop one of them."
        )
    return given | settings
