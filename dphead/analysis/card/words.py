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
    "none": "dphead's defaults; no earlier fit used these data",
    "post-processing": "chosen from values that were already released",
    "public data": "chosen on public data",
    "charged": "every trial was charged to the same ledger",
    "NOT ACCOUNTED": "the choice may have used the same data without a charge",
}


GLOSSARY = {  # term: meaning, of rows called `thing`
    "ε (epsilon)": "bound on how much one person's data change the released values",
    "δ (delta)": "probability-like slack of the bound by ε; below 1/n",
    "μ (mu)": "exact parameter of Gaussian differential privacy, if batches are full",
    "unit of privacy": "what the guarantee protects: one {thing}, or one group",
    "neighboring relation": "which two data sets the guarantee compares",
    "membership inference": "an attack that decides whether one {thing} was used",
    "true-positive rate": "fraction of training {thing}s that an attack detects",
    "false-positive rate": "fraction of unused {thing}s that an attack takes for used",
    "release": "one noisy sum over the training {thing}s",
    "clip norm": "largest contribution of one {thing} to a sum",
    "noise multiplier": "standard deviation of the noise divided by the sensitivity",
    "sampling rate": "probability of one {thing} in one batch",
    "ledger, budget": "record of all fits on a data set, and their limit",
}


@dataclass(frozen=True)
class Missing:
    """Describe a limit of the guarantee, as returned by `not_covered`.

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
    """Explain why the total of all fits may exceed this run's epsilon, or return ""."""
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
    one = _capital(f"{'an' if thing == 'image' else 'a'} {thing}")
    public = ["the class names", "the settings"]
    public.append("the frozen network" if kind == "head" else "the initial weights")
    if report["guarantee"]["neighboring_relation"] != "add_remove":
        public.append(f"the number of {thing}s ({report['data']['n_rows']:,})")
    found = [Missing(PUBLIC, ", ".join(public))]
    if cap is None:
        person = f"Each {thing} of a person is protected, but not all {thing}s together"
        found.append(Missing(f"People with several {thing}s", person))
    else:
        wrong = f"{one} in the wrong group is not protected with its person"
        found.append(Missing("A wrong group column", wrong))
        several = f"{one} counts for one group, so other people in it are not covered"
        found.append(Missing(f"{_capital(thing)}s that show several people", several))
    test = report["test_is"]
    if test is not None:
        shown = "are exact" if test == "public" else "stay with the data holder"
        found.append(Missing(f"The test {thing}s", f"Results on test {thing}s {shown}"))
    budget = report["ledger"]["budget"]
    if budget is None:
        found.append(
            Missing(f"Other fits on the same {thing}s", "No limit for them was fixed")
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
        ("Backbone", made.get("backbone")),
        ("Backbones tried", _selected(report.get("selection"))),
        ("Backbone weights, sha256", made.get("weights_sha256")),
        ("Normalization", (made.get("normalization") or {}).get("kind")),
        ("Features, digest", data["feature_space"]),
        ("Data set, id", data["dataset_id"]),
        ("Fit, id", report["ledger"]["fit_id"]),
        ("Trained weights, sha256", origin.get("tensors_sha256")),
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
    return f"{', '.join(tried)}; the trials are part of this epsilon"


def _joined(first: str, second: str | None, what: str) -> str:
    return first if second is None else f"{first}, {what} {second}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
