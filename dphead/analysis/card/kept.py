"""Render the files derived from a run's report, and compare them with it."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dphead import __version__
from dphead.analysis.check import DERIVED, Finding
from dphead.analysis.sealed import explain_damage

_RENDERERS = {  # file: module:function that renders it from a report
    "report.html": "dphead.analysis.card.page:page",
    "README.md": "dphead.analysis.card.model_card:model_card",
}
_OPTIONS = {  # file: arguments of `dphead report` that write it
    "report.html": "RUN/",
    "README.md": "RUN/ --card",
}
assert set(_RENDERERS) == set(_OPTIONS) == DERIVED


def rendered(name: str, report: dict[str, Any]) -> str:
    """Return the text of a file in RENDERERS for a report.

    Raises ValueError if the report has another form.
    """
    module, function = _RENDERERS[name].split(":")
    make: Callable[[dict[str, Any]], str] = getattr(import_module(module), function)
    with explain_damage("a run", "its report"):
        return make(report)


def altered(run: Path, report: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each file of a run folder that differs from its report.

    A file from another version of dphead may also differ, and the finding says so.
    """
    why = "What was added may be an exact function of private rows"
    if (written := report.get("dphead")) != __version__:
        why += f", or dphead {written} wrote it, and this is {__version__}"
    for name in _RENDERERS:
        path = run / name
        if path.is_file() and path.read_bytes() != _expected(name, report):
            yield Finding(
                "private metrics stored",
                f"{name} is not what report.json gives",
                why,
                f"Look at it, or write it again: dphead report {_OPTIONS[name]}",
            )


def _expected(name: str, report: dict[str, Any]) -> bytes | None:
    """Return the expected text of a file, or None if this report cannot have it."""
    try:
        return rendered(name, report).encode()
    except ValueError:
        return None
