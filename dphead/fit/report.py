"""Build `report.json` and the paragraph that states the guarantee.

The schema is in docs/report.md.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphead import __version__
from dphead.analysis.ledger_place import named
from dphead.analysis.profiles import (
    about_sum,
    all_profiles,
)
from dphead.analysis.protected import kind_of, name_unit, name_unit_in, stated_guarantee
from dphead.analysis.sealed import write_json
from dphead.fit.ledgers import Elsewhere
from dphead.fit.loop import FitResult
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger

SCHEMA = 1  # version of report.json's schema (docs/report.md)
_RELATION_MEANING = {  # {unit}: the unit of privacy; {thing}: what a row is called
    "zero_out": (
        "one {unit}'s contribution replaced by nothing, the number of {thing}s being "
        "public"
    ),
    "add_remove": ("one {unit} added or removed, the number of {thing}s being private"),
    "replace_one": (
        "one {unit} replaced by any other, the number of {thing}s being public"
    ),
}
TUNING = ("none", "post-processing", "public data", "charged", "NOT ACCOUNTED")


class Words(NamedTuple):
    """Hold the words of a statement for the trained object and its source.

    Attributes
    ----------
    name : str
        Name of the trained object, such as "head".
    source : str
        Name of its source, such as "features file".
    public : str
        Public facts besides class names and settings.
    private : str
        Data to keep private, besides timings and memory.
    """

    name: str = "head"
    source: str = "features file"
    public: str = "the frozen backbone"
    private: str = "features, row digests"


_HEAD = Words()
_NETWORK = Words("network", "source", "the initial weights", "images, row digests")


def guarantee(
    plan: Plan, private_noise: bool = True, thing: str = "image"
) -> dict[str, Any]:
    """Return a plan's guarantee as data for the report.

    Parameters
    ----------
    plan : Plan
        The executed plan.
    private_noise : bool, default True
        False if the noise came from a seed.
    thing : str, default "image"
        What a row is called.

    Returns
    -------
    dict
        Epsilon, delta, mu, rho, relation, unit, releases, and epsilon under the other
        accountants ("profiles").

    Notes
    -----
    `stated_guarantee` defines the numbers.
    """
    plan = plan if private_noise else plan.marked(private=False)
    profiles = {}
    if plan.private:
        profiles = all_profiles(plan.events(), plan.delta, plan.relation)
    return stated_guarantee(plan, thing) | {
        "group_cap": plan.group_cap,
        "group_mean": plan.group_mean,
        "calibrated_with": plan.accountant,
        "target_epsilon": plan.epsilon,
        "profiles": profiles,
    }


# part of a statement if shared images reveal other ledgers
_SHARED = (
    ", except the list of other ledgers and the warnings about them, which depend on "
    "the images that data sets share"
)
# sentence about test rows, by `test_is`
_OF_TEST_ROWS = {
    "private": (
        " The guarantee does not cover the test accuracy, an exact function of the "
        "test {thing}s. It was shown to the data holder and is not in this report."
    ),
    "public": " The test {thing}s were declared public. Their figures are exact.",
    None: "",
}


def _statement(report: dict[str, Any]) -> str:
    """Return a report's guarantee as a paragraph for readers who are not engineers."""
    g, ledger = report["guarantee"], report["ledger"]
    thing = name_unit_in(report)
    words = _HEAD if kind_of(report) == "head" else _NETWORK
    if np.isinf(g["target_epsilon"]):
        return (
            "Not private: noise and clipping were off (epsilon = inf). Do not publish "
            f"this {words.name} if the {thing}s are private."
        )
    if g["seeded"]:
        return (
            "Reproducible, not private: the noise was drawn from a fixed seed, for "
            "tests. Whoever knows the seed can remove the noise. Do not publish this "
            f"{words.name}."
        )
    grouped = g["group_cap"] is not None
    relation = _RELATION_MEANING[g["neighboring_relation"]].format(
        unit="group" if grouped else thing, thing=thing
    )
    unit, people = (
        f"one row{' (image)' if thing == 'image' else ''} of the {words.source}",
        f"people with several {thing}s have the guarantee for each {thing}, not for "
        f"all their {thing}s",
    )
    if grouped:
        unit, people = (
            f"{g['protected_unit']}, as the {words.source}'s group column says",
            "nor is a wrong group column",
        )
    count = (
        ""
        if g["neighboring_relation"] == "add_remove"
        else f" The number of training {thing}s, {report['data']['n_rows']}, is public."
    )
    shared = _SHARED if ledger["elsewhere"] else ""
    test = _OF_TEST_ROWS[report["test_is"]].format(thing=thing)
    return (
        f"The {words.name} is ({g['epsilon']:.4g}, {g['delta']:g})-differentially "
        f"private with respect to the training {thing}s and their labels. Protected "
        f"unit: {unit}; neighboring data sets differ in {relation}. Whoever sees the "
        f"{words.name} and this report, with any other knowledge and any feasible "
        "computation, can tell the two cases apart only as well as this bound allows. "
        "Everything that was computed from the training rows was released with "
        "Gaussian noise by the releases listed here, and no other number that depends "
        f"on them leaves the run{shared}.{count} The class names, the settings and "
        f"{words.public} are public and are not protected; {people}. Hyper-parameters: "
        f"see `tuning`. {_across_fits(ledger)}{test} The run's noisy releases, "
        f"{words.name} and report may be published; {words.private}, timings and the "
        "machine's memory may not."
    )


def _across_fits(ledger: dict[str, Any]) -> str:
    """Return the sentences about the total of all fits of a ledger.

    Only a budget is a guarantee for all fits. The sum of the fits is not.
    """
    if ledger["path"] == ":memory:":
        return "Only this fit is counted: other fits from the same data add to it."
    counted = (
        f"Other fits from the same data are counted in the ledger {ledger['path']}."
    )
    if ledger["elsewhere"]:
        counted = f"Fits in the ledger {ledger['path']} are counted. " + " ".join(
            uncounted(one) for one in ledger["elsewhere"]
        )
    total = f"epsilon = {ledger['total_epsilon']:.4g} at delta = {ledger['delta']:g}"
    budget = ledger["budget"]
    why = about_sum(ledger["total_epsilon"], ledger["total_accountant"])
    why = why and f" {why}"
    if budget:
        limit = f"epsilon = {budget['epsilon']:.4g} at delta = {budget['delta']:g}"
        return (
            f"{counted} The guarantee for all these fits is {limit}. This budget was "
            "fixed before the first fit. It is never exceeded, even if settings were "
            "chosen by the results of earlier fits. The plain sum of the fits so far "
            f"is {total}. The sum itself is no guarantee.{why}"
        )
    return (
        f"{counted} The plain sum of these fits so far is {total}. No budget was fixed "
        "before the first fit. Therefore the sum is a guarantee only if no fit's "
        f"settings were chosen by the results of another fit.{why}"
    )


class Tested(NamedTuple):
    """Hold test metrics, whether the rows are "public" or "private", and their origin.

    All fields are None if nothing was tested.
    """

    metrics: dict[str, Any] | None = None
    test_is: str | None = None
    origin: str | None = None


NOT_TESTED = Tested()


def uncounted(elsewhere: dict[str, Any]) -> str:
    """Return a sentence about a ledger that the run's ledger does not count.

    `elsewhere` is the dict that `Elsewhere.fact` returns.
    """
    fits = elsewhere["fits"]
    held = f"holds {fits} fit{'s' if fits != 1 else ''}"
    if fits is None:
        held = "is missing or unreadable, and may hold fits"
    return (
        f"The ledger {elsewhere['path']} {held} on {elsewhere['of']}. The epsilon "
        "spent there adds to this run's epsilon. No total of this run includes it."
    )


def build(
    result: FitResult,
    *,
    method: dict[str, Any],
    data: dict[str, Any],
    tuning: str,
    warnings: list[str],
    tested: Tested = NOT_TESTED,
    folder: Path | None = None,
    elsewhere: Sequence[Elsewhere] = (),
) -> dict[str, Any]:
    """Return the whole report as JSON data.

    Parameters
    ----------
    result : FitResult
        The fit.
    method, data : dict
        The report's "method" and "data".
    tuning : str
        A value of TUNING.
    warnings : list of str
        Warnings for the reader.
    tested : Tested
        Test metrics, kept only if the test rows are public. Default: none.
    folder : Path, optional
        Folder of the report. Paths of ledgers become relative to it. Default: full
        paths.
    elsewhere : sequence of Elsewhere
        Ledgers that the run's own ledger does not count.

    Raises
    ------
    ValueError
        If `tuning` is invalid.
    """
    if tuning not in TUNING:
        raise ValueError(f"tuning must be one of {', '.join(TUNING)}, got {tuning!r}.")
    thing = name_unit(data.get("extraction"))
    head, path = result.head, result.ledger.path
    report = {
        "schema": SCHEMA,
        "dphead": __version__,
        "guarantee": guarantee(result.plan, result.private_noise, thing),
        "method": method,
        "data": data,
        "ledger": ledger_totals(result.ledger, result.plan.events(), result.plan.delta)
        | {
            "path": path if folder is None else named(path, folder),
            "fit_id": result.fit_id,
            "elsewhere": [one.fact(folder) for one in elsewhere],
        },
        "expected_accuracy": head.estimate and asdict(head.estimate),
        "class_accuracy": head.class_accuracy and asdict(head.class_accuracy),
        "selection": None,
        "tuning": tuning,
        "warnings": warnings,
        "test": tested.metrics if tested.test_is == "public" else None,
        "test_is": tested.test_is,
        "test_rows": tested.origin,
    }
    return report | {"statement": _statement(report)}


def ledger_totals(
    ledger: Ledger, events: Sequence[GaussianEvent], delta: float
) -> dict[str, Any]:
    """Return a ledger's budget, its total, and the epsilon that remains.

    The remaining epsilon is at `delta`, for a fit with the releases `events`. The total
    is at `delta` too if there is no budget.
    """
    budget = ledger.budget()
    remaining = ledger.remaining(events, delta)
    delta = budget["delta"] if budget else delta
    spent = ledger.spent(delta)
    return {
        "fits": ledger.count_fits(),
        "total_epsilon": spent.epsilon,
        "total_is": "plain sum",
        "total_accountant": spent.accountant,
        "delta": delta,
        "budget": budget,
        "remaining": remaining,
    }


def write(path: Path, report: dict[str, Any]) -> None:
    """Write JSON data with a digest, and inf as a string.

    The write is atomic and durable: after a crash the file is complete or missing.
    """
    write_json(path, plain(report))


def plain(value: Any) -> Any:
    """Return data as plain JSON: lists for arrays, strings for inf and nan."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
