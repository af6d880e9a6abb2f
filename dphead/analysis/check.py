"""Report the limits of a finished run's guarantee.

Each check reads only the run's records (`dphead.analysis.records`), never a private
row. Problems without a record go undetected: a backbone tuned on the same rows, several
rows of one person, a deleted ledger.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dphead.analysis.protected import kind_of, made_of_images, name_unit_in
from dphead.analysis.records import Run
from dphead.analysis.sealed import explain_damage
from dphead.planning.plan import large_delta

_DECLARED = ("classes-flag", "folder-names-flag", "fit-flag")
# Normalizations that use one row at a time. Not imported from `extract`, so that the
# check does not trust new kinds without a review.
_PREPROCESSING = "data-dependent preprocessing"
_FITTED = "Values fitted to the rows are released with the head without a charge"
_ROW_WISE = (None, "none", "group", "unit", "synthetic", "local")
_PUBLIC_MEANS = (
    (0.485, 0.456, 0.406),
    (0.5, 0.5, 0.5),
    (0.0, 0.0, 0.0),
    (0.48145466, 0.4578275, 0.40821073),
)
_RUN_FILES = {"report.json", "ledger.json", "releases", "fit.json", "run.toml"}
_RUN_FILES |= {
    f"{what}.{kind}" for what in ("head", "model") for kind in ("json", "safetensors")
}
# computed from report.json; `analysis.card.kept` compares them with it
DERIVED = {"report.html", "README.md", "dpia.html"}
_RUN_FILES |= DERIVED | {"about.toml"}
_PRIVATE_METRICS = (
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
    "selection": "CorrectCounts",
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


def check(run: Run) -> list[Finding]:
    """Return everything that the guarantee of `run` does not cover.

    Parameters
    ----------
    run : Run
        A finished run, as `read_run` returns it.

    Returns
    -------
    list of Finding
        Findings in the order of CHECKS; empty if nothing was found.

    Raises
    ------
    ValueError
        If the run's records do not have dphead's format.
    """
    with explain_damage("a run", "its report"):
        return [finding for one in _CHECKS for finding in one(run)]


def _no_privacy(run: Run) -> Iterator[Finding]:
    """Yield a finding if epsilon is infinite, without noise and clipping."""
    if math.isinf(run.report["guarantee"]["target_epsilon"]):
        what, why = (
            "epsilon is infinite, so this head is not private",
            "It is an exact function of the training rows",
        )
        yield Finding(
            "no privacy", what, why, "Do not publish it; fit with a finite epsilon"
        )


def _fixed_seed(run: Run) -> Iterator[Finding]:
    """Yield a finding if the noise has a fixed seed and can be reproduced."""
    if run.report["guarantee"]["seeded"]:
        why = "Anyone who knows the seed can subtract the noise"
        yield Finding(
            "fixed seed",
            "the noise came from a fixed seed",
            why,
            "Fit again without --seed",
        )


def _delta_too_large(run: Run) -> Iterator[Finding]:
    """Yield a finding if delta is at or above 1/n, where n is the number of rows.

    The number of groups is private and at most n, so a delta below 1/n is below
    1/groups.
    """
    g, n_rows = run.report["guarantee"], run.report["data"]["n_rows"]
    if text := large_delta(g["epsilon"], g["delta"], n_rows, g["group_cap"]):
        meets = "row at random meets" if g["group_cap"] is None else "group may meet"
        why = f"A mechanism that publishes one whole {meets} such a delta"
        yield Finding(
            "delta >= 1/n", text.rstrip("."), why, "Fit again with a smaller --delta"
        )


def _unaccounted_tuning(run: Run) -> Iterator[Finding]:
    """Yield a finding if tuning is undeclared or missing in the ledger."""
    tuning, fits = run.report["tuning"], run.report["ledger"]["fits"]
    why = "A choice among runs on the same rows also depends on these rows"
    if tuning == "NOT ACCOUNTED":
        todo = (
            "Choose the settings on public data, or by noisy scores of trials charged "
            "to this ledger, and state it with --tuning"
        )
        yield Finding(
            "unaccounted tuning", "the choice of the settings is not stated", why, todo
        )
    elif tuning == "charged" and fits < 2:
        what = f"--tuning charged needs earlier fits, but the ledger had {fits} fit"
        yield Finding(
            "unaccounted tuning",
            what,
            why,
            "Charge the trials to the same ledger before the final fit",
        )


def _inferred_classes(run: Run) -> Iterator[Finding]:
    """Yield a finding if the classes were not declared public."""
    declared = run.report["data"].get("classes_declared")
    if declared not in _DECLARED:
        what = (
            "no declaration of public classes is recorded "
            f"(classes_declared={declared!r})"
        )
        why = "Classes taken from the labels reveal that each class has a row"
        yield Finding(
            "inferred classes", what, why, "Declare them with --classes, and fit again"
        )


def _unprotected_groups(run: Run) -> Iterator[Finding]:
    """Yield a finding if the source has groups but only single rows were protected."""
    g = run.report["guarantee"]
    unprotected = run.report["data"].get("grouped") and g["group_cap"] is None
    thing = name_unit_in(run.report)
    if unprotected and math.isfinite(g["epsilon"]):
        yield Finding(
            f"people with several {thing}s",
            f"the source has groups, but each {thing} was protected separately",
            f"For a person with k {thing}s, epsilon is about k times as large or more",
            "Fit again with --group-cap, which protects groups",
        )


def preprocessing(run: Run) -> Iterator[Finding]:
    """Yield a finding if a row's features may depend on other rows."""
    own = run.report["data"].get("extraction") or (run.head or {}).get("extraction")
    selection = run.report.get("selection") or {"networks": []}
    # the rows of a backbone that was not chosen decided the choice
    others = [network.get("extraction") for network in selection["networks"]]
    made = [own, *(facts for facts in others if facts != own)]
    for facts in made:
        yield from _of_extraction(facts)
    extra = sorted(run.tensors & {"center", "scale"})
    if extra and not any("ChannelMoment" in s.statistic for s in run.plan.specs):
        what = f"the head has {' and '.join(extra)}, but no release computed them"
        yield Finding(
            _PREPROCESSING,
            what,
            _FITTED,
            "Fit again with --center-share, which releases the mean with noise",
        )


def _of_extraction(facts: dict[str, Any] | None) -> Iterator[Finding]:
    """Yield the findings of one recorded extraction."""
    name, why = _PREPROCESSING, _FITTED
    if not facts:
        yield Finding(
            name,
            "the origin of the features is not recorded",
            why,
            "Use `dphead extract`, and fit again",
        )
        return
    backbone, transform = facts.get("backbone") or "", facts.get("transform") or {}
    kind = (facts.get("normalization") or {}).get("kind")
    if not made_of_images(facts) and not facts.get("attested"):
        what = (
            f"the features were imported or written from arrays (backbone={backbone!r})"
            ", and the origin of each row is not recorded"
        )
        todo = (
            "Use `dphead extract`. If each row depends on one image and on nothing "
            "fitted to these rows, import the rows with --not-fitted-on-these-rows"
        )
        yield Finding(name, what, why, todo)
    if kind not in _ROW_WISE:
        yield Finding(
            name,
            f"normalization {kind!r} may depend on other rows",
            why,
            "Use --normalize local, synthetic, group, unit or none",
        )
    mean = transform.get("mean")
    # fixed filters have no weights, so no mean belongs to them
    common = facts.get("weights_sha256") and tuple(mean or ()) in _PUBLIC_MEANS
    if mean is not None and not common:
        todo = "Show that mean and std are public, or extract with the model's mean"
        yield Finding(
            name,
            f"images were shifted by mean={mean}, which is not a common public mean",
            why,
            todo,
        )


def _selection_on_test_rows(run: Run) -> Iterator[Finding]:
    """Yield a finding if the settings may have been chosen by the test rows."""
    if (
        run.report.get("test_is") is not None
        and run.report["tuning"] == "NOT ACCOUNTED"
    ):
        what = (
            "heads were measured on test rows, and the results may have influenced the "
            "settings"
        )
        why = (
            "The best of several test accuracies is too high, and the choice depends "
            "on the test rows"
        )
        yield Finding(
            "test set used for selection",
            what,
            why,
            "Choose the settings without the test rows, and measure once at the end",
        )


def _private_metrics(run: Run) -> Iterator[Finding]:
    """Yield a finding for exact figures on private rows in the report or run folder."""
    name, why = (
        "private metrics stored",
        "They are exact functions of private rows, without noise",
    )
    test = run.report.get("test")
    if test is not None and run.report.get("test_is") != "public":
        yield Finding(
            name,
            "the report has test metrics, but the test rows are private",
            why,
            "Remove `test`",
        )
    if test is not None and run.report.get("test_rows") == "training rows":
        yield Finding(
            name,
            "the report has test metrics on the training rows",
            why,
            "Remove `test`; use other rows",
        )
    statistics = [r["statistic"] for r in run.report["guarantee"]["releases"]]
    known = {"test", "statement"}
    for key, source in _RELEASED.items():
        released = any(statistic.startswith(source) for statistic in statistics)
        if released or run.report.get(key) is None:
            known.add(key)
    for key in _metric_keys({k: v for k, v in run.report.items() if k not in known}):
        yield Finding(
            name,
            f"the report has {key}",
            why,
            "Remove it, or release it as a counting statistic",
        )
    for file in sorted(set(run.files) - _RUN_FILES):
        what, moved = (
            f"{file} is in the run folder, but is not part of the release",
            "Move it away before publishing",
        )
        yield Finding(name, what, "It may have exact functions of private rows", moved)


def _only_this_fit(run: Run) -> Iterator[Finding]:
    """Yield a finding if the ledger cannot count other fits on the same rows.

    A run on images (`finetune`) has no dataset id, and always names its ledger.
    """
    is_network = kind_of(run.report) == "network"
    named = is_network or run.report["data"].get("dataset_id")
    if run.report["ledger"]["path"] == ":memory:" or not named:
        why = "Other fits on the same rows add to this epsilon without being counted"
        yield Finding(
            "other fits uncounted",
            "there is no dataset id, so only this fit is counted",
            why,
            "Fit again with --ledger",
        )


def _unrecorded(run: Run) -> Iterator[Finding]:
    """Yield a finding if the ledger was deleted, replaced or set to an older state."""
    if run.fits is None:
        return
    ledger = run.report["ledger"]
    known = {f["fit_id"] for f in run.fits}
    why = "Its total omits a fit that was released"
    if ledger["fit_id"] not in known:
        what = "the data set's ledger does not have this fit"
        yield Finding(
            "fit not in the ledger",
            what,
            why,
            "Restore the ledger from a copy with this fit",
        )
    elif len(run.fits) < ledger["fits"]:
        what = (
            f"the ledger has {len(run.fits)} fits, but had {ledger['fits']} when this "
            "fit ended"
        )
        yield Finding(
            "fit not in the ledger",
            what,
            why,
            "Restore the ledger from a copy with all fits",
        )


def _fits_elsewhere(run: Run) -> Iterator[Finding]:
    """Yield a finding for fits on the same images in other ledgers."""
    for where in run.elsewhere:
        yield Finding(
            "fits in another ledger",
            f"this run's ledger does not count {where}",
            "Fits there add to this epsilon, and their results may have influenced the "
            "settings",
            "Fit with the data set's own ledger; state the sum over all ledgers",
        )


def notes(run: Run) -> list[str]:
    """Return notes for the reader: later fits, and facts that could not be checked."""
    ledger, found = run.report["ledger"], []
    if run.fits is None:
        found.append(
            f"the ledger {ledger['path']} is not reachable, so only the report's "
            "releases were recomputed"
        )
    elif len(run.fits) > ledger["fits"]:
        later = len(run.fits) - ledger["fits"]
        more = "1 later fit" if later == 1 else f"{later} later fits"
        found.append(
            f"{more}: the ledger's plain sum is now epsilon "
            f"{run.spent_now.epsilon:.5g}, not as stated"
        )
    if not run.files:
        found.append(
            "only a report was checked, without the head and other files of the run "
            "folder"
        )
    return found


_CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    _no_privacy,
    _fixed_seed,
    _delta_too_large,
    _unaccounted_tuning,
    _inferred_classes,
    _unprotected_groups,
    preprocessing,
    _selection_on_test_rows,
    _private_metrics,
    _only_this_fit,
    _unrecorded,
    _fits_elsewhere,
)


def _metric_keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of entries that are exact functions of rows."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if any(word in key for word in _PRIVATE_METRICS):
                yield f"{path}{key}"
            yield from _metric_keys(inner, f"{path}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _metric_keys(inner, path)
