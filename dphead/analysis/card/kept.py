"""Cards in a run folder: made of its report, and held against it."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dphead import __version__
from dphead.analysis.check import DERIVED, Finding
from dphead.analysis.sealed import as_written

RENDERERS = {  # what makes each file of a report: module:function
    "report.html": "dphead.analysis.card.page:page",
    "README.md": "dphead.analysis.card.model_card:model_card",
    "registry.yaml": "dphead.analysis.card.registry:registry_entry",
}
OPTIONS = {  # of `dphead report`, that write it
    "report.html": "RUN/",
    "README.md": "RUN/ --card",
    "registry.yaml": "RUN/ --registry",
}
assert set(RENDERERS) == set(OPTIONS) == DERIVED


def rendered(name: str, report: dict[str, Any]) -> str:
    """The text of a file that is made of a report: one of RENDERERS. ValueError for a
    report of another form.
    """
    module, function = RENDERERS[name].split(":")
    make: Callable[[dict[str, Any]], str] = getattr(import_module(module), function)
    with as_written("a run", "its report"):
        return make(report)


def altered(run: Path, report: dict[str, Any]) -> Iterator[Finding]:
    """Files of a run folder that hold another text than the report gives.

    Another version of dphead may have written other words, which cannot be told from an
    addition: the finding then says so.
    """
    why = "What was added may be an exact function of private rows"
    if (written := report.get("dphead")) != __version__:
        why += f", or dphead {written} wrote it, and this is {__version__}"
    for name in RENDERERS:
        path = run / name
        if path.is_file() and path.read_bytes() != _expected(name, report):
            yield Finding(
                "private metrics stored",
                f"{name} is not what report.json gives",
                why,
                f"Look at it, or write it again: dphead report {OPTIONS[name]}",
            )


def _expected(name: str, report: dict[str, Any]) -> bytes | None:
    """What a file must hold; None where there can be none of this report."""
    try:
        return rendered(name, report).encode()
    except ValueError:
        return None
