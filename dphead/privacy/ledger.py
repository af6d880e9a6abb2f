"""The append-only record of every release from one data set, and its budget.

A whole fit is reserved, durably, before a release uses a row (`Ledger.reserve`): that
is the charge. `FitLedger` then hands out the reserved releases in order. Rows are never
changed or deleted, so a crash can waste budget and cannot hide any.
"""

import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphead.privacy import accounting, seals
from dphead.privacy.accounting import GaussianEvent, event_of, together
from dphead.privacy.ledger_file import (
    FIT,
    LedgerError,
    LedgerFile,
    canonical,
    whole_hour,
)
from dphead.privacy.reserved import FitLedger

NEW_FIT = f"INSERT INTO fits VALUES ({', '.join(f':{name}' for name in FIT)})"
NEW_RELEASE = (
    "INSERT INTO releases VALUES "
    "(:fit_id, :sequence, :label, :noise_multiplier, :sampling_prob, :spec)"
)


class Spent(NamedTuple):
    """What was spent, and by which accountant: exact, pld or rdp."""

    epsilon: float
    accountant: str | None


class Ledger(LedgerFile):
    """The ledger of one data set.

    path: an SQLite file, or the str ":memory:", which is not durable and counts the
    fits of this object alone. dataset_id: the data set's random public id; an existing
    file with another id is refused.

    Guarantee: a process that was forked off by Python, or has another id, cannot
    charge, begin or commit with it (LedgerError): of a ledger in memory it has a copy,
    where the same charge would be answered a second time.
    """

    def count_fits(self) -> int:
        """Return how many fits were charged."""
        return self.first("SELECT COUNT(*) FROM fits")[0]

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Fix the total (epsilon, delta) of all fits, once, before the first of them.

        Guarantee: a filter is only valid for a budget fixed beforehand, so a later or a
        second budget is refused.
        """
        if not (epsilon > 0 and np.isfinite(epsilon) and 0 < delta < 1):
            raise LedgerError(
                "a budget must have finite epsilon > 0 and 0 < delta < 1, got "
                f"{epsilon=}, {delta=}. Correct it."
            )
        order = accounting.filter_order(epsilon, delta)
        wanted = {"epsilon": epsilon, "delta": delta, "order": order}
        with self.transaction():
            seals.check_undamaged(self)
            if self.budget() is None and self.count_fits():
                raise LedgerError(
                    "a budget must be set before the first fit, got a ledger with "
                    "fits. Keep its record."
                )
            if json.loads(self.set_once("budget", json.dumps(wanted))) != wanted:
                raise LedgerError(
                    f"the budget is fixed once, got {epsilon=}, {delta=}. It is "
                    f"{self.budget()}."
                )
            seals.seal(self)

    def budget(self) -> dict[str, float] | None:
        """Epsilon, delta and the RDP order of the filter, or None without a budget."""
        text = self.meta("budget")
        return json.loads(text) if text else None

    def events(self) -> list[GaussianEvent]:
        """Every release ever reserved: all of them count as spent."""
        rows = self.query("SELECT spec, COUNT(*) FROM releases GROUP BY spec")
        return together(
            replace(event_of(json.loads(spec)), count=count) for spec, count in rows
        )

    def spent(self, delta: float, *more: GaussianEvent) -> Spent:
        """Return what all fits spent, at the budget's delta, or at `delta` without one.

        more: releases of one further fit, as if it were charged.
        """
        with self.snapshot():
            budget, relation = self.budget(), self.meta("relation") or "zero_out"
            events, number = [*self.events(), *more], self.count_fits() + bool(more)
        delta = budget["delta"] if budget else delta
        return spent(together(events), number, delta, relation, budget)

    def reserve(
        self,
        specs: Sequence[dict[str, Any]],
        *,
        epsilon: float,
        delta: float,
        relation: str,
        description: str,
        plan_hash: str,
        store: Path | None = None,
        fit_id: str | None = None,
    ) -> "FitLedger[Ledger]":
        """Charge a whole fit, durably, or refuse with nothing written.

        specs: `ReleaseSpec.row()` of each release. fit_id: of `new_fit_id`; None draws
        one. Who writes it down before this call finds the charge again after a crash.

        Guarantee: a fit_id is charged once: LedgerError where the ledger `holds` it.
        After it returns, the sum of all fits ever reserved is within the
        budget (epsilon to a relative 1e-9: `_check`), whatever happens next.
        """
        caps = {s["group_cap"] for s in specs}
        if any(s["relation"] != relation for s in specs) or len(caps) > 1:
            raise LedgerError(
                "every release must have the fit's relation and unit, got "
                f"{relation=}, {caps=}. Plan anew."
            )
        _check_epochs(specs)
        fit_id = fit_id or new_fit_id()
        fit = {
            "fit_id": fit_id,
            "created": whole_hour(time.time()),
            "epsilon": repr(epsilon),
            "delta": delta,
            "relation": relation,
            "plan_hash": plan_hash,
            "description": description,
        }
        releases = [
            {**s, "fit_id": fit_id, "sequence": i, "spec": canonical(s)}
            for i, s in enumerate(specs)
        ]
        # Its folder can be another process's: that is found before the charge.
        reserved = FitLedger(self, fit_id, store)
        try:
            with self.transaction():
                seals.check_undamaged(self)
                if self.holds(fit_id):
                    raise LedgerError(
                        f"a fit must be charged once, got {fit_id=} again. Resume it."
                    )
                self._fix_unit(relation, next(iter(caps), None))
                self._check(together(event_of(s) for s in specs), relation)
                self.execute(NEW_FIT, fit)
                for one in releases:
                    self.execute(NEW_RELEASE, one)
                seals.seal(self)
        except BaseException:
            reserved.leave()
            raise
        return reserved

    def verify(self) -> list[str]:
        """What is damaged, in words; [] if nothing is (`seals.damage_of`)."""
        return seals.damage_of(self)

    def holds(self, fit_id: str) -> bool:
        """Whether a fit of this id was charged."""
        return self.first("SELECT 1 FROM fits WHERE fit_id = ?", fit_id) is not None

    def _fix_unit(self, relation: str, cap: int | None) -> None:
        """Refuse a fit that protects something else than the fits before it."""
        kept = self.set_once("relation", relation)
        if kept != relation:
            raise LedgerError(
                f"one ledger holds one neighbouring relation, got {relation=}. It "
                f"holds {kept}."
            )
        if self.meta("group_cap") is None and self.count_fits():
            self.set_once("group_cap", "null")  # fits from before there were groups
        unit = json.loads(self.set_once("group_cap", json.dumps(cap)))
        if unit != cap:
            raise LedgerError(
                f"one ledger protects one unit, got group_cap={cap}. It has "
                f"group_cap={unit}."
            )

    def resume(self, plan_hash: str, fit_id: str, store: Path) -> "FitLedger[Ledger]":
        """Continue an interrupted fit of the same plan, without a new charge.

        LedgerError for another plan, or a ledger that is seen to be damaged.
        """
        seals.check_undamaged(self)
        row = self.first("SELECT plan_hash FROM fits WHERE fit_id = ?", fit_id)
        if row is None or row[0] != plan_hash:
            raise LedgerError(
                f"a resumed fit must have the plan that was charged, got {fit_id=}. "
                "Start a new run folder."
            )
        return FitLedger(self, fit_id, store)

    def _check(self, new: list[GaussianEvent], relation: str) -> None:
        """The filter over all fits: refuse what would exceed the budget.

        proofs/ledger.md, "Across fits": GDP for full batches [Smith, Thakurta 2022;
        Koskela et al. 2023], RDP at one order fixed with the budget otherwise [Feldman,
        Zrnic 2021]; the kind is fixed by the first fit. Epsilon may exceed the budget's
        by a relative 1e-9, so that fits which share it are not refused by a last bit.
        """
        budget = self.budget()
        if budget is None:
            return
        old = self.events()
        gaussian = all(e.is_full for e in new)
        kind = self.set_once("accounting", "gdp" if gaussian else "rdp")
        if kind == "gdp" and not gaussian:
            raise LedgerError(
                "a budget whose first fit had full batches takes full batches alone "
                "(its accounting, GDP, was fixed then), got random batches. Nothing "
                "was charged: train in batches of all rows (a network: --batch-size of "
                "their number), or a head by dphead fit. Another ledger is no way: its "
                "fits add to these."
            )
        if any(e.noise_multiplier == 0 for e in new):
            raise LedgerError(
                "a ledger with a budget takes private fits only, got epsilon = inf: a "
                "fit without noise, or with a seed. Use a finite epsilon and no seed."
            )
        if kind == "rdp" and old:
            _check_divergence([*old, *new], relation)
        target, delta = budget["epsilon"], budget["delta"]
        number = self.count_fits() + 1
        total = spent([*old, *new], number, delta, relation, budget).epsilon
        if not total <= target * (1 + 1e-9):
            raise LedgerError(
                f"the budget must not be exceeded, got a total of epsilon={total:.6g} "
                f"> {target:g} at delta={delta:g}. "
                "Nothing was charged: ask for less, or stop."
            )

    def fits(self) -> list[dict[str, Any]]:
        """Every fit with its releases and their states, for `dphead ledger show`.

        They are in the order of their rows, which is that of the charges: clocks and
        equal hours cannot change it. created: a whole hour.

        Guarantee: no finer time leaves a ledger, also of fits charged before hours were
        stored.
        """
        rows = self.query(f"SELECT {', '.join(FIT)} FROM fits ORDER BY rowid")
        fits: list[dict[str, Any]] = []
        for row in rows:
            fits.append(dict(zip(FIT, row, strict=True)))
        for fit in fits:
            fit["created"] = whole_hour(fit["created"])
            fit["releases"] = self._releases(fit["fit_id"])
        return fits

    def _releases(self, fit_id: str) -> list[dict[str, Any]]:
        progress = self.query(
            "SELECT sequence, state FROM progress WHERE fit_id = ? ORDER BY id", fit_id
        )
        states = dict(progress)
        specs = self.query(
            "SELECT sequence, spec FROM releases WHERE fit_id = ? ORDER BY sequence",
            fit_id,
        )
        return [
            {"sequence": i, "state": states.get(i, "reserved"), **json.loads(spec)}
            for i, spec in specs
        ]


def spent(
    events: Sequence[GaussianEvent],
    fits: int,
    delta: float,
    relation: str,
    budget: Mapping[str, float] | None = None,
) -> Spent:
    """Return the epsilon at `delta` of all releases that a ledger holds.

    Every figure of what was spent comes from here, and so does the filter's decision
    (`Ledger._check`): what a budget says was spent is never above what it promises.
    events: of all its releases. fits: how many fits these are of. budget: the ledger's,
    with its RDP order, or None.

    Full batches have the exact epsilon. Random batches of one fit have that fit's own
    (PLD); of several fits RDP, at the budget's order, or at the best order without a
    budget; PLD where RDP does not apply.

    Guarantee: with a budget, as proofs/ledger.md says of the filter. Without one it is
    a plain sum: a guarantee only for fits that were planned without regard to the
    results of others, since the noise must be fixed beforehand. Source: Rogers, Roth,
    Ullman, Vadhan 2016; Whitehouse et al. 2023.
    """
    if any(e.noise_multiplier == 0 for e in events):
        return Spent(math.inf, "exact")
    if all(e.is_full for e in events):
        return Spent(accounting.epsilon(events, delta, relation, "exact"), "exact")
    alone = relation != "replace_one" and all(
        e.rows_per_unit == e.epoch_steps == 1 for e in events
    )
    if fits == 1 or not alone:
        return Spent(accounting.epsilon(events, delta, relation, "auto"), "pld")
    orders = accounting.RDP_ORDERS if budget is None else [budget["order"]]
    curve = accounting.rdp_curve(events, orders, relation)
    return Spent(accounting.epsilon_from_rdp(orders, curve, delta), "rdp")


def _check_epochs(specs: Sequence[dict[str, Any]]) -> None:
    """LedgerError unless allocated releases come in whole epochs of equal ones: a part
    of an epoch costs as much as all of it.
    """
    for text, equal in groupby(canonical(s) for s in specs):
        steps = json.loads(text).get("epoch_steps", 1)
        count = len(list(equal))
        if count % steps:
            raise LedgerError(
                f"allocated rows need whole epochs of {steps} equal releases, got "
                f"{count=}. Plan a multiple."
            )


def _check_divergence(events: Sequence[GaussianEvent], relation: str) -> None:
    """LedgerError where random batches have no RDP, which a filter would sum: the first
    fit was checked without.
    """
    rows = max(e.rows_per_unit for e in events)
    allocated = any(e.epoch_steps > 1 for e in events)
    if relation == "replace_one" or rows > 1 or allocated:
        raise LedgerError(
            "a second fit on a budget whose first had random batches needs zero_out or "
            "add_remove, units of one row, and no allocation, got "
            f"{relation=}, groups of {rows}, {allocated=}. "
            "Nothing was charged: no more fits are. Full batches allow several."
        )


def new_fit_id() -> str:
    """A random id of a fit, which tells nothing."""
    return uuid.uuid4().hex
