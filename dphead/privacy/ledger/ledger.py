"""Charge fits to the append-only record of all releases from a data set.

`Ledger.reserve` charges a whole fit, durably, before a release uses a row. `Charge`
then hands out the reserved releases in order. Entries are never changed or deleted.
So a crash can waste budget, but it cannot hide spent budget.
"""

import json
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from dphead.privacy.accounting import (
    GaussianEvent,
    event_of,
    filter_order,
    together,
)
from dphead.privacy.ledger import seals
from dphead.privacy.ledger.budget import (
    Spent,
    check_divergence,
    check_epochs,
    in_words,
    remaining,
    spent,
)
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.groups import Groups
from dphead.privacy.ledger.schema import (
    FITS,
    PROGRESS,
    RELEASES,
    TABLES,
    HeldLedger,
    LedgerError,
    canonical,
    whole_hour,
)
from dphead.privacy.ledger.store import SUM, LedgerFile
from dphead.privacy.noise import refuse_compilation
from dphead.privacy.python_values import python_value
from dphead.privacy.rounding import as_declared, declared_at, rounded_up


class Tried(NamedTuple):
    """Hold the result of `Ledger.try_fits`.

    Attributes
    ----------
    refused : int or None
        Position of the first fit that is refused, from 0. None if all are charged.
    reason : str or None
        Why the fit is refused. None if all are charged.
    spent : Spent
        The ledger's total with the fits before the refused one, or with all fits.
    """

    refused: int | None
    reason: str | None
    spent: Spent


class _ExceededError(LedgerError):
    """Raised if a fit would exceed the budget."""


class Ledger(LedgerFile):
    """Open the ledger of one data set.

    Parameters
    ----------
    path : str or Path, default ":memory:"
        An SQLite file, or the URL or the name of a ledger on a team's server. The str
        ":memory:" keeps the ledger in memory: it is not durable, and it counts the fits
        of this object only.
    dataset_id : str or None, default None
        The data set's public id, which the URL of a server needs. An existing
        file with another id is refused, and with `read_only` also one without an id.
    read_only : bool, default False
        Whether to open an existing file without writing to it. The only exception: the
        unfinished transaction of a process that died is rolled back.

    Raises
    ------
    LedgerError
        If the file or the server cannot be used. If the file is not a sound SQLite
        file. If the ledger belongs to another data set.

    Guarantee
    ---------
    Only the process that opened this object can charge, begin or commit with it. A fork
    gets a LedgerError, because its copy of a ledger in memory could answer the same
    charge a second time.
    """

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Fix the total (epsilon, delta) of all fits, once, before the first fit.

        This method writes the budget to the ledger only. DPHEAD_HOME lists the ledger
        and its budget after the first charge. `dphead ledger budget` also writes this
        entry, before a charge.

        Parameters
        ----------
        epsilon : float
            Finite and positive.
        delta : float
            In (0, 1).

        Raises
        ------
        LedgerError
            If a value is invalid, or if the ledger is damaged, takes no charges, cannot
            be written, or has fits but no budget. If a merge into it is not finished.
            If another budget was fixed before.

        Guarantee
        ---------
        A privacy filter is valid only for a budget that is fixed beforehand. So a later
        or a second budget is refused.
        """
        epsilon, delta = python_value(epsilon), python_value(delta)
        if epsilon is True or not (0 < epsilon < math.inf and 0 < delta < 1):
            raise LedgerError(
                "A budget needs a finite positive epsilon and a delta between 0 and 1, "
                f"got {epsilon} and {delta}. Use a small epsilon, such as 1, and a "
                "delta below 1 / (number of rows)."
            )
        # The budget alone decides the order: a later choice would depend on results.
        order = filter_order(epsilon, delta)
        wanted = {"epsilon": epsilon, "delta": delta, "order": order}
        with self.transaction(kept=lambda: self.budget() == wanted):
            record = seals.check_undamaged(self)
            self.check_joined()
            # A budget that is chosen after a release could depend on its value.
            kept = _budget_in(record.facts)
            if kept is None and record.plans:
                raise LedgerError(
                    "A budget can be set only before the first fit. The number of fits "
                    f"in this ledger is {len(record.plans)}. Fit without a budget. "
                    "`dphead ledger show` prints the spent epsilon."
                )
            if kept not in (None, wanted):
                raise LedgerError(
                    "A budget cannot change. It is "
                    f"{declared_at(kept['epsilon'], kept['delta'])}, got "
                    f"{declared_at(epsilon, delta)}. Keep the budget. `dphead ledger "
                    "show` prints the epsilon that remains."
                )
            if kept is None:  # a merge keeps its budgets under other keys
                self.set_once("budget", json.dumps(wanted))
                seals.seal(self)

    def budget(self) -> dict[str, float] | None:
        """Return epsilon, delta and RDP order of the budget, or None without one.

        After a merge, this is the smallest of `budgets`.
        """
        return _budget_in(self.facts())

    def budgets(self) -> list[dict[str, float]]:
        """Return the budget and all smaller budgets that merges fixed."""
        return seals.budgets_in(self.facts())

    def is_sum(self) -> bool:
        """Return whether a merge made the ledger's total a plain sum (`moving.merge`).

        Its budget, if any, then did not apply to all fits from the start.
        """
        return self.meta(SUM) is not None

    def events(self) -> list[GaussianEvent]:
        """Return the events of all releases ever reserved. Each counts as spent."""
        # Reserved, not committed: a release that never ran was charged too.
        spec = RELEASES.c.spec
        rows = self.query(select(spec, func.count()).group_by(spec))
        return together(
            replace(event_of(json.loads(spec)), count=count) for spec, count in rows
        )

    def spent(self, delta: float, *more: GaussianEvent) -> Spent:
        """Return the total epsilon of all fits, at the budget's delta or at `delta`.

        Parameters
        ----------
        delta : float
            Used only if the ledger has no budget.
        *more : GaussianEvent
            Releases of one further fit, counted as if it were charged.

        Returns
        -------
        Spent
            As the function `spent` computes it.
        """
        events, number, relation, budget = self.totals()
        delta = budget["delta"] if budget else delta
        events = together([*events, *more])
        return spent(events, number + bool(more), delta, relation, budget)

    def remaining(self, kind: Sequence[GaussianEvent], delta: float) -> float | None:
        """Return the largest epsilon at `delta` that one more fit may take.

        The further fit is like `kind` (`budget.remaining`). Return None if there is no
        budget.
        """
        # One snapshot, so that all four values are of the same moment.
        events, number, relation, budget = self.totals()
        if budget is None:
            return None
        return remaining(events, number, kind, relation, budget, delta)

    def totals(self) -> tuple[list[GaussianEvent], int, str, dict[str, float] | None]:
        """Return the events, the number of fits, the relation and the budget."""
        with self.snapshot():
            facts = self.facts()
            relation = facts.get("relation", "zero_out")
            return self.events(), self.count_fits(), relation, _limit_in(facts)

    def try_fits(
        self, plans: Sequence[tuple[Sequence[dict[str, Any]], float]]
    ) -> Tried:
        """Return whether several planned fits can all be charged, in this order.

        Parameters
        ----------
        plans : sequence of (specs, delta), not empty
            For each fit, `ReleaseSpec.row()` of its releases, and its own delta.

        Returns
        -------
        Tried
            The first refused fit, if any, and the total with the fits before it.

        Raises
        ------
        LedgerError
            If the ledger cannot be read.

        Guarantee
        ---------
        Nothing is charged or written. `reserve` charges the fits to a copy of the
        ledger in memory, so the decision is the filter's own. It holds until another
        fit is charged. Groups are not compared.
        """
        # A copy in memory, so that `reserve` itself decides and nothing is written.
        copy = Ledger()
        with self.snapshot():
            for table in TABLES.sorted_tables:
                copy.add(table, *self.rows(table))
        refused = reason = None
        # Try the fits in the order of their charges, because the order can decide.
        for number, (specs, delta) in enumerate(plans):
            fit = {"epsilon": 0.0, "delta": delta, "description": "", "plan_hash": ""}
            try:
                copy.reserve(specs, **fit)
            except LedgerError as error:
                refused, reason = number, str(error)
                break
        return Tried(refused, reason, copy.spent(plans[0][1]))

    def reserve(
        self,
        specs: Sequence[dict[str, Any]],
        *,
        epsilon: float,
        delta: float,
        description: str,
        plan_hash: str,
        store: Path | None = None,
        fit_id: str | None = None,
        groups: Groups | None = None,
    ) -> "Charge[Ledger]":
        """Charge a whole fit durably, or raise LedgerError.

        After a LedgerError nothing is charged, but LostAnswer leaves this unknown.

        Parameters
        ----------
        specs : sequence of dict
            `ReleaseSpec.row()` of each release, in order.
        epsilon, delta : float
            The fit's own privacy parameters, which are recorded.
        description : str
            Text that describes the fit.
        plan_hash : str
            Digest of the plan, which `resume` compares.
        store : Path or None, default None
            Folder for the committed values, for a resume. None stores none.
        fit_id : str or None, default None
            An id from `new_fit_id`; None draws one. A caller that writes it down before
            this call can find the charge again after a crash.
        groups : Groups, optional
            The groups of the rows, which are compared with those of earlier fits. None
            if the rows have no data set.

        Returns
        -------
        Charge
            The reserved releases.

        Raises
        ------
        LedgerError
            If the releases differ in relation or unit of privacy, from each other or
            from earlier fits. If earlier fits have different groups. If an epoch of
            allocated rows is not whole. If the ledger is damaged, takes no charges,
            cannot be written, or already holds `fit_id`. If a merge into the ledger is
            not finished (`check_joined`). If `store` cannot be used
            (`Charge`). If the charge would exceed the budget or does not fit the
            budget's accounting.
        LostAnswer
            If COMMIT failed and it is unknown whether the fit is charged.
        RuntimeError
            If torch compiles the caller (`refuse_compilation`).

        Guarantee
        ---------
        A `fit_id` is charged once. After this returns, the sum of all fits ever
        reserved is within the budget, if there is one. Only a later merge of ledgers
        can make the sum exceed the budget (`moving.merge`). Epsilon may exceed it by a
        relative 1e-9 (`_check`).
        """
        refuse_compilation()  # before the charge, as `release` does after it
        # One relation and one unit, so that the epsilons of all releases add up.
        kinds = {(s["relation"], s["group_cap"]) for s in specs}
        if len(kinds) != 1:
            found = (f"{relation} with cap {cap}" for relation, cap in kinds)
            raise LedgerError(
                "All releases of a fit must have one relation and one group cap, got "
                f"{', '.join(sorted(found)) or 'no release'}. Use one relation and one "
                "group cap for all releases."
            )
        ((relation, cap),) = kinds
        check_epochs(specs)
        # The caller stored this id before, and finds the charge by it after a crash.
        fit_id = fit_id or new_fit_id()
        fit = {
            "fit_id": fit_id,
            # Finer times would reveal how long a sample took.
            "created": whole_hour(time.time()),
            "epsilon": repr(epsilon),
            "delta": delta,
            "relation": relation,
            "plan_hash": plan_hash,
            "description": description,
        }
        releases = [
            {
                "fit_id": fit_id,
                "sequence": i,
                "label": s["label"],
                "noise_multiplier": s["noise_multiplier"],
                "sampling_prob": s["sampling_prob"],
                "spec": canonical(s),
            }
            for i, s in enumerate(specs)
        ]
        # Another process may hold the folder: find out before the charge.
        reserved = Charge(self, fit_id, store)
        events = together(event_of(s) for s in specs)
        try:
            # One transaction: the check of the budget and the charge see one state.
            with self.transaction(kept=lambda: self.holds(fit_id)):
                record = seals.check_undamaged(self)
                self.check_joined()
                # A crash between the charge and the first release leaves the id
                # charged.
                if fit_id in record.plans:
                    raise LedgerError(
                        f"Fit {fit_id} was already charged. Run the same command again "
                        "to resume it."
                    )
                self._fix_unit(record.facts, relation, cap)
                if groups is not None:
                    for key, value in groups.fixed_in(self).items():
                        self.set_once(key, value)
                self._check(events, relation, record)
                self.add(FITS, fit)
                self.add(RELEASES, *releases)
                # In the same transaction, so that every fit has its seal.
                seals.seal(self)
        except BaseException as error:
            # Nothing was charged, or this is unknown (LostAnswer). No row was read.
            reserved.leave()
            if isinstance(error, _ExceededError):
                budget = self.budget() or {}
                left = in_words(self.remaining(events, delta) or 0.0, delta, budget)
                raise LedgerError(f"{error} Nothing was charged: {left}.") from None
            if isinstance(error, IntegrityError):
                raise LedgerError(
                    "Another process charged this ledger at the same moment. This fit "
                    "was not charged. Run this command again."
                ) from None
            # The transaction was not written (`LedgerFile.transaction`).
            if isinstance(error, HeldLedger):
                raise HeldLedger(f"{error} Nothing was charged.") from None
            raise
        return reserved

    def verify(self) -> list[str]:
        """Return descriptions of the damage that is found (`seals.damage_of`)."""
        return seals.damage_of(self)

    def holds(self, fit_id: str) -> bool:
        """Return whether a fit with this id was charged."""
        return (
            self.first(select(FITS.c.fit_id).where(FITS.c.fit_id == fit_id)) is not None
        )

    def _fix_unit(self, facts: dict[str, str], relation: str, cap: int | None) -> None:
        """Fix relation and unit at the first fit, or raise LedgerError for other ones.

        The unit is a row or a group. Fits for groups may have different caps: each is
        charged at its own cap (proofs/groups.md, "One unit per ledger").
        """
        kept = facts.get("relation") or self.set_once("relation", relation)
        if kept != relation:
            raise LedgerError(
                "All fits of a ledger need the relation of its first fit, which is "
                f"{kept}, got {relation}. Set `--relation` (`relation`) to {kept}."
            )
        first = facts.get("group_cap") or self.set_once("group_cap", json.dumps(cap))
        if (first == "null") != (cap is None):
            first, found = "groups", "single rows"
            todo = "Set `--group-cap` (`group_cap`) to any K, and drop `--protect`"
            if cap is not None:
                first, found = found, f"groups (cap {cap})"
                todo = "Drop `--group-cap` (`group_cap`), and use `--protect image`"
                todo += " (`protect='image'`) if the source has groups"
            raise LedgerError(
                f"This ledger protects {first}, as its first fit does, so it takes no "
                f"fit that protects {found}. {todo}."
            )

    def resume(self, plan_hash: str, fit_id: str, store: Path) -> "Charge[Ledger]":
        """Continue an interrupted fit of the same plan, without a new charge.

        Raises LedgerError if the fit has another plan or is not in the ledger, if
        damage of the ledger is found, or if `store` cannot be used (`Charge`).
        """
        if seals.check_undamaged(self).plans.get(fit_id) != plan_hash:
            raise LedgerError(
                f"The ledger has no fit {fit_id} with this plan. Use a new run folder. "
                "The new fit is charged."
            )
        return Charge(self, fit_id, store)

    def _check(
        self, new: list[GaussianEvent], relation: str, record: seals.Record
    ) -> None:
        """Apply the filter over all fits: refuse fits that would exceed the budget.

        Proof: proofs/ledger.md, "Across fits". Full batches use GDP [Smith, Thakurta
        2022; Koskela et al. 2023]. Other batches use RDP at one order, which is fixed
        with the budget [Feldman, Zrnic 2021]; a first fit is checked by its own epsilon
        (`spent`). The first fit fixes which of the two applies.

        Epsilon may exceed the budget's by a relative 1e-9. Otherwise rounding in the
        last bit could refuse fits that share the budget exactly.
        """
        budget = _limit_in(record.facts)
        if budget is None:
            return
        # Every reserved release counts as spent, even if it never ran.
        old = self.events()
        gaussian = all(e.is_full for e in new)
        own = "gdp" if gaussian else "rdp"
        kind = record.facts.get("accounting") or self.set_once("accounting", own)
        if not old and kind != own:  # a role that may charge can write it
            raise LedgerError(
                f"A false value in this ledger fixes {kind} as the accounting before "
                "the first fit. Nothing was charged. Restore a backup of the ledger."
            )
        # One filter for the whole ledger (proofs/ledger.md, "Across fits").
        if kind == "gdp" and not gaussian:
            raise LedgerError(
                "The first fit of this budget had full batches, so the budget takes "
                "full batches only, got random batches. Nothing was charged. Use a "
                "method with full batches, or, for a network, the number of images as "
                "--batch-size. Do not use another ledger, because all fits on the same "
                "images add up."
            )
        # Infinite epsilon exceeds every budget.
        if any(e.noise_multiplier == 0 for e in new):
            raise LedgerError(
                "This fit has no noise, or noise from a seed. A ledger with a budget "
                "refuses such a fit. Nothing was charged. Use a finite epsilon and no "
                "seed."
            )
        # A first fit may be charged by PLD: its noise was fixed before any result.
        # After a merge, earlier fits can have random batches whatever the kind.
        if old and not all(e.is_full for e in (*old, *new)):
            check_divergence([*old, *new], relation)
        # Use the budget's delta, because the filter bounds one pair (epsilon, delta).
        target, delta = budget["epsilon"], budget["delta"]
        number = len(record.plans) + 1
        total = spent([*old, *new], number, delta, relation, budget).epsilon
        # A spent budget admits no further fit, even one whose epsilon rounds to zero.
        before = 0.0
        if old and total >= target:
            before = spent(old, number - 1, delta, relation, budget).epsilon
        # `not <=` refuses NaN too.
        if not total <= target * (1 + 1e-9) or before >= target:
            limit = f"the limit is {as_declared(target)} at delta {as_declared(delta)}"
            if before >= target:
                raise _ExceededError(
                    "The fit would exceed the budget, which is spent: earlier fits "
                    f"have epsilon {rounded_up(before, 6)}, and {limit}. This ledger "
                    "takes no more fits."
                )
            raise _ExceededError(
                "The fit would exceed the budget: the total would be epsilon "
                f"{rounded_up(total, 6)}, and {limit}. Use a smaller epsilon. `dphead "
                "ledger show` prints the epsilon that remains."
            )

    def fits(self) -> list[dict[str, Any]]:
        """Return all fits with their releases and states, for `dphead ledger show`.

        Fits are in the order of their charges. Clock errors and equal hours cannot
        change it. The value of `created` is a whole hour, because finer times could
        reveal training rows.
        """
        # Read one state, so that a concurrent fit is in all three tables or in none.
        with self.snapshot():
            fits = {fit["fit_id"]: fit | {"releases": []} for fit in self.rows(FITS)}
            progress, releases = self.rows(PROGRESS), self.rows(RELEASES)
        # The last state of a release wins: `dict` keeps it.
        states = {(p["fit_id"], p["sequence"]): p["state"] for p in progress}
        for release in releases:
            key = release["fit_id"], release["sequence"]
            state = {"sequence": key[1], "state": states.get(key, "reserved")}
            if key[0] in fits:  # a release without a fit is damage (`seals`)
                fits[key[0]]["releases"].append(state | json.loads(release["spec"]))
        return [*fits.values()]


def _budget_in(facts: dict[str, str]) -> dict[str, float] | None:
    """Return the smallest budget among a ledger's fixed values, or None without one."""
    found = seals.budgets_in(facts)
    return seals.smallest(found) if found else None


def _limit_in(facts: dict[str, str]) -> dict[str, Any] | None:
    """Return the budget with "is_sum" (`Ledger.is_sum`) and "filter", or None.

    "filter" is "gdp" or "rdp" as the first fit fixed it, or None before.
    """
    budget = _budget_in(facts)
    more = {"is_sum": SUM in facts, "filter": facts.get("accounting")}
    return budget and budget | more


def new_fit_id() -> str:
    """Return a random id for a fit, which reveals nothing about it."""
    return uuid.uuid4().hex
