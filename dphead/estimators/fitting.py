"""Carry out what every estimator's fit does once rows and solver exist.

It warns, plans, tries the sums, charges, fits, and reports the guarantee. Before the
charge no row decides anything.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dphead.estimators.guarantee import SEEDED, Privacy, privacy_of
from dphead.estimators.leakage_warnings import around, is_news
from dphead.estimators.ledger import in_other_ledgers, ledger_of
from dphead.fit.loop import Planned, Run, door_for, fit_head, reserve
from dphead.planning import presets
from dphead.planning.plan import large_delta, make_plan
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import Ledger
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo, Solver


class PrivacyWarning(UserWarning):
    """Warn that the guarantee holds, but is weaker than a reader may think."""


class PrivateNotice(UserWarning):
    """Report what private rows say without noise, for the data holder alone.

    It comes after a fit, is never raised, and is in no head, ledger or attribute.
    """


@dataclass(frozen=True)
class Data:
    """Hold rows that are read after the charge, and what identifies them.

    Attributes
    ----------
    rows : callable
        Reads the rows.
    facts : ProblemInfo
        Their public facts.
    dataset_id, feature_space : str or None, str
        Those of a features file; None and "" for arrays.
    classes_seen : bool
        Whether the classes were read off the labels: not private.
    notice : callable
        Returns what to tell the data holder alone after the fit; "" for nothing.
    """

    rows: Callable[[], Rows]
    facts: ProblemInfo
    dataset_id: str | None = None
    feature_space: str = ""
    classes_seen: bool = False
    notice: Callable[[], str] = str


@dataclass(frozen=True)
class Fitted:
    """Hold the result of a fit; `head` is what the solver returned."""

    head: Any
    privacy: Privacy
    ledger: Ledger


def head_plan(
    estimator: Any, solver: Solver, facts: ProblemInfo, accountant: str = "auto"
) -> Planned:
    """Return a linear head's plan, with the summation backend that it needs.

    The estimator's epsilon, delta, relation and group_cap decide.
    """
    plan = make_plan(
        solver,
        facts,
        epsilon=estimator.epsilon,
        delta=delta_of(estimator),
        relation=estimator.relation,
        accountant=accountant,
        group_cap=estimator.group_cap,
    )
    return Planned(solver, plan, door_for(solver, plan, facts))


def carry_out(
    estimator: Any,
    data: Data,
    prepare: Callable[[], Planned],
    *,
    description: str,
    notes: Sequence[str] = (),
) -> Fitted:
    """Warn, plan, charge and fit: the same for a head and for a network.

    Parameters
    ----------
    estimator : estimator
        Its parameters epsilon, delta, allow_large_delta, random_state and ledger
        decide. The caller has checked them (`check_settings`).
    data : Data
        The rows and what identifies them.
    prepare : callable
        Returns the solver, plan and summation backend.
    description : str
        The ledger's text for this fit.
    notes : sequence of str, default ()
        Further notes on the guarantee.

    Returns
    -------
    Fitted
        The head, its guarantee and the ledger.

    Raises
    ------
    ValueError, LedgerError
        With nothing charged.
    """
    seed = seed_of(estimator.random_state)
    noise = NoiseSource(seed)
    facts = data.facts
    large = confirmed_delta(estimator, facts)
    planned = prepare()
    solver, plan = planned.solver, planned.plan
    ledger = ledger_of(estimator.ledger, data.dataset_id)
    counted = ledger.path != IN_MEMORY or isinstance(estimator.ledger, Ledger)
    weaker: dict[str, str] = {}
    if plan.private:
        total = ledger.spent(plan.delta, *plan.events()).epsilon if counted else None
        weaker = around(estimator, total)
        weaker |= {} if noise.private else {"seed": SEEDED}
    weaker["ledgers"] = in_other_ledgers(ledger, data.dataset_id)
    for subject, text in weaker.items():
        if text and is_news(estimator, subject):
            warnings.warn(text, PrivacyWarning, stacklevel=3)
    weaker.pop("seed", None)  # `privacy_of` adds this note itself
    charged = reserve(
        solver,
        plan,
        ledger,
        feature_space=data.feature_space,
        seed=seed,
        description=description,
    )
    run = Run(charged=charged, noise=noise, summer=planned.summer)
    result = fit_head(solver, data.rows(), facts, plan, run)
    privacy = privacy_of(
        plan,
        n_rows=facts.n_rows,
        seeded=not noise.private,
        counted=counted,
        classes_seen=data.classes_seen,
        warning=" ".join(filter(None, [large, *notes, *weaker.values()])),
    )
    _tell_holder(data.notice())
    return Fitted(result.head, privacy, ledger)


def _tell_holder(text: str) -> None:
    """Warn the data holder of what private rows say, if anything.

    If a filter turns warnings into errors, the text is printed instead: a row's value
    must not stop a fit.
    """
    try:
        if text:
            warnings.warn(text, PrivateNotice, stacklevel=4)
    except PrivateNotice:
        print(text, file=sys.stderr)


def delta_of(estimator: Any) -> float:
    """Return an estimator's delta; None means its preset's, if it has one."""
    return presets.delta_of(getattr(estimator, "preset", None), estimator.delta)


def public_rows(estimator: Any, n_rows: int) -> int:
    """Return the public number of rows: `n_rows`, or nominal_n under add/remove.

    Raises ValueError unless nominal_n is given exactly under add/remove.
    """
    relation, nominal = estimator.relation, estimator.nominal_n
    if (relation == "add_remove") != (nominal is not None):
        raise ValueError(
            "nominal_n must be given exactly when the number of rows is private, "
            f"got {relation=}, nominal_n={nominal}. Correct one of them."
        )
    return nominal if nominal is not None else n_rows


def confirmed_delta(estimator: Any, facts: ProblemInfo) -> str:
    """Warn of a delta of 1/n or more, and return the warning; "" for a smaller delta.

    Raises ValueError for such a delta unless the estimator allows it.
    """
    cap = getattr(estimator, "group_cap", None)
    delta = delta_of(estimator)
    text = large_delta(estimator.epsilon, delta, facts.n_rows, cap)
    if text is None:
        return ""
    if not estimator.allow_large_delta:
        raise ValueError(
            f"{text} Use a smaller one, or confirm with allow_large_delta=True."
        )
    warnings.warn(text, PrivacyWarning, stacklevel=4)
    return text


def seed_of(random_state: int | None) -> int | None:
    """Return the seed of a fit's noise: None for a guarantee. 0 is a seed too."""
    return None if random_state is None else int(random_state)
