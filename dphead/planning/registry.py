"""List the methods of dphead and of installed packages.

No solver is loaded to read the names. This keeps `dphead --help` fast.
"""

import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

_GROUP = "dphead.solvers"  # group of entry points (docs/own-method.md)
OURS = {  # name: module:class
    "auto": "dphead.solvers.auto:Auto",
    "dp-fc": "dphead.solvers.feature_covariance:DPFC",
    "dp-ls": "dphead.solvers.least_squares:LeastSquares",
    "dp-newton": "dphead.solvers.newton:Newton",
    "dp-adam": "dphead.solvers.gradient:GradientDescent",
    "dp-sgd": "dphead.solvers.gradient:GradientDescent",
    "dp-optax": "dphead.solvers.optax_descent:OptaxDescent",
    "prototypes": "dphead.solvers.prototypes:Prototypes",
}
_PARTS = ("plan", "solve")


def method_names() -> list[str]:
    """Return the name of every method, dphead's own methods first."""
    return [*OURS, *sorted(set(_installed()) - set(OURS))]


def solver_class(name: str) -> type:
    """Load and return the solver class of a method.

    Raises
    ------
    ValueError
        If the name is unknown or claimed by several packages, if its class cannot be
        loaded, or if it is not a solver.
    """
    point = _claimed(name)
    if point is None:
        return our_class(name)
    try:
        kind = point.load()
    except Exception as error:
        raise ValueError(
            f"The method {name!r} of {_package(point)} does not load "
            f"({type(error).__name__}: {error}). Repair or uninstall the package."
        ) from error
    if not _is_solver(kind):
        raise ValueError(
            f"The method {name!r} of {_package(point)} must be a dataclass with name, "
            f"plan and solve, got {point.value!r}. The documentation has an example: "
            '"Add your own training method".'
        )
    return kind


def our_class(name: str) -> type:
    """Return dphead's class of a method, even if a package also has this method."""
    return resolve_name(OURS[name])


def source(name: str) -> str:
    """Return the source of a method's defaults, such as "dphead's defaults"."""
    point = _claimed(name)
    return f"{_package(point) if point else 'dphead'}'s defaults"


def _claimed(name: str) -> EntryPoint | None:
    """Return the entry point of a method's name, or None for a method of dphead.

    Raises ValueError for an unknown name, or one that several packages have.
    """
    points = _installed().get(name, [])
    if not points and name not in OURS:
        known = ", ".join(sorted(method_names()))
        raise ValueError(
            f"`--method` (`method`) {name!r} is unknown. Choose one of {known}."
        )
    claims = ["dphead"] * (name in OURS) + [_package(point) for point in points]
    if len(claims) > 1:
        raise ValueError(
            f"The method {name!r} exists in {' and '.join(claims)}. Rename the entry "
            "point, or uninstall a package."
        )
    return points[0] if points else None


def _is_solver(kind: Any) -> bool:
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return False
    has_name = hasattr(kind, "name") or "name" in {f.name for f in fields(kind)}
    return has_name and all(callable(getattr(kind, part, None)) for part in _PARTS)


def _package(point: EntryPoint) -> str:
    found = point.dist
    return "an unknown package" if found is None else f"{found.name} {found.version}"


def _installed() -> dict[str, list[EntryPoint]]:
    return _read(tuple(sys.path))


@lru_cache(maxsize=1)
def _read(_: Iterable[str]) -> dict[str, list[EntryPoint]]:
    """Return entry points by name, reading them again when sys.path changes."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=_GROUP):
        found.setdefault(point.name, []).append(point)
    return found
