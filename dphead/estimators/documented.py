"""What an estimator's docstring says of its method's settings."""

from textwrap import wrap
from typing import TypeVar

from dphead.planning.methods import settable
from dphead.solvers.settings import Declared

Class = TypeVar("Class", bound=type)
WIDTH, INDENT = 88, "    "  # of a docstring's lines


def documented(estimator: Class) -> Class:
    """Append the settings of an estimator's method, as its solver declares them."""
    found = settable(estimator.method).values()  # type: ignore[attr-defined]
    lines = ["Settings; None is the preset's value, or else the default here:", ""]
    for declared in found:
        if declared is not None:
            lines += wrap(described(declared), WIDTH - len(INDENT))
    text = "\n".join(f"{INDENT}{line}".rstrip() for line in lines)
    estimator.__doc__ = f"{(estimator.__doc__ or '').rstrip()}\n\n{text}\n{INDENT}"
    return estimator


def described(declared: Declared) -> str:
    """One setting in a sentence or two."""
    default = f"default {declared.default_text} ({declared.setting.source})"
    return f"{declared.name}: {declared.must_be}; {default}. {declared.setting.help}"
