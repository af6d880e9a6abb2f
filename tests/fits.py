"""A fit in one line, for tests."""

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import FitResult, fit_rows
from dphead.planning.methods import make_method
from dphead.planning.plan import FitPlan, make_plan
from dphead.planning.registry import OURS
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.sums.cpu import CpuSums
from dphead.sums.verified import VerifiedSum

# A new method is tried by all that follows this list. The plan of auto depends on the
# budget, and dp-optax compiles for seconds: both have files of tests of their own.
METHODS = [name for name in OURS if name not in ("auto", "dp-optax")]
FEW = {"dp-fc": 3, "dp-newton": 2, "dp-adam": 3, "dp-sgd": 7}  # steps


def each_method(facts) -> dict:
    """A solver of each of METHODS by its name, with few steps."""
    given = {name: {"steps": FEW[name]} if name in FEW else {} for name in METHODS}
    return {name: make_method(name, facts, own).solver for name, own in given.items()}


def quick_sums() -> VerifiedSum:
    """The same sums of small data, at half the time: compiled, and with rows kept."""
    return VerifiedSum(CpuSums(), memory=1 << 26)


def plan_and_fit(
    solver, rows, facts, epsilon=1.0, *, delta=1e-5, relation="zero_out", **run
) -> FitResult:
    """`fit_rows` with the plan for (epsilon, delta) and the rows' cap. run: the fields
    of `fit_rows`.
    """
    target = {"epsilon": epsilon, "delta": delta, "relation": relation}
    plan = make_plan(solver, facts, group_cap=rows.group_cap, **target)
    return fit_rows(plan, rows, **run)


def head_of(solver, x, y, n_classes, epsilon=1.0, seed=0, *, n_rows=None, **more):
    """The head of a fit of arrays. n_rows: where it is not that of the arrays."""
    facts = ProblemInfo(n_rows or len(x), x.shape[1], n_classes)
    run = {"noise": NoiseSource(seed), "summer": quick_sums()} | more
    return plan_and_fit(solver, ArrayRows(x, y, 8192), facts, epsilon, **run).trained


def right(head, x, y) -> float:
    """The share of rows to which a head gives their class."""
    return float(np.mean(head.scores(x).argmax(axis=1) == y))


def answered(solver, facts, answer):
    """What a solver asks that is told `answer(ask)` each time, and its head."""
    steps = solver.solve(facts)
    asks, told = [], None
    try:
        while True:
            request = steps.send(told)
            each = request.each()
            asks += each
            told = [answer(ask) for ask in each] if request.more else answer(request)
    except StopIteration as stop:
        return asks, stop.value


def with_noise(
    solver, facts, noise=1.0, *, relation="zero_out", epsilon=8.0, group_cap=None
) -> FitPlan:
    """The plan of a noise multiplier. To find that of a budget takes seconds for random
    batches, and is tested elsewhere.
    """
    given = (noise, facts.n_rows)
    specs = [
        ReleaseSpec(
            p.label,
            p.statistic.name,
            p.clip_norm,
            *given,
            p.sampling_prob,
            relation,
            group_cap,
            p.epoch_steps,
        )
        for p in solver.plan(facts)
    ]
    own = {"specs": specs, "solver": solver, "facts": facts}
    return FitPlan(epsilon, 1e-5, relation, "pld", group_cap, **own)


WAYS = ["cap", "unlabeled", "unreadable", "nominal n", "all of them"]


def partly(way, x, y, m):
    """Rows of which one in four counts, their relation, and those that count."""
    n = len(y)
    counts = np.arange(n) % 4 == 0
    more = {}
    if way in ("cap", "all of them"):
        more = {"groups": np.arange(n) // 4, "group_cap": 1}
    if way == "unlabeled":
        y[~counts] = -1
    if way == "unreadable":
        x[~counts] = np.nan
    if way == "all of them":
        # two slots of each group lose their own row, some the first
        rest = np.arange(n) // 4 % 5
        y[counts & (rest == 0)] = m
        x[counts & (rest == 1)] = np.inf
        counts = counts & (rest > 1)
    if way == "nominal n":
        return ArrayRows(x[counts], y[counts], 8192), "add_remove", x[counts]
    return ArrayRows(x, y, 8192, **more), "zero_out", x[counts]
