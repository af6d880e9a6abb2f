"""Read an institution's statement about a run, and check the run against its limits.

The statement is about.toml.

A report has no institution, purpose or contact. The card shows them as they were
typed, so they must be public.
"""

import datetime
import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from scipy.special import betaincinv, ndtri, stdtrit

from dphead.analysis.protected import counts_all_fits, name_new, name_unit_in
from dphead.privacy.rounding import as_declared, rounded_up

_MAX_TEXT = 500  # characters, so that the card stays on few pages; chosen


@dataclass(frozen=True)
class About:
    """Hold the public statement of an institution about a run.

    Attributes
    ----------
    institution, purpose, contact : str
        Who trained the head, for which use, and whom to ask.
    date : date
        Date of the statement.
    images : str
        Origin of the training images.
    patients : int or None
        Public number of people in the training images.
    max_epsilon : float or None
        Largest acceptable epsilon of all fits on the images.
    min_accuracy : float or None
        Smallest acceptable accuracy, from 0 to 1.
    signatory : str
        Role of the person who signs the card.
    """

    institution: str
    purpose: str
    contact: str
    date: datetime.date
    images: str = ""
    patients: int | None = None
    max_epsilon: float | None = None
    min_accuracy: float | None = None
    signatory: str = ""


_LARGEST = {"patients": 10**9, "max_epsilon": 10**6, "min_accuracy": 1}


def read_about(path: Path) -> About:
    """Read an institution's statement about a run from a TOML file.

    Raises
    ------
    ValueError
        If the file cannot be read or is not TOML, lacks a required key, or has an
        unknown key or an invalid value.
    """
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}). Correct the path, or give "
            "yourself permission to read the file."
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"{path} is not a TOML file: {error}. Write it like the example in "
            "docs/card.md."
        ) from error
    known = [field.name for field in fields(About)]
    required = ("institution", "purpose", "contact", "date")
    if missing := [name for name in required if name not in given]:
        raise ValueError(f"{path} lacks {', '.join(missing)}. Add a line for each.")
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(
            f"{path} has unknown keys: {', '.join(unknown)}. Remove them, or use the "
            f"known keys: {', '.join(known)}."
        )
    for name, value in given.items():
        if name in _LARGEST:
            whole = name != "patients" or isinstance(value, int)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            valid = whole and number and 0 < value <= _LARGEST[name]
            form = f"a positive number up to {_LARGEST[name]:,}"
        elif name == "date":
            valid = type(value) is datetime.date
            form = "a date such as 2026-11-27, without quotes"
        else:
            valid = isinstance(value, str) and 0 < len(value.strip()) <= _MAX_TEXT
            form = f"a text of 1 to {_MAX_TEXT} characters"
        if not valid:
            shown = str(value)[:60]
            raise ValueError(
                f"`{name}` in {path} must be {form}, got {shown!r}. Correct this line."
            )
    return About(**given)


def verdict(about: About, report: dict[str, Any]) -> tuple[str, str]:
    """Return (status, sentence) on whether a run is within the institution's limits.

    The status is "within", "outside" or "open" (undecided), or "" without limits.
    With two limits, "outside" outranks "open", and "open" outranks "within".

    The compared epsilon is the run's own or the ledger's total, whichever is larger. If
    it does not exceed its limit, but fits on the same rows may be uncounted
    (`counts_all_fits`), the status is "open". For the accuracy, the status is "open" if
    no accuracy was released, or if the limit is within its interval.
    """
    found: list[tuple[str, str]] = []
    if about.max_epsilon is not None:
        ledger = report["ledger"]
        epsilon = max(report["guarantee"]["epsilon"], ledger["total_epsilon"])
        status = "within" if epsilon <= about.max_epsilon else "outside"
        if status == "within" and not counts_all_fits(report):
            status = "open"
        shown = rounded_up(epsilon, 3) if math.isfinite(epsilon) else "infinite"
        found.append((status, f"ε is {shown}, limit {as_declared(about.max_epsilon)}"))
    if about.min_accuracy is not None:
        limit = about.min_accuracy
        known = _accuracy(report)
        if known is None:
            found.append(("open", "no accuracy was released"))
        else:
            low, high, name = known
            status = "within" if low >= limit else "outside" if high < limit else "open"
            shown = f"{name} is {100 * low:.1f} to {100 * high:.1f} %"
            found.append((status, f"{shown}, limit {100 * limit:g} %"))
    statuses = {status for status, _ in found}
    for status, first in (
        ("outside", "Outside the stated limits"),
        ("open", "Not decided by this report"),
        ("within", "Within the stated limits"),
    ):
        if status in statuses:
            return status, f"{first}: {'; '.join(text for _, text in found)}."
    return "", ""


def _accuracy(report: dict[str, Any]) -> tuple[float, float, str] | None:
    """Return (low, high, name) of the accuracy's 90 % interval; None without one."""
    test, expected = report["test"], report["expected_accuracy"]
    if test is not None:
        n = _independent_rows(test)
        right = round(test["accuracy"] * test["n"]) * n / test["n"]
        # Clopper-Pearson interval: betaincinv gives NaN at 0 and at n
        low = betaincinv(right, n - right + 1, 0.05) if right else 0.0
        high = betaincinv(right + 1, n - right, 0.95) if right < n else 1.0
        if (groups := test.get("n_groups")) is not None:
            # a few people show no error of people who are rare
            unseen = 0.05 ** (1 / groups)
            low, high = min(low, unseen), max(high, 1 - unseen)
        return low, high, f"accuracy on test {name_unit_in(report)}s (90 %)"
    if expected is not None:
        name = f"expected accuracy on {name_new(report)} (90 %)"
        return expected["low"], expected["high"], name
    return None


def _independent_rows(test: dict[str, Any]) -> float:
    """Return how many independent rows would have as wide a 90 % interval.

    With groups, the standard error does not treat their rows as independent, and is
    itself uncertain, so the interval has the quantile of Student's t distribution.
    """
    p, error, groups = test["accuracy"], test["accuracy_se"], test.get("n_groups")
    if groups is None:
        return test["n"]
    if not error or groups == 1:
        return groups
    return p * (1 - p) * (ndtri(0.95) / stdtrit(groups - 1, 0.95) / error) ** 2
