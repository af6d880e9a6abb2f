"""Render the files derived from a run's report, and compare them with it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dphead import __version__
from dphead.analysis.card.about import About, read_about
from dphead.analysis.check import DERIVED, PRIVATE_METRICS, Finding
from dphead.analysis.records import FinishedRun
from dphead.analysis.sealed import explain_damage
from dphead.privacy.rounding import as_declared, rounded_up

_PAGES = {  # file: its function in `page`, and arguments of `dphead report` for it
    "report.html": ("page", "RUN/"),
    "README.md": ("model_card", "RUN/ --card"),
    "dpia.html": ("dpia", "RUN/ --dpia"),
}
ABOUT = "about.toml"  # the institution's statement in a run folder
assert set(_PAGES) == DERIVED


def rendered(name: str, report: dict[str, Any], about: About | None = None) -> str:
    """Return the text of a derived file, such as "report.html", for a report.

    Raises ValueError if the report is not valid.
    """
    from dphead.analysis.card import page

    make: Callable[..., str] = getattr(page, _PAGES[name][0])
    with explain_damage("report", "the run"):
        return make(report, about)


def altered(run: Path, report: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each derived file that differs from what its report gives.

    A file from a different version of dphead may also differ. The finding says so.
    """
    why = "Added content may be an exact function of private rows"
    if (written := report.get("dphead")) != __version__:
        why += f". Or dphead {written} wrote the file, and this is {__version__}"
    for name, (_, arguments) in _PAGES.items():
        path = run / name
        if path.is_file() and path.read_bytes() != _expected(name, report, run):
            yield Finding(
                PRIVATE_METRICS,
                f"{name} does not match report.json",
                why,
                f"Look at the file, or write it again: dphead report {arguments}",
            )


def exceeded(about: About | None, run: FinishedRun) -> Iterator[Finding]:
    """Yield a finding if a grown total exceeds the epsilon that the institution states.

    The verdict of a card counts fits up to the run's own fit, so a finding is needed
    only if the ledger's total is larger now.
    """
    limit, now = about and about.max_epsilon, run.spent_now.epsilon
    if limit is not None and now > max(limit, run.report["ledger"]["total_epsilon"]):
        delta = as_declared(run.ledger_now["delta"])
        yield Finding(
            "stated limit exceeded by other fits",
            f"the ledger now has epsilon {rounded_up(now)} at delta {delta}, and "
            f"{ABOUT} allows {as_declared(limit)}",
            "The verdict of the cards counts the fits up to this one only",
            "State the plain sum of all fits where you publish the run",
        )


def stated_in(run: Path) -> About | None:
    """Return the institution's statement in a run folder, if there is one."""
    return read_about(run / ABOUT) if (run / ABOUT).is_file() else None


def _expected(name: str, report: dict[str, Any], run: Path) -> bytes | None:
    """Return the expected bytes of a file, or None if the report is not valid."""
    try:
        return rendered(name, report, stated_in(run)).encode()
    except ValueError:
        return None
