"""Assemble an estimator's docstring (numpydoc).

The docstring contains the estimator's own text, the shared parameters, the solver's
settings, the attributes and an example.
"""

from textwrap import dedent, indent, wrap
from typing import TypeVar

from dphead.planning.methods import settable
from dphead.solvers.settings import Declared

Class = TypeVar("Class", bound=type)
WIDTH, INDENT = 88, "    "  # columns and indentation of docstrings

_EXAMPLE = """\
Examples
--------
>>> import numpy as np
>>> from dphead import {name}
>>> rng = np.random.default_rng(0)
>>> y = rng.integers(0, 3, 600)
>>> X = rng.normal(size=(600, 8)) + 4 * np.eye(3, 8)[y]
>>> head = {name}(epsilon=2.0, classes=[0, 1, 2]).fit(X, y)
>>> head.predict(X).shape
(600,)
>>> bool(head.privacy_.epsilon <= 2.0)
True
"""


def documented(estimator: Class) -> Class:
    """Complete an estimator's docstring from its base class and its solver."""
    shared = next(
        dedent(f"{INDENT}{base.__doc__}")
        for base in estimator.__mro__
        if "Attributes\n" in (base.__doc__ or "")
    )
    parameters = _section(shared, "Parameters", "Attributes").rstrip()
    attributes = _section(shared, "Attributes", "Examples").rstrip()
    found = settable(estimator.method).values()  # type: ignore[attr-defined]
    settings = [_described(declared) for declared in found if declared is not None]
    parts = [
        dedent(f"{INDENT}{(estimator.__doc__ or '').rstrip()}"),
        "\n".join(["Parameters\n----------", parameters, *settings]),
        f"Attributes\n----------\n{attributes}",
        _EXAMPLE.format(name=estimator.__name__),
    ]
    text = indent("\n\n".join(parts), INDENT).lstrip()
    estimator.__doc__ = f"{text}{INDENT}"
    return estimator


def _described(declared: Declared) -> str:
    """Describe one setting: range, default, source and meaning."""
    says = f"{declared.setting.help} Default: {declared.setting.source}."
    text = "\n".join(wrap(says, WIDTH - 2 * len(INDENT)))
    line = f"{declared.name} : {declared.must_be}, default={declared.default_text}"
    return f"{line}\n{indent(text, INDENT)}"


def _section(text: str, name: str, after: str) -> str:
    """Return the text of one docstring section."""
    body = text.partition(f"{name}\n{'-' * len(name)}\n")[2]
    return body.partition(f"\n{after}\n")[0]
