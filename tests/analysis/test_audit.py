"""The audit: its bounds against exact probabilities, its score against every method,
and the defects it must see.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from fits import METHODS, with_noise
from scipy.stats import binom, norm

from dphead.analysis import audit
from dphead.analysis.audit_bounds import (
    Claim,
    advantage_lower_bound,
    epsilon_bound,
    statements,
)
from dphead.analysis.audit_transcript import worst_case, worst_cases
from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import GaussianEvent
from dphead.solvers.base import ProblemInfo
from dphead.sums import passes
from dphead.sums.cpu import CpuSums

SMALL = ProblemInfo(16, 2, 2)
FLAT = {"center_share": 0.0}
# a correct mechanism fails a test at this confidence with odds of at most 1e-7
SURE = 1 - 1e-7


def gaussian_claim(epsilon, delta=1e-5):
    return Claim(
        epsilon,
        delta,
        "zero_out",
        (GaussianEvent(1 / mu_from_epsilon(epsilon, delta)),),
    )


def planned(method, settings, epsilon=8.0, facts=SMALL, relation="zero_out"):
    solver = make_method(method, facts, dict(settings)).solver
    if "batch_size" not in settings:
        return solver, make_plan(
            solver, facts, epsilon=epsilon, delta=1e-5, relation=relation
        )
    # two steps of sigma = 1 cost less than epsilon = 8
    return solver, with_noise(solver, facts, relation=relation, epsilon=epsilon)


def audited(method, settings, fits, epsilon=8.0, relation="zero_out", confidence=SURE):
    solver, plan = planned(method, settings, epsilon, SMALL, relation)
    problem = worst_case(SMALL, plan)
    return audit.attack(solver, plan, [problem], fits, confidence=confidence)


def advantages(fits, error):
    """The bound on the advantage for each number of mistakes."""
    return np.array(
        [advantage_lower_bound(m, fits, error) for m in range(2 * fits + 1)]
    )


def test_null_scores_give_zero_with_the_stated_coverage():
    """Exact: over all counts of scores that tell nothing, the bounds exceed 0 with at
    most the stated probability.
    """
    n, error = 150, 0.05
    for rate in (0.5, 0.2, 0.03):
        k = np.arange(n + 1)
        above = binom.pmf(k, n, rate)
        # false positives, true positives: the same law in both worlds
        joint = above[:, None] * above[None, :]
        bounds = epsilon_bound(k[:, None], n - k[None, :], n, 0.0, error)
        assert joint[bounds > 0].sum() <= error
        assert (
            joint[advantages(n, error)[k[:, None] + n - k[None, :]] > 0].sum() <= error
        )


def test_ceilings_are_what_perfect_scores_reach():
    """Gaussian scores from a fixed seed: each bound lies by its ceiling, the advantage
    by its exact value.
    """
    claim = gaussian_claim(8.0)
    n = 100_000
    mu = claim.mu
    rng = np.random.default_rng(5)
    means = np.array([[-1], [1]]) * mu**2 / 2
    scores = mu * rng.standard_normal((2, n)) + means
    cut = claim.best(n, 5e-5)[0]
    found = statements(scores, claim, cut, 0.9999)
    ceilings = found["ceilings"]
    for name in ("epsilon_lower_bound", "mu_lower_bound", "epsilon_from_mu"):
        assert found[name] == pytest.approx(ceilings[name], rel=0.12), name
    assert found["passed"]
    # four standard errors at most: the variance of each rate is below 1/4
    spread = 4 * math.sqrt(0.5 / n)
    assert ceilings["advantage"] == pytest.approx(2 * norm.cdf(mu / 2) - 1)
    assert found["advantage"] == pytest.approx(ceilings["advantage"], abs=spread)


def test_the_ceilings_are_the_published_ones():
    """A perfect audit of a tight Gaussian with 10^5 draws in each world."""
    for epsilon, bound in ((0.1, 0.022), (1.0, 0.60), (8.0, 4.7)):
        found = gaussian_claim(epsilon).best(1e5, 0.05)[1]
        assert found == pytest.approx(bound, rel=0.06)


REACHED = [  # method, settings, relation, the canary's share of the claim's mu
    ("dp-ls", FLAT, "zero_out", 1.0),
    ("dp-ls", {}, "add_remove", 1.0),
    ("prototypes", FLAT, "replace_one", 1.0),
    ("dp-fc", {"steps": 2, "clip_norm": 0.1}, "zero_out", 1.0),
    ("dp-sgd", {"steps": 2, "unit_norm": False, "clip_norm": 2.0}, "zero_out", 0.5),
    ("dp-adam", FLAT | {"steps": 2, "clip_norm": 0.5}, "add_remove", 1.0),
    # opposite rows have one Gram matrix: 120 degrees
    ("dp-ls", FLAT, "replace_one", math.sqrt(0.75)),
    # the gradient's bound needs infinite weights
    ("dp-newton", FLAT, "zero_out", math.sqrt(0.8 / 4 + 0.2)),
]


def test_each_method_has_its_canarys_share():
    assert {method for method, *_ in REACHED} == set(METHODS)


@pytest.mark.parametrize("method, settings, relation, share", REACHED)
def test_every_method_passes_and_its_canary_reaches_its_share(
    method, settings, relation, share
):
    """Odds of a false alarm 1e-7 each; the canary's own mu is exact, and never above
    the claim.
    """
    found = audited(method, settings, 50, relation=relation)
    assert found["passed"]
    assert found["canary_mu"] <= found["mu"]
    assert found["canary_epsilon"] <= 8
    reached = found["canary_mu"] / found["mu"]
    if share < 1 and method == "dp-sgd":
        assert reached >= share
    else:
        # a clipped row is one of 4,095 steps, less the margin for rounding
        assert reached == pytest.approx(share, abs=3e-3)


def test_poisson_batches_are_audited_with_the_mixture():
    """Odds of a false alarm 1e-7; the canary's advantage lies near its ceiling but for
    odds of 1e-6.
    """
    settings = FLAT | {"steps": 2, "clip_norm": 0.5, "batch_size": 8}
    found = audited("dp-sgd", settings, 200)
    assert found["passed"]
    assert found["mu"] is None
    assert found["epsilon_from_mu"] is None
    ceiling = found["ceilings"]["advantage"]
    spread = math.sqrt(0.5 / 200)
    assert found["advantage"] == pytest.approx(ceiling, abs=0.05 + 5 * spread)


def test_a_plan_without_noise_is_refused():
    solver, plan = planned("dp-ls", {}, epsilon=math.inf)
    with pytest.raises(ValueError, match="An audit cannot test epsilon"):
        audit.attack(solver, plan, [], 1)


def test_noise_of_few_units_is_refused():
    solver, plan = planned("dp-ls", {}, epsilon=1e5)
    with pytest.raises(ValueError, match="Type a smaller `--epsilon`"):
        audit.attack(solver, plan, [worst_case(SMALL, plan)], 1)


def test_a_claim_below_the_epsilon_of_the_releases_fails():
    """As of an accountant that takes 0.8 mu: another test fails with odds of 1e-7."""
    solver, plan = planned("prototypes", FLAT)
    smaller, problem = replace(plan, epsilon=6.0), worst_case(SMALL, plan)
    found = audit.attack(solver, smaller, [problem], 5, confidence=SURE)
    assert found["recomputed_epsilon"] == pytest.approx(8)
    broken = {law["name"] for law in found["laws"]["failed"]}
    assert broken == {"recomputed epsilon"}


def test_the_plan_says_how_much_noise_there_must_be_and_not_the_release(monkeypatch):
    """Noise at 0.6 sigma, and a release that says so: 100 fits miss it with odds below
    1e-9.
    """
    from dphead.privacy import release

    real = release.noise_scale
    monkeypatch.setattr(
        release, "noise_scale", lambda *given: (real(*given)[0], 0.6 * real(*given)[1])
    )
    found = audited("prototypes", FLAT, 100, confidence=0.9999)
    broken = {law["name"] for law in found["laws"]["failed"]}
    assert "deviation of the noise" in broken


def test_canaries_have_every_class_and_random_directions():
    facts = ProblemInfo(64, 5, 4)
    for relation in ("zero_out", "replace_one"):
        _, plan = planned("dp-ls", FLAT, facts=facts, relation=relation)
        problems = worst_cases(facts, plan, 100)
        assert sorted(p.canary[1] for p in problems) == [0, 1, 2, 3]
        rows = np.array([p.canary[0] for p in problems])
        assert np.linalg.norm(rows, axis=1) == pytest.approx(10)
        assert np.linalg.matrix_rank(rows) == 4
        for p in problems:
            assert (p.y != p.canary[1]).all()
            if relation == "replace_one":  # at 120 degrees
                assert p.canary[0] @ p.neighbor[0] == pytest.approx(-50, rel=1e-4)
    assert len(worst_cases(ProblemInfo(300, 5, 40), plan, 100)) == 10
    assert len(worst_cases(facts, plan, 2)) == 2


def clip_at(monkeypatch, factor):
    """Sums in which rows are clipped at `factor` times the planned norm, in the planned
    units, and that nothing compares with the reference.
    """
    rows_of, add_to = CpuSums.rows, CpuSums.add

    def wider(ask):
        return replace(ask, clip_norm=factor * ask.clip_norm)

    def add(self, ask, rows, y, used, out):
        append = ask.params.transform.append
        units = [a.statistic.unit(a.clip_norm, append) for a in (ask, wider(ask))]
        total = add_to(self, wider(ask), rows, y, used, np.zeros_like(out))
        out += np.rint(total * (units[1] / units[0])).astype(np.int64)
        return out

    monkeypatch.setattr(passes, "check_equal", lambda *_: None)
    monkeypatch.setattr(CpuSums, "rows", lambda self, a, b: rows_of(self, wider(a), b))
    monkeypatch.setattr(CpuSums, "add", add)


def test_a_mechanism_without_its_clip_fails(monkeypatch):
    """By fits whose canary is ten clip norms long."""
    method = ("dp-sgd", {"unit_norm": False, "steps": 1, "clip_norm": 0.5}, 100, 1.0)
    assert audited(*method)["passed"]
    clip_at(monkeypatch, 64)
    # at this confidence, the bound stays below 1 with odds of 3e-8
    found = audited(*method, confidence=0.9999)
    assert not found["passed"]
    assert found["canary_epsilon"] > found["epsilon"] == 1
    assert found["epsilon_lower_bound"] > 1


def test_groups_in_poisson_batches_have_no_worst_case():
    solver = make_method("dp-sgd", SMALL, {"steps": 1, "batch_size": 8}).solver
    plan = with_noise(solver, SMALL, relation="add_remove", group_cap=2)
    with pytest.raises(ValueError, match="`--group-cap 2` needs full batches"):
        worst_case(SMALL, plan)
