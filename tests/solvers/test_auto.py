"""`auto` sets itself from public numbers, and knows how well it did."""

from dataclasses import replace

import numpy as np
import pytest
from core import toy
from fits import plan_and_fit, quick_sums

from dphead.data.arrays import ArrayRows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params
from dphead.privacy.statistics import CorrectCounts, Gradient
from dphead.privacy.transform import RowTransform
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.auto import AdaptiveStepSize
from dphead.solvers.auto_rules import (
    CENTER_NOISE,
    DESCENT,
    LENGTHEN_AT_MOST,
    LENGTHEN_FROM_SHARE,
    LIKELY_SHARE,
    LONGEST_STEP,
    MOVE_LOGITS,
    WIDEST_UNNOISED_GRAM,
    rate,
)
from dphead.solvers.base import Response
from dphead.solvers.centering import Centering
from dphead.solvers.expectation import (
    counted,
    expected_accuracy,
    expected_of_classes,
    overfit,
)
from dphead.solvers.prior import PublicPrior

D, M = 8, 4


def blobs(n, seed, spread=1.1, weights=None):
    """n rows of M overlapping classes, some far larger than others if `weights` says
    so.
    """
    rng = np.random.default_rng(seed)
    y = rng.choice(M, n, p=weights)
    return (rng.normal(size=(n, D)) * spread + 2 * np.eye(M, D)[y]).astype(
        np.float32
    ), y


def fit(x, y, epsilon, seed=None, solver=Auto()):  # noqa: B008
    facts = ProblemInfo(len(x), D, M)
    run = {"noise": NoiseSource(seed), "summer": quick_sums()}
    return plan_and_fit(
        solver, ArrayRows(x, y, 8192), facts, epsilon=epsilon, **run
    ).head


def plan(n=50_000, d=1000, epsilon=1.0, solver=Auto(), **more):  # noqa: B008
    return make_plan(solver, ProblemInfo(n, d, 10), epsilon=epsilon, delta=1e-6, **more)


@pytest.mark.parametrize("momentum", [DESCENT.momentum, 0.9])
@pytest.mark.parametrize("steps, strength", [(20, 300.0), (100, 5000.0)])
def test_noise_alone_moves_a_weight_by_a_set_amount_over_the_descent(
    steps, strength, momentum
):
    """MOVE_LOGITS; the momentum of the last steps is not yet spent: 0.6 to 1 of it.

    Sampling error 1 %, allowed 3.
    """
    rng = np.random.default_rng(0)
    weights = velocity = np.zeros(5000)
    for _ in range(steps):
        velocity = (
            momentum * velocity + rng.normal(size=5000) * np.sqrt(steps) / strength
        )
        weights = weights - rate(strength, steps, momentum) * velocity
    assert (0.6 if momentum else 0.97) < weights.std() / MOVE_LOGITS < 1.03


def test_large_steps_on_few_features_do_not_oscillate():
    """The best head has 79 % here; the last iterate of the same steps has 72."""
    head = fit(*blobs(20_000, 0), 8.0, 0)
    x, y = blobs(20_000, 99)
    assert np.mean(head.scores(x).argmax(axis=1) == y) > 0.78


def lengthened(mean, noise_sd, steps=100, rate=10.0, seed=0, m=M, d=D):
    """Factors of all steps of a descent whose gradients stay the same but for noise."""
    rng = np.random.default_rng(seed)
    lengthen = AdaptiveStepSize(
        ProblemInfo(1000, d, m), replace(DESCENT, steps=steps, learning_rate=rate)
    )
    return [
        lengthen(mean + noise_sd * rng.normal(size=mean.shape), noise_sd)
        for _ in range(steps)
    ]


def classes_apart(share, m=M, d=D):
    """The mean normalised gradient (d + 1, m) of m equal classes that hold so much of
    unit rows' variance.
    """
    x = np.repeat(
        np.sqrt(share) * (np.eye(m, d) - np.eye(m, d).mean(0)) / np.sqrt(1 - 1 / m),
        50,
        0,
    )
    y = np.arange(m)
    residual = 1 / m - np.eye(m)[np.repeat(y, 50)]
    gradient = x.T @ residual / np.linalg.norm(residual[0]) / len(x)
    # the intercept's row does not count
    return np.vstack([gradient, np.full((1, m), 100.0)])


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize(
    "share, factor",
    [
        (0.1, 1.0),
        (0.2, 1.0),
        (0.3, 1.5),
        (0.36, LENGTHEN_AT_MOST),
        (0.9, LENGTHEN_AT_MOST),
    ],
)
def test_steps_are_longer_where_classes_hold_much_of_the_variance(share, factor, m):
    """For its logarithm of classes: cells of the same rows hold more of it, the more
    they are.
    """
    assert lengthened(classes_apart(share * np.log10(m), m), 0.0, m=m) == pytest.approx(
        [factor] * 100
    )


def test_the_share_is_found_beneath_the_noise():
    """Without subtracting the noise's own square, noise would look like classes far
    apart. 400 noise draws; the share's deviation is a tenth when it is known, after so
    many steps, and its mean known to 0.005: 0.02 are allowed, for what the limits cut
    off.
    """
    known = {0.02: 1, 0.15: 9, 0.24: 23, 0.3: 36}
    for noise_sd, seen in known.items():
        shares = []
        for seed in range(400):
            factors = lengthened(classes_apart(0.28 * np.log10(M)), noise_sd, seed=seed)
            assert len(set(factors[seen - 1 :])) == 1
            shares.append(factors[-1] * 0.2)
        assert abs(np.clip(shares, 0.2, 0.36).mean() - 0.28) < 0.02
    assert lengthened(classes_apart(0.0), 0.24)[-1] < 1.5


def test_what_noise_hides_is_taken_to_be_what_is_likely():
    """The first steps are as long as for LIKELY_SHARE, and then the less so, the more
    is seen of a smaller one.
    """
    likely = LIKELY_SHARE / LENGTHEN_FROM_SHARE
    assert lengthened(classes_apart(0.0), 30.0) == pytest.approx([likely] * 100, 0.01)
    draws = [lengthened(classes_apart(0.0), 0.6, seed=i) for i in range(99)]
    means = np.mean(draws, axis=0)
    assert likely > means[0] > means[10] > means[50] > means[99] > 1.0


def test_lengthened_steps_are_no_longer_than_the_longest():
    assert lengthened(classes_apart(0.9), 0.0, rate=LONGEST_STEP / 1.2)[
        -1
    ] == pytest.approx(1.2)
    assert lengthened(classes_apart(0.9), 0.0, rate=LONGEST_STEP)[-1] == 1.0
    for momentum, rate_, factor in ((0.9, LONGEST_STEP * 0.1 / 1.2, 1.2),):
        descent = replace(DESCENT, steps=100, momentum=momentum, learning_rate=rate_)
        assert AdaptiveStepSize(ProblemInfo(1000, D, M), descent)(
            classes_apart(0.9), 0.0
        ) == pytest.approx(factor)


def test_classes_far_apart_are_told_from_near_ones_by_a_fit():
    """A given `move` and the rule give the same head where classes are near; the rule's
    is larger elsewhere.
    """
    ratios = []
    for spread in (0.2, 3.0):
        x, y = blobs(5000, 0, spread)
        heads = [fit(x, y, 8.0, 0, Auto(move=move)) for move in (None, MOVE_LOGITS)]
        ratios.append(
            np.linalg.norm(heads[0].weights) / np.linalg.norm(heads[1].weights)
        )
    assert ratios[0] > 1.1
    assert ratios[1] == 1.0


@pytest.mark.parametrize(
    "n, epsilon, share", [(50_000, 1.0, 0.01), (3000, 1.0, None), (200, 0.5, 0.03)]
)
def test_the_count_has_one_to_three_per_cent_of_the_budget(n, epsilon, share):
    """In between, its noise is one point of accuracy."""
    made = plan(n, 8, epsilon)
    mu2 = np.array([1 / s.noise_multiplier**2 for s in made.specs])
    if share is None:
        assert 0.01 < mu2[-1] / mu2.sum() < 0.03
        assert made.specs[-1].noise_multiplier == pytest.approx(0.01 * n, rel=1e-6)
    else:
        assert mu2[-1] / mu2.sum() == pytest.approx(share, rel=1e-6)
    assert epsilon * (1 - 1e-6) < made.epsilon_spent() <= epsilon


@pytest.mark.parametrize(
    "n, d, epsilon, share",
    [
        (50_000, 1280, 1.0, 0.02),
        (1077, 144, 0.5, 0.1),
        (1077, 144, 1.0, None),
        (1077, 144, np.inf, 0.02),
    ],
)
def test_the_centre_has_more_of_the_budget_where_rows_are_few(n, d, epsilon, share):
    """In between, the noise in a mean of unit rows has a squared length of
    CENTER_NOISE; without a centre there is none.
    """
    facts = plan(n, d, epsilon).budgeted(ProblemInfo(n, d, 10))
    found = Auto()._centering(facts).share
    if share is None:
        assert 0.02 < found < 0.1
        assert d / (n * facts.mu) ** 2 / found == pytest.approx(CENTER_NOISE)
    else:
        assert found == share
    assert Auto(centering=Centering(0.0))._centering(facts).share == 0


def test_steps_and_scaling_follow_from_sizes_and_budget():
    weak = plan(epsilon=0.1)
    strong = plan(epsilon=8.0)
    assert 63 == len(weak.specs) < len(strong.specs) <= 104
    assert len(plan(1000, epsilon=0.5).specs) == 33
    assert [s.label for s in weak.specs][:3] == [
        "rows that count",
        "feature mean",
        "gradient",
    ]
    assert [s.label for s in strong.specs][:4] == [
        "rows that count",
        "feature mean",
        "feature squares",
        "gradient",
    ]
    assert "feature squares" not in [
        s.label for s in plan(epsilon=8.0, solver=Auto(centering=Centering(0.0))).specs
    ]


def test_whoever_protects_more_has_less_to_spend():
    """A group of four has a quarter of the mu of a row, and a replaced row moves a sum
    twice as far.
    """
    facts = ProblemInfo(1000, D, M)
    row = plan().budgeted(facts).mu
    assert plan(group_cap=4).budgeted(facts).mu == row / 4
    assert plan(relation="replace_one").budgeted(facts).mu == row / 2
    assert plan(epsilon=np.inf).budgeted(facts).mu == np.inf


@pytest.mark.parametrize("n, epsilon, scale", [(1500, 2.0, 1.1), (400, 8.0, 0.8)])
def test_the_expected_accuracy_is_that_of_new_rows(n, epsilon, scale):
    """60 data sets and draws: a true 90 % interval holds fewer than 80 % with odds
    below 1 %. Rows are fresh.
    """
    held = 0
    errors = []
    test_x, test_y = blobs(20_000, 10_000, scale)
    for seed in range(60):
        head = fit(*blobs(n, seed, scale), epsilon, seed)
        truth = np.mean(head.scores(test_x).argmax(axis=1) == test_y)
        held += head.estimate.low <= truth <= head.estimate.high
        errors.append(head.estimate.accuracy - truth)
    assert held >= 48
    assert abs(np.mean(errors)) < 0.01


@pytest.mark.parametrize("way", ["cap", "unlabelled", "unreadable", "nominal n"])
def test_rows_that_do_not_count_are_no_errors(way):
    """3,200 slots of which 800 count, because they are one of four of a group, or three
    in four have no class or hold nan; or 800 rows where 3,200 are nominal. 8 fits, new
    rows: what is expected is what is measured, to 3 points (3 of 4 slots as errors
    would be 55 points less); 90 % intervals hold it.
    """
    slots, held, errors = 3200, 0, []
    test_x, test_y = blobs(20_000, 10_000)
    for seed in range(8):
        x, y = blobs(slots, seed)
        more = {}
        lost = np.arange(slots) % 4 > 0
        if way == "cap":
            more = {"groups": np.arange(slots) // 4, "group_cap": 1}
        elif way == "unlabelled":
            y[lost] = -1
        elif way == "unreadable":
            x[lost] = np.nan
        else:
            x, y = x[~lost], y[~lost]
        rows = ArrayRows(x, y, 8192, **more)
        head = plan_and_fit(
            Auto(),
            rows,
            ProblemInfo(slots, D, M),
            epsilon=2.0,
            relation="add_remove" if way == "nominal n" else "zero_out",
            noise=NoiseSource(seed),
            summer=quick_sums(),
        ).head
        truth = np.mean(head.scores(test_x).argmax(axis=1) == test_y)
        held += head.estimate.low <= truth <= head.estimate.high
        errors.append(head.estimate.accuracy - truth)
    assert abs(np.mean(errors)) < 0.03
    assert held >= 5


@pytest.mark.parametrize("m", [2, 20])
@pytest.mark.parametrize("way", ["cap", "unlabelled", "unreadable"])
def test_the_expected_accuracy_is_that_of_new_groups(way, m):
    """Half of 4,000 slots count: all slots counted, half of what other rows get would
    be expected, 30 points less and more. It is at most 3 points above, and 4 below; or
    up to 20 for groups, whose rows are taken for alike, which these are not.
    """
    slots, d, errors = 4000, 32, []
    rng = np.random.default_rng(m)
    means = rng.normal(size=(m, d)) * (1.2 if m > 2 else 0.4)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, m, slots + 4000)
        noise = rng.normal(size=(len(y), d))
        x = (means[y] + noise).astype(np.float32)
        test_x, x = x[slots:], x[:slots].copy()
        test_y, y = y[slots:], y[:slots].copy()
        more = {}
        if way == "cap":
            more = {"groups": np.arange(slots) // 4, "group_cap": 2}
        elif way == "unlabelled":
            y[::2] = -1
        else:
            x[::2] = np.nan
        rows = ArrayRows(x, y, 8192, **more)
        run = {"noise": NoiseSource(seed), "summer": quick_sums()}
        facts = ProblemInfo(slots, d, m)
        head = plan_and_fit(Auto(), rows, facts, epsilon=4.0, **run).head
        truth = np.mean(head.scores(test_x).argmax(axis=1) == test_y)
        errors.append(head.estimate.accuracy - truth)
        assert truth > 0.6
    assert -(0.2 if way == "cap" else 0.04) < np.mean(errors) < 0.03


def test_caps_are_ranked_by_what_new_groups_get():
    """Of eight rows of a group one counts, or all: alike but for what noise of eight
    times the size costs, which both know.
    """
    x, y = blobs(4000, 0)
    groups = np.arange(4000) // 8
    test_x, test_y = blobs(20_000, 10_000)
    found = []
    for cap in (1, 8):
        rows = ArrayRows(x, y, 8192, groups=groups, group_cap=cap)
        facts = ProblemInfo(4000, D, M)
        run = {"noise": NoiseSource(0), "summer": quick_sums()}
        head = plan_and_fit(Auto(), rows, facts, epsilon=8.0, **run).head
        truth = np.mean(head.scores(test_x).argmax(axis=1) == test_y)
        assert head.estimate.low <= truth <= head.estimate.high
        found.append(head.estimate.accuracy - truth)
    assert abs(found[0] - found[1]) < 0.05


def test_a_count_that_noise_drowned_expects_anything():
    """The counts themselves may be negative."""
    drowned = [[-50.0, -80.0], [3.0, -9.0], [0.0, 0.0], [70.0, -65.0]]
    for values in np.array(drowned):
        kept, seen, noise = counted(Response(values[:, None], 100.0), 1 / M)
        assert kept == 100
        assert 1 / M <= seen <= 1
        assert noise >= 0.5**0.5
    exact = np.array([[60.0], [20.0]])
    assert counted(Response(exact, 0.0), 1 / M) == (80, 0.75, 0)


@pytest.mark.parametrize(
    "n, d, epsilon, seen, gap",
    [
        (2000, 1280, 0.5, 0.614, 0.0275),
        (2000, 1280, 2.0, 0.809, 0.0385),
        (2000, 1280, 8.0, 0.892, 0.0888),
        (1000, 144, 0.5, 0.770, 0.0201),
        (1000, 144, 2.0, 0.945, 0.0113),
        (1000, 144, 8.0, 0.982, 0.0077),
    ],
)
def test_overfitting_is_expected_within_two_points_of_what_was_measured(
    n, d, epsilon, seen, gap
):
    """CIFAR-10's MobileNetV2 features (4 draws) and digits (8): right on the fit's rows
    less on other training rows.
    """
    facts = make_plan(
        Auto(), ProblemInfo(n, d, 10), epsilon=epsilon, delta=1e-5
    ).budgeted(ProblemInfo(n, d, 10))
    assert abs(overfit(facts, Auto().descent_for(facts), seen, n) - gap) < 0.02


@pytest.mark.parametrize(
    "n, d, m, epsilon, seen, gap",
    [
        (40_000, 1280, 10, 1.0, 0.855, 0.0094),
        (40_000, 1280, 10, 8.0, 0.889, 0.0270),
        (50_000, 9216, 10, 1.0, 0.896, 0.0133),
        (50_000, 9216, 10, 3.0, 0.917, 0.0159),
        (18_000, 1280, 100, 0.5, 0.398, 0.0278),
        (18_000, 1280, 100, 8.0, 0.722, 0.1131),
    ],
)
def test_overfitting_to_many_rows_is_expected_within_half(n, d, m, epsilon, seen, gap):
    """CIFAR-10's MobileNetV2, Fashion-MNIST's deep patches, CIFAR-100's MobileNetV2:
    right on the fit's rows less on other training rows (results/expected).
    """
    facts = ProblemInfo(n, d, m)
    budgeted = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5).budgeted(facts)
    expected = overfit(
        budgeted,
        Auto().descent_for(budgeted),
        seen,
        n,
    )
    assert gap / 2 < expected < 1.5 * gap


def test_new_rows_are_expected_to_be_no_worse_than_chance():
    facts = ProblemInfo(500, 1280, 2)
    budgeted = make_plan(
        Auto(),
        facts,
        epsilon=100,
        delta=1e-5,
    ).budgeted(facts)
    head = Params(RowTransform(True), np.zeros((1280, 2), np.float32))
    counting = expected_accuracy(budgeted, Auto().descent_for(budgeted), head)
    next(counting)
    counts = np.array([[300.0], [200.0]])
    with pytest.raises(StopIteration) as stop:
        counting.send(Response(counts, 0.0))
    found = stop.value.value
    assert found.low < 0.5 == found.accuracy < found.high


def test_overfitting_grows_with_the_budget_and_is_bounded_by_free_parameters():
    found = []
    for epsilon in (0.1, 1.0, 8.0):
        facts = plan(epsilon=epsilon).budgeted(ProblemInfo(50_000, 1000, 10))
        found.append(overfit(facts, Auto().descent_for(facts), 0.9, 50_000))
    assert 0 < found[0] < found[1] < found[2] < 0.05
    few = ProblemInfo(1000, 1, 2, 1.0)
    assert overfit(few, Auto().descent_for(few), 0.7, 1000) == 0.45 / 1000
    assert overfit(few, Auto().descent_for(few), 1.0, 1000) == 0


def test_without_an_estimate_nothing_is_spent_on_it():
    made = plan(solver=Auto(estimate=False))
    asked = {s.query.split("(")[0] for s in made.specs}
    assert asked == {"RowCounts", "ChannelMoment", "Gradient"}
    x, y = toy(300, D, M)
    assert fit(x, y, 1.0, 0, Auto(estimate=False)).estimate is None


def test_rare_classes_are_not_forgotten_nor_preferred():
    """With a bias, classes of 70 % and 2 % are predicted about as often as they
    occur.
    """
    head = fit(*blobs(20_000, 0, weights=[0.7, 0.26, 0.02, 0.02]), 2.0, 1)
    x, y = blobs(20_000, 1, weights=[0.7, 0.26, 0.02, 0.02])
    found = np.bincount(head.scores(x).argmax(axis=1), minlength=M) / len(x)
    assert np.abs(found - np.bincount(y) / len(y)).max() < 0.05


def test_little_noise_does_not_mean_endless_steps():
    assert rate(1e12, 100) == pytest.approx(LONGEST_STEP * (1 - DESCENT.momentum))


def uneven(n, seed, d=64, m=10):
    """Rows of Gaussian classes of one covariance, whose spectrum falls by 400."""
    same = np.random.default_rng(0)
    turn = np.linalg.qr(same.normal(size=(d, d)))[0]
    means = 0.55 * same.normal(size=(m, d))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, m, n)
    x = means[y] + rng.normal(size=(n, d))
    x = x * np.geomspace(1, 0.05, d)
    return (x @ turn + 0.5).astype(np.float32), y


@pytest.mark.parametrize("widest, least", [(WIDEST_UNNOISED_GRAM, 0.96), (0, 0.90)])
def test_without_noise_the_head_is_no_worse_than_private_ones(
    monkeypatch, widest, least
):
    """With and without a Gram matrix. An earlier one had 88.7 % here, less than `auto`
    has at ε = 8; DP-FC has 97.5. Nothing is counted.
    """
    monkeypatch.setattr("dphead.solvers.auto.WIDEST_UNNOISED_GRAM", widest)
    x, y = uneven(800, 1)
    test_x, test_y = uneven(4000, 99)
    rows, facts, found = ArrayRows(x, y, 8192), ProblemInfo(800, 64, 10), []
    for epsilon in (np.inf, 8.0):
        run = {"noise": NoiseSource(0), "summer": quick_sums()}
        head = plan_and_fit(Auto(), rows, facts, epsilon=epsilon, **run).head
        assert (head.estimate is None) == np.isinf(epsilon)
        found.append(np.mean(head.scores(test_x).argmax(axis=1) == test_y))
    assert found[0] > max(least, found[1])


def test_without_noise_a_prior_is_still_the_start():
    x, y = blobs(300, 0)
    prior = PublicPrior(np.eye(D, M))
    started = fit(x, y, np.inf, solver=Auto(prior=prior))
    plain = fit(x, y, np.inf)
    assert not np.allclose(started.weights, plain.weights, rtol=1e-2)


def test_it_asks_for_gradients_and_one_count():
    solver = Auto()
    facts = ProblemInfo(1000, D, M)
    queries = [p.query for p in solver.plan(plan().budgeted(facts))]
    assert queries[-1] == CorrectCounts(M)
    assert queries[-2] == Gradient(M)


@pytest.mark.parametrize("estimate", [True, False])
def test_the_accuracy_of_each_class_costs_its_share_of_the_budget(estimate):
    spent = plan(solver=Auto(estimate=estimate, per_class_share=0.2))
    assert 1 - 1e-6 < spent.epsilon_spent() <= 1.0
    shares = {}
    for spec in spent.specs:
        share = spec.noise_multiplier**-2
        shares[spec.label] = shares.get(spec.label, 0) + share
    total = sum(shares.values())
    assert shares["correct rows of classes"] == pytest.approx(0.2 * total)
    assert ("correct rows" in shares) == estimate


def test_the_accuracy_of_each_class_is_in_its_interval_and_the_least_in_its_own():
    """Small classes, hard ones, and much noise; what holds in nine of ten is counted
    here by draws.
    """
    weights = np.array([0.4, 0.3, 0.25, 0.05])
    test_x, test_y = blobs(20_000, 99, weights=weights)
    solver = Auto(per_class_share=0.1)
    held = []
    least = []
    for seed in range(25):
        x, y = blobs(3000, seed, weights=weights)
        head = fit(x, y, 0.7, seed, solver)
        right = head.scores(test_x).argmax(axis=1) == test_y
        truth = np.array([np.mean(right[test_y == c]) for c in range(M)])
        found = head.class_accuracy
        assert len(found.each) == M
        middles = [one.accuracy for one in found.each]
        assert found.weakest == np.argmin(middles)
        assert found.worst.accuracy == min(middles)
        held += [a.low <= t <= a.high for a, t in zip(found.each, truth, strict=True)]
        least.append(found.worst.low <= truth.min() <= found.worst.high)
        assert found.worst.low <= found.each[found.weakest].low
    assert np.mean(held) >= 0.85
    assert np.mean(least) >= 0.85


def test_the_least_of_equal_classes_is_estimated_too_low():
    """As its docstring and the report say; the interval allows for it."""
    facts = ProblemInfo(40_000, 8, 40, 0.5)
    rng = np.random.default_rng(0)
    descent = Auto(per_class_share=0.1).descent_for(facts)
    worst = []
    for _ in range(200):
        params = Params(RowTransform(), np.zeros((8, 40)))
        steps = expected_of_classes(facts, descent, params)
        next(steps)
        counts = np.tile([800.0, 200.0], (40, 1))
        counts += rng.normal(0, 30, counts.shape)
        with pytest.raises(StopIteration) as stop:
            steps.send(Response(counts, 30.0))
        worst.append(stop.value.value.worst)
    gap = overfit(facts, descent, 0.8, 40_000)
    assert np.mean([one.accuracy for one in worst]) < 0.8 - gap - 0.03
    assert np.mean([one.low <= 0.8 - gap <= one.high for one in worst]) >= 0.9


@pytest.mark.parametrize("share", [-0.1, 0.51, np.nan])
def test_the_share_for_classes_leaves_half_to_the_head(share):
    with pytest.raises(ValueError, match="per_class_share must be"):
        Auto(per_class_share=share)


def test_without_noise_no_class_is_counted():
    x, y = blobs(300, 0)
    assert fit(x, y, np.inf, solver=Auto(per_class_share=0.1)).class_accuracy is None


@pytest.mark.parametrize(
    "solver",
    [
        Auto(scale="never"),
        Auto(scale="always"),
        Auto(steps=20),
        Auto(move=0.5),
        Auto(centering=Centering(0.0)),
        Auto(descent=replace(DESCENT, momentum=0.9)),
        Auto(descent=replace(DESCENT, intercept=0.0)),
        Auto(descent=replace(DESCENT, average="last")),
        Auto(descent=replace(DESCENT, clip_norm=1.0)),
    ],
)
def test_each_part_can_be_left_out_and_the_rest_still_fits(solver):
    """Under the same budget, and far above chance; no part is worth more than that
    here.
    """
    x, y = blobs(4000, 0)
    head = fit(x, y, 2.0, 1, solver)
    assert np.mean(head.scores(x).argmax(axis=1) == y) > 0.6
    assert head.estimate is not None
    spent = plan(solver=solver)
    assert 1 - 1e-6 < spent.epsilon_spent() <= 1.0
    labels = [s.label for s in spent.specs]
    assert ("feature squares" in labels) == (
        solver.scale != "never" and solver.centering.share > 0
    )
    assert labels.count("gradient") == solver.steps or solver.steps is None
