"""Describe a report in words: the guarantee in one sentence, and its limits.

The module also describes provenance. All words depend on the report only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dphead.analysis.card.risk import Limits
from dphead.analysis.check import check
from dphead.analysis.profiles import about_sum
from dphead.analysis.protected import kind_of, name_counted, name_unit_in
from dphead.analysis.records import Run, plan_of
from dphead.analysis.rounding import percent_up
from dphead.analysis.tradeoff import (
    FALSE_POSITIVE_RATE,
    PLACES,
    REPORTED_RATES,
    detection,
    is_replaced,
)

PUBLIC = "What is declared public"
TUNED = {
    "none": "the settings are dphead's defaults, and no earlier fit saw these data",
    "post-processing": "they were chosen from what was released already",
    "public data": "they were chosen on public data",
    "charged": "every trial was charged to the same ledger",
    "NOT ACCOUNTED": "nothing says that their choice did not use the same data",
}


@dataclass(frozen=True)
class Missing:
    """Hold something outside the guarantee.

    `warned` marks a finding in this run. Other entries hold for every run.
    """

    what: str
    why: str
    warned: bool = False


def unit_of(report: dict[str, Any]) -> str:
    """Return the unit of privacy in a few words."""
    cap, thing = report["guarantee"]["group_cap"], name_unit_in(report)
    if cap is None:
        return f"one {thing}"
    return f"one group, of which at most {cap} {name_counted(report)} count"


def sentence(report: dict[str, Any], limits: list[Limits]) -> str:
    """Return the guarantee for all readers, at FALSE_POSITIVE_RATE."""
    at = REPORTED_RATES.index(FALSE_POSITIVE_RATE)
    own = {one.replaced: one.hits[at] for one in limits if one.own}
    thing, grouped = name_unit_in(report), report["guarantee"]["group_cap"] is not None
    unit = f"group of {thing}s" if grouped else thing
    said = detection(own, f"this {kind_of(report)}", "group" if grouped else thing)
    return (
        f"{said} The attacker may know every other training {unit}, this report, and "
        f"run any feasible computation. Guessing detects "
        f"{percent_up(FALSE_POSITIVE_RATE)}."
    )


def places(report: dict[str, Any]) -> dict[str, Any]:
    """Return the default comparison of the bounds, and the names of both."""
    replaced = is_replaced(report["guarantee"]["neighboring_relation"])
    other = "absent" if replaced else "replaced"
    return {"replaced": replaced, "place": PLACES[replaced], "other_place": other}


def statement(report: dict[str, Any]) -> str:
    """Return the report's statement, with the ledger's name but not its folder.

    The folder may contain a user's name.
    """
    path = report["ledger"]["path"]
    return report["statement"].replace(path, Path(path).name)


def about_total(report: dict[str, Any]) -> str:
    """Explain why all fits' total may exceed this run's epsilon, or return ""."""
    ledger = report["ledger"]
    return about_sum(ledger["total_epsilon"], ledger.get("total_accountant"))


def not_covered(report: dict[str, Any]) -> list[Missing]:
    """Return findings of `dphead check`, then limits of every run."""
    plan = plan_of(report, Path("report.json"))
    found = check(Run(report, plan, None, frozenset(), (), None))
    missing = [Missing(_capital(f.what), f.why, warned=True) for f in found]
    missing += [Missing(_capital(text), "", warned=True) for text in report["warnings"]]
    return missing + list(_always(report))


def _always(report: dict[str, Any]) -> list[Missing]:
    kind, cap = kind_of(report), report["guarantee"]["group_cap"]
    thing = name_unit_in(report)
    public = ["the class names", "the settings"]
    public.append("the frozen network" if kind == "head" else "the initial weights")
    if report["guarantee"]["neighboring_relation"] != "add_remove":
        public.append(f"the number of {thing}s ({report['data']['n_rows']:,})")
    found = [Missing(PUBLIC, ", ".join(public))]
    if cap is None:
        person = f"Each {thing} of a person is protected, not all of them together"
        found.append(Missing(f"People with several {thing}s", person))
    else:
        found.append(Missing("A group column that is wrong", "It says who is who"))
    test = report["test_is"]
    if test is not None:
        shown = "are exact" if test == "public" else "stay with the data holder"
        found.append(Missing(f"The test {thing}s", f"Figures on them {shown}"))
    budget = report["ledger"]["budget"]
    if budget is None:
        found.append(
            Missing(f"Other fits on the same {thing}s", "No limit for all was fixed")
        )
    found.append(
        Missing(
            "Features, timings, memory, the data holder's machine",
            "They are private and must not be published",
        )
    )
    return found


def provenance(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the run's provenance."""
    data, method = report["data"], report["method"]
    made = data["extraction"] or {}
    origin = report.get("provenance") or {}
    rows: list[tuple[str, Any]] = [
        ("dphead", _joined(report["dphead"], origin.get("commit"), "commit")),
        ("Method", _joined(method["name"], method["preset"], "preset")),
        ("Settings", f"{method['source']}; tuning: {report['tuning']}"),
        ("Network", made.get("backbone")),
        ("Chosen among", _selected(report.get("selection"))),
        ("Its weights, sha256", made.get("weights_sha256")),
        ("Normalization", (made.get("normalization") or {}).get("kind")),
        ("Features, digest", data["feature_space"]),
        ("Data set, id", data["dataset_id"]),
        ("Fit, id", report["ledger"]["fit_id"]),
        ("Weights trained here, sha256", origin.get("tensors_sha256")),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _selected(selection: dict[str, Any] | None) -> str | None:
    """Return the candidate backbones, each with the accuracy of its trial."""
    if selection is None:
        return None
    tried = [
        f"{one['backbone']} ({one['n_features']:,} features, "
        f"{100 * one['trial_accuracy']['accuracy']:.1f} %)"
        for one in selection["networks"]
    ]
    return f"{', '.join(tried)}, by released counts of small heads, in this epsilon"


def _joined(first: str, second: str | None, what: str) -> str:
    return first if second is None else f"{first}, {what} {second}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
