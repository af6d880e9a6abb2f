"""What an attacker gains, beside an independent package."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.stats import norm

from dphead.analysis.card.risk import CURVE_RATES, limits_of
from dphead.analysis.tradeoff import REPORTED_RATES
from dphead.privacy.accounting import epsilon_from_mu


def report(*releases, epsilon, delta=1e-5, relation="zero_out"):
    """What `limits_of` needs. releases: (noise multiplier, sampling probability,
    count).
    """
    rows = [
        {"noise_multiplier": sd, "sampling_prob": q, "count": count, "group_cap": None}
        for sd, q, count in releases
    ]
    g = {"epsilon": epsilon, "delta": delta, "neighboring_relation": relation}
    return {"guarantee": g | {"releases": rows}}


def full_batches(*noise):
    mu = float(np.sqrt(sum(1 / sd**2 for sd in noise)))
    released = report(
        *((sd, 1.0, 1) for sd in noise), epsilon=epsilon_from_mu(mu, 1e-5)
    )
    return released, mu


def own(limits, replaced=False):
    (found,) = [one for one in limits if one.own and one.replaced == replaced]
    return found


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("noise", [(0.6,), (3.9, 20.0, 20.0)])
def test_limits_agree_with_riskcal_to_1e_9(noise, replaced):
    riskcal = pytest.importorskip("riskcal.analysis.conversions")
    released, mu = full_batches(*noise)
    found = own(limits_of(released), replaced)
    mu *= 2 if replaced else 1
    misses = riskcal.get_beta_from_gdp(mu, np.array(REPORTED_RATES))
    assert_allclose(found.hits, 1 - misses, rtol=1e-9, atol=1e-12)
    curve = riskcal.get_beta_from_gdp(mu, CURVE_RATES)
    assert_allclose(found.curve, 1 - curve, rtol=1e-9, atol=1e-12)
    advantage = riskcal.get_advantage_from_gdp(mu)
    assert found.guess == pytest.approx((1 + advantage) / 2, rel=1e-9)
    risk = riskcal.get_bayes_risk_from_gdp(mu, 0.5)
    assert found.guess == pytest.approx(1 - risk, rel=1e-9)


def test_sampled_batches_are_limited_as_riskcal_does_from_a_distribution():
    """Upper limits, close to those of another algorithm on another grid."""
    riskcal = pytest.importorskip("riskcal.analysis.conversions")
    from dp_accounting.pld import privacy_loss_distribution as pld

    events = (2.0, 0.1, 50)
    found = own(limits_of(report(events, epsilon=1.6)))
    sampled = pld.from_gaussian_mechanism(
        2.0, value_discretization_interval=1e-4, sampling_prob=0.1
    ).self_compose(50)
    misses = riskcal.get_beta_from_pld(sampled, alpha=np.array(REPORTED_RATES))
    theirs = 1 - np.asarray(misses)
    assert np.all(np.array(found.hits) >= theirs - 1e-4)
    assert_allclose(found.hits, theirs, rtol=2e-2)


def test_a_replaced_row_in_a_poisson_batch_is_limited_by_its_own_pair():
    """Source: Neyman, Pearson, on (1 - q) N(0) + q N(+-1): the ratio rises with the
    number that is seen. With the relation of an empty place limits would be smaller.
    """
    sd, q = 0.8, 0.5
    released = report((sd, q, 1), epsilon=5.0, relation="replace_one")
    found = own(limits_of(released), replaced=True)

    def beyond(x, mean):
        return (1 - q) * norm.sf(x / sd) + q * norm.sf((x - mean) / sd)

    for rate, hit in zip(REPORTED_RATES, found.hits, strict=True):
        x = brentq(lambda x, rate=rate: beyond(x, -1) - rate, -5, 10)
        # the limit is an upper one, of 2,000 epsilons
        assert beyond(x, 1) - 1e-12 <= hit <= beyond(x, 1) * 1.01
    gain = beyond(0, 1) - beyond(0, -1)
    assert (1 + gain) / 2 <= found.guess + 1e-12 <= (1 + gain) / 2 * 1.01
    empty = report((sd, q, 1), epsilon=5.0, relation="zero_out")
    assert max(own(limits_of(empty)).hits) < max(found.hits)


def test_there_are_no_limits_without_noise():
    with pytest.raises(ValueError, match="finite epsilon"):
        limits_of(report((0.0, 1.0, 1), epsilon=float("inf")))
