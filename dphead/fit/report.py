"""Build `report.json` and the paragraph that states the guarantee.

The schema is in docs/report.md.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphead import __version__
from dphead.analysis.ledger_place import named
from dphead.analysis.profiles import (
    about_sum,
    all_profiles,
    total_rho,
)
from dphead.analysis.protected import name_unit, protected_unit
from dphead.analysis.sealed import write_json
from dphead.fit.loop import FitResult
from dphead.planning.plan import Plan
from dphead.privacy import accounting

SCHEMA = 1  # version of report.json's schema (docs/report.md)
RELATION_MEANING = {  # {unit}: the unit of privacy; {thing}: what a row is called
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


@dataclass(frozen=True)
class Words:
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

    name: str
    source: str
    public: str
    private: str


HEAD = Words("head", "features file", "the frozen network", "features, row digests")
NETWORK = Words("network", "source", "the initial weights", "images, row digests")


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
    mu and rho are None unless every release is a full-batch Gaussian. Without noise, or
    with a seed, "private" is False and "epsilon" is infinite. "nominal_epsilon" is the
    epsilon of the same plan without a seed.
    """
    nominal = plan.epsilon_spent()
    plan = plan if private_noise else plan.marked(private=False)
    events = plan.events()
    return {
        "private": plan.private,
        "seeded": not private_noise,
        "epsilon": plan.epsilon_spent(),
        "nominal_epsilon": nominal,
        "delta": plan.delta,
        "mu": accounting.total_mu(events) if plan.private else None,
        "rho": total_rho(events) if plan.private else None,
        "neighboring_relation": plan.relation,
        "protected_unit": protected_unit(plan.group_cap, thing, plan.group_mean),
        "group_cap": plan.group_cap,
        "group_mean": plan.group_mean,
        "calibrated_with": plan.accountant,
        "target_epsilon": plan.epsilon,
        "profiles": all_profiles(events, plan.delta, plan.relation)
        if plan.private
        else {},
        "releases": plan.summary(),
    }


# part of a statement if shared images reveal other ledgers
_SHARED = (
    ", but for the list of other ledgers and the warnings of them, which follow from "
    "the images that data sets share"
)
# sentence about test rows, by `test_is`
_OF_TEST_ROWS = {
    "private": (
        " The test accuracy is an exact function of the test {thing}s and is not "
        "covered: it was shown to the data holder and is not in this report."
    ),
    "public": " The test {thing}s were declared public; the figures on them are exact.",
    None: "",
}


def statement(
    g: dict[str, Any],
    *,
    n_rows: int,
    ledger: dict[str, Any],
    seeded: bool,
    test_is: str | None,
    words: Words = HEAD,
    thing: str = "image",
) -> str:
    """Return the guarantee as a paragraph for readers who are not engineers.

    Parameters
    ----------
    g : dict
        The result of `guarantee`.
    n_rows : int
        Number of training rows; public unless the relation is add_remove.
    ledger : dict
        The report's "ledger".
    seeded : bool
        Whether the noise came from a seed.
    test_is : str or None
        "private", "public", or None without test rows.
    words : Words
        Names of the trained object and its source. Default: the names for a head.
    thing : str, default "image"
        What a row is called.
    """
    if np.isinf(g["target_epsilon"]):
        return (
            "Not private: noise and clipping were off (epsilon = inf). Do not publish "
            f"this {words.name} if the {thing}s are private."
        )
    if seeded:
        return (
            "Reproducible, not private: the noise was drawn from a fixed seed, for "
            "tests. Whoever knows the seed can remove the noise. Do not publish this "
            f"{words.name}."
        )
    grouped = g["group_cap"] is not None
    relation = RELATION_MEANING[g["neighboring_relation"]].format(
        unit="group" if grouped else thing, thing=thing
    )
    unit, people = (
        f"one row{' (image)' if thing == 'image' else ''} of the {words.source}",
        f"people with several {thing}s have the guarantee for each {thing}, ",
    )
    people += "not for all of them together"
    if grouped:
        unit, people = (
            f"{g['protected_unit']}, as the {words.source}'s group column says",
            "nor is a wrong group column",
        )
    count = (
        ""
        if g["neighboring_relation"] == "add_remove"
        else f" The number of training {thing}s, {n_rows}, is public."
    )
    across = _across_fits(ledger)
    shared = _SHARED if ledger["elsewhere"] else ""
    test = _OF_TEST_ROWS[test_is].format(thing=thing)
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
        f"see `tuning`. {across}{test} The run's noisy releases, {words.name} and "
        f"report may be published; {words.private}, timings and the machine's memory "
        "may not."
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
        counted = (
            f"Fits in the ledger {ledger['path']} are counted together. "
            + " ".join(uncounted(one) for one in ledger["elsewhere"])
        )
    total = f"epsilon = {ledger['total_epsilon']:.4g} at delta = {ledger['delta']:g}"
    budget = ledger["budget"]
    why = about_sum(ledger["total_epsilon"], ledger["total_accountant"])
    why = why and f" {why}"
    if budget:
        limit = f"epsilon = {budget['epsilon']:.4g} at delta = {budget['delta']:g}"
        return (
            f"{counted} The guarantee for all of them together is {limit}, the budget "
            "that was fixed before the first of them and is never exceeded, whatever "
            "was chosen after seeing earlier results. Their plain sum so far is "
            f"{total}; it is a count and no guarantee by itself.{why}"
        )
    return (
        f"{counted} Their plain sum so far is {total}. No budget was fixed before the "
        "first of them, so this sum is a guarantee for all of them together only if "
        "the settings of each were fixed without regard to the results of the others."
        f"{why}"
    )


class Tested(NamedTuple):
    """Hold test metrics, whether the rows are "public" or "private", and their origin.

    All three are None if nothing was tested.
    """

    metrics: dict[str, Any] | None
    test_is: str | None
    origin: str | None


class Beside(NamedTuple):
    """Hold the report's folder and other ledgers.

    Attributes
    ----------
    folder : Path or None
        Folder of the report; paths of ledgers become relative to it. None keeps full
        paths.
    elsewhere : sequence of dict
        `Elsewhere.fact` of each ledger that the run's own ledger does not count.
    """

    folder: Path | None = None
    elsewhere: Sequence[dict[str, Any]] = ()


NOT_TESTED = Tested(None, None, None)


def uncounted(elsewhere: dict[str, Any]) -> str:
    """Return a sentence about a ledger that the run's ledger does not count.

    `elsewhere` is the dict that `Elsewhere.fact` returns.
    """
    fits = elsewhere["fits"]
    held = f"holds {fits} fit{'s' if fits != 1 else ''}"
    if fits is None:
        held = "is gone or cannot be read, and may hold fits"
    return (
        f"The ledger {elsewhere['path']} {held} on {elsewhere['of']}: what was spent "
        "there adds to this run's epsilon, and is in none of its totals."
    )


def build(
    result: FitResult,
    *,
    method: dict[str, Any],
    data: dict[str, Any],
    tuning: str,
    warnings: list[str],
    tested: Tested = NOT_TESTED,
    words: Words = HEAD,
    beside: Beside | None = None,
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
    words : Words
        Names of the trained object and its source. Default: the names for a head.
    beside : Beside, optional
        The report's folder and other ledgers. Default: none.

    Raises
    ------
    ValueError
        If `tuning` is invalid.
    """
    if tuning not in TUNING:
        raise ValueError(f"tuning must be one of {TUNING}, got {tuning=}. Choose one.")
    thing = name_unit(data.get("extraction"))
    g = guarantee(result.plan, result.private_noise, thing)
    ledger = _of_ledger(result, beside or Beside())
    return {
        "schema": SCHEMA,
        "dphead": __version__,
        "guarantee": g,
        "statement": statement(
            g,
            n_rows=data["n_rows"],
            ledger=ledger,
            seeded=not result.private_noise,
            test_is=tested.test_is,
            words=words,
            thing=thing,
        ),
        "method": method,
        "data": data,
        "ledger": ledger,
        "expected_accuracy": None
        if result.head.estimate is None
        else asdict(result.head.estimate),
        "class_accuracy": None
        if result.head.class_accuracy is None
        else asdict(result.head.class_accuracy),
        "selection": None,  # filled in for a head by `fit.run`
        "tuning": tuning,
        "warnings": warnings,
        "test": tested.metrics if tested.test_is == "public" else None,
        "test_is": tested.test_is,
        "test_rows": tested.origin,
    }


def _of_ledger(result: FitResult, beside: Beside) -> dict[str, Any]:
    """Return the report's entry about the charged ledger and uncounted ledgers."""
    budget = result.ledger.budget()
    delta = budget["delta"] if budget else result.plan.delta
    spent, path = result.ledger.spent(delta), result.ledger.path
    return {
        "path": path if beside.folder is None else named(path, beside.folder),
        "fit_id": result.fit_id,
        "fits": len(result.ledger.fits()),
        "total_epsilon": spent.epsilon,
        "total_is": "plain sum",
        "total_accountant": spent.accountant,
        "delta": delta,
        "budget": budget,
        "remaining": result.ledger.remaining(result.plan.events(), result.plan.delta),
        "elsewhere": list(beside.elsewhere),
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
