"""What ran is what was charged, and what was charged is what is reported: for every
solver, by an independent path.

The path: the releases table read with plain sqlite3; mpmath's closed form of Balle and
Wang, Theorem 8, for full batches; dp_accounting's own accountant and events for Poisson
batches. Of dphead.privacy.accounting only names are used.
"""

import ast
import json
import math
import sqlite3
from collections import Counter
from fractions import Fraction
from pathlib import Path

import dp_accounting
import mpmath
import numpy as np
import pytest
from core import integer_sum, reserve, sensitivity, spec_of, toy
from definitions import per_example
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from fits import each_method, plan_and_fit
from hypothesis import given, settings
from hypothesis import strategies as st

import dphead.fit.loop
from dphead.analysis.records import fit_events
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.fit.report import guarantee
from dphead.planning.plan import Plan, make_plan
from dphead.privacy import accounting
from dphead.privacy.accounting import RELATIONS, together
from dphead.privacy.ledger import Ledger
from dphead.privacy.noise import NoiseSource, rounded_noise
from dphead.privacy.release import noise_scale
from dphead.privacy.statistics import ClassSums
from dphead.solvers import (
    DPFC,
    GradientDescent,
    LeastSquares,
    ProblemInfo,
)
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization

N = 150
D = 6
M = 3
DELTA = 1e-5
FACTS = ProblemInfo(N, D, M)
X, Y = toy(N, D, M)
FULL = each_method(FACTS) | {
    "fc, unequal": DPFC(
        steps=3, gram_share=0.1, centering=Centering(0.0), intercept=0.5
    ),
    "ls, class grams": LeastSquares(
        class_grams=True, centering=Centering(0.0, unit_norm=False)
    ),
    "normalized": GradientDescent(
        steps=2, centering=ChannelNormalization(2, 3.0, 9.0, 60.0)
    ),
}
POISSON = GradientDescent(steps=12, sampling_prob=0.1, centering=Centering(0.0))


@pytest.fixture(autouse=True)
def quick_profiles(monkeypatch):
    """The papers' accountants beside each other take half a second, and charge
    nothing.
    """
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})


def delta_of(mu, epsilon):
    """Balle and Wang 2018, Theorem 8, with 50 digits."""
    with mpmath.workdps(50):
        mu = mpmath.mpf(mu)
        epsilon = mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.e**epsilon * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def charged(path):
    """(noise_multiplier, sampling_prob, state) of every release, with no code of
    ours.
    """
    db = sqlite3.connect(path)
    rows = db.execute(
        "SELECT fit_id, sequence, noise_multiplier, sampling_prob, spec FROM releases "
        "ORDER BY sequence"
    ).fetchall()
    out = []
    for fit_id, sequence, sigma, prob, spec in rows:
        assert (
            json.loads(spec)["noise_multiplier"],
            json.loads(spec)["sampling_prob"],
        ) == (sigma, prob)
        states = [
            s
            for (s,) in db.execute(
                "SELECT state FROM progress WHERE fit_id=? AND sequence=?",
                (fit_id, sequence),
            )
        ]
        out.append((sigma, prob, states))
    return out


def watched_fit(monkeypatch, tmp_path, solver, epsilon, relation="zero_out", seed=1):
    """Fit through the real loop; return the result, the releases that ran, and the
    charged ones.
    """
    ran = []
    real = dphead.fit.loop.release

    def spy(statistic, params, rows, spec, **more):
        released = real(statistic, params, rows, spec, **more)
        ran.append((statistic, params, spec, released))
        return released

    monkeypatch.setattr(dphead.fit.loop, "release", spy)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    plan = make_plan(solver, FACTS, epsilon=epsilon, delta=DELTA, relation=relation)
    noise = NoiseSource(seed)
    run = {"ledger": ledger, "noise": noise, "not_private": True}
    result = fit_rows(plan, ArrayRows(X, Y), **run)
    return result, ran, charged(tmp_path / "ledger.sqlite")


@pytest.mark.parametrize(
    "relation, epsilon",
    [
        ("zero_out", 0.1),
        ("zero_out", 1.0),
        ("zero_out", 8.0),
        ("add_remove", 1.0),
        ("replace_one", 8.0),
    ],
)
@pytest.mark.parametrize("name", FULL)
def test_full_batch_fits_spend_what_they_report(
    monkeypatch, tmp_path, name, epsilon, relation
):
    result, ran, rows = watched_fit(
        monkeypatch, tmp_path, FULL[name], epsilon, relation
    )
    assert len(ran) == len(rows) == len(FULL[name].plan(FACTS))
    assert all(states == ["started", "committed"] for *_, states in rows)
    for (_, _, spec, _), (sigma, prob, _) in zip(ran, rows, strict=True):
        assert (spec.noise_multiplier, spec.sampling_prob, spec.relation) == (
            sigma,
            prob,
            relation,
        )
        assert prob == 1
    mu = math.sqrt(math.fsum(1 / sigma**2 for sigma, *_ in rows))
    reported = guarantee(result.plan)["epsilon"]
    assert delta_of(mu, reported) <= DELTA < delta_of(mu, reported * (1 - 1e-6))
    assert epsilon * (1 - 1e-6) <= reported <= epsilon
    assert guarantee(result.plan)["mu"] == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_noise_that_ran_is_the_noise_of_the_spec(
    monkeypatch, tmp_path, name, relation
):
    """Times σ, the sensitivity is the noise, drawn again from the seed on the same sum
    of integers, which is the sum of the definition but for the grid: a row's clipped
    statistic is rounded by 1e-3 of the clip norm at most.
    """
    _, ran, _ = watched_fit(monkeypatch, tmp_path, FULL[name], 1.0, relation, seed=5)
    for sequence, (statistic, params, spec, released) in enumerate(ran):
        append = params.transform.append
        unit, sd = noise_scale(statistic, spec, append)
        assert unit == statistic.unit(spec.clip_norm, append)
        assert released.noise_sd == sd * unit
        squared = Fraction(spec.noise_multiplier) ** 2 * statistic.sensitivity_sq(
            relation, spec.clip_norm, append
        )
        assert squared <= Fraction(sd) ** 2 <= squared * Fraction(1.0 + 1e-14)
        z = rounded_noise(
            NoiseSource(5).generator(sequence, "noise"),
            released.value.shape,
            sd,
            statistic.symmetric,
        )
        exact = integer_sum(statistic, params, X, Y, spec.clip_norm)
        assert np.array_equal(released.value, (exact + z) * unit)
        slow = sum(
            per_example(statistic, params, x, int(y), spec.clip_norm)
            for x, y in zip(X, Y, strict=True)
        )
        single = sensitivity(statistic, spec.clip_norm, "zero_out", append)
        assert np.abs(exact * unit - slow).max() <= 2e-3 * N * single


def test_poisson_fits_spend_what_they_report(monkeypatch, tmp_path):
    result, ran, rows = watched_fit(monkeypatch, tmp_path, POISSON, 1.0)
    assert len(ran) == len(rows) == len(POISSON.plan(FACTS))
    reported = guarantee(result.plan)["epsilon"]
    assert 1 - 2e-3 <= reported <= 1
    (kind, count), *others = Counter(row[:2] for row in rows).items()
    assert not others
    sigma, prob = kind
    event = dp_accounting.PoissonSampledDpEvent(
        prob, dp_accounting.GaussianDpEvent(sigma)
    )
    pld = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    rdp = RdpAccountant()
    pld.compose(event, count)
    rdp.compose(event, count)
    assert pld.get_epsilon(DELTA) == pytest.approx(reported, rel=2e-3)
    assert rdp.get_epsilon(DELTA) >= reported * (1 - 1e-9)


def test_a_solver_that_leaves_its_plan_is_stopped(tmp_path):
    """Too many steps, too few, another order: nothing is read that was not charged
    (defect 3).
    """

    class Longer(LeastSquares):
        def plan(self, facts):
            return super().plan(facts)[:-1]

    class Shorter(LeastSquares):
        def plan(self, facts):
            return [*super().plan(facts), super().plan(facts)[-1]]

    class Swapped(LeastSquares):
        def plan(self, facts):
            return super().plan(facts)[::-1]

    for solver in (Longer(), Shorter(), Swapped()):
        with pytest.raises(RuntimeError, match="its plan"):
            plan_and_fit(solver, ArrayRows(X, Y), FACTS)


class Watched(Ledger):
    """A ledger that keeps what its filter is shown."""

    def _check(self, new, *more):
        self.filtered = [*self.events(), *new]
        super()._check(new, *more)


# Few values, so that releases are often equal in all but one of them.
KIND = st.tuples(
    st.sampled_from([1.0, 2.0]),  # noise multiplier
    st.sampled_from([1.0, 0.5, 0.25]),  # sampling probability
    st.sampled_from([1, 1, 4]),  # steps of an epoch, where that is 1
    st.sampled_from(["a", "b"]),  # label
    st.sampled_from([1.0, 3.0]),  # clip norm
)


@settings(max_examples=60, deadline=None)
@given(
    fits=st.lists(st.lists(KIND, min_size=1, max_size=6), min_size=1, max_size=3),
    cap=st.sampled_from([None, 1, 3]),
    relation=st.sampled_from(RELATIONS),
)
def test_plan_ledger_filter_and_spec_see_the_same_events(fits, cap, relation):
    """Each release is its noise, its sampling and the rows of a unit: none may be lost
    or mixed up on any of the ways from a spec to an accountant."""
    ledger = Watched()
    specs = []
    expected = Counter()
    if cap == 3 and relation == "replace_one":  # no accountant has samples of these
        fits = [[(sigma, 1.0, *rest) for sigma, _, *rest in fit] for fit in fits]
    alone = cap != 3 and relation != "replace_one"
    for fit in fits:
        kinds = []
        for sigma, q, steps, *rest in fit:
            steps = steps if alone and q == 1 else 1
            kinds += [(sigma, q, steps, *rest)] * steps  # whole epochs
        own = [
            spec_of(
                ClassSums(M),
                N,
                sigma=sigma,
                sampling_prob=q,
                label=label,
                clip_norm=clip,
                relation=relation,
                group_cap=cap,
                epoch_steps=steps,
            )
            for sigma, q, steps, label, clip in kinds
        ]
        reserve(own, ledger)
        specs += own
        for sigma, q, steps, *_ in kinds:
            expected[sigma, q, cap or 1, steps] += 1

    def counted(events):
        found = Counter()
        for e in events:
            kind = e.noise_multiplier, e.sampling_prob, e.rows_per_unit, e.epoch_steps
            found[kind] += e.count
        return found

    events = Plan(1.0, DELTA, relation, "auto", cap, specs=specs).events()
    assert counted(events) == expected
    assert len(events) == len(expected)
    assert counted(spec.event() for spec in specs) == expected
    assert counted(ledger.events()) == counted(ledger.filtered) == expected
    assert counted(fit_events(ledger.fits())) == expected
    assert counted(together([*events, *events])) == expected + expected


def test_one_function_of_the_audited_folder_makes_events_of_releases():
    """A second derivation could differ from the first, as three of them once could."""
    found = []
    for path in sorted(Path(accounting.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = (n.func for n in ast.walk(function) if isinstance(n, ast.Call))
            if "GaussianEvent" in [
                getattr(f, "id", getattr(f, "attr", "")) for f in calls
            ]:
                found.append(f"{path.stem}.{function.name}")
    assert found == ["events.event_of"]


def test_a_fit_without_a_budget_is_recorded_as_not_private(monkeypatch, tmp_path):
    result, ran, rows = watched_fit(monkeypatch, tmp_path, FULL["dp-ls"], math.inf)
    assert all(sigma == 0 for sigma, *_ in rows)
    assert all(r.noise_sd == 0 for *_, r in ran)
    g = guarantee(result.plan)
    assert not g["private"]
    assert g["epsilon"] == math.inf
    assert g["mu"] is None


def test_a_fixed_seed_is_reported_as_not_private(monkeypatch, tmp_path):
    result, *_ = watched_fit(monkeypatch, tmp_path, FULL["dp-ls"], 1.0, seed=3)
    assert not result.private_noise
    assert not guarantee(result.plan, result.private_noise)["private"]
    result, *_ = watched_fit(monkeypatch, tmp_path / "b", FULL["dp-ls"], 1.0, seed=None)
    assert result.private_noise
    assert guarantee(result.plan, result.private_noise)["private"]


def test_the_fits_of_one_ledger_add_up_across_solvers(tmp_path):
    ledger = Ledger(tmp_path / "l.sqlite")
    budget = 2.0
    ledger.set_budget(budget, DELTA)
    for name in ("dp-ls", "dp-fc", "dp-newton"):
        plan_and_fit(
            FULL[name], ArrayRows(X, Y), FACTS, epsilon=0.9, delta=DELTA, ledger=ledger
        )
    mu = math.sqrt(
        math.fsum(1 / sigma**2 for sigma, *_ in charged(tmp_path / "l.sqlite"))
    )
    assert delta_of(mu, budget) <= DELTA
    before = charged(tmp_path / "l.sqlite")
    with pytest.raises(ValueError, match="would exceed the budget"):
        plan_and_fit(
            FULL["dp-sgd"],
            ArrayRows(X, Y),
            FACTS,
            epsilon=1.9,
            delta=DELTA,
            ledger=ledger,
        )
    assert charged(tmp_path / "l.sqlite") == before


def test_the_plan_is_made_before_the_data_and_from_public_facts_alone():
    """Data sets of one public size have one plan: no threshold or count is read from
    rows (defects 5 and 10).
    """
    for solver in (*FULL.values(), POISSON):
        plans = [
            make_plan(solver, FACTS, epsilon=1.0, delta=DELTA, accountant="rdp")
            for _ in range(2)
        ]
        assert plans[0].specs == plans[1].specs
        assert all(s.n_rows == N for s in plans[0].specs)
