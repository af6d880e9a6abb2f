"""Report the limits of a finished run's guarantee.

Each check reads only the run's records (`dphead.analysis.records`), never a private
row. Problems without a record go undetected: a backbone tuned on the same rows, several
rows of one person without groups, fits in a deleted ledger.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dphead.analysis.metrics import never_predicted
from dphead.analysis.protected import (
    about_copies,
    budget_is,
    kind_of,
    largest_delta,
    made_of_images,
    name_unit_in,
    parts_of,
    recognizes_rows,
)
from dphead.analysis.records import RESTORE, FinishedRun
from dphead.analysis.sealed import explain_damage
from dphead.planning.plan import large_delta
from dphead.privacy.rounding import as_declared, rounded_up

_DECLARED = ("classes-flag", "folder-names-flag", "fit-flag")
PRIVATE_METRICS = "private metrics stored"  # `analysis.card.kept` uses it too
_PREPROCESSING = "data-dependent preprocessing"
_FITTED = "Values fitted to these rows would be released with the head, uncharged"
# Normalizations that use one row at a time. Not imported from `extract`, so that the
# check does not trust new kinds without a review.
_ROW_WISE = (None, "none", "group", "unit", "synthetic", "local")
_PUBLIC_MEANS = (
    (0.485, 0.456, 0.406),
    (0.5, 0.5, 0.5),
    (0.0, 0.0, 0.0),
    (0.48145466, 0.4578275, 0.40821073),
)
# for gray images, networks use the mean over the channels
_PUBLIC_MEANS += tuple((fmean(mean),) for mean in _PUBLIC_MEANS)
_RUN_FILES = {"report.json", "ledger.json", "run.toml"}
_RUN_FILES |= {
    f"{what}.{kind}" for what in ("head", "model") for kind in ("json", "safetensors")
}
# computed from report.json; `analysis.card.kept` compares them with it
DERIVED = {"report.html", "README.md", "dpia.html"}
_RUN_FILES |= DERIVED | {"about.toml"}
_NAMED = 4  # classes named in a finding; chosen
MISSED = "A head that never predicts a class misses all cases of it"
UNTOLD = "no released number tells whether each class is ever predicted"
_METRICS = (
    "accuracy",
    "train_loss",
    "training_loss",
    "clip_fraction",
    "gradient_norm",
    "confusion",
    "calibration",
)

# report entries that may hold accuracies, and the noisy release of each
_RELEASED = {
    "expected_accuracy": "CorrectCounts",
    "class_accuracy": "ClassCorrectCounts",
}


@dataclass(frozen=True)
class Finding:
    """Describe one thing that the guarantee does not cover.

    Attributes
    ----------
    name : str
        Short name of the check.
    what : str
        Description of the problem in the run.
    why : str
        Why it matters.
    todo : str
        Action for the user.
    """

    name: str
    what: str
    why: str
    todo: str


def check(run: FinishedRun) -> list[Finding]:
    """Return the detected problems that the guarantee of `run` does not cover.

    Parameters
    ----------
    run : FinishedRun
        A finished run, as `read_run` returns it.

    Returns
    -------
    list of Finding
        Findings. Those on noise, seed, delta and settings come first.

    Raises
    ------
    ValueError
        If the run's records do not have dphead's format.
    """
    with explain_damage("report", "the run"):
        return [finding for one in _CHECKS for finding in one(run)]


def _of_guarantee(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on noise, seed, delta and the choice of the settings."""
    g, n_rows = run.report["guarantee"], run.report["data"]["n_rows"]
    if math.isinf(g["target_epsilon"]):
        yield Finding(
            "no privacy",
            "epsilon is infinite, so this head is not private",
            "It is an exact function of the training rows",
            "Do not publish it; fit with a finite epsilon",
        )
    if g["seeded"]:
        yield Finding(
            "fixed seed",
            "the noise came from a fixed seed",
            "Anyone who knows the seed can subtract the noise",
            "Fit again without --seed",
        )
    delta = largest_delta(run.report)
    if text := large_delta(g["epsilon"], delta, n_rows, g["group_cap"]):
        meets = "row at random meets" if g["group_cap"] is None else "group may meet"
        yield Finding(
            "delta >= 1/n",
            text.rstrip("."),
            f"A mechanism that publishes one whole {meets} such a delta",
            "Fit again with a smaller --delta"
            if delta == g["delta"]
            else "Do not state the budget: this delta is that of all fits",
        )
    tuning, fits = run.report["tuning"], run.report["ledger"]["fits"]
    uncharged = tuning == "charged" and fits < 2
    if tuning == "NOT ACCOUNTED" or uncharged:
        yield Finding(
            "unaccounted tuning",
            f"--tuning charged needs earlier fits, but the ledger had {fits} fit"
            if uncharged
            else "the choice of the settings is not stated",
            "A choice among runs on the same rows also depends on these rows",
            "Charge the trials to the same ledger before the final fit"
            if uncharged
            else "Choose the settings on public data, or by noisy scores of trials "
            "charged to this ledger, and state it with --tuning",
        )


def _of_rows(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on undeclared classes and on unprotected groups."""
    g, data = run.report["guarantee"], run.report["data"]
    declared = data.get("classes_declared")
    if declared not in _DECLARED:
        yield Finding(
            "inferred classes",
            "the report records no declaration of public classes",
            "Classes taken from the labels reveal that each class has a row",
            "Declare them with --classes, and fit again",
        )
    thing, unprotected = name_unit_in(run.report), g["group_cap"] is None
    if data.get("grouped") and unprotected and math.isfinite(g["epsilon"]):
        yield Finding(
            f"people with several {thing}s",
            f"the source has groups, but each {thing} was protected separately",
            f"For a person with k {thing}s, epsilon is about k times as large or more",
            "Fit again with --group-cap, which protects groups",
        )


def _preprocessing(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on features and on values of the head that may depend on all rows.

    Values of the head that a release computed are covered.
    """
    own = run.report["data"].get("extraction") or (run.head or {}).get("extraction")
    for what, todo in _of_extraction(own):
        yield Finding(_PREPROCESSING, what, _FITTED, todo)
    extra = sorted(run.tensors & {"center", "scale"})
    if extra and not any("ChannelMoment" in s.statistic for s in run.plan.specs):
        what = f"the head has {' and '.join(extra)}, but no release computed them"
        todo = "Fit again with --center-share, which releases the mean with noise"
        yield Finding(_PREPROCESSING, what, _FITTED, todo)

    if "axes" in run.tensors and not run.report["data"].get("axes"):
        yield Finding(
            _PREPROCESSING,
            "the head has axes, and the report names no public rows for them",
            _FITTED,
            "Fit again with --axes-from, which records them",
        )


def _of_extraction(facts: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield each problem of a recorded extraction, with an action."""
    if not facts:
        yield (
            "the origin of the features is not recorded",
            "Use `dphead extract`, and fit again",
        )
        return
    for part in parts_of(facts):
        yield from _of_backbone(part)


def _of_backbone(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each problem of the features of one backbone, with an action."""
    backbone, transform = facts.get("backbone") or "", facts.get("transform") or {}
    kind = (facts.get("normalization") or {}).get("kind")
    if not made_of_images(facts) and not facts.get("attested"):
        yield (
            f"the features were imported or written from arrays (backbone {backbone!r})"
            ", and the origin of each row is not recorded",
            "Use `dphead extract`. If each row depends on one image and on nothing "
            "fitted to these rows, import the rows with --not-fitted-on-these-rows",
        )
    if kind not in _ROW_WISE:
        yield (
            f"normalization {kind!r} may depend on other rows",
            "Use --normalize local, synthetic, group, unit or none",
        )
    mean = transform.get("mean")
    # Fixed filters have the digest "", and need no mean. A fine-tuned network's images
    # are recorded without a digest, and their mean is compared.
    fixed = facts.get("weights_sha256") == ""
    if mean is not None and (fixed or tuple(mean) not in _PUBLIC_MEANS):
        yield (
            f"images were shifted by the mean {mean}, which is not a common public "
            "mean",
            "Show that mean and std are public, or extract with the model's mean",
        )


def _of_metrics(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on test rows, exact figures on private rows, and unknown files."""
    report = run.report
    test, test_is = report.get("test"), report.get("test_is")
    if test_is is not None and report["tuning"] == "NOT ACCOUNTED":
        yield Finding(
            "test set used for selection",
            "heads were measured on test rows, and the results may have influenced the "
            "settings",
            "The best of several test accuracies is too high, and the choice depends "
            "on the test rows",
            "Choose the settings without the test rows, and measure once at the end",
        )
    statistics = [r["statistic"] for r in report["guarantee"]["releases"]]
    known = {"test", "statement"}
    for key, source in _RELEASED.items():
        released = any(statistic.startswith(source) for statistic in statistics)
        if released or report.get(key) is None:
            known.add(key)
    found = []
    if test is not None and test_is != "public":
        what = "the report has test metrics, but the test rows are private"
        found.append((what, "Do not publish this report; fit again"))
    if test is not None and report.get("test_rows") == "training rows":
        what = "the report has test metrics on the training rows"
        found.append((what, "Do not publish this report; fit with other test rows"))
    for key in _metric_keys({k: v for k, v in report.items() if k not in known}):
        todo = "Do not publish this report; fit again with dphead"
        found.append((f"the report has {key}", todo))
    why = "They are exact functions of private rows, without noise"
    for what, todo in found:
        yield Finding(PRIVATE_METRICS, what, why, todo)
    for file in sorted(set(run.files) - _RUN_FILES):
        yield Finding(
            PRIVATE_METRICS,
            f"{file} is in the run folder, but is not part of the release",
            "It may have exact functions of private rows",
            "Move it away before publishing",
        )


def unshown_classes(report: dict[str, Any]) -> list[int] | None:
    """Return the classes that no public or released number shows as predicted.

    The result is None if the report has no such numbers, and empty for fewer than two
    classes. Weights and released class means do not show whether a class is predicted
    (benchmarks/results/missed).
    """
    n_classes, shown = len(report["data"]["class_names"]), _shown(report)
    if n_classes < 2:
        return []
    if not shown:
        return None
    return [k for k in range(n_classes) if not any(one[k] for one in shown.values())]


def _shown(report: dict[str, Any]) -> dict[str, list[bool]]:
    """Return whether each class is shown as predicted, for each kind of public number.

    Keys describe the numbers, and values have one bool per class.
    """
    test, shown = report.get("test"), dict[str, list[bool]]()
    released = (report.get("class_accuracy") or {}).get("each")
    if test is not None and report.get("test_is") == "public":
        given = f"predicted for any public test {name_unit_in(report)}"
        shown[given] = [rows > 0 for rows in test["predicted_n"]]
    if released is not None:
        ever = "ever predicted, by the 90 % intervals of the released accuracies"
        shown[ever] = [one["low"] > 0 for one in released]
    return shown


def about_classes(
    report: dict[str, Any], test: dict[str, Any] | None = None
) -> Iterator[str]:
    """Yield a warning if no number shows that each class is predicted.

    `test` has the metrics of test rows. Classes that public test rows show as never
    predicted are left out, because other lines name them.
    """
    unshown = unshown_classes(report)
    if unshown is None and test is None:
        yield f"{UNTOLD}. {_measure_classes(report)}"
    public = test is not None and report["test_is"] == "public"
    named = never_predicted(test) if test and public else []
    if others := [k for k in unshown or () if k not in named]:
        yield f"{_name_unshown(report, others)}. Measure them with `dphead evaluate`"


def _measure_classes(report: dict[str, Any]) -> str:
    """Return advice on how to measure each class.

    Only `auto`, without group means, can release the accuracy of each class.
    """
    text = "Measure each class with `dphead evaluate`"
    if kind_of(report) == "network" or report["guarantee"]["group_mean"]:
        return text
    return f"{text}, or fit auto with --per-class-share 0.05 (`per_class_share`)"


def _name_unshown(report: dict[str, Any], classes: list[int]) -> str:
    """Return text that names these classes of `unshown_classes`."""
    shown = ", or ".join(_shown(report))
    names = [str(report["data"]["class_names"][k]) for k in classes[:_NAMED]]
    if rest := len(classes) - len(names):
        names.append(f"{rest:,} more")
    return f"no number shows that these classes are {shown}: {', '.join(names)}"


def help_missed(report: dict[str, Any]) -> str:
    """Return text that names the changes that can help a fit that misses a class."""
    settings = report["method"]["settings"]
    balanced = settings.get("balanced")
    options = "--balanced, " if balanced is False else "--method auto --balanced, "
    if balanced is False and settings.get("intercept") == 0:
        options = "--balanced --intercept 0.3, "  # `check_balanced` refuses 0
    if balanced or kind_of(report) == "network":
        options = ""
    return f"{options}a larger epsilon, or more {name_unit_in(report)}s of the class"


def _of_classes(run: FinishedRun) -> Iterator[Finding]:
    """Yield a finding on the classes of `unshown_classes`, if there are any."""
    if unshown := unshown_classes(run.report):
        thing = name_unit_in(run.report)
        yield Finding(
            "class not shown predicted",
            _name_unshown(run.report, unshown),
            MISSED,
            f"Measure each class on your own test {thing}s with `dphead evaluate`. If "
            f"one is missed, fit again with {help_missed(run.report)}",
        )


def _of_ledger(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on fits that the ledger does not count, or no longer has."""
    ledger = run.report["ledger"]
    named = run.report["data"].get("dataset_id")
    if ledger["path"] == ":memory:" or not named:
        yield Finding(
            "other fits uncounted",
            f"there is no {'ledger on disk' if named else 'data set id'}, so only "
            f"{'this fit is' if ledger['fits'] == 1 else 'fits of one ledger are'} "
            "counted",
            "Other fits on the same rows add to this epsilon without being counted",
            "Charge all fits on these rows to one ledger (--ledger; in Python: ledger)",
        )
    yield from uncounted(run)


def uncounted(run: FinishedRun) -> Iterator[Finding]:
    """Yield findings on fits that the ledger lacks, and on fits in other ledgers."""
    if run.lost:
        yield Finding(
            "fit not in the ledger",
            "the ledger lacks this fit, or fits that it had when this fit ended",
            "The ledger's total omits a fit that was released",
            RESTORE,
        )
    for where, _ in run.elsewhere:
        yield Finding(
            "fits in another ledger",
            f"this run's ledger does not count {where}",
            "The privacy loss of those fits adds to this run's, and their results may "
            "have influenced the settings",
            "Charge all fits to one ledger. State the sum over all ledgers with "
            "the relation and the unit of this run, such as its groups. For each other "
            "ledger, state its epsilon separately, with its unit and relation",
        )


def outdated(run: FinishedRun) -> Iterator[Finding]:
    """Yield a finding for each claim of the report that a later merge made false."""
    ledger, now, data = run.report["ledger"], run.ledger_now, run.report["data"]
    ended: list[tuple[str, str, str]] = []
    if budget_is(ledger) == "guarantee" != budget_is(now):
        ended.append(
            (
                "budget no longer a guarantee",
                "ledgers were merged after this fit, so the report's budget of epsilon "
                f"{as_declared(ledger['budget']['epsilon'])} does not hold for all "
                "fits",
                "Report and cards still say that it is never exceeded",
            )
        )
    people, own = data.get("people") or {}, data.get("dataset_id")
    if people.get("new") and own and now.get("dataset_id") not in (None, own):
        ended.append(
            (
                "people no longer new",
                "the report says that no other data set of the id system "
                f"{people['system']} adds privacy loss, but the people were declared "
                "again",
                "Fits on other data sets of the id system can add to this epsilon",
            )
        )
    # sum the fits only here, because the sum with sampled batches takes a while
    for finding in ended:
        if budget_is(now) == "guarantee":
            budget = now["budget"]
            what, epsilon = "budget", as_declared(budget["epsilon"])
            delta = budget["delta"]
        else:
            what, epsilon = "plain sum", rounded_up(run.spent_now.epsilon)
            delta = now["delta"]
        todo = (
            f"State the {what} of all fits, epsilon {epsilon} at delta "
            f"{as_declared(delta)}, where you publish the run"
        )
        if run.ended:
            todo = "State no sum before `dphead check` can read the merged ledger"
        yield Finding(*finding, todo)


def notes(run: FinishedRun) -> list[str]:
    """Return notes for the reader: further fits, and what could not be checked."""
    ledger, found = run.report["ledger"], []
    if (text := run.about_unread()) is not None:
        found.append(
            f"{text}. Only the report's epsilon was recomputed, not the ledger's total"
        )
    elif (later := len(run.fits or ()) - ledger["fits"]) > 0:
        # a merged ledger also counts fits that are older than this one
        kind = "more" if run.merged or run.ledger_now.get("is_sum") else "later"
        more = f"{later} {kind} fit{'' if later == 1 else 's'}"
        if run.merged:
            more = f"the ledger {run.merged} now counts this run, with {more}"
        found.append(
            f"{more}: the ledger's plain sum is now epsilon "
            f"{rounded_up(run.spent_now.epsilon, 5)}, not the sum in the report"
        )
    found += run.remarks
    if not run.files:
        found.append(
            "only a report was checked, without the head and other files of the run "
            "folder"
        )
    name = "head" if kind_of(run.report) == "head" else "model"
    names = (f"{name}.json", f"{name}.safetensors", "ledger.json")
    if missing := [one for one in names if run.files and one not in run.files]:
        found.append(
            "the run folder lacks files that were therefore not compared with the "
            f"report: {', '.join(missing)}"
        )
    if unshown_classes(run.report) is None:
        found.append(f"{UNTOLD}. {_measure_classes(run.report)}")
    if not recognizes_rows(run.report["data"]):
        found.append(about_copies(run.report))
    return found


_CHECKS: tuple[Callable[[FinishedRun], Iterator[Finding]], ...] = (
    _of_guarantee,
    _of_rows,
    _preprocessing,
    _of_metrics,
    _of_classes,
    _of_ledger,
    outdated,
)


def _metric_keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of entries with a word of `_METRICS` in their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if any(word in key for word in _METRICS):
                yield f"{path}{key}"
            yield from _metric_keys(inner, f"{path}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _metric_keys(inner, path)
