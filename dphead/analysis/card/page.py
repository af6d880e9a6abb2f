"""Render the cards of a report: `report.html`, `dpia.html` and a model card.

They make no network requests. They depend only on the report and about.toml, so each
rendering is the same.
"""

import math
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dphead_extract.safe_text import one_line

from dphead.analysis.card.about import About, verdict
from dphead.analysis.card.risk import CURVE_RATES, Limits, limits_of
from dphead.analysis.check import MISSED, UNTOLD, check, unshown_classes
from dphead.analysis.profiles import about_sum
from dphead.analysis.protected import (
    about_copies,
    about_people,
    about_scores,
    budget_is,
    counts_all_fits,
    counts_one_fit,
    describe_input,
    is_vague,
    kind_of,
    largest_delta,
    made_of_images,
    name_counted,
    name_member,
    name_new,
    name_unit_in,
    of_people,
    own_model,
    parts_of,
    public_statement,
    without_folders,
)
from dphead.analysis.records import FinishedRun, plan_of
from dphead.analysis.tradeoff import (
    FALSE_POSITIVE_RATE,
    REPORTED_RATES,
    alternative,
    detection,
    is_replaced,
    plural,
)
from dphead.planning.plan import large_delta
from dphead.privacy.rounding import as_declared, percent_up, rounded_down, rounded_up

_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", "[": "&#91;", "]": "&#93;", "`": "&#96;", "|": "\\|"}
)
_COLUMNS = 100  # columns of prose in Markdown; chosen
_WIDTH, _HEIGHT = 360, 244  # pixels of the plot of bounds; chosen
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 18, 22, 34  # margins of the plot; chosen
_LABELED = (1.0,)  # epsilons of the curves that are drawn for comparison; chosen
_DECADES = 4  # decades of each axis, from 0.01 % to 100 %; chosen


@dataclass(frozen=True)
class _Bar:
    """Hold a fraction as value and text, with an optional interval.

    A bar without a value is not drawn.
    """

    name: str
    value: float | None
    text: str
    low: float | None = None
    high: float | None = None


def page(report: dict[str, Any], about: About | None = None) -> str:
    """Return the privacy card of a report as HTML.

    Parameters
    ----------
    report : dict
        A report from `write_report`, or `FinishedRun.report`.
    about : About, optional
        The institution's statement.
    """
    return _html("page.html.j2", report, about)


def dpia(report: dict[str, Any], about: About | None = None) -> str:
    """Return an annex for a data protection impact assessment as HTML.

    The parameters are those of `page`.
    """
    return _html("dpia.html.j2", report, about)


def model_card(report: dict[str, Any], about: About | None = None) -> str:
    """Return a Hugging Face model card as Markdown with metadata.

    The parameters are those of `page`. Missing values are marked TODO.
    """
    import yaml

    facts = _facts_of(report)
    bars = filter(None, (_expected_bar(report), _test_bar(report)))
    network = (report["data"]["extraction"] or {}).get("backbone")
    privacy = "with differential privacy" if facts["private"] else "NOT PRIVATE"
    classifier = "Image classifier" if facts["of_images"] else "Classifier"
    front = yaml.safe_dump(
        _metadata(report), sort_keys=False, allow_unicode=True, width=_COLUMNS
    )
    text = template("model_card.md.j2").render(
        facts,
        front=f"---\n{front}---\n",
        title=f"{classifier} {facts['kind']}, {privacy}",
        about=about,
        network=network,
        own_model=own_model(report),
        accuracies=[f"{bar.name}: {bar.text}" for bar in bars],
        classes=_class_bars(report),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _metadata(report: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the card for Hugging Face.

    A result is included only if the test rows are public.
    """
    thing = name_unit_in(report)
    task = "image-classification" if thing == "image" else "other"
    found: dict[str, Any] = {
        "library_name": "dphead",
        "pipeline_tag": task,
        "tags": ["differential-privacy"] if report["guarantee"]["private"] else [],
    }
    if thing == "image":  # the source of other rows is unknown
        found["tags"].append("image-classification")
    names = [str(p.get("backbone")) for p in parts_of(report["data"]["extraction"])]
    hub = [n.removeprefix("hf-hub:") for n in names if n.startswith("hf-hub:")]
    if hub:
        found["base_model"] = hub[0] if len(hub) == 1 else hub
    if report["test"] is not None:
        metric = {"type": "accuracy", "value": report["test"]["accuracy"]}
        result = {
            "task": {"type": task},
            "dataset": {
                "name": f"public test {thing}s",
                "type": f"public-test-{thing}s",
            },
            "metrics": [metric],
        }
        name = f"dphead-{report['ledger']['fit_id'][:8]}"
        found["model-index"] = [{"name": name, "results": [result]}]
    return found


def _html(name: str, report: dict[str, Any], about: About | None) -> str:
    facts, ledger = _facts_of(report), report["ledger"]
    return template(name).render(
        facts,
        about=about,
        verdict=verdict(about, report) if about else ("", ""),
        sentence=facts["sentence"] or facts["statement"],
        curve=_curve_of(facts["limits"]) if facts["private"] else None,
        budget=_budget_bar(report),
        about_sum=about_sum(ledger["total_epsilon"], ledger.get("total_accountant")),
        expected=_expected_bar(report),
        test=_test_bar(report),
        all_classes=_class_bars(report),
    )


def _curve_of(limits: list[Limits]) -> dict[str, Any]:
    """Return the coordinates of the plot of `risk.limits_of`, for the template.

    The plot has true-positive against false-positive rates on log scales. `line`,
    `area` and `points` belong to the run. `others` has (epsilon, line, end) of curves
    for comparison.
    """
    own = next(one for one in limits if one.own)
    line = _line(own.curve)
    corner = f"L {_x(1):.1f} {_y(1e-4):.1f} L {_x(1e-4):.1f} {_y(1e-4):.1f} Z"
    others = []
    for one in limits:
        if one.own or one.epsilon not in _LABELED:
            continue
        middle = len(CURVE_RATES) // 4
        end = {"x": _x(CURVE_RATES[middle]), "y": _y(one.curve[middle])}
        others.append((f"ε = {one.epsilon:g}", _line(one.curve), end))
    marked = zip(REPORTED_RATES, own.hits, strict=True)
    points = [
        {"x": _x(rate), "y": _y(hit), "text": percent_up(hit)} for rate, hit in marked
    ]
    powers = [10.0**-k for k in range(_DECADES, -1, -1)]
    return {
        "line": line,
        "area": f"{line} {corner}",
        "guessing": _line(tuple(float(rate) for rate in CURVE_RATES)),
        "points": points,
        "others": others,
        "x_ticks": [{"at": _x(p), "text": f"{100 * p:g} %"} for p in powers],
        "y_ticks": [{"at": _y(p), "text": f"{100 * p:g} %"} for p in powers],
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
        "right": _WIDTH - _RIGHT,
        "top": _TOP,
    }


def _line(hits: tuple[float, ...]) -> str:
    """Return an SVG path through true-positive rates at CURVE_RATES."""
    pairs = zip(CURVE_RATES, hits, strict=True)
    places = [f"{_x(rate):.1f} {_y(hit):.1f}" for rate, hit in pairs]
    return "M " + " L ".join(places)


def _along(rate: float) -> float:
    """Return the position of a rate on an axis: 0 at 0.01 %, 1 at 100 %."""
    return 1 + math.log10(max(rate, 10.0**-_DECADES)) / _DECADES


def _x(rate: float) -> float:
    return _LEFT + _along(rate) * (_WIDTH - _LEFT - _RIGHT)


def _y(hit: float) -> float:
    return _HEIGHT - _BOTTOM - _along(hit) * (_HEIGHT - _TOP - _BOTTOM)


def _facts_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a report that all cards show."""
    g, n_rows = report["guarantee"], report["data"]["n_rows"]
    limits = limits_of(report) if g["private"] else []
    replaced, thing = is_replaced(g["neighboring_relation"]), name_unit_in(report)
    member, delta = name_member(report), largest_delta(report)
    return {
        "report": report,
        "g": g,
        "private": g["private"],
        "kind": kind_of(report),
        "thing": thing,
        "things": name_counted(report),
        "member": member,
        "members": plural(member),
        "of_images": made_of_images(report["data"]["extraction"]),
        "backbones": _backbones(report["data"]["extraction"]),
        "sentence": _sentence(report, limits) if limits else "",
        "statement": public_statement(report),
        "about_copies": about_copies(report),
        "about_people": about_people(report["data"]),
        "about_scores": about_scores(report.get("balanced")),
        "budget_is": budget_is(report["ledger"]),
        "counts_all_fits": counts_all_fits(report),
        "counts_one_fit": counts_one_fit(report["ledger"]),
        "limits": limits,
        "rates": REPORTED_RATES,
        "replaced": replaced,
        "alternative": alternative,
        "other_case": f"{'no other' if replaced else 'another'} {member}",
        "found": _findings(report),
        "delta": delta,
        "large_delta": large_delta(g["epsilon"], delta, n_rows, g["group_cap"]),
    }


def _backbones(extraction: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """Return rows (label, value) of the card for each backbone."""
    found = []
    for number, part in enumerate(parts := parts_of(extraction), 1):
        name = f"Backbone {number}" if len(parts) > 1 else "Backbone"
        found += [
            (name, part.get("backbone")),
            (f"{name} input", describe_input(part.get("transform") or {})),
            (f"{name} weights, sha256", part.get("weights_sha256")),
        ]
    return found


def _sentence(report: dict[str, Any], limits: list[Limits]) -> str:
    """Return the bound at FALSE_POSITIVE_RATE, in sentences for all readers."""
    at = REPORTED_RATES.index(FALSE_POSITIVE_RATE)
    own = {one.replaced: one.hits[at] for one in limits if one.own}
    unit = name_member(report)
    said = detection(own, f"this {kind_of(report)}", unit)
    return (
        f"{said} The attacker may know every other training {unit} and this report, "
        f"and run any feasible computation. Guessing detects "
        f"{percent_up(FALSE_POSITIVE_RATE)}."
    )


def _findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of `dphead check` and the warnings, for the card's list."""
    plan = plan_of(report, Path("report.json"))
    findings = check(FinishedRun(report, plan, None, frozenset(), (), None))
    found = [(one.what, one.why) for one in findings]
    if unshown_classes(report) is None:
        found.append((UNTOLD, MISSED))
    found += [(without_folders(text, report), "") for text in report["warnings"]]
    return [
        {"what": what[:1].upper() + what[1:], "why": why, "warned": True}
        for what, why in found
    ]


@cache
def _environment() -> Any:
    """Return the template environment, which escapes all text in HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    found = Environment(
        loader=PackageLoader("dphead.analysis.card"),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "up": percent_up,
        "spent": rounded_up,
        "down": rounded_down,
        "declared": as_declared,
        "number": _number,
        "wrap": _wrapped,
        "cell": cell,
    }
    return found


def template(name: str) -> Any:
    """Return a template of this folder."""
    return _environment().get_template(name)


def _wrapped(text: str, indent: int = 0) -> str:
    """Return prose in lines of 100 columns, at an indentation of `indent` characters.

    With indent 2, lines after the first are indented too.
    """
    filled = textwrap.fill(
        " " * indent + text,
        _COLUMNS,
        subsequent_indent=" " * indent if indent == 2 else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled[indent:]


def cell(text: str) -> str:
    """Return text for Markdown, safe in a table cell too.

    Characters of HTML, links, images, code and tables, and control characters are
    escaped. A line break becomes a space.
    """
    return one_line(text.replace("\n", " ")).translate(_MARKUP)


def _number(value: float | None, digits: int = 4) -> str:
    """Return a number (not a bound) with `digits` significant digits."""
    return "–" if value is None else f"{value:.{digits}g}"


def _percent(share: float, decimals: int = 1) -> str:
    """Return a share (not a bound) in percent."""
    return f"{100 * share:.{decimals}f} %"


def _budget_bar(report: dict[str, Any]) -> _Bar | None:
    """Return the fraction of the budget that all fits spent; None without a budget."""
    ledger = report["ledger"]
    budget, total = ledger["budget"], ledger["total_epsilon"]
    if budget is None:
        return None
    share = min(1.0, total / budget["epsilon"]) if math.isfinite(total) else 1.0
    text = f"ε = {rounded_up(total)} of {as_declared(budget['epsilon'])}"
    return _Bar("spent", share, text)


def _expected_bar(report: dict[str, Any]) -> _Bar | None:
    """Return the privately released accuracy with its interval; None without one."""
    found = report["expected_accuracy"]
    if found is None:
        return None
    bar = _interval_bar(f"expected on {name_new(report)}", found)
    # An interval that is so wide, as with few groups, says little. So neither the
    # estimate nor the interval is shown.
    vague = "unknown, because its 90 % interval is wider than 20 points"
    return _Bar(bar.name, None, vague) if is_vague(found) else bar


def _test_bar(report: dict[str, Any]) -> _Bar | None:
    """Return the accuracy on public test rows; None without such rows."""
    test = report["test"]
    if test is None:
        return None
    value, error = test["accuracy"], test["accuracy_se"]
    things = f"{name_unit_in(report)}s"
    text = (
        f"{_percent(value, 2)} ± {_percent(error, 2)}, on {test['n']:,} public {things}"
        f"{of_people(test)}"
    )
    return _Bar(f"on public test {things}", value, text)


def _class_bars(report: dict[str, Any]) -> list[_Bar]:
    """Return the accuracy of each class, lowest first.

    If test rows are public, the values are exact. Otherwise they are the released
    values with their intervals. The list is empty if there are none.
    """
    test, released = report["test"], report.get("class_accuracy")
    names = report["data"]["class_names"]
    if test is not None:
        rows = zip(names, test["per_class_accuracy"], test["per_class_n"], strict=True)
        bars = [
            _Bar(name, value, f"{_percent(value, 0)} of {n:,}")
            for name, value, n in rows
            if n > 0
        ]
    elif released is not None:
        bars = [
            _interval_bar(name, one)
            for name, one in zip(names, released["each"], strict=True)
        ]
    else:
        return []
    return sorted(bars, key=lambda bar: bar.value or 0.0)


def _interval_bar(name: str, found: dict[str, float]) -> _Bar:
    """Return a released accuracy with its 90 % interval."""
    value, low, high = (found[key] for key in ("accuracy", "low", "high"))
    text = f"{_percent(value)} (90 %: {_percent(low)} to {_percent(high)})"
    return _Bar(name, value, text, low, high)
