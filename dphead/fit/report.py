"""Build `report.json` and the paragraph that states the guarantee.

The schema is in docs/report.md.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from dphead import __version__
from dphead.analysis.card.page import template
from dphead.analysis.ledger_place import named
from dphead.analysis.profiles import (
    about_sum,
    all_profiles,
)
from dphead.analysis.protected import (
    about_copies,
    about_people,
    budget_is,
    counts_all_fits,
    counts_one_fit,
    kind_of,
    name_counted,
    name_unit,
    name_unit_in,
    stated_guarantee,
)
from dphead.analysis.records import SCHEMA
from dphead.fit.fit import FitResult
from dphead.fit.options import TUNING
from dphead.planning.plan import Plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger, spent
from dphead.privacy.ledger.store import IDENTITY


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
        Name of a row in the report.

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


def statement_of(report: dict[str, Any]) -> str:
    """Return a report's guarantee as a paragraph for readers who are not engineers."""
    ledger = report["ledger"]
    text = template("statement.j2").render(
        report=report,
        g=report["guarantee"],
        ledger=ledger,
        budget_is=budget_is(ledger),
        counts_one_fit=counts_one_fit(ledger),
        counts_all_fits=counts_all_fits(report),
        about_copies=about_copies(report),
        kind=kind_of(report),
        thing=name_unit_in(report),
        things=name_counted(report),
        infinite=float("inf"),
        about_people=about_people(report["data"]),
        others=[uncounted(one, ledger["path"]) for one in ledger["elsewhere"]],
        about_sum=about_sum(ledger["total_epsilon"], ledger["total_accountant"]),
    )
    return text.strip().replace("\n", " ")


class Tested(NamedTuple):
    """Hold test metrics, and the test rows' privacy ("public", "private") and origin.

    All fields are None if nothing was tested.
    """

    metrics: dict[str, Any] | None = None
    test_is: str | None = None
    origin: str | None = None


NOT_TESTED = Tested()


def uncounted(elsewhere: dict[str, Any], own: str | None = None) -> str:
    """Return a sentence about fits that the run's ledger does not count.

    `elsewhere` is the dict that `Elsewhere.fact` returns. `own` is the name of the
    run's ledger, which a ledger of another home can also have.
    """
    fits = elsewhere["fits"]
    the = "A different ledger" if elsewhere["path"] == own else "The ledger"
    # later fits may be unknown to the home of this report
    held = f"holds at least {fits} fit{'s' if fits != 1 else ''}"
    if fits is None:
        held = "is missing or unreadable, and may hold fits"
    elif elsewhere.get("protects"):
        held += f" for {elsewhere['protects']}"
    return (
        f"{the} {elsewhere['path']} {held} on {elsewhere['of']}. The privacy loss "
        "of these fits adds to this run's, and no total of this run includes it. "
        "Epsilons add up only for one relation and one unit, such as the groups of one "
        "column."
    )


def build_report(
    result: FitResult[Any],
    *,
    method: dict[str, Any],
    data: dict[str, Any],
    tuning: str,
    warnings: list[str],
    tested: Tested = NOT_TESTED,
    folder: Path | None = None,
    elsewhere: Sequence[dict[str, Any]] = (),
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
    elsewhere : sequence of dict
        Entries (`Elsewhere.fact`) of other ledgers of the same images or people.

    Raises
    ------
    ValueError
        If `tuning` is invalid.
    """
    if tuning not in TUNING:
        raise ValueError(
            f"tuning must be one of {', '.join(TUNING)}, got {tuning!r}. Choose one of "
            "these."
        )
    thing = name_unit(data.get("extraction"))
    head, path = result.trained, result.ledger.path
    report = {
        "schema": SCHEMA,
        "dphead": __version__,
        "guarantee": guarantee(result.plan, result.private_noise, thing),
        "method": method,
        "data": data,
        "ledger": ledger_totals(result.ledger, result.plan.events(), result.plan.delta)
        | {
            "path": path if folder is None else named(path, folder),
            "identity": result.ledger.meta(IDENTITY),
            "fit_id": result.fit_id,
            "elsewhere": list(elsewhere),
        },
        "expected_accuracy": head.estimate and asdict(head.estimate),
        "class_accuracy": head.class_accuracy and asdict(head.class_accuracy),
        "balanced": head.balanced,
        "tuning": tuning,
        "warnings": warnings,
        "test": tested.metrics if tested.test_is == "public" else None,
        "test_is": tested.test_is,
        "test_rows": tested.origin,
    }
    return report | {"statement": statement_of(report)}


def ledger_totals(
    ledger: Ledger, events: Sequence[GaussianEvent], delta: float
) -> dict[str, Any]:
    """Return a ledger's budget, its total, and the epsilon that remains.

    The remaining epsilon is at `delta`, for a fit with the releases `events`. The total
    is at `delta` too if there is no budget.
    """
    remaining, budget = ledger.remaining(events, delta), ledger.budget()
    delta = budget["delta"] if budget else delta
    # read all four at one moment, because other processes may charge
    charged, fits, relation, limit = ledger.totals()
    total = spent(charged, fits, delta, relation, limit)
    return {
        "fits": fits,
        "total_epsilon": total.epsilon,
        "total_is": "plain sum",
        "total_accountant": total.accountant,
        "delta": delta,
        "budget": budget,
        "is_sum": ledger.is_sum(),
        "remaining": remaining,
    }
