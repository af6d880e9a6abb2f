"""Keep the append-only record of all releases from a data set, and hold its budget.

`Ledger.reserve` charges a whole fit, durably, before a release uses a row. `Charge`
then hands out the reserved releases in order. Rows of the ledger are never changed or
deleted. So a crash can waste budget, but it cannot hide what was spent.
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

from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent, event_of, together
from dphead.privacy.ledger import seals
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.store import (
    FIT,
    LedgerError,
    LedgerFile,
    canonical,
    whole_hour,
)

NEW_FIT = f"INSERT INTO fits VALUES ({', '.join(f':{name}' for name in FIT)})"
NEW_RELEASE = (
    "INSERT INTO releases VALUES "
    "(:fit_id, :sequence, :label, :noise_multiplier, :sampling_prob, :spec)"
)


class Spent(NamedTuple):
    """Hold the epsilon that was spent, and its accountant: "exact", "pld" or "rdp"."""

    epsilon: float
    accountant: str | None


class Ledger(LedgerFile):
    """Open the ledger of one data set.

    Parameters
    ----------
    path : str or Path, default ":memory:"
        An SQLite file. The str ":memory:" keeps the ledger in memory: it is not
        durable, and it counts the fits of this object alone.
    dataset_id : str or None, default None
        The data set's random public id. An existing file with another id is refused.
    read_only : bool, default False
        Whether to open an existing file without ever writing to it.

    Raises
    ------
    LedgerError
        If the file cannot be opened, is not a sound SQLite file or belongs to another
        data set.

    Guarantee
    ---------
    A process forked off by Python, or with another process id, cannot charge, begin or
    commit with this object (LedgerError). It has a copy of a ledger in memory, and the
    copy could answer the same charge a second time.
    """

    def count_fits(self) -> int:
        """Return how many fits were charged."""
        return self.first("SELECT COUNT(*) FROM fits")[0]

    def set_budget(self, epsilon: float, delta: float) -> None:
        """Fix the total (epsilon, delta) of all fits, once, before the first of them.

        Parameters
        ----------
        epsilon : float
            Finite and positive.
        delta : float
            In (0, 1).

        Raises
        ------
        LedgerError
            If a value is invalid, if the ledger is damaged, or if it has fits but no
            budget. If another budget was fixed before.

        Guarantee
        ---------
        A privacy filter is valid only for a budget that is fixed beforehand. So a later
        or a second budget is refused.
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
        """Return epsilon, delta and RDP order of the budget, or None without one."""
        text = self.meta("budget")
        return json.loads(text) if text else None

    def events(self) -> list[GaussianEvent]:
        """Return the events of all releases ever reserved: all count as spent."""
        rows = self.query("SELECT spec, COUNT(*) FROM releases GROUP BY spec")
        return together(
            replace(event_of(json.loads(spec)), count=count) for spec, count in rows
        )

    def spent(self, delta: float, *more: GaussianEvent) -> Spent:
        """Return what all fits spent, at the budget's delta, or else at `delta`.

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
    ) -> "Charge[Ledger]":
        """Charge a whole fit, durably, or refuse it and write nothing.

        Parameters
        ----------
        specs : sequence of dict
            `ReleaseSpec.row()` of each release, in order.
        epsilon, delta : float
            The fit's own privacy parameters, which are recorded.
        relation : {"zero_out", "add_remove", "replace_one"}
            The neighboring relation of every release.
        description : str
            What the fit is, for the record.
        plan_hash : str
            Digest of the plan. `resume` asks for it.
        store : Path or None, default None
            Folder for the committed values, for a resume. None stores none.
        fit_id : str or None, default None
            An id from `new_fit_id`; None draws one. A caller that writes it down before
            this call can find the charge again after a crash.

        Returns
        -------
        Charge
            The reserved releases.

        Raises
        ------
        LedgerError
            If the releases differ in relation or unit of privacy, or from those of
            earlier fits. If an epoch of allocated rows is not whole. If the ledger is
            damaged or already holds `fit_id`. If another process uses `store`. If the
            charge would exceed the budget or its accounting cannot hold it.

        Guarantee
        ---------
        A `fit_id` is charged once. After this returns, the sum of all fits ever
        reserved is within the budget, if there is one, whatever happens next. Epsilon
        may exceed it by a relative 1e-9 (`_check`).
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
        # Another process may hold the folder: find out before the charge.
        reserved = Charge(self, fit_id, store)
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
        """Return what is damaged, in words; [] if nothing is (`seals.damage_of`)."""
        return seals.damage_of(self)

    def holds(self, fit_id: str) -> bool:
        """Return whether a fit with this id was charged."""
        return self.first("SELECT 1 FROM fits WHERE fit_id = ?", fit_id) is not None

    def _fix_unit(self, relation: str, cap: int | None) -> None:
        """Raise LedgerError if relation or unit differ from those of earlier fits."""
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

    def resume(self, plan_hash: str, fit_id: str, store: Path) -> "Charge[Ledger]":
        """Continue an interrupted fit of the same plan, without a new charge.

        Raises LedgerError if the fit has another plan or is not in the ledger, if the
        ledger is seen to be damaged, or if another process uses `store`.
        """
        seals.check_undamaged(self)
        row = self.first("SELECT plan_hash FROM fits WHERE fit_id = ?", fit_id)
        if row is None or row[0] != plan_hash:
            raise LedgerError(
                f"a resumed fit must have the plan that was charged, got {fit_id=}. "
                "Start a new run folder."
            )
        return Charge(self, fit_id, store)

    def _check(self, new: list[GaussianEvent], relation: str) -> None:
        """Apply the filter over all fits: refuse what would exceed the budget.

        Proof: proofs/ledger.md, "Across fits". Full batches use GDP [Smith, Thakurta
        2022; Koskela et al. 2023]. Other batches use RDP at one order, which is fixed
        with the budget [Feldman, Zrnic 2021]; a first fit is checked by its own epsilon
        (`spent`). The first fit fixes which of the two applies.

        Epsilon may exceed the budget's by a relative 1e-9. Otherwise rounding in the
        last bit could refuse fits that share the budget exactly.
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
        """Return all fits with their releases and states, for `dphead ledger show`.

        Fits are in the order of their rows in the table, which is that of the charges.
        Clocks and equal hours cannot change it. The value of `created` is a whole hour.

        Guarantee
        ---------
        No finer time leaves a ledger, even for fits charged before hours were stored.
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
    (`Ledger._check`). So the figure for a budget is never above what the budget
    promises.

    Parameters
    ----------
    events : sequence of GaussianEvent
        All releases of the ledger.
    fits : int
        Number of fits that these releases belong to.
    delta : float
        In (0, 1).
    relation : {"zero_out", "add_remove", "replace_one"}
        The neighboring relation.
    budget : mapping or None, default None
        The ledger's budget, with its RDP order.

    Returns
    -------
    Spent
        Epsilon and its accountant. It is infinite if a release has no noise.

    Notes
    -----
    - Full batches: the exact epsilon.
    - Random batches of one fit: that fit's own epsilon, reported as "pld". It is
      `accounting.epsilon` with "auto": PLD, or another bound where that is smaller.
    - Random batches of several fits: RDP at the budget's order, or at the best order
      without a budget. Where RDP does not apply: as for one fit.

    Guarantee
    ---------
    With a budget: what proofs/ledger.md states of the filter. Without a budget: a plain
    sum, which is a guarantee only for fits that were planned without regard to the
    results of others, because the noise must be fixed beforehand.

    References
    ----------
    Rogers, Roth, Ullman, Vadhan 2016; Whitehouse et al. 2023.
    """
    if any(e.noise_multiplier == 0 for e in events):
        return Spent(math.inf, "exact")
    if all(e.is_full for e in events):
        return Spent(
            accounting.compose_epsilon(events, delta, relation, "exact"), "exact"
        )
    alone = relation != "replace_one" and all(
        e.rows_per_unit == e.epoch_steps == 1 for e in events
    )
    if fits == 1 or not alone:
        return Spent(accounting.compose_epsilon(events, delta, relation, "auto"), "pld")
    orders = accounting.RDP_ORDERS if budget is None else [budget["order"]]
    curve = accounting.rdp_curve(events, orders, relation)
    return Spent(accounting.epsilon_from_rdp(orders, curve, delta), "rdp")


def _check_epochs(specs: Sequence[dict[str, Any]]) -> None:
    """Raise LedgerError unless allocated releases come in whole epochs of equal ones.

    A part of an epoch costs as much as all of it.
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
    """Raise LedgerError for random batches without RDP, which the filter would sum.

    The first fit was charged without this check, so `events` include the earlier fits.
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
    """Return a random id for a fit; it reveals nothing."""
    return uuid.uuid4().hex
