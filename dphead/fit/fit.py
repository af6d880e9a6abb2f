"""Carry out one fit, for every command and estimator.

`Fit.carry_out` has the order that protects rows: check what can be checked without a
row's value, charge, then use rows.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dphead.data.device_rows import refuse_traced
from dphead.fit.backends import block_sum, on_device, uses_jax
from dphead.fit.duration import (
    LONG_SECONDS,
    check_duration,
    missing_kernels,
    time_in_words,
)
from dphead.fit.files import SourceFacts, source_of_arrays
from dphead.fit.ledgers import RowGroups, charging
from dphead.fit.loop import Progress, follow, lead
from dphead.fit.memory import share
from dphead.fit.processes import agree
from dphead.planning.plan import FitPlan
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo, Solver
from dphead.sums.hosts import Hosts, all_or_none
from dphead.sums.verified import VerifiedSum

_T = TypeVar(
    "_T"
)  # what the solver returns: a head, components, the state of a network


@dataclass(frozen=True, kw_only=True)
class About:
    """Describe a fit, apart from its plan, for the charge and the report.

    Attributes
    ----------
    source : SourceFacts
        Public description of the rows.
    name, preset : str and str or None
        The method's name, and the preset's, for the ledger and the report.
    settings, settings_from : dict and str
        The method's settings, and their source.
    space : str
        Description of the rows that a resume must find unchanged.
    rows : str
        Digest that identifies the rows, which a resume must find unchanged. Data sets
        of one id system share a ledger and can have equal `space`. Private.
    axes : dict or None
        The public axes of the rows, for the report.
    doubt : str
        What the data holder must check before the charge, or "". Private, as
        `ChosenAxes.doubt`.
    warnings : tuple of str
        Warnings for the report.
    elsewhere : tuple of dict
        Entries (`Elsewhere.fact`) of other ledgers of the same images or people.
    """

    source: SourceFacts
    name: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    settings_from: str = ""
    space: str = ""
    rows: str = ""
    axes: dict[str, Any] | None = None
    doubt: str = ""
    warnings: tuple[str, ...] = ()
    elsewhere: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class RowSizes:
    """Hold the sizes of rows, which are known before a row is read.

    Attributes
    ----------
    n_rows, n_features : int
        Numbers of rows and of their values.
    group_cap : int or None
        As in `Rows`.
    has_sets : bool
        Whether rows have label sets.
    """

    n_rows: int
    n_features: int
    group_cap: int | None = None
    has_sets: bool = False

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the sizes of rows."""
        has_sets = getattr(rows, "has_sets", False)
        return cls(rows.n_rows, rows.n_features, rows.group_cap, has_sets)


@dataclass(frozen=True)
class FitResult(Generic[_T]):
    """Hold the result of a fit: what it trained, its plan and its charge.

    `private_noise` is False with a seed. `seconds` is the wall time of the releases and
    the solver, without the charge.
    """

    trained: _T
    plan: FitPlan[_T]
    ledger: Ledger
    fit_id: str
    private_noise: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Fit(Generic[_T]):
    """Hold a prepared fit.

    Attributes
    ----------
    plan : FitPlan
        The planned releases, and the solver.
    sizes : RowSizes
        Sizes of the rows, which are known before the charge.
    rows : callable
        Function that returns the rows. It is called after the charge.
    summer : VerifiedSum
        The verified sum.
    noise : NoiseSource
        Source of noise and samples. With a seed, the fit is charged as not private.
    hosts : Hosts or None
        The processes that hold the rows; None if this process holds all.
    agreed : dict
        Values that must be equal on all processes (`agree`).
    backend : str
        Backend that computes the solver's algebra (`on_device`).
    groups : RowGroups or None
        The groups of rows with a data set, which the charge compares. Private.
    about : About
        Description of the fit, for the charge and the report.
    """

    plan: FitPlan[_T]
    about: About
    sizes: RowSizes
    rows: Callable[[], Rows]
    summer: VerifiedSum
    noise: NoiseSource = field(default_factory=NoiseSource)
    hosts: Hosts | None = None
    agreed: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "numpy"
    groups: RowGroups | None = None

    @property
    def announced(self) -> FitPlan[_T]:
        """Return the plan to charge, which is not private if there is a seed."""
        return self.plan.seeded(self.noise.seed)

    def digest(self) -> str:
        """Return a hash that identifies the fit for a resume."""
        return self.plan.digest(self.about.space, self.noise.seed)

    def check(self) -> float:
        """Check what can be checked before the charge.

        Returns
        -------
        float
            Expected seconds of the fit, or 0 if they are not known.

        Raises
        ------
        ValueError
            If the rows do not have the plan's sizes, or have label sets that a release
            does not support. If `check_duration` refuses the fit, if processes differ,
            or if this runs in a function that jax traces.
        RuntimeError
            If sums of test rows are wrong (`VerifiedSum.check`).
        """
        with all_or_none(self.hosts):
            if uses_jax(self.backend) or hasattr(self.plan.solver, "needs_jax"):
                refuse_traced()
            self._check_sizes()
            seconds = 0.0
            if not getattr(self.summer.block_sum, "has_unknown_rate", False):
                facts, solver = self.plan.facts, self.plan.solver
                seconds = check_duration(self.plan.releases, facts, solver.name)
            statistics = (one.statistic for one in self.plan.releases)
            self.summer.check(statistics, self.plan.facts.n_features)
        if self.hosts is not None:
            agree(self.hosts, self.agreed)
        return seconds

    def _check_sizes(self) -> None:
        """Raise ValueError for sizes other than the plan's, or unusable label sets.

        A private number of rows is not compared.
        """
        facts, sizes = self.plan.facts, self.sizes
        private = self.plan.relation == "add_remove"
        n_rows = facts.n_rows if private else sizes.n_rows
        found = (n_rows, sizes.n_features, sizes.group_cap)
        planned = (facts.n_rows, facts.n_features, self.plan.group_cap)
        if found != planned:
            raise ValueError(
                "rows must have the plan's n_rows, n_features and group_cap "
                f"{planned}, got {found}. Make a plan with the sizes of these rows."
            )
        if sizes.has_sets:
            _check_takes_sets(self.plan.solver, self.plan.budgeted(facts))

    def carry_out(
        self,
        charge: Callable[[Self], Charge],
        *,
        announce: Callable[[Self, float], None] | None = None,
        progress: Progress | None = None,
        resume: Callable[[Charge], tuple[Solver[_T], int]] | None = None,
    ) -> FitResult[_T]:
        """Check, charge the whole plan, then run the solver on released values.

        Parameters
        ----------
        charge : callable
            Function that charges the plan: `charge_ledger`, or `run_folder.charge`.
        announce : callable, optional
            Called with this fit and its expected seconds, before the charge.
        progress : callable, optional
            Called with (releases made, releases planned, label) after each release.
        resume : callable, optional
            Function that returns the solver of an interrupted fit, and the number of
            releases that the solver does not request again.

        Returns
        -------
        FitResult
            The solver's result, and the charge.

        Raises
        ------
        ValueError or RuntimeError
            As `check`, before anything is charged.
        LedgerError
            If the ledger refuses the plan. Nothing is charged then, unless the error is
            LostAnswer. After the charge, if the ledger refuses a release.
        """
        seconds = self.check()
        with all_or_none(self.hosts):
            if announce is not None:
                announce(self, seconds)
            charged = charge(self)
        solver, done = resume(charged) if resume else (self.plan.solver, 0)
        plan = replace(self.announced, solver=on_device(solver, self.backend))
        rows, start = self.rows(), time.perf_counter()
        trained = lead(
            plan,
            rows,
            charged,
            self.noise,
            self.summer,
            hosts=self.hosts,
            progress=progress,
            done=done,
        )
        seconds = time.perf_counter() - start
        book, fit_id = charged.ledger, charged.fit_id
        return FitResult(trained, self.plan, book, fit_id, self.noise.private, seconds)

    def serve(
        self, resume: Callable[[Hosts], tuple[Solver[_T], int]] | None = None
    ) -> _T:
        """Sum this process's rows for process 0, and return the solver's result.

        Process 0 calls `carry_out`. It charges, samples and adds noise.
        """
        assert self.hosts is not None
        self.check()
        with all_or_none(self.hosts):
            pass  # process 0 charges
        solver, done = resume(self.hosts) if resume else (self.plan.solver, 0)
        plan = replace(self.announced, solver=on_device(solver, self.backend))
        return follow(plan, self.rows(), self.summer, self.hosts, done)


def _check_takes_sets(solver: Solver[Any], facts: ProblemInfo) -> None:
    """Raise ValueError unless each release's statistic supports label sets."""
    for planned in solver.plan(facts):
        if not planned.statistic.takes_sets:
            raise ValueError(
                f"method {solver.name!r} with these settings cannot use rows with "
                "several classes, because one of its sums needs one class per row. Use "
                "auto, dp-sgd, dp-adam, dp-optax, dp-fc or dp-newton, with the sigmoid "
                "loss."
            )


def array_sum(plan: FitPlan[Any], backend: str = "numpy") -> VerifiedSum:
    """Return a backend's verified sum, for rows in memory.

    Raises ValueError if the fit needs more memory than this process can use.
    """
    # not the number of these rows, which is private under add/remove
    n_rows = plan.facts.n_rows
    room = share(None, plan.facts, plan.releases, n_rows=n_rows, backend=backend)
    sums, kept = block_sum(backend, room.kept)
    return VerifiedSum(sums, memory=kept)


def warn_of_duration(fit: Fit[Any], seconds: float) -> None:
    """Warn if a fit takes long, or if compiled kernels are missing."""
    if seconds > LONG_SECONDS:
        took = time_in_words(seconds)
        warnings.warn(f"This fit takes about {took} on this machine.", stacklevel=2)
    if warning := missing_kernels(seconds):
        _warn_once(warning)


@cache
def _warn_once(text: str) -> None:
    """Warn of each text once per process.

    Python repeats a warning after each change of its filters, such as
    `warnings.catch_warnings`.
    """
    warnings.warn(text, stacklevel=3)


def fit_rows(
    plan: FitPlan[_T],
    rows: Rows,
    ledger: Ledger | None = None,
    *,
    noise: NoiseSource | None = None,
    summer: VerifiedSum | None = None,
    progress: Progress | None = None,
    not_private: bool = False,
    backend: str = "numpy",
) -> FitResult[_T]:
    """Fit rows in memory, charged to `ledger` or to a new ledger in memory.

    Parameters and errors are as in `Fit` and `charge_ledger`. The default `summer` is
    that of `backend`.
    """
    about = About(
        source=source_of_arrays(plan.facts.n_features, []), name=plan.solver.name
    )
    fit = Fit(
        plan=plan,
        about=about,
        sizes=RowSizes.of(rows),
        rows=lambda: rows,
        summer=summer or array_sum(plan, backend),
        noise=noise or NoiseSource(),
        backend=backend,
    )
    book = ledger or Ledger()
    return fit.carry_out(
        lambda fit: charge_ledger(fit, book, not_private=not_private),
        announce=warn_of_duration,
        progress=progress,
    )


def charge_ledger(
    fit: Fit[Any],
    ledger: Ledger,
    *,
    not_private: bool = False,
    store: Path | None = None,
    fit_id: str | None = None,
) -> Charge:
    """Charge every release of the plan in the ledger.

    Parameters
    ----------
    fit : Fit
        The fit to charge.
    ledger : Ledger
        The ledger to charge.
    not_private : bool, default False
        Whether a fit with a seed or without noise may be charged to any ledger. By
        default, only to one in memory without private fits.
    store : Path, optional
        As for `Ledger.reserve`.
    fit_id : str, optional
        As for `Ledger.reserve`.

    Raises
    ------
    LedgerError
        If the ledger or `charging` refuses the fit, for example because a different
        ledger on the same images has a budget. If the fit has no guarantee, and
        `not_private` does not allow it in this ledger. No release is charged then, but
        LostAnswer leaves this unknown.
    """
    plan, seed = fit.announced, fit.noise.seed
    text = f"{fit.about.name} {fit.about.preset or ''}".strip()
    if not (plan.private or not_private):
        _check_own(ledger, seed)
    people, groups = fit.about.source.people, None
    if fit.groups is not None:
        groups = fit.groups.compared(people, plan.group_cap is not None)
    with charging(ledger, rows=fit.groups, people=people):
        return ledger.reserve(
            [s.row() for s in plan.specs],
            epsilon=plan.epsilon if plan.private else math.inf,
            delta=plan.delta,
            description=text + ("" if seed is None else f" (seed {seed}: not private)"),
            plan_hash=fit.digest(),
            store=store,
            fit_id=fit_id,
            groups=groups,
        )


def _check_own(ledger: Ledger, seed: int | None) -> None:
    """Raise LedgerError unless the ledger is in memory and holds no private fit.

    Without a confirmation (`not_private`), a fit with a seed or without noise needs
    such a ledger: its epsilon is infinite, and no charge can be undone.
    """
    if ledger.path == IN_MEMORY and not any(
        event.noise_multiplier for event in ledger.events()
    ):
        return
    reason = "A fit without noise (epsilon inf) has no guarantee"
    todo = "Use a finite epsilon"
    if seed is not None:
        reason = f"The seed {seed} makes the noise known, so the fit has no guarantee"
        todo = "Drop the seed (`random_state=None`)"
    raise LedgerError(
        f"{reason}. It would make the total of the ledger {ledger.path} infinite from "
        f'then on. {todo}, or use a ledger of its own (`ledger=":memory:"`).'
    )
