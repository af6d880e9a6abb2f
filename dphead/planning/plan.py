"""Plan every release of a solver with its noise, without reading data.

A plan depends only on the solver, the public sizes and the budget.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import numpy as np

from dphead.planning.calibration import calibrate, epsilon_by, mu_from_epsilon
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import ReleaseSpec, Rows
from dphead.privacy.ledger.budget import check_epochs
from dphead.privacy.python_values import python_value
from dphead.privacy.release import noise_scale
from dphead.privacy.rounding import as_declared, rounded_down, rounded_up
from dphead.solvers.base import PlannedRelease, ProblemInfo, Solver

# Relative excess over the budget allowed for fixed noise, as in `Ledger`. The charge
# and the reported epsilon are computed from the noise itself.
BUDGET_SLACK = 1e-9
_T = TypeVar("_T")


@dataclass(frozen=True)
class Target:
    """Hold the privacy target of a fit, and the accountant that calibrates its noise.

    Parameters
    ----------
    epsilon : float
        Target ε. inf means no privacy.
    delta : float
        Target δ.
    relation : str, default "zero_out"
        Neighboring relation: "zero_out", "add_remove" or "replace_one".
    accountant : str, default "auto"
        One of `calibration.ACCOUNTANTS`. "auto" is exact for full batches, and uses PLD
        for random batches.
    group_cap : int, optional
        None protects one row. Otherwise a group is protected, and at most `group_cap`
        rows of each group are used.
    group_mean : bool, default False
        Whether the mean of a group's rows of each class is used, instead of the group's
        first rows.
    """

    epsilon: float
    delta: float
    relation: str = "zero_out"
    accountant: str = "auto"
    group_cap: int | None = None
    group_mean: bool = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "group_cap"):
            value = python_value(getattr(self, name))
            object.__setattr__(self, name, value)  # the class is frozen

    def budgeted(self, facts: ProblemInfo) -> ProblemInfo:
        """Return a copy of the sizes with μ for one row, the group cap and group mean.

        A group with k rows, or a replaced row, moves a sum by more than one row, so μ
        is divided by this factor.
        """
        moved = 2 if self.relation == "replace_one" else 1
        cap = self.group_cap or 1
        mu = mu_from_epsilon(self.epsilon, self.delta) / (moved * cap)
        return replace(facts, mu=mu, group_cap=cap, group_mean=self.group_mean)

    def cost(self, events: Sequence[GaussianEvent]) -> float:
        """Return epsilon of the events at delta, by this accountant."""
        return epsilon_by(self.accountant, events, self.delta, self.relation)

    def scale(
        self, events: Sequence[GaussianEvent], fixed: Collection[int] = ()
    ) -> float:
        """Return the factor that scales all noise except `fixed` to meet epsilon."""
        return calibrate(
            events, self.epsilon, self.delta, self.relation, self.accountant, fixed
        )


@dataclass(frozen=True, kw_only=True)
class Plan(Target):
    """Hold the releases of one fit, and the target of their calibration."""

    specs: list[ReleaseSpec]

    @property
    def private(self) -> bool:
        """Return whether every release is private and has noise.

        A release with a seed is not private, because its noise can be subtracted
        (`ReleaseSpec`).
        """
        return all(s.private and s.noise_multiplier > 0 for s in self.specs)

    def marked(self, private: bool) -> Self:
        """Return the plan with every release marked private or not (`ReleaseSpec`)."""
        return replace(self, specs=[replace(s, private=private) for s in self.specs])

    def seeded(self, seed: int | None) -> Self:
        """Return the plan, marked as not private if `seed` is given."""
        return self if seed is None else self.marked(private=False)

    def events(self) -> list[GaussianEvent]:
        """Return the accountant's events, with equal releases merged."""
        return accounting.together(spec.event() for spec in self.specs)

    def epsilon_spent(self) -> float:
        """Return epsilon of the plan at delta, by the accountant "auto".

        Epsilon is inf unless the plan is `private`.
        """
        if not self.private:
            return float("inf")
        return accounting.compose_epsilon(self.events(), self.delta, self.relation)

    def summary(self) -> list[dict[str, Any]]:
        """Return one row for each kind of release, with its fields, count and mu.

        mu is None unless a release is private, has noise and uses full batches.
        """
        rows = []
        for s, count in Counter(self.specs).items():
            mu = None
            if s.private and s.noise_multiplier and s.event().is_full:
                mu = (s.group_cap or 1) / s.noise_multiplier
            rows.append({**s.row(), "count": count, "mu": mu})
        return rows


@dataclass(frozen=True, kw_only=True)
class FitPlan(Plan, Generic[_T]):
    """Hold a plan with the solver that requests its releases, and the public sizes.

    `facts` do not contain the budget. `budgeted` adds it.
    """

    solver: Solver[_T]
    facts: ProblemInfo

    @cached_property
    def releases(self) -> list[PlannedRelease]:
        """Return the solver's releases, in the order of its requests."""
        return self.solver.plan(self.budgeted(self.facts))

    def digest(self, feature_space: str, seed: int | None) -> str:
        """Return a hash that identifies the plan for a resume.

        The hash covers the solver's settings, every release, `feature_space` (which
        identifies the features), the seed and epsilon.
        """
        identity = getattr(self.solver, "identity", None)
        text = json.dumps(
            [
                repr(self.solver) if identity is None else identity(self.facts),
                [s.row() for s in self.specs],
                feature_space,
                seed,
                repr(self.epsilon),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()


def make_plan(
    solver: Solver[_T],
    facts: ProblemInfo,
    *,
    epsilon: float,
    delta: float,
    relation: str = "zero_out",
    accountant: str = "auto",
    group_cap: int | None = None,
    group_mean: bool = False,
) -> FitPlan[_T]:
    """Calibrate the solver's releases to (epsilon, delta).

    Parameters
    ----------
    solver : Solver
        Solver to plan.
    facts : ProblemInfo
        Public sizes. `budgeted` adds the budget.
    epsilon : float
        Target ε. inf turns noise and clipping off.
    delta, relation, accountant, group_cap, group_mean
        As in `Target`.

    Returns
    -------
    FitPlan
        Every release with its noise.

    Raises
    ------
    ValueError
        If epsilon, delta or group_cap is out of range, if `group_mean` has no
        group_cap, if fixed noise alone exceeds the budget, or if a release does not fit
        64-bit integers. As `solver.plan`.
    LedgerError
        If allocated releases are not whole epochs.
    """
    target = Target(epsilon, delta, relation, accountant, group_cap, group_mean)
    epsilon, group_cap = target.epsilon, target.group_cap
    check_budget(epsilon, target.delta)
    if group_cap is not None and (type(group_cap) is not int or group_cap < 1):
        raise ValueError(
            "`--group-cap` (`group_cap`) must be a whole number of at least 1, got "
            f"{group_cap!r}. Choose how many rows of a group are used, such as 4."
        )
    if group_mean and group_cap is None:
        raise ValueError(
            "`--group-mean` (`group_mean`) needs `--group-cap` (`group_cap`). Set the "
            "cap to the number of classes that a group has, such as 1."
        )
    wanted = solver.plan(target.budgeted(facts))
    sigmas = [0.0] * len(wanted) if np.isinf(epsilon) else _calibrated(wanted, target)
    specs = [
        ReleaseSpec(
            p.label,
            p.statistic.name,
            p.clip_norm if sigma else float("inf"),
            sigma,
            facts.n_rows,
            p.sampling_prob,
            relation,
            group_cap,
            p.epoch_steps,
        )
        for p, sigma in zip(wanted, sigmas, strict=True)
    ]
    # checked here too: in one charge, incomplete epochs of several folds can look whole
    check_epochs([spec.row() for spec in specs])
    for p, spec in dict(zip(wanted, specs, strict=True)).items():
        noise_scale(p.statistic, spec, 0.0)  # refuses a release beyond 64-bit integers
    return FitPlan(**vars(target), specs=specs, solver=solver, facts=facts)


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ValueError unless epsilon > 0 (inf allowed) and 0 < delta < 1."""
    if not epsilon > 0:
        raise ValueError(
            f"`--epsilon` must be positive, got {epsilon}. Use inf for no privacy."
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"`--delta` must be in (0, 1), got {delta}. Use a value well below "
            "1 / (number of rows)."
        )


def check_facts(facts: ProblemInfo) -> None:
    """Raise ValueError unless n_rows >= n_classes >= 2."""
    n_classes = facts.n_classes
    if n_classes < 2:
        raise ValueError(
            f"A classifier needs at least two classes, got {n_classes} class. Declare "
            "every class with `--classes` (`classes`)."
        )
    if facts.n_rows < n_classes:
        raise ValueError(
            f"A fit needs at least as many rows as classes, got {facts.n_rows} "
            f"rows for {n_classes} classes. Use more rows or fewer classes."
        )


def public_facts(
    rows: Rows, n_classes: int, relation: str, nominal_n: int | None
) -> ProblemInfo:
    """Return the checked public sizes: n, n_features and n_classes.

    Parameters
    ----------
    rows : Rows
        The training rows.
    n_classes : int
        Number of public classes.
    relation : str
        The neighboring relation.
    nominal_n : int or None
        The public number used in place of n under add_remove, where n is private.

    Raises
    ------
    ValueError
        If `nominal_n` is given under another relation, or missing under add_remove, or
        as `check_facts`.
    """
    n_rows = public_n_rows(rows.n_rows, relation, nominal_n)
    facts = ProblemInfo(n_rows, rows.n_features, n_classes)
    check_facts(facts)
    return facts


def public_n_rows(n_rows: int, relation: str, nominal_n: int | None) -> int:
    """Return the public number of rows.

    Parameters
    ----------
    n_rows : int
        Number of rows, private under add_remove.
    relation : str
        Neighboring relation.
    nominal_n : int or None
        Public number used in place of n_rows under add_remove.

    Raises
    ------
    ValueError
        If `nominal_n` is missing under add_remove, or given under another relation.
    """
    if relation == "add_remove" and nominal_n is None:
        raise ValueError(
            "The relation add_remove needs `--nominal-n` (`nominal_n`). Pass a public "
            "number near the number of rows."
        )
    if relation != "add_remove" and nominal_n is not None:
        raise ValueError(
            "`--nominal-n` (`nominal_n`) needs the relation add_remove, got "
            f"{relation}. Drop it, or use `--relation add_remove` (`relation`)."
        )
    return n_rows if nominal_n is None else nominal_n


def large_delta(
    epsilon: float, delta: float, n_rows: int, group_cap: int | None = None
) -> str | None:
    """Return why delta is too large for n_rows rows, or None if it is not.

    The result is also None for an infinite epsilon.

    With a large delta, a mechanism may publish a whole unit: a row, or with group_cap a
    whole group. The number of groups is private and at most n_rows, so a delta below
    1/n_rows is also below 1/groups.
    """
    if np.isinf(epsilon) or delta < 1 / n_rows:
        return None
    bound = f"1/n = {rounded_down(1 / n_rows, 3)}"
    if group_cap is not None:
        bound += " (n rows form at most n groups)"
    return f"delta must be below {bound}, got delta={as_declared(delta)}."


def check_delta(plan: Plan, facts: ProblemInfo, confirmed: bool) -> list[str]:
    """Return a list with a warning for a delta of at least 1/n, or an empty list.

    Raises ValueError if the user did not confirm such a delta.
    """
    text = large_delta(plan.epsilon, plan.delta, facts.n_rows, plan.group_cap)
    if text is not None and not confirmed:
        raise ValueError(
            f"{text} Use a smaller delta, or confirm with --allow-large-delta."
        )
    return [text] if text else []


def check_unit(
    grouped: bool,
    protect: str | None,
    epsilon: float,
    *,
    confirm: str,
    instead: str,
    group_cap: int | None = None,
    thing: str = "image",
) -> list[str]:
    """Check that the user chose a unit of privacy for a source with groups of rows.

    A group is a person with several rows. The user either protects each group, or
    confirms that only single rows are protected. The confirmation becomes a warning in
    the report.

    Parameters
    ----------
    grouped : bool
        Whether the source has groups, which is public. The groups are not read.
    protect : str or None
        "image" confirms that only single rows are protected.
    epsilon : float
        Target ε. inf needs no decision.
    confirm, instead : str
        Text to type in order to confirm, and in order to protect groups.
    group_cap : int, optional
        Largest number of rows used in each group, if groups are protected.
    thing : str, default "image"
        Name of a row in messages.

    Returns
    -------
    list of str
        Warnings for the report.

    Raises
    ------
    ValueError
        If `protect` is invalid, if both `protect` and `group_cap` are given, or if a
        source with groups has neither.
    """
    if protect not in (None, "image"):
        raise ValueError(
            f"`protect` {protect!r} is not 'image'. Use {confirm}, or {instead}."
        )
    if protect is not None and group_cap is not None:
        raise ValueError(
            f"A fit protects groups or single {thing}s, got both `--group-cap` "
            f"(`group_cap`) {group_cap} and `--protect` (`protect`) {protect}. Drop "
            "one of the two."
        )
    if not grouped or group_cap is not None or np.isinf(epsilon):
        return []
    if protect is None:
        raise ValueError(
            f"a source with groups (people with several {thing}s) needs a decision. "
            f"Use {instead} to protect each group, or {confirm} to protect single "
            f"{thing}s only."
        )
    return [
        (
            f"the source has groups (people with several {thing}s), but only single "
            f"{thing}s are protected, as {confirm} confirms."
        )
    ]


def _calibrated(wanted: list[PlannedRelease], target: Target) -> list[float]:
    """Return noise multipliers, fixed or proportional to 1/sqrt(weight)."""
    kinds = []
    for p in wanted:
        sigma = p.noise_multiplier
        relative = float(1 / np.sqrt(p.weight) if sigma is None else sigma)
        kinds.append((relative, p.sampling_prob, p.epoch_steps, sigma is not None))
    counts, cap = Counter(kinds), target.group_cap or 1
    events = [
        GaussianEvent(relative, prob, count, cap, steps)
        for (relative, prob, steps, _), count in counts.items()
    ]
    frozen = [k for k, (*_, fixed) in enumerate(counts) if fixed]
    scale = 1.0
    if len(frozen) == len(counts):
        cost = target.cost(events)
        accounting.require(
            cost <= target.epsilon * (1 + BUDGET_SLACK),
            f"epsilon must exceed {rounded_up(cost, 6)}, the cost of the fixed noise",
            "epsilon",
            target.epsilon,
            "Raise epsilon or the fixed noise.",
        )
    else:
        scale = target.scale(events, frozen)
    return [
        float(relative if fixed else relative * scale) for relative, *_, fixed in kinds
    ]
