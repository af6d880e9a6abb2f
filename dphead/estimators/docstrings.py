"""Complete the docstrings of estimators, so that each parameter is described once.

A class's own docstring describes only what its bases do not describe. The text on a
method's setting comes from its declaration (`solvers/settings.py`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import cleandoc
from textwrap import fill
from typing import Any, TypeVar

from dphead.solvers.settings import Declared

_INDENT = "    "
_WIDTH = 84  # columns: `help` indents by 4
_HEADING = re.compile(r"^(\w+)\n-+\n", re.M)
# an item of a section: its name, and its text until the next line without indentation
_ITEM = re.compile(r"^(\w+) : .*(?:\n .*)*", re.M)
_TYPES = {"true or false": "bool", "PublicPrior": "ndarray, or path of a .npy file"}
_T = TypeVar("_T")


def documented(
    settings: Mapping[str, Declared | None],
) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that describes all parameters and attributes of a dataclass.

    Parameters
    ----------
    settings : mapping of str to Declared or None
        The method's settings. Their text replaces a base's text on the same parameter.
    """

    def complete(kind: type[_T]) -> type[_T]:
        defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
        described = {
            name: _described(declared, defaults[name])
            for name, declared in settings.items()
            if declared is not None and name in defaults
        }
        own = _sections(kind)
        for section, texts in (("Parameters", described), ("Attributes", {})):
            found = first = _items(own[section])
            for base in reversed(kind.__mro__[1:]):
                found = found | _items(_sections(base)[section])
            found = found | texts | first
            known = (name for name in found if name in defaults or name.endswith("_"))
            own[section] = "\n".join(found[name] for name in known)
        summary = own.pop("")
        parts = (f"{name}\n{'-' * len(name)}\n{text}" for name, text in own.items())
        kind.__doc__ = "\n\n".join([summary, *parts])
        return kind

    return complete


def _described(declared: Declared, given: Any) -> str:
    """Return a setting's range, meaning and default, as numpydoc.

    `given` is the default of the estimator's parameter, such as None.
    """
    default = declared.setting.source.removeprefix("None: ")
    if declared.default is not None:
        default = f"{declared.default_text} ({default})"
    text = f"{declared.setting.help} Default: {default}."
    kind = _TYPES.get(declared.must_be, declared.must_be)
    lines = fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return f"{declared.name} : {kind}, default={given!r}\n{lines}"


def _sections(kind: type) -> dict[str, str]:
    """Return a class's docstring as sections by heading; "" has the text before."""
    parts = ["", *_HEADING.split(cleandoc(kind.__doc__ or ""))]
    found = dict.fromkeys(("", "Parameters", "Attributes"), "")
    return found | {
        name: text.rstrip() for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _items(section: str) -> dict[str, str]:
    """Return the items of a section by name, such as the parameters."""
    return {match[1]: match[0] for match in _ITEM.finditer(section)}
