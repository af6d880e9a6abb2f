"""Compose the final output of `dphead fit` and `dphead finetune`.

Numbers come from the report, the plan's releases and the metrics of test rows. Figures
on private test rows are printed, and are in no file of the run.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.check import about_classes, help_missed
from dphead.analysis.metrics import never_predicted
from dphead.analysis.protected import (
    NETWORK,
    about_people,
    budget_is,
    is_vague,
    kind_of,
    made_of_images,
    name_counted,
    name_member,
    name_new,
    name_unit_in,
    of_people,
    own_model,
    parts_of,
)
from dphead.cli.budget import budget_lines
from dphead.cli.text import percent, section, tied
from dphead.privacy.ledger.server import is_on_server
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.privacy.rounding import as_declared, rounded_up

_NAMED_CLASSES = 4  # number of weak classes named; chosen, not measured
_SHOWN_CLASSES = 20  # number of weakest classes listed; chosen, not measured


def outcome(
    out: Path,
    result: dict[str, Any],
    plan: Any,
    files: str = "head.safetensors head.json",
) -> str:
    """Return the sections Trained, Privacy, Accuracy, Budget, Saved and Next, as text.

    If few classes were measured on test rows, Classes and Mistakes follow Accuracy.
    `result` comes from `fit_files` or `finetune`, and `plan` is the announced plan.
    With sampled batches, computing the bound on attacks takes seconds.
    """
    report, test = result["report"], result["test"]
    parts = {
        "Trained": [_trained(report)],
        "Privacy": _privacy(report, plan),
        "Accuracy": _accuracy(report, test),
        **_classes(report, test),
        "Budget": budget_lines(report["ledger"], report["guarantee"]["delta"]),
        "Saved": [f"{out}/: {files} report.json report.html ledger.json run.toml"],
        "Next": _next_commands(out, report),
    }
    return "\n".join(section(label, lines) for label, lines in parts.items())


def _trained(report: dict[str, Any]) -> str:
    """Describe the trained object and the number of training rows."""
    data = report["data"]
    name = str(report["method"]["name"]).removeprefix(NETWORK)
    private_n = report["guarantee"]["neighboring_relation"] == "add_remove"
    rows = ("about " if private_n else "") + tied(
        f"{data['n_rows']:,} {name_counted(report)}"
    )
    if kind_of(report) == "network":
        return f"the network {name}, on {rows}, {data['n_classes']} classes"
    features = tied(f"{data['n_features']:,} features")
    if axes := data.get("axes"):
        count = f"{axes['count']:,}" if axes["count"] else "no"
        features += ", " + tied(f"{count} public axes")
    return (
        f"a head (the last layer) by {name}, on {rows} x {features}, "
        f"{data['n_classes']} classes"
    )


def _privacy(report: dict[str, Any], plan: Any) -> Iterator[str]:
    """State the guarantee, its bound on attacks, and its limits."""
    g = report["guarantee"]
    if not g["private"]:
        yield f"NOT PRIVATE: epsilon {rounded_up(g['epsilon'])}"
        yield f"! {report['statement']}"
    else:
        yield _guarantee(report)
        yield _attack_limit(report, plan)
        yield f"! {_unprotected(report)}"
        people = report["data"]["people"]
        if (text := about_people(report["data"])) is not None:
            yield text if people and not people["new"] else f"! {text}"
    for warning in report["warnings"]:
        yield f"! {warning}"
    if report["tuning"] == "NOT ACCOUNTED":
        yield (
            "! The report does not account for the choice of the settings. State the "
            f"choice with {tied('--tuning.')}"
        )


def _guarantee(report: dict[str, Any]) -> str:
    """State epsilon, delta, the unit of privacy, the relation and the ledger."""
    g = report["guarantee"]
    epsilon = tied(f"epsilon {rounded_up(g['epsilon'])}")
    delta = tied(f"delta {as_declared(g['delta'])}")
    path, dataset_id = report["ledger"]["path"], report["data"]["dataset_id"]
    counted = f"charged to the ledger {Path(path).name}"
    if path == IN_MEMORY:
        counted = "charged to a ledger in memory"
    elif is_on_server(path):
        counted = "charged to the team's ledger"
    elif Path(path).name == f"{dataset_id}.sqlite":
        counted = "charged to the data set's ledger"
    relation = tied(f"relation {g['neighboring_relation']}")
    return f"{epsilon}, {delta} for {g['protected_unit']} ({relation}); {counted}"


def _attack_limit(report: dict[str, Any], plan: Any) -> str:
    """Return the bound on a membership-inference attack, rounded up.

    If the ledger has several fits, the bound covers all fits, because an attacker sees
    everything published. If the budget is a guarantee (`budget_is`), the bound is for
    the budget. Otherwise the bound is for the sum of the fits, and holds only if no fit
    was chosen by the results of another.
    """
    from dphead.analysis import tradeoff

    ledger, n_fits = report["ledger"], report["ledger"]["fits"]
    unit = name_member(report)
    if n_fits == 1:
        limits = tradeoff.detection_limits(plan.events(), plan.relation)
        return tradeoff.detection(limits, f"this {kind_of(report)}", unit)
    exact = ledger["total_accountant"] == "exact"
    what = f"all {n_fits} fits in this ledger, none chosen by the results of another,"
    total = (ledger["total_epsilon"], ledger["delta"])
    if budget_is(ledger) == "guarantee":
        limit = ledger["budget"]
        budget = as_declared(limit["epsilon"])
        what = f"all fits in this ledger that the budget of epsilon {budget} allows"
        total = (limit["epsilon"], limit["delta"])
    limits = tradeoff.limits_of_total(*total, plan.relation, exact=exact)
    return tradeoff.detection(limits, what, unit)


def _unprotected(report: dict[str, Any]) -> str:
    """Return a line on what is public, and on whom the guarantee does not protect."""
    g = report["guarantee"]
    private_n = g["neighboring_relation"] == "add_remove"
    thing = name_unit_in(report)
    number = "" if private_n else f", the number of {name_counted(report)}"
    if g["group_cap"] is not None:
        whom = f"people with {thing}s in a wrong group."
    else:
        whom = (
            f"several {thing}s of one person together. To protect people, use "
            f"{tied('--group-cap.')}"
        )
    return f"Not protected: class names, settings{number}; {whom}"


def _accuracy(report: dict[str, Any], test: dict[str, Any] | None) -> Iterator[str]:
    """Yield lines on the expected accuracy, the accuracy on test rows, and classes."""
    expected, things = report["expected_accuracy"], f"{name_unit_in(report)}s"
    publish = ": may be published" if report["guarantee"]["private"] else ""
    if expected is not None:
        if is_vague(expected):
            unit = "groups" if report["guarantee"]["group_cap"] else things
            yield (
                f"! unknown on {name_new(report)}: too few {unit} for a precise "
                f"estimate from released numbers. More {unit}, a larger epsilon, or "
                f"test {things} of your own help"
            )
        else:
            yield (
                f"{percent(expected['accuracy'], 1)} expected on {name_new(report)} "
                f"(90 % interval: {_interval(expected)}), from released numbers only"
                f"{publish}"
            )
    yield from _worst_class(report)
    if report.get("balanced") is False:
        yield (
            "Not balanced: released numbers do not show that classes differ in size, "
            "or that balancing would raise the balanced accuracy by a percentage point"
        )
    yield from (f"! {text}" for text in about_classes(report, test))
    if test is None:
        if expected is None:
            yield "not measured: name test rows with --test or --test-split"
        return
    scope = (
        "declared public, in the report"
        if report["test_is"] == "public"
        else "private, not in the report"
    )
    whose = of_people(test, "other " if report["test_rows"] == "other groups" else "")
    yield f"{shown_accuracy(test)} on {test['n']:,} test {things}{whose}: {scope}"
    if report["test_rows"] == "training rows":
        yield f"! some or all are training {things}: not an accuracy on new {things}"
    if none := test["n_without_class"]:
        yield f"! {none:,} of them are unreadable or not finite: counted as wrong"
    names = report["data"]["class_names"]
    yield from missed_classes(test, names, things, help_missed(report))
    never = never_predicted(test)
    weak = [k for k in _weak_classes(test) if k not in never]
    named = [
        tied(f"{names[position]} ({percent(test['per_class_accuracy'][position])})")
        for position in weak[:_NAMED_CLASSES]
    ]
    if weak:
        rest = len(weak) - len(named)
        more = f" and {rest} more" if rest else ""
        listed = f"{', '.join(named)}{more}"
        yield f"! accuracy below half of the mean over classes: {listed}"


def _classes(
    report: dict[str, Any], test: dict[str, Any] | None
) -> dict[str, list[str]]:
    """Return the sections Classes and Mistakes of test rows; {} for many classes."""
    if test is None or not test["confusion"]:
        return {}
    names = report["data"]["class_names"]
    mistakes = shown_confusion(test["confusion"], names)
    return {"Classes": shown_classes(test, names), "Mistakes": mistakes}


def missed_classes(
    metrics: dict[str, Any], names: list[str], things: str, remedy: str
) -> Iterator[str]:
    """Yield lines on the classes that were never predicted for the measured rows."""
    never = never_predicted(metrics)
    for k in never[:_NAMED_CLASSES]:
        yield (
            f"! {tied(names[k])} is never predicted, on {metrics['per_class_n'][k]:,} "
            f"test {things} of this class: try {remedy}"
        )
    if rest := len(never[_NAMED_CLASSES:]):
        yield f"! {rest:,} more classes are never predicted"


def shown_confusion(confusion: list[list[int]], names: list[str]) -> list[str]:
    """Return a line for each class with wrong predictions, or one line "none"."""
    lines = []
    for k, row in enumerate(confusion):
        wrong = sorted((-n, j) for j, n in enumerate(row) if n and j != k)
        if wrong:
            told = ", ".join(tied(f"{-n:,} as {names[j]}") for n, j in wrong)
            lines.append(f"{sum(row):,} in class {names[k]}: {row[k]:,} right, {told}")
    return lines or ["none"]


def shown_classes(metrics: dict[str, Any], names: list[str]) -> list[str]:
    """Return a line for each of the weakest classes that have rows, weakest first.

    A last line counts the classes that are not shown.
    """
    each, counts = metrics["per_class_accuracy"], metrics["per_class_n"]
    there = [k for k, count in enumerate(counts) if count]
    there.sort(key=lambda k: (each[k], k))
    lines = [
        tied(f"{100 * each[k]:6.2f} % of {counts[k]:,} in class {names[k]}")
        for k in there[:_SHOWN_CLASSES]
    ]
    rest = len(there) - len(lines)
    return [*lines, f"and {rest:,} more classes; --json lists all"] if rest else lines


def _worst_class(report: dict[str, Any]) -> Iterator[str]:
    """State the mean and the lowest of the released class accuracies, if any."""
    found = report.get("class_accuracy")
    if found is None:
        return
    publish = ": may be published" if report["guarantee"]["private"] else ""
    name = report["data"]["class_names"][found["weakest"]]
    mean, worst = found["balanced"]["accuracy"], found["worst"]
    yield (
        f"{percent(mean, 1)} expected balanced accuracy on {name_new(report)}, and "
        f"{percent(worst['accuracy'], 1)} expected on the worst class, {tied(name)} "
        f"(90 % interval, whichever class is worst: {_interval(worst)}){publish}. The "
        "minimum of noisy numbers is too low on average. The interval allows for this "
        "bias"
    )


def _interval(released: dict[str, float]) -> str:
    """Return the 90 % interval of a released accuracy."""
    return tied(f"{100 * released['low']:.1f} to {percent(released['high'], 1)}")


def shown_accuracy(metrics: dict[str, Any]) -> str:
    """Return the accuracy ± one standard error (`metrics.accuracy`)."""
    return tied(f"{100 * metrics['accuracy']:.2f} ± {percent(metrics['accuracy_se'])}")


def _weak_classes(metrics: dict[str, Any]) -> list[int]:
    """Return the indices of classes below half the mean class accuracy.

    The weakest comes first.
    """
    each = np.array(metrics["per_class_accuracy"], float)
    low = np.flatnonzero(each < np.nanmean(each) / 2)
    return sorted(low.tolist(), key=lambda position: each[position])


def _next_commands(out: Path, report: dict[str, Any]) -> Iterator[str]:
    """Yield the next commands to type."""
    run = shlex.quote(str(out))
    extraction = report["data"]["extraction"]
    new = "new_images/" if made_of_images(extraction) else "new.h5"
    yield f"dphead check {run}"
    yield f"dphead predict {run} {new} -o predictions.csv{own_model(report)}"
    made = [part.get("transform", {}).get("library") for part in parts_of(extraction)]
    if "timm" in made:
        yield f"(with {tied('--weights FILE')}, if dphead extract had it)"
