"""A fit in one line, for tests."""

from dphead.fit.loop import FitResult, Run, fit_head
from dphead.planning.plan import Plan, make_plan
from dphead.privacy.contract import ReleaseSpec
from dphead.sums.cpu import CpuSums
from dphead.sums.verified import VerifiedSum


def quick_sums() -> VerifiedSum:
    """The same sums of small data, at half the time: compiled, and with rows kept."""
    return VerifiedSum(CpuSums(compiled_from=0), memory=1 << 26)


def plan_and_fit(
    solver, rows, facts, epsilon=1.0, *, delta=1e-5, relation="zero_out", **run
) -> FitResult:
    """`fit_head` with the plan for (epsilon, delta) and the rows' cap. run: the fields
    of `Run`.
    """
    target = {"epsilon": epsilon, "delta": delta, "relation": relation}
    plan = make_plan(solver, facts, group_cap=rows.group_cap, **target)
    return fit_head(solver, rows, facts, plan, Run(**run))


def with_noise(
    solver, facts, noise=1.0, *, relation="zero_out", epsilon=8.0, group_cap=None
) -> Plan:
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
    return Plan(epsilon, 1e-5, relation, "pld", group_cap, specs=specs)
