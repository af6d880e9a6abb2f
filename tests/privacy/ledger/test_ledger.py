"""What a ledger charges: one charge for each fit, a budget that nothing exceeds, and a
record in the order of the charges.
"""

import contextlib
import math

import pytest
from commands import Fork
from core import reserve
from ledgers import DELTA, specs
from scipy.optimize import brentq

from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger, LedgerError, new_fit_id, seals, spent
from dphead.privacy.ledger.budget import in_words


def test_one_ledger_holds_one_relation(path):
    reserve(specs(), Ledger(path))
    with pytest.raises(LedgerError, match="relation"):
        reserve(specs(relation="replace_one"), Ledger(path))
    assert len(Ledger(path).fits()) == 1


def sigma_for(epsilon, count=1):
    return math.sqrt(count) / mu_from_epsilon(epsilon, DELTA)


def test_the_budget_is_the_exact_total_over_all_fits(path):
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match="got True"):
        ledger.set_budget(True, DELTA)
    ledger.set_budget(1.0, DELTA)
    half = sigma_for(1.0, 2)
    reserve(specs(1, half), ledger)
    reserve(specs(1, half), ledger)
    assert accounting.compose_epsilon(ledger.events(), DELTA) == pytest.approx(
        1.0, rel=1e-9
    )
    for sigma in (1e3, 1e4):  # the latter adds 1.4e-7 of mu squared: no room is left
        with pytest.raises(LedgerError, match="would exceed the budget"):
            reserve(specs(1, sigma), ledger)
    assert len(ledger.fits()) == 2
    assert sum(e.count for e in ledger.events()) == 2


@pytest.mark.parametrize("q, sigma", [(1.0, 30.0), (0.01, 1.5)])
def test_what_remains_for_a_fit_is_what_the_filter_takes(path, q, sigma):
    """A fit of that epsilon is taken, one of 1 % less noise is refused."""
    ledger = Ledger(path)
    assert ledger.remaining([GaussianEvent(1.0)], DELTA) is None
    ledger.set_budget(2.0, DELTA)
    kind = [GaussianEvent(sigma, q, 50)]
    assert ledger.remaining(kind, DELTA) == 2.0
    reserve(specs(50, sigma, sampling_prob=q), ledger)
    left = ledger.remaining(kind, DELTA)
    alone = accounting.compose_epsilon(kind, DELTA)
    assert 0 < left < 2.0

    def excess(log_factor):
        found = [GaussianEvent(sigma * math.exp(log_factor), q, 50)]
        return accounting.compose_epsilon(found, DELTA) - left

    # the factor of the noise for which the epsilon is `left`
    high = math.exp(brentq(excess, -1.0, 3.0, xtol=1e-7) + 2e-7)
    assert excess(math.log(high)) <= 0 < excess(math.log(high * (1 - 1e-6)))
    assert (alone > left) == (high > 1)
    with pytest.raises(
        LedgerError, match=r"epsilon [\d.]+ remaining for a fit like this one"
    ):
        reserve(specs(50, sigma * high * 0.99, sampling_prob=q), ledger)
    reserve(specs(50, sigma * high * (1 + 1e-6), sampling_prob=q), ledger)


def test_nothing_remains_for_a_kind_that_the_filter_refuses(path):
    ledger = Ledger(path)
    ledger.set_budget(2.0, DELTA)
    reserve(specs(1, 30.0), ledger)
    assert ledger.remaining([GaussianEvent(30.0, 0.01, 50)], DELTA) == 0
    assert ledger.remaining([GaussianEvent(0.0)], DELTA) == 0
    sampled = Ledger(path.with_name("sampled.sqlite"))
    sampled.set_budget(8.0, DELTA)
    grouped = {"sampling_prob": 0.01, "group_cap": 4}
    reserve(specs(5, 3.0, **grouped), sampled)
    # groups in random batches have no divergence: no second fit, full or not
    assert sampled.remaining([GaussianEvent(1e6, rows_per_unit=4)], DELTA) == 0
    rest = math.sqrt(mu_from_epsilon(2.0, DELTA) ** 2 - 1 / 30.0**2)
    reserve(specs(1, 1 / rest), ledger)
    left = ledger.remaining([GaussianEvent(30.0)], DELTA)
    assert in_words(left, DELTA, ledger.budget()).startswith("epsilon 0 remaining")


@pytest.mark.parametrize("before", [(), (3.0,)])
@pytest.mark.parametrize("delta", [DELTA / 1000, DELTA * 1000])
def test_what_remains_at_another_delta_is_taken_if_it_is_typed_with_it(before, delta):
    """The remaining epsilon at the budget's delta has less noise at a larger delta: a
    fit with it would be refused.
    """
    ledger = Ledger()
    ledger.set_budget(2.0, DELTA)
    for sigma in before:
        reserve(specs(1, sigma), ledger)
    left = ledger.remaining([GaussianEvent(5.0)], delta)
    noise = 1 / mu_from_epsilon(left, delta)
    less = [spec.row() for spec in specs(1, noise * 0.999)]
    assert ledger.try_fits([(less, delta)]).refused == 0
    reserve(specs(1, noise), ledger, epsilon=left, delta=delta)


KINDS = {
    "full batches": [specs(2, 3.0)] * 7,
    "Poisson batches": [specs(300, 0.8, sampling_prob=0.02)] * 7,
    "Poisson batches, then full ones": [
        specs(300, 2.0, sampling_prob=0.01),
        *[specs(1, 2.0)] * 6,
    ],
    "full batches, then Poisson ones": [
        specs(1, 3.0),
        specs(300, 2.0, sampling_prob=0.01),
    ],
    "groups of another size": [specs(), specs(group_cap=2)],
    "a seed": [specs(1, 9.0), specs(1, 9.0, private=False)],
    "a part of an epoch": [specs(1, 9.0), specs(3, 9.0, epoch_steps=2)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_planned_fits_are_refused_where_their_charges_would_be(path, kind):
    """`try_fits` names the first fit that `reserve` refuses, and writes nothing."""
    ledger = Ledger(path, "data")
    ledger.set_budget(5.0, DELTA)
    reserve([KINDS[kind][0][0]] * len(KINDS[kind][0]), ledger)
    before = path.read_bytes()
    plans = [([spec.row() for spec in fit], DELTA) for fit in KINDS[kind][1:]]
    tried = Ledger(path, read_only=True).try_fits(plans)
    assert path.read_bytes() == before
    for fit in KINDS[kind][1 : tried.refused + 1]:
        reserve(fit, ledger)
    assert tried.spent == ledger.spent(DELTA)
    with pytest.raises(LedgerError) as error:
        reserve(KINDS[kind][tried.refused + 1], ledger)
    assert str(error.value) == tried.reason


def test_planned_fits_that_fit_are_not_refused():
    ledger = Ledger()
    ledger.set_budget(1.0, DELTA)
    plans = [([spec.row() for spec in specs(1, sigma_for(1.0, 3))], DELTA)] * 3
    tried = ledger.try_fits(plans)
    assert (tried.refused, tried.reason) == (None, None)
    assert tried.spent.epsilon == pytest.approx(1.0, rel=1e-9)
    assert ledger.try_fits([*plans, *plans]).refused == 3
    assert ledger.fits() == []


def test_a_budget_with_releases_that_its_filter_never_takes_has_spent_infinity():
    """A row that no charge wrote must not replace RDP by a smaller sum of PLDs."""
    budget = {"epsilon": 3.0, "delta": DELTA, "order": 8.0}
    random = GaussianEvent(2.0, 0.05, 20)
    allocated = GaussianEvent(1e9, 1.0, 2, epoch_steps=2)
    total = spent([random, allocated], 5, DELTA, "zero_out", budget)
    assert total.epsilon == math.inf
    assert spent([random, allocated], 5, DELTA, "zero_out").epsilon < math.inf


@pytest.mark.parametrize("sigma", [1e9, 1e154, 1e300])
def test_nothing_is_charged_after_a_budget_is_exhausted(path, sigma):
    """Not even what rounds to no spend, though the total does not move."""
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    all_of_it = sigma_for(1.0)
    while Ledger().spent(DELTA, GaussianEvent(all_of_it)).epsilon < 1.0:
        all_of_it = math.nextafter(all_of_it, 0.0)
    reserve(specs(1, all_of_it), ledger)
    with pytest.raises(LedgerError, match="which is spent: earlier fits have"):
        reserve(specs(1, sigma), ledger)
    assert len(ledger.fits()) == 1


def test_a_refused_fit_leaves_no_trace(path):
    ledger = Ledger(path)
    ledger.set_budget(0.5, DELTA)
    before = list(ledger._db.iterdump())
    with pytest.raises(LedgerError, match="Nothing was charged"):
        reserve(specs(3, 1.0), ledger)
    assert list(ledger._db.iterdump()) == before
    reserve(specs(1, sigma_for(0.5)), ledger)


def test_every_release_of_a_fit_counts_and_so_do_those_that_never_ran(path):
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    reserve(specs(3, sigma_for(1.0, 4)), ledger)  # never started
    reserve(specs(1, sigma_for(1.0, 4)), ledger)
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(specs(1, 100.0), ledger)


def test_a_budget_is_fixed_once_and_before_the_first_fit(path):
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    ledger.set_budget(1.0, DELTA)
    for other in ((2.0, DELTA), (1.0, 1e-6)):
        with pytest.raises(LedgerError, match="budget cannot change"):
            ledger.set_budget(*other)
    free = Ledger()
    reserve(specs(), free)
    with pytest.raises(LedgerError, match="before the first fit"):
        free.set_budget(8.0, DELTA)


@pytest.mark.parametrize("budget", [(0.0, DELTA), (math.nan, DELTA), (1.0, 1.0)])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(LedgerError):
        Ledger().set_budget(*budget)


def test_a_budget_takes_private_fits_only():
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    with pytest.raises(LedgerError, match="no noise, or noise from a seed"):
        reserve(specs(1, 0.0, clip_norm=math.inf), ledger)


@pytest.mark.parametrize("prob", [0.1, 1.0])
def test_a_fit_with_a_seed_counts_as_one_without_noise(prob):
    ledger = Ledger()
    reserve(specs(2, 4.0, sampling_prob=prob), ledger)
    assert ledger.spent(DELTA).epsilon < math.inf
    known = specs(1, 4.0, sampling_prob=prob, private=False)
    assert ledger.spent(DELTA, *[s.event() for s in known]).epsilon == math.inf
    reserve(known, ledger)
    assert ledger.spent(DELTA).epsilon == math.inf
    kept = Ledger()
    kept.set_budget(8.0, DELTA)
    with pytest.raises(LedgerError, match="no noise, or noise from a seed"):
        reserve(known, kept)


@pytest.mark.parametrize("budget, prob", [(1.0, 1.0), (1.0, 0.1)])
def test_what_a_budget_says_was_spent_is_never_above_it(budget, prob):
    """As many fits as it takes, each of a third of it, or all of it at once."""
    for fits in (1, 3):
        ledger = Ledger()
        ledger.set_budget(budget, DELTA)
        sigma = 8.0
        while (
            accounting.compose_epsilon([GaussianEvent(sigma, prob, 4)], DELTA)
            < budget / fits
        ):
            sigma *= 0.95
        refused = 0
        while refused < 3:
            try:
                reserve(specs(4, sigma, sampling_prob=prob), ledger)
            except LedgerError:
                refused, sigma = refused + 1, 1.05 * sigma
            assert ledger.spent(0.5).epsilon <= budget * (1 + 1e-9)
        events = [
            GaussianEvent(s["noise_multiplier"], prob)
            for f in ledger.fits()
            for s in f["releases"]
        ]
        exact = accounting.compose_epsilon(events, DELTA)
        assert 0 < exact <= ledger.spent(DELTA).epsilon * (1 + 1e-9)


def test_without_a_budget_one_fit_spends_its_own_epsilon_and_several_add_up():
    """Random batches of several fits by RDP, which takes no seconds, where it applies.
    None of it is a guarantee for fits that were chosen after seeing others.
    """
    one = [GaussianEvent(4.0, 0.1, 10)]
    two = [GaussianEvent(4.0, 0.1, 20)]
    for relation, accountant in (("zero_out", "rdp"), ("replace_one", "pld")):
        own = accounting.compose_epsilon(one, DELTA, relation, "pld")
        assert spent(one, 1, DELTA, relation) == (own, "pld")
        both = accounting.compose_epsilon(two, DELTA, relation, accountant)
        assert spent(two, 2, DELTA, relation) == (both, accountant)
    assert spent([], 0, DELTA, "zero_out") == (0.0, "exact")


@pytest.mark.parametrize("unit", [{"relation": "replace_one"}, {"group_cap": 3}])
@pytest.mark.parametrize("sampling_prob", [0.1, 1.0])
def test_a_poisson_fit_that_no_filter_knows_is_the_only_one(unit, sampling_prob):
    """Of its batches there is a loss distribution and no divergence."""
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    reserve(specs(1, 10.0, sampling_prob=0.1, **unit), ledger)
    with pytest.raises(ValueError, match="A later fit then needs") as refused:
        reserve(specs(1, 1e4, sampling_prob=sampling_prob, **unit), ledger)
    assert refused.type is LedgerError  # on which a run takes back its marker
    assert len(ledger.fits()) == 1


@pytest.mark.parametrize("counts", [(5,), (15,), (10, 3), (1,)])
def test_a_part_of_an_epoch_is_refused_before_the_charge(counts):
    """Parts of two fits would be added up to one epoch, and both were begun."""
    ledger = Ledger()
    releases = []
    for label, count in zip("ab", counts, strict=False):
        releases += specs(count, 10.0, epoch_steps=10, label=label)
    with pytest.raises(LedgerError, match=r"epochs of 10\. Set .* to a multiple of 10"):
        reserve(releases, ledger)
    assert not ledger.fits()
    reserve(specs(20, 10.0, epoch_steps=10), ledger)
    assert [event.epochs for event in ledger.events()] == [2]


@pytest.mark.parametrize("kind, first", [("rdp", {}), ("gdp", {"sampling_prob": 0.1})])
def test_the_first_fit_alone_fixes_the_kind_of_the_filter(kind, first):
    """A role that may charge can write a value with a seal."""
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    with ledger.transaction():
        ledger.set_once("accounting", kind)
        seals.seal(ledger)
    with pytest.raises(LedgerError, match=f"fixes {kind} as the accounting before"):
        reserve(specs(1, 8.0, **first), ledger)
    assert not ledger.count_fits()


@pytest.mark.parametrize("other", [{"epoch_steps": 10}, {}, {"sampling_prob": 0.1}])
def test_a_fit_with_allocation_is_the_only_one_of_a_budget(other):
    """There is no divergence of it for the filter, in whatever order they come."""
    first = specs(20, 10.0, epoch_steps=10)
    ledger = Ledger()
    ledger.set_budget(0.5, DELTA)
    reserve(first, ledger)
    assert ledger.meta("accounting") == "rdp"
    with pytest.raises(LedgerError, match="A later fit then needs"):
        reserve(specs(10, 1e4, **other), ledger)
    assert len(ledger.fits()) == 1
    if other.get("epoch_steps") is None:
        ledger = Ledger()
        ledger.set_budget(8.0, DELTA)
        reserve(specs(10, 1e4, **other), ledger)
        message = (
            "random batches. A later fit then needs"
            if other
            else "takes full batches only"
        )
        with pytest.raises(LedgerError, match=message):
            reserve(first, ledger)


def test_a_budget_counts_every_epoch_of_a_fit():
    """As the accountant says of its events, and not one less."""
    fit = specs(30, 2.0, epoch_steps=10)
    events = [GaussianEvent(2.0, count=30, epoch_steps=10)]
    cost = accounting.compose_epsilon(events, DELTA)
    enough, less = Ledger(), Ledger()
    enough.set_budget(1.001 * cost, DELTA)
    reserve(fit, enough)
    less.set_budget(0.999 * cost, DELTA)
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(fit, less)


def test_a_full_batch_budget_refuses_poisson_batches():
    ledger = Ledger()
    ledger.set_budget(8.0, DELTA)
    reserve(specs(1, 10.0), ledger)
    message = "takes full batches only.*another ledger"
    with pytest.raises(LedgerError, match=message):
        reserve(specs(1, 10.0, sampling_prob=0.1), ledger)


def test_mixed_fits_are_filtered_at_one_order_fixed_beforehand():
    """The first fit may use PLD: nothing was chosen adaptively.

    With a second, everything counts at the one order.
    """
    ledger = Ledger()
    ledger.set_budget(2.0, DELTA)
    order = ledger.budget()["order"]
    poisson = specs(200, 2.0, sampling_prob=0.02)
    reserve(poisson, ledger)
    accepted = [*[GaussianEvent(2.0, 0.02)] * 200]
    for _ in range(50):
        new = [*specs(1, 6.0), *specs(20, 2.0, sampling_prob=0.02)]
        events = [*accepted, GaussianEvent(6.0), *[GaussianEvent(2.0, 0.02)] * 20]
        total = accounting.rdp_epsilon(
            order, accounting.rdp_curve(events, [order])[0], DELTA
        )
        if total > 2.0:
            with pytest.raises(LedgerError, match="would exceed the budget"):
                reserve(new, ledger)
            break
        reserve(new, ledger)
        accepted = events
    else:
        pytest.fail("the budget was never reached")
    assert len(accepted) > 200
    assert accounting.compose_epsilon(ledger.events(), DELTA, accountant="pld") <= 2.0


def test_the_filter_does_not_choose_its_order_after_the_fits():
    """The least epsilon over the orders would have room for this fit: 1.65 of 2.

    The one order that was fixed with the budget gives 20.
    """
    ledger = Ledger()
    ledger.set_budget(2.0, DELTA)
    reserve(specs(1, 20.0, sampling_prob=0.01), ledger)
    second = specs(500, 1.0, sampling_prob=0.01)
    events = [*ledger.events(), GaussianEvent(1.0, 0.01, 500)]
    assert accounting.compose_epsilon(events, DELTA, accountant="rdp") < 1.7
    with pytest.raises(LedgerError, match="would exceed the budget"):
        reserve(second, ledger)
    assert len(ledger.fits()) == 1


SPEND = """
import sys
from core import *
from dphead.privacy.ledger import LedgerError
ledger, done = Ledger(sys.argv[1]), 0
for _ in range(6):
    try:
        reserve([spec_of(ClassSums(3), 40, sigma=float(sys.argv[2]))], ledger)
        done += 1
    except LedgerError:
        pass
print(done)
"""


def test_concurrent_processes_cannot_exceed_the_budget(path):
    """Four processes ask for 24 fits at once; the budget has room for exactly 7."""
    ledger = Ledger(path)
    ledger.set_budget(1.0, DELTA)
    given = (path.parent, SPEND, path, sigma_for(1.0, 7))
    started = [Fork(*given) for _ in range(4)]
    done = [int(process.wait().out) for process in started]
    assert sum(done) == 7 == len(ledger.fits())
    assert accounting.compose_epsilon(ledger.events(), DELTA) <= 1.0 * (1 + 1e-9)


def test_no_time_finer_than_an_hour_leaves_a_ledger(path):
    ledger = Ledger(path)
    reserve(specs(), ledger)
    assert ledger.fits()[0]["created"] % 3600 == 0


def test_fits_are_in_the_order_of_their_charges_whatever_the_clock_says(
    path, monkeypatch
):
    ledger = Ledger(path)
    clock = iter([9e8, 5e8, 7e8, 7e8, 7e8])
    monkeypatch.setattr("dphead.privacy.ledger.ledger.time.time", lambda: next(clock))
    charged = [reserve(specs(), ledger).fit_id for _ in range(5)]
    assert [fit["fit_id"] for fit in ledger.fits()] == charged
    ledger._db.execute("VACUUM")
    assert [fit["fit_id"] for fit in ledger.fits()] == charged


def test_a_fit_id_is_charged_once(path):
    """Also when two processes take it from copies of one folder."""
    fit_id = new_fit_id()
    given = {
        "epsilon": 1.0,
        "delta": DELTA,
        "description": "",
        "plan_hash": "",
        "fit_id": fit_id,
    }
    rows = [spec.row() for spec in specs()]
    ledger = Ledger(path)
    assert not ledger.holds(fit_id)
    assert ledger.reserve(rows, **given).fit_id == fit_id
    assert ledger.holds(fit_id)
    with pytest.raises(LedgerError, match="already charged"):
        Ledger(path).reserve(rows, **given)
    assert len(ledger.fits()) == 1


@pytest.mark.parametrize("table", ["fits", "progress"])
def test_a_fit_that_is_charged_while_fits_are_listed_is_listed_whole_or_not(
    path, monkeypatch, table
):
    """Its releases were once listed without it, which stopped another fit's report."""
    ledger, other = Ledger(path), Ledger(path)
    reserve(specs(2), ledger)
    read, late = ledger.rows, []

    def charged(asked):
        found = read(asked)
        if asked.name == table:
            other._db.execute("PRAGMA busy_timeout = 0")
            with contextlib.suppress(LedgerError):  # the file is locked, or free
                late.append(reserve(specs(1), other))
        return found

    monkeypatch.setattr(ledger, "rows", charged)
    assert [len(fit["releases"]) for fit in ledger.fits()] == [2]
    monkeypatch.undo()
    assert len(ledger.fits()) == 1 + len(late)
