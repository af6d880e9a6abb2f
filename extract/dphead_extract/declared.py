"""Declare each option and each setting once, at a field of a dataclass.

The field has the name, type and default. Its annotation has the help and the range:

    steps: Annotated[int, Setting("Number of steps.", COUNT)] = 10
    memory: Annotated[int | None, Option("Memory limit.", read=n_bytes)] = None

A `Setting` belongs to a method or to the training of a network, and a preset may set
it. An `Option` belongs to a command. Checks, help, `--config`, run.toml and pages
follow from these declarations.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

CHOSEN = "chosen, not measured"
_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxlong = _QUOTED.maxother = 60  # characters
_T = TypeVar("_T")


@dataclass(frozen=True)
class Range:
    """Define the valid values of a setting.

    `text` is the condition as text that follows "must be". `holds` checks a value.
    """

    text: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Setting:
    """Describe a setting in its field's annotation.

    Parameters
    ----------
    help : str
        Help text for the user.
    valid : Range, optional
        Valid values; None means all values of the field's type.
    source : str
        Source of the default.
    option : bool, default False
        Whether the command (`dphead fit` or `dphead finetune`) has it as an option.
    settable : bool, default True
        False for a setting that only ablations may change.
    choices : sequence of str, or callable
        Valid strings of a field of type str, or a function that returns them. If empty,
        every string is valid. (A field with a Literal type takes its valid strings from
        the Literal.)
    shared : bool, default True
        False for a setting in which the processes of a run may differ.
    """

    help: str
    valid: Range | None = None
    source: str = CHOSEN
    option: bool = False
    settable: bool = True
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    shared: bool = True

    def default_from(self, source: str) -> "Setting":
        """Return the same setting with a different source of its default."""
        return replace(self, source=source)


@dataclass(frozen=True, kw_only=True)
class Option(Setting):
    """Describe an option of a command in its field's annotation.

    Parameters
    ----------
    section : str
        Heading in the command's help.
    flags : tuple of str
        Flags of the option, if they differ from the field's name. A flag without a
        hyphen is an argument.
    read : callable, optional
        Function that returns the value of a typed text, or raises ValueError.
    repeated : bool, default False
        Whether the option may be typed several times. `read` then gets all texts.
    metavar : str, optional
        Placeholder of the value in the help.
    existing : str, default ""
        Words for errors, such as "the weights file", if the path must exist; else "".
    kept : bool, default True
        False for an option that run.toml leaves out.
    resumed : bool, default False
        Whether a resumed run must repeat the value.
    """

    section: str = ""
    flags: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    repeated: bool = False
    metavar: str | None = None
    existing: str = ""
    kept: bool = True
    resumed: bool = False


@dataclass(frozen=True)
class Declared:
    """Describe a setting with the name, types and default of its field.

    `types` are the members of the annotation's union. `choices` are the values of its
    Literal. A field without a default is `required`.
    """

    name: str
    types: tuple[type, ...]
    choices: tuple[str, ...]
    default: Any
    setting: Setting
    required: bool = False

    @property
    def must_be(self) -> str:
        """Return the condition on a value as text that follows "must be"."""
        texts = [self.setting.valid.text] if self.setting.valid else []
        types = [t for t in self.types if t is not NoneType]
        texts = texts or [_NAMES.get(t, t.__name__) for t in types]
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
        """Return the default as a user would type it in Python."""
        plain = self.default is None or isinstance(self.default, bool | int | float)
        return str(self.default) if plain else repr(self.default)


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    tuple: "a list",
    Path: "a path",
    Callable: "a function",
    str: "text",
}


def settings_of(kind: type) -> dict[str, Declared]:
    """Return the settings and options that a dataclass declares, by name."""
    found = {}
    hints = _hints(kind)
    for field in fields(kind):
        annotated = hints[field.name]
        if get_origin(annotated) is not Annotated:
            continue
        annotation, *more = get_args(annotated)
        setting = next((a for a in more if isinstance(a, Setting)), None)
        if setting is not None:
            types, choices = _members(annotation)
            if setting.choices:
                types = tuple(kind for kind in types if kind is not str)
                given = setting.choices
                choices = tuple(given() if callable(given) else given)
            default = None if field.default is MISSING else field.default
            required = MISSING is field.default is field.default_factory
            found[field.name] = Declared(
                field.name, types, choices, default, setting, required
            )
    return found


def options_of(kind: type) -> dict[str, Declared]:
    """Return the options of a dataclass and of the dataclasses in its fields."""
    found, own = {}, settings_of(kind)
    for name, hint in _hints(kind).items():
        if name in own and isinstance(own[name].setting, Option):
            found[name] = own[name]
        elif is_dataclass(hint):
            found |= options_of(hint)  # type: ignore[arg-type]
    return found


def made_from(kind: type[_T], given: Mapping[str, Any], **more: Any) -> _T:
    """Build a dataclass, and the dataclasses in its fields, from values of options.

    None means a field's default. `more` has the values of further fields.
    """
    for name, hint in _hints(kind).items():
        if name in more:
            continue
        if is_dataclass(hint) and options_of(hint):  # type: ignore[arg-type]
            more[name] = made_from(hint, given)  # type: ignore[arg-type]
        elif given.get(name) is not None:
            more[name] = given[name]
    return kind(**more)


def typed(value: Any) -> str:
    """Return a value as short text for a one-line message."""
    return " ".join(_QUOTED.repr(value).split())


def is_a(value: Any, kind: type) -> bool:
    """Return whether a value of a built-in type is of type `kind`.

    An int is also a float. A bool, and an int beyond the range of a float, are neither.
    """
    if kind in (int, float):
        known = type(value) is int or (kind is float and type(value) is float)
        return known and _fits_float(value)
    return isinstance(value, kind)


def _hints(kind: type) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields by name."""
    as_text = any(isinstance(field.type, str) for field in fields(kind))
    hints = get_type_hints(kind, include_extras=True) if as_text else {}
    return {f.name: hints.get(f.name, f.type) for f in fields(kind)}


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


def _fits_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
