"""Read a finished run, and refuse it if report, head and ledger disagree."""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dphead.analysis.ledger_place import (
    counted_at,
    located,
    moved_to,
    opened_beside,
)
from dphead.analysis.profiles import about_sum
from dphead.analysis.protected import name_unit_in, stated_guarantee
from dphead.analysis.sealed import (
    explain_damage,
    read_json,
    read_sealed,
    refuse_unfinished,
)
from dphead.planning.plan import Plan
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.ledger import Ledger, LedgerError, Spent, spent
from dphead.privacy.ledger.moving import counted_data_sets
from dphead.privacy.ledger.schema import HeldLedger, canonical
from dphead.privacy.ledger.seals import check_undamaged
from dphead.privacy.ledger.server import is_on_server, is_url, team_url
from dphead.privacy.ledger.store import (
    AWAITS,
    IDENTITY,
    IN_MEMORY,
    INTO,
    MERGED,
    PEOPLE,
)
from dphead.privacy.rounding import as_declared, declared_at, rounded_up
from dphead.solvers.settings import MOST_RELEASES

SCHEMA = 1  # version of report.json's schema (docs/report.md)
_FIELDS: dict[str, Any] = {  # report entries needed by checks, with their types
    "statement": str,
    "tuning": str,
    "guarantee.private": bool,
    "guarantee.seeded": bool,
    "guarantee.epsilon": float,
    "guarantee.delta": float,
    "guarantee.target_epsilon": float,
    "guarantee.neighboring_relation": str,
    "guarantee.calibrated_with": str,
    "guarantee.group_mean": bool,
    "guarantee.releases": list,
    "method.name": str,
    "data.n_rows": int,
    "data.class_names": list,
    "ledger.path": str,
    "ledger.fit_id": str,
    "ledger.fits": int,
    "ledger.delta": float,
    "ledger.total_epsilon": float,
    "ledger.elsewhere": list,
    "provenance.tensors_sha256": str,
}
# what to do if a ledger lacks fits of a finished run
RESTORE = (
    "Keep this ledger in its place, because it can have later fits. Restore a copy "
    "with all fits in another place, and name it (--ledger)"
)
_BEGUN = {"dataset_id", AWAITS}  # keys in the target of a move that is not finished
_DIGESTS = {  # file in the run folder: key of its digest in the report's provenance
    "head.safetensors": "tensors_sha256",
    "model.safetensors": "tensors_sha256",
    "run.toml": "config_sha256",
}


@dataclass(frozen=True)
class FinishedRun:
    """Hold the records of a finished run.

    Attributes
    ----------
    report : dict
        The contents of report.json.
    plan : Plan
        The plan of the report's releases.
    head : dict or None
        The contents of head.json. None for a network, or if only a report was read.
    tensors : frozenset of str
        Names of the tensors in head.safetensors; empty without this file.
    files : tuple of str
        Names of the files in the run folder; empty if only a report was read.
    fits : list of dict or None
        All fits of the ledger, oldest first, or None if the ledger cannot be reached.
    elsewhere : list of tuple
        Ledgers with fits that the run's ledger does not count, from the report or from
        `ledgers.read_known`: a description for the data holder, and the ledger's public
        entry in a report.
    merged : str or None
        The ledger that the run's ledger was merged into, or moved to, after the fit.
        `fits` are its fits, or None if it cannot be read.
    ended : bool
        Whether ledgers were merged, and `merged` cannot be read or lacks fits
        (`unread_place`). The budget is then no guarantee, and the present total is
        unknown.
    limit : dict or None
        The "path", "identity", "budget", "is_sum", "dataset_id" and "people" of the
        ledger that has `fits`.
    lost : str or None
        The run's ledger, or the given one, if it lacks fits that the run's ledger had
        when the report was written. `fits` is then None.
    remarks : list of str
        What `ledgers.read_known` could not look for.
    """

    report: dict[str, Any]
    plan: Plan
    head: dict[str, Any] | None
    tensors: frozenset[str]
    files: tuple[str, ...]
    fits: list[dict[str, Any]] | None = None
    elsewhere: Sequence[tuple[str, dict[str, Any]]] = ()
    merged: str | None = None
    ended: bool = False
    limit: dict[str, Any] | None = None
    lost: str | None = None
    remarks: Sequence[str] = ()

    @property
    def ledger_now(self) -> dict[str, Any]:
        """Return the report's entry "ledger", with the current values in `limit`."""
        now = self.report["ledger"] | (self.limit or {})
        now |= {"is_sum": True} if self.ended else {}
        return now | {"delta": now["budget"]["delta"]} if now["budget"] else now

    @cached_property
    def spent_now(self) -> Spent:
        """Return the ledger's current total, or the report's if `fits` is None."""
        ledger = self.report["ledger"]
        if self.fits is None:
            return Spent(ledger["total_epsilon"], ledger["total_accountant"])
        return _spent_in(self.fits, self.report | {"ledger": self.ledger_now})

    def report_now(self) -> dict[str, Any]:
        """Return the report with its ledgers and declared people as of now."""
        report, total = self.report, self.spent_now
        fits = report["ledger"]["fits"] if self.fits is None else len(self.fits)
        ledger = self.ledger_now | {
            "fits": fits,
            "total_epsilon": total.epsilon,
            "total_accountant": total.accountant,
            "elsewhere": [one for _, one in self.elsewhere],
            "unread": self.about_unread() is not None,
        }
        data = report["data"]
        # rows without a data set id have no declared people
        if self.limit is not None and data.get("dataset_id") is not None:
            data = data | {key: ledger[key] for key in ("dataset_id", "people")}
        if self.remarks:  # shared images are not known here
            data = data | {"image_index": None}
        return report | {"ledger": ledger, "data": data}

    def about_unread(self) -> str | None:
        """Explain why the ledger's present total is unknown, or return None."""
        if self.fits is not None or self.lost:
            return None
        text = about_unread(self.merged or self.report["ledger"]["path"], self.ended)
        named = self.ended and not os.path.lexists(self.merged or "")
        return f"{text}, or name that ledger (--ledger)" if named else text

    def about_total(self) -> str:
        """Explain why `spent_now` may exceed the run's own epsilon (`about_sum`)."""
        return about_sum(*self.spent_now)


def read_run(path: str | Path, ledger: str | Path | None = None) -> FinishedRun:
    """Read a run folder or a report.json.

    Parameters
    ----------
    path : str or Path
        The run folder, or only its report.
    ledger : str or Path, optional
        Current path of the ledger, if it was moved. Default: the path in the report.

    Returns
    -------
    FinishedRun
        The run's records.

    Raises
    ------
    ValueError
        If the run did not finish. If the file is not a report of a known schema, or
        contradicts its releases, the ledger, the head or the ledger copy.
    LedgerError
        If the ledger is damaged or cannot be read.
    """
    path = Path(path)
    folder = path if path.is_dir() else None
    refuse_unfinished(folder or path.parent)
    file = path / "report.json" if folder else path
    with explain_damage("report", file):
        return _read(folder, file, ledger)


def _read(folder: Path | None, file: Path, ledger: str | Path | None) -> FinishedRun:
    report = read_json(file, "report")
    if report.get("schema") != SCHEMA:
        raise ValueError(
            f"{file} is not a report of schema {SCHEMA}, got schema "
            f"{report.get('schema')!r}. Pass a run folder of this version of dphead."
        )
    # leave `data` as it is, because a class may be named "inf"
    report |= {part: _restored(report.get(part)) for part in ("guarantee", "ledger")}
    _check_fields(report, file)
    plan = plan_of(report, file)
    _check_numbers(report, plan, file)
    head, tensors = _trained(folder)
    if head is not None:
        for key in ("class_names", "feature_space"):
            if head.get(key) != report["data"].get(key):
                raise _changed(
                    file,
                    key,
                    repr(str(report["data"].get(key))[:60]),
                    f"head.json has {str(head.get(key))[:60]!r}",
                )
    if folder:
        _check_digests(report, folder, file)
    if folder and (folder / "ledger.json").exists():
        fits = _copied(folder / "ledger.json")
        if not _check_recorded(report, plan, fits, file, "ledger.json"):
            raise _changed(
                file,
                "ledger.fit_id",
                report["ledger"]["fit_id"],
                "ledger.json has no such fit",
            )
    names = tuple(sorted(p.name for p in folder.iterdir())) if folder else ()
    elsewhere = [
        (
            f"the ledger {one['path']} with fits on {one['of']}"
            f"{' (' + one['protects'] + ')' if one.get('protects') else ''}",
            one,
        )
        for one in report["ledger"]["elsewhere"]
    ]
    found = _ledger_fits(report, plan, ledger, file)
    return FinishedRun(report, plan, head, tensors, names, elsewhere=elsewhere, **found)


def _check_digests(report: dict[str, Any], folder: Path, file: Path) -> None:
    """Raise ValueError unless the weights and options have the report's digests.

    A file that is missing is not checked.
    """
    for name, key in _DIGESTS.items():
        path, digest = folder / name, report["provenance"][key]
        if not path.is_file():
            continue
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != digest:
            raise _changed(file, f"provenance.{key}", digest, f"{name} has {found}")


def fit_events(fits: Sequence[dict[str, Any]]) -> list[GaussianEvent]:
    """Return the accountant's events for a ledger's fits."""
    specs = (ReleaseSpec(**_spec(r)) for f in fits for r in f["releases"])
    return accounting.together(spec.event() for spec in specs)


def _spent_in(fits: Sequence[dict[str, Any]], report: dict[str, Any]) -> Spent:
    """Return the epsilon that these fits spent, computed as in the ledger."""
    ledger = report["ledger"]
    relation = report["guarantee"]["neighboring_relation"]
    events, budget = fit_events(fits), ledger.get("budget")
    budget = budget and budget | {"is_sum": ledger.get("is_sum", False)}
    return spent(events, len(fits), ledger["delta"], relation, budget)


def _spec(release: dict[str, Any]) -> dict[str, Any]:
    """Return a ledger's release without its sequence number and state."""
    return {k: v for k, v in release.items() if k not in ("sequence", "state")}


def _copied(file: Path) -> list[dict[str, Any]]:
    """Return the fits in a copy of the ledger."""
    return _restored(read_json(file, "ledger copy")).get("fits", [])


def _trained(folder: Path | None) -> tuple[dict[str, Any] | None, frozenset[str]]:
    """Return head.json and the names of its tensors; None and no names without a head.

    A trained network (`model.json`) is compared with its digests, and not returned.
    """
    if folder is None:
        return None, frozenset()
    if (folder / "model.json").exists():
        read_sealed(folder, "model")
    if not (folder / "head.json").exists():
        return None, frozenset()
    if not (folder / "head.safetensors").exists():
        return read_json(folder / "head.json", "head"), frozenset()
    tensors, head = read_sealed(folder, "head")
    return head, frozenset(tensors)


def _restored(value: Any) -> Any:
    """Turn "inf", "-inf" and "nan" into numbers, which JSON lacks."""
    if isinstance(value, dict):
        return {k: _restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(v) for v in value]
    return (
        {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}.get(value, value)
        if isinstance(value, str)
        else value
    )


def _check_fields(report: dict[str, Any], file: Path) -> None:
    for name, kind in _FIELDS.items():
        value: Any = report
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise ValueError(
                f"{name} in {file} is not valid: {value!r}. Restore the file from a "
                "backup."
            )


def plan_of(report: dict[str, Any], file: Path) -> Plan:
    """Return the plan of the report's releases.

    Raises ValueError if the releases are invalid.
    """
    g = report["guarantee"]
    try:
        specs = []
        for row in g["releases"]:
            row = dict(row)
            count = row.pop("count")
            row.pop("mu")
            if type(count) is not int or not 1 <= count <= MOST_RELEASES:
                raise ValueError(
                    f"the count {count!r} is not a whole number from 1 to "
                    f"{MOST_RELEASES}"
                )
            specs += [ReleaseSpec(**row)] * count
        guarantee = (
            g["target_epsilon"],
            g["delta"],
            g["neighboring_relation"],
            g["calibrated_with"],
        )
        return Plan(*guarantee, g["group_cap"], g["group_mean"], specs=specs)
    except (KeyError, TypeError, ValueError) as error:
        # A KeyError or TypeError names only fields and functions of dphead. The remedy
        # of a ValueError is for a new plan.
        text = str(error).partition(". ")[0].rstrip(".")
        why = f": {text}" if isinstance(error, ValueError) else ""
        raise ValueError(
            f"{file} has an invalid or missing value under `guarantee`{why}. Restore "
            "the file from a backup."
        ) from error


def _check_numbers(report: dict[str, Any], plan: Plan, file: Path) -> None:
    """Raise ValueError unless the guarantee follows from the releases.

    PLD accounting is reproducible up to rounding, far below the tolerance of 1e-6.
    """
    g = report["guarantee"]
    for name in ("relation", "group_cap"):
        if {getattr(s, name) for s in plan.specs} != {getattr(plan, name)}:
            but = "its releases have a different value or are missing"
            raise _changed(file, name, getattr(plan, name), but)
    expected = stated_guarantee(plan, name_unit_in(report))
    del expected["releases"]
    for name, value in expected.items():
        found = g.get(name)
        close = found == value
        if isinstance(value, float) and isinstance(found, int | float):
            close = math.isclose(found, value, rel_tol=1e-6)
        if not close:
            raise _changed(file, name, found, f"its releases give {value}")
    _check_statement(report, plan, file)


def _check_statement(report: dict[str, Any], plan: Plan, file: Path) -> None:
    """Raise ValueError unless the statement and the guarantee of a report agree.

    A private report's statement has its unit, epsilon and delta. Other statements say
    "not private".
    """
    g, statement = report["guarantee"], report["statement"]
    unit = "one row" if plan.group_cap is None else g["protected_unit"]
    if g["private"] and f"Protected unit: {unit}" not in statement:
        raise _changed(
            file, "statement", statement[:60], f"its releases protect {unit}"
        )
    said, delta = rounded_up(g["epsilon"]), as_declared(g["delta"])
    says_private = f"({said}, {delta})-differentially private" in statement
    says_not_private = "not private" in statement.lower()
    if g["private"] != says_private or g["private"] == says_not_private:
        raise _changed(file, "statement", statement[:60], f"epsilon is {said}")


def _check_recorded(
    report: dict[str, Any],
    plan: Plan,
    fits: list[dict[str, Any]],
    file: Path,
    place: str,
) -> bool:
    """Return whether the run's own fit is among `fits`, which are from `place`.

    Raises ValueError if the fit and the report have different releases, or if only the
    fit is described as not private.
    """
    (fit,) = [f for f in fits if f["fit_id"] == report["ledger"]["fit_id"]] or [None]
    if fit is None:
        return False
    charged = [_spec(r) for r in fit["releases"]]
    if Counter(map(canonical, charged)) != Counter(
        canonical(s.row()) for s in plan.specs
    ):
        raise _changed(
            file,
            "releases",
            f"({len(plan.specs)} in total)",
            f"{place} has {len(charged)} different releases for this fit",
        )
    if report["guarantee"]["private"] and "not private" in fit["description"]:
        raise _changed(file, "private", True, f"the ledger has {fit['description']!r}")
    return True


def _ledger_fits(
    report: dict[str, Any], plan: Plan, given: str | Path | None, file: Path
) -> dict[str, Any]:
    """Return "fits", "limit" and "merged" of the ledger that now counts the run.

    If the ledger is unreachable, the result is empty. If it was closed and the place
    that it names cannot be read, or if a merge into it is not finished, the result has
    only "merged", this place, and "ended" (`unread_place`). If it does not count the
    run, the result has only "lost": the path of an older copy or of `given`, or None
    for a different ledger in the place of the run's own.

    Raises ValueError if the ledger contradicts the report, or if `given` is missing.
    """
    said = report["ledger"]
    path = given or located(said["path"], file.parent)
    if is_on_server(path):
        if given is None and team_url() is None:
            return {}
    elif not Path(path).is_file():
        if given is not None:
            raise ValueError(
                f"the ledger {path} does not exist. Pass its current path, or omit it "
                "to use the path in the report."
            )
        return {}
    # a server's URL names all ledgers of the server: the data set selects one
    selected = report["data"].get("dataset_id") if is_url(given) else None
    book = Ledger(path, selected, read_only=True)
    path = book.path
    check_undamaged(book)
    fits, theirs, limit = book.fits(), book.meta("dataset_id"), _limit(book)
    own = report["data"].get("dataset_id")
    # whether the run's ledger was merged into this one
    merged = own in counted_data_sets(book)
    # a merge after the report may have fixed or lowered the budget
    before = [*book.budgets(), *([None] if book.is_sum() else [])] or [None]
    place = counted_at(book)
    away, ended = unread_place(book)
    book.close()
    if own is not None and not merged and theirs not in (None, own):
        todo = (
            "Restore the run's own ledger at this path."
            if given is None
            else "Pass the run's own ledger, or omit it to use the path in the report."
        )
        raise ValueError(
            f"The ledger {path} belongs to data set {theirs}, but the run used data "
            f"set {own}. {todo}"
        )
    if not _counts(report, plan, fits, file, path):
        both = said.get("identity"), limit["identity"]
        differ = None not in both and both[0] != both[1]
        return {"lost": None if differ and given is None else path}
    if merged:
        unread = {"merged": away, "ended": ended}
        return unread if away else {"fits": fits, "merged": path, "limit": limit}
    if said.get("budget") not in before:
        stated, now = map(_budget_in_words, (said.get("budget"), limit["budget"]))
        raise _changed(file, "ledger.budget", stated, f"the ledger has {now}")
    total = _spent_in(fits[: said["fits"]], report).epsilon
    if not math.isclose(total, said["total_epsilon"], rel_tol=1e-6):
        name, but = "ledger.total_epsilon", f"the ledger gives {total}"
        raise _changed(file, name, said["total_epsilon"], but)
    if away:
        return {"merged": away, "ended": ended}
    if place is None:
        return {"fits": fits, "limit": limit}
    with closing(opened_beside(place, book)) as book:
        fits, limit = book.fits(), _limit(book)
    _check_recorded(report, plan, fits, file, place)
    return {"fits": fits, "merged": place, "limit": limit}


def _counts(
    report: dict[str, Any],
    plan: Plan,
    fits: list[dict[str, Any]],
    file: Path,
    place: str,
) -> bool:
    """Return whether a ledger at `place` with these fits counts the run.

    It has the run's own fit, at least as many fits as the report, and those of the
    report in the run folder's ledger.json. All code that reads a finished run uses
    this decision.
    """
    held = _check_recorded(report, plan, fits, file, place)
    count, copy = report["ledger"]["fits"], file.parent / "ledger.json"
    before = _copied(copy)[:count] if copy.exists() else []
    lacks = {one["fit_id"] for one in before} - {one["fit_id"] for one in fits}
    return held and len(fits) >= count and not lacks


def unread_place(book: Ledger) -> tuple[str | None, bool]:
    """Return the place of fits that cannot be read, and whether a merge is the cause.

    The place is None if all fits can be read: in `book`, or where it was moved or
    merged. After an interrupted move, they count in `book`. If the target of a finished
    move is damaged, it is the place. After an interrupted merge, the target lacks fits
    of the closed ledgers, and can have other fits. So the target is the place, whether
    `book` is a closed ledger or the target itself. The sum of all fits is unknown then.
    All readers of finished fits use this decision.
    """
    place, there = moved_to(book)
    if place is None:
        begun = book.path if book.joining() else book.meta(INTO)
        return begun, begun is not None
    ended = book.meta(MERGED) is not None
    try:
        with closing(opened_beside(place, book)) as target:
            if there:
                return unread_place(target)
            facts = target.facts().keys()
            if not ended and facts and facts <= _BEGUN:
                return None, False
    except HeldLedger:
        raise
    except LedgerError:  # for example, DPHEAD_LEDGER is not set
        pass
    return place, ended


def about_unread(place: str, ended: bool) -> str:
    """Explain what is unknown if a place cannot be read (`unread_place`)."""
    if place == IN_MEMORY:
        return "the ledger was in memory, so later fits in it are unknown"
    todo = "Set DPHEAD_HOME and DPHEAD_LEDGER as in the fit"
    if is_on_server(place):
        todo = "Set DPHEAD_LEDGER to the address of its server"
    if ended:
        return (
            f"ledgers were merged into {place}, which cannot be read or lacks some of "
            f"their fits, so the sum of all fits is unknown. {todo}, or repeat an "
            "interrupted `dphead ledger people`"
        )
    return (
        f"the ledger {place} is not reachable, so merges and fits after this fit are "
        f"unknown. {todo}"
    )


def _limit(book: Ledger) -> dict[str, Any]:
    """Return a ledger's path, identity, budget, data set id and id system."""
    return {
        "path": book.path,
        "identity": book.meta(IDENTITY),
        "budget": book.budget(),
        "is_sum": book.is_sum(),
        "dataset_id": book.meta("dataset_id"),
        "people": json.loads(book.meta(PEOPLE) or "null"),
    }


def _budget_in_words(budget: Any) -> str:
    if budget is None:
        return "none"
    return declared_at(budget["epsilon"], budget["delta"])


def _changed(file: Path, name: str, found: object, but: str) -> ValueError:
    return ValueError(
        f"{file} has {name} {found}, but {but}. A file was modified after the fit. "
        "Restore the run folder from a backup, and keep the ledger in its place."
    )
