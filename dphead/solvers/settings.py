"""Declare each setting once, at a field of a solver.

The field has the type and default. Its annotation has range, help and source:

    steps: Annotated[int, STEPS.default_from("FC23 Table 6")] = 10

The declaration gives the check in the solver (`check_settings`), the options of
`dphead fit`, the estimators' documentation and docs/settings.md.
"""

import reprlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from dphead.privacy.loss import LOSSES
from dphead.privacy.python_values import python_value

CHOSEN = "chosen, not measured"
# on held-out training rows of CIFAR-10 (MobileNetV2) and digits: commit 135ded1
TRIALS = "trials on training rows, not stored"
OFF = "off"
_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxlong = _QUOTED.maxother = 60  # characters


@dataclass(frozen=True)
class Range:
    """Define the valid numbers of a setting.

    `text` is the condition as text that follows "must be". `holds` checks a number.
    """

    text: str
    holds: Callable[[Any], bool]


# largest valid number: its square fits a float32; chosen, not measured
_LARGEST = 1e15
_FINITE = Range(f"from {-_LARGEST:g} to {_LARGEST:g}", lambda v: abs(v) <= _LARGEST)
POSITIVE = Range(f"positive, at most {_LARGEST:g}", lambda v: 0 < v <= _LARGEST)
NOT_NEGATIVE = Range(f"from 0 to {_LARGEST:g}", lambda v: 0 <= v <= _LARGEST)
AT_LEAST_ONE = Range("a whole number of at least 1", lambda v: v >= 1)
# largest number of releases: a plan of this length takes a minute
MOST_RELEASES = 2**20
_COUNT = Range(
    f"a whole number from 1 to {MOST_RELEASES}", lambda v: 1 <= v <= MOST_RELEASES
)
BELOW_ONE = Range("in [0, 1)", lambda v: 0 <= v < 1)
UP_TO_HALF = Range("from 0 to 0.5", lambda v: 0 <= v <= 0.5)
SHARE = Range("in (0, 1)", lambda v: 0 < v < 1)
PROBABILITY = Range("in (0, 1]", lambda v: 0 < v <= 1)


@dataclass(frozen=True)
class Setting:
    """Describe a setting in its field's annotation.

    Parameters
    ----------
    help : str
        Help text for the user.
    valid : Range, optional
        Valid numbers; None means any.
    source : str
        Source of the default.
    option : bool, default False
        Whether `dphead fit` has the setting as an option.
    settable : bool, default True
        False for a setting that only ablations may change.
    choices : tuple of str, default ()
        Valid strings of a field of type str. If empty, the values of a Literal are
        valid, or any string without a Literal.
    """

    help: str
    valid: Range | None = None
    source: str = CHOSEN
    option: bool = False
    settable: bool = True
    choices: tuple[str, ...] = ()

    def default_from(self, source: str) -> "Setting":
        """Return the same setting with another source of its default."""
        return replace(self, source=source)


# Settings that several solvers share.
STEPS = Setting("Number of gradient steps.", _COUNT, option=True)
LEARNING_RATE = Setting("Learning rate.", POSITIVE, option=True)
RIDGE = Setting(
    "Ridge penalty in units of the mean Gram matrix; None: set from the noise; stein "
    "(dp-ls): set by Stein's estimate of the risk of the released sums.",
    POSITIVE,
    "None: `ridge_for`, a rule without data",
    option=True,
)
GRAM_SHARE = Setting(
    "Fraction of mu² for the Gram matrix; None: every release has the same noise.",
    SHARE,
    TRIALS,
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
    "Constant appended to each row (0: none).", NOT_NEGATIVE, OFF, option=True
)
INITIAL_BIAS = Setting("Score of every class before the first step.", _FINITE, OFF)


@dataclass(frozen=True)
class Declared:
    """Describe a setting with the name, types and default of its field.

    `types` are the members of the annotation's union. `choices` are the values of its
    Literal.
    """

    name: str
    types: tuple[type, ...]
    choices: tuple[str, ...]
    default: Any
    setting: Setting

    @property
    def must_be(self) -> str:
        """Return the condition on a value as text that follows "must be"."""
        texts = [self.setting.valid.text] if self.setting.valid else []
        texts = texts or [_NAMES.get(t, t.__name__) for t in self._not_none()]
        if self.choices:
            texts.append(f"one of {', '.join(self.choices)}")
        return ", or ".join(texts)

    def holds(self, value: Any) -> bool:
        """Return whether the setting may have the value."""
        if isinstance(value, str) and str not in self.types:
            return value in self.choices
        if not any(is_a(value, t) for t in self.types):
            return False
        valid = self.setting.valid
        return valid is None or value is None or valid.holds(value)

    @property
    def default_text(self) -> str:
        """Return the default as a user would type it."""
        plain = self.default is None or isinstance(self.default, bool | int | float)
        return str(self.default) if plain else repr(self.default)

    def _not_none(self) -> list[type]:
        return [t for t in self.types if t is not NoneType]


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    tuple: "a list",
    Callable: "a function",
    str: "text",
}


def settings_of(kind: type) -> dict[str, Declared]:
    """Return the settings of a dataclass by name: its fields with a `Setting`."""
    found = {}
    as_text = any(isinstance(field.type, str) for field in fields(kind))
    hints = get_type_hints(kind, include_extras=True) if as_text else {}
    for field in fields(kind):
        annotated = hints.get(field.name, field.type)
        if get_origin(annotated) is not Annotated:
            continue
        annotation, *more = get_args(annotated)
        setting = next((a for a in more if isinstance(a, Setting)), None)
        if setting is not None:
            types, choices = _members(annotation)
            if setting.choices:
                types = tuple(kind for kind in types if kind is not str)
                choices = setting.choices
            default = None if field.default is MISSING else field.default
            found[field.name] = Declared(field.name, types, choices, default, setting)
    return found


def check_settings(settings: Any) -> None:
    """Replace settings by their `python_value`, and check their types and ranges.

    Call it in `__post_init__` of a dataclass of settings. Raises ValueError for an
    invalid setting.
    """
    for name, declared in settings_of(type(settings)).items():
        value = python_value(getattr(settings, name))
        if not declared.holds(value):
            raise ValueError(f"{name} must be {declared.must_be}, got {typed(value)}.")
        object.__setattr__(settings, name, value)  # the class may be frozen


def typed(value: Any) -> str:
    """Return a value as short text for a one-line message."""
    return " ".join(_QUOTED.repr(value).split())


def _members(annotation: Any) -> tuple[tuple[type, ...], tuple[str, ...]]:
    """Return the types and the Literal values of an annotation."""
    origin = get_origin(annotation)
    if origin is Literal:
        return (), get_args(annotation)
    if origin not in (Union, UnionType):
        return (origin or annotation,), ()
    parts = [_members(part) for part in get_args(annotation)]
    types = tuple(t for part in parts for t in part[0])
    choices = tuple(c for part in parts for c in part[1])
    return types, choices


def is_a(value: Any, kind: type) -> bool:
    """Return whether a `python_value` has a type.

    Booleans, and whole numbers that are too large for a float, are not numbers.
    """
    if kind in (int, float):
        known = type(value) is int or (kind is float and type(value) is float)
        return known and _fits_float(value)
    return isinstance(value, kind)


def _fits_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
