"""Whole trainings through `release`: the noise, the sample and the charge are those of
the heads.
"""

from copy import deepcopy

import numpy as np
import pytest
import torch
from core import KnownNoise
from finetune.core import ImageRows, images, tiny, training

from dphead.finetune.gradients import CLIP_INTEGERS, PerExample, clipped, squared_norms
from dphead.finetune.network import StepParams, TorchSums, chunk_rows
from dphead.fit.loop import Run, fit_head, reserve
from dphead.privacy.contract import Block, ReleaseSpec
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.sampling import poisson_sample
from dphead.privacy.transform import RowTransform
from dphead.sums.reference import make_task
from dphead.sums.verified import VerifiedSum


def exact_sum(network, x, y, step=0, weights=None, clip_norm=1.0):
    """The clipped sum of all rows in one call, in whole numbers of C /
    CLIP_INTEGERS.
    """
    gradients = PerExample(network.model)
    gradients.set(torch.from_numpy(network.start if weights is None else weights))
    inputs = network.spec.inputs(x.astype(np.float32), step)
    keep = torch.from_numpy((y >= 0) & (y < network.spec.n_classes))
    return clipped(
        gradients.parts(inputs, torch.from_numpy(np.maximum(y, 0))), keep, clip_norm
    ).numpy()


def block_total(sums, block, keep=None, params=None, clip_norm=1.0):
    """The int64 sum over a block's rows, or over those to keep."""
    network = sums.network
    params = params or StepParams(RowTransform(), network.start.astype(np.float32), 0)
    ask = make_task(network.query, params, clip_norm)
    keep = block.index >= 0 if keep is None else keep
    return sums.add(
        ask,
        sums.rows(ask, block),
        block.y,
        keep,
        np.zeros(network.query.size, np.int64),
    )


def one_release(
    network,
    x,
    y,
    *,
    seed=0,
    chunk=7,
    step=0,
    clip_norm=1.0,
    **of_spec,
):
    """What `release` returns for one step at the start.

    of_spec: sigma, prob and relation.
    """
    relation = of_spec.get("relation", "zero_out")
    spec = ReleaseSpec(
        "gradient",
        network.query.name,
        clip_norm,
        of_spec.get("sigma", 0.0),
        len(x),
        of_spec.get("prob", 1.0),
        relation,
    )
    charged = Ledger().reserve(
        [spec.row()],
        epsilon=1.0,
        delta=1e-3,
        relation=relation,
        description="",
        plan_hash="",
    )
    params = StepParams(RowTransform(), network.start.astype(np.float32), step)
    sums = TorchSums(network, chunk=chunk)
    rows = ImageRows(x, y)
    return release(
        network.query,
        params,
        rows,
        spec,
        ledger=charged,
        noise=KnownNoise(seed),
        summer=VerifiedSum(sums),
    )


@pytest.mark.parametrize("chunk", [7, 33, 128])
def test_virtual_batches_give_the_sum_of_the_whole_batch(chunk):
    """128 rows fill their block, so that the last chunk of 7 or 33 is not all
    padding.
    """
    network, (x, y) = tiny(), images(n=128)
    found = one_release(network, x, y, chunk=chunk, clip_norm=0.1)
    # rows of a chunk of another size may differ in the last bits of float32 (another
    # kernel): a few of a million parts
    np.testing.assert_allclose(
        in_units(found, 0.1), exact_sum(network, x, y, clip_norm=0.1), rtol=0, atol=16
    )


def in_units(released, clip_norm=1.0):
    """The whole numbers that a release without noise was made of."""
    whole = np.rint(released.value * (CLIP_INTEGERS / clip_norm))
    np.testing.assert_allclose(
        released.value, whole * (clip_norm / CLIP_INTEGERS), rtol=1e-12
    )
    return whole


def test_rows_summed_together_or_one_by_one_give_the_same_integers():
    """Chunks of one size: the order of rows, the batch around them and the padding
    change nothing at all.
    """
    network, (x, y) = tiny(views=2, augment="crop"), images(n=24)
    sums = TorchSums(network, chunk=8)

    def total(order, keep=slice(None)):
        rows = x.reshape(24, -1).astype(np.float32)[order]
        kept = np.zeros(len(order), bool)
        kept[keep] = True
        return block_total(
            sums, Block(np.arange(len(order)), rows, y[order]), kept, clip_norm=0.1
        )

    order = np.random.default_rng(0).permutation(24)
    whole = total(np.arange(24))
    assert whole.dtype == np.int64
    assert whole.any()
    np.testing.assert_array_equal(total(order), whole)
    np.testing.assert_array_equal(sum(total(order, i) for i in range(24)), whole)
    np.testing.assert_array_equal(total(order[:5]) + total(order[5:]), whole)


def test_the_noise_has_the_planned_size_and_is_drawn_once_whatever_the_chunks():
    network, (x, y) = tiny(), images()
    values = {}
    for chunk in (5, 40):
        released = one_release(
            network, x, y, sigma=2.0, chunk=chunk, clip_norm=0.1, seed=4
        )
        values[chunk] = (
            released.value
            - one_release(network, x, y, chunk=chunk, clip_norm=0.1).value
        )
        size = network.query.size
        # nothing is added for rounding
        assert released.noise_sd == pytest.approx(0.2, rel=1e-12)
        # the sample sd of `size` = 19,000 normals has a relative sd of 0.5 %
        assert values[chunk].std() == pytest.approx(0.2, rel=5 / np.sqrt(2 * size))
    # the same seed: the same one draw, of whole numbers
    np.testing.assert_allclose(values[5], values[40], rtol=0, atol=1e-12)


def test_replace_one_doubles_the_noise_of_a_full_batch():
    network, (x, y) = tiny(), images()
    single, double = (
        one_release(network, x, y, sigma=1.0, relation=r).noise_sd
        for r in ("zero_out", "replace_one")
    )
    assert double == pytest.approx(2 * single)


@pytest.mark.parametrize("label", [-1, 3, 2**31])
def test_a_row_without_a_class_counts_zero(label):
    network, (x, y) = tiny(), images()
    y = y.astype(np.int64)
    y[5] = label
    found = one_release(network, x, y, clip_norm=0.1).value
    blank = y.copy()
    blank[5] = -1
    other = x.copy()
    other[5] = 0  # what the row holds does not count either
    np.testing.assert_array_equal(
        found, one_release(network, other, blank, clip_norm=0.1).value
    )
    without = np.delete(np.arange(40), 5)
    expected = exact_sum(network, x[without], y[without], clip_norm=0.1)
    found = one_release(network, x, y, clip_norm=0.1)
    # other chunks, other kernels
    np.testing.assert_allclose(in_units(found, 0.1), expected, rtol=0, atol=16)


def test_one_image_moves_the_sum_by_at_most_the_sensitivity_and_can_come_near():
    network, (x, y) = tiny(), images()
    sums = TorchSums(network, chunk=16)

    def total(x, y, clip_norm):
        return sum(
            block_total(sums, block, clip_norm=clip_norm)
            for block in ImageRows(x, y).blocks()
        )

    blank = y.copy()
    flipped = y.copy()
    blank[3], flipped[3] = -1, (y[3] + 1) % 3
    for clip_norm in (1e-3, 0.05):
        with_row = total(x, y, clip_norm)
        without = total(x, blank, clip_norm)
        other = total(x, flipped, clip_norm)
        moved, replaced = (int(((with_row - v) ** 2).sum()) for v in (without, other))
        assert (
            (0.99 * CLIP_INTEGERS) ** 2
            <= moved
            <= network.query.sensitivity_sq("zero_out", clip_norm)
        )
        assert replaced <= network.query.sensitivity_sq("replace_one", clip_norm)


def test_the_statistic_of_a_row_does_not_depend_on_where_it_stands():
    """Views follow the image: the sums over two halves add up to the whole whatever the
    chunks.
    """
    network, (x, y) = tiny(views=3, augment="crop"), images()
    whole = one_release(network, x, y, chunk=40).value
    turned = one_release(
        network,
        x[::-1].copy(),
        y[::-1].copy(),
        chunk=40,
    ).value
    np.testing.assert_array_equal(whole, turned)
    # chunks of another size may take other kernels
    np.testing.assert_allclose(
        whole, one_release(network, x, y, chunk=3).value, rtol=0, atol=1e-5
    )
    assert not np.allclose(
        whole, one_release(network, x, y, step=1).value, rtol=0, atol=1e-3
    )


def own_statistics(network, x, y, sample, clip_norm=0.1):
    """The part of the sum that each row of `sample` has, beside the others of it: a
    dict by content.
    """
    sums = TorchSums(network, chunk=8)
    params = StepParams(RowTransform(), network.start.astype(np.float32), 3)
    found = {}
    for block in ImageRows(x, y).blocks(sample):
        for place in np.flatnonzero(block.index >= 0):
            keep = np.arange(len(block.index)) == place
            found[block.x[place].tobytes()] = block_total(
                sums, block, keep, params, clip_norm
            )
    return found


@pytest.mark.parametrize(
    "sample",
    [None, [1, 4, 6, 7, 11]],
    ids=["full", "poisson"],
)
def test_a_removed_image_changes_no_bit_of_any_other_images_statistic(sample):
    """Row 2 goes, so all later ones move up a slot; in the Poisson batch it was not
    even sampled.
    """
    network, (x, y) = tiny(views=2, augment="crop"), images(n=12)
    others = np.delete(np.arange(12), 2)
    sample = None if sample is None else np.array(sample)
    moved = None if sample is None else np.searchsorted(others, sample)
    whole = own_statistics(network, x, y, sample)
    less = own_statistics(network, x[others], y[others], moved)
    assert len(less) == (11 if sample is None else 5)
    assert set(less) <= set(whole)
    for row, statistic in less.items():
        np.testing.assert_array_equal(statistic, whole[row])


def test_under_add_remove_an_image_with_views_moves_the_sum_by_at_most_the_clip_norm():
    network, (x, y) = tiny(views=2, augment="crop"), images(n=40)
    options = {"relation": "add_remove", "clip_norm": 0.01, "chunk": 8}
    whole, less = (
        in_units(
            one_release(network, x[i:], y[i:], **options),
            0.01,
        )
        for i in (0, 1)
    )
    moved = (whole - less).astype(np.int64)
    assert 0 < int((moved**2).sum()) <= CLIP_INTEGERS**2


def test_views_are_averaged_before_the_clip():
    network, (x, y) = tiny(views=4, augment="crop"), images(n=1)
    found = one_release(network, x, y, clip_norm=100.0).value
    views = network.spec.inputs(x.astype(np.float32), 0)[0]
    each = []
    for view in views:
        parts = PerExample(network.model).parts(view[None, None], torch.from_numpy(y))
        each.append(
            clipped(parts, torch.tensor([True]), 100.0).numpy() * (100 / CLIP_INTEGERS)
        )
    # truncation takes up to 100 / CLIP_INTEGERS = 1e-4 of each entry
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=0, atol=2e-4)
    small = in_units(one_release(network, x, y, clip_norm=1e-3), 1e-3)
    # one row of four views counts once; truncation takes up to 1 of each of 19,000
    # entries of a million's length
    assert (1 - 1e-3) * CLIP_INTEGERS <= np.linalg.norm(small) <= CLIP_INTEGERS


def test_an_empty_batch_still_releases_noise():
    network, (x, y) = tiny(), images()
    network_sums = one_release(network, x, y, sigma=1.0, prob=1e-9)
    assert network_sums.value.std() == pytest.approx(network_sums.noise_sd, rel=0.05)


def test_a_poisson_step_samples_with_the_code_of_the_heads():
    network, (x, y) = tiny(), images()
    indices = poisson_sample(40, 0.3, NoiseSource(9).generator(0, "sample"))
    found = in_units(one_release(network, x, y, prob=0.3, seed=9))
    assert 0 < len(indices) < 40
    expected = exact_sum(network, x[indices], y[indices])
    # other chunks: last bits of float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=64)


def test_it_is_charged_before_the_first_row_is_read_and_spends_what_it_reports():
    network, (x, y) = tiny(), images()
    solver, public, plan = training(network)
    ledger = Ledger()
    rows = ImageRows(x, y)
    original = rows.blocks

    def watched(indices=None, known=None):
        assert len(ledger.fits()[0]["releases"]) == 3
        return original(indices)

    rows.blocks = watched
    summer = VerifiedSum(TorchSums(network, chunk=20))
    result = fit_head(solver, rows, public, plan, Run(ledger=ledger, summer=summer))
    assert [r["state"] for r in ledger.fits()[0]["releases"]] == ["committed"] * 3
    assert result.plan.epsilon_spent() <= 2.0
    assert result.plan.events() == ledger.events()


def test_a_budget_refuses_what_exceeds_it():
    network, (x, y) = tiny(), images()
    solver, public, plan = training(network)
    ledger = Ledger()
    ledger.set_budget(1.0, 1e-3)
    run = Run(ledger=ledger, summer=VerifiedSum(TorchSums(network, chunk=20)))
    with pytest.raises(LedgerError, match="budget"):
        fit_head(solver, ImageRows(x, y), public, plan, run)


def largest_norm(network, x, y, step, weights):
    """Of the rows' gradients, as fits without privacy use it in place of a clip."""
    gradients = PerExample(network.model)
    gradients.set(torch.from_numpy(weights))
    parts = gradients.parts(
        network.spec.inputs(x.astype(np.float32), step), torch.from_numpy(y)
    )
    return float(squared_norms(parts).sqrt().max())


def reference(network, x, y, steps, rate, momentum, decay):
    """De22's step written out: full batches, no noise, clip 1, moving average with
    warm-up.
    """
    weights = average = network.start
    buffer = np.zeros_like(weights)
    for t in range(steps):
        single = weights.astype(np.float32).astype(np.float64)
        largest = largest_norm(network, x, y, t, single)
        gradient = (
            exact_sum(network, x, y, t, single, largest)
            * (largest / CLIP_INTEGERS)
            / len(x)
        )
        buffer = momentum * buffer + gradient
        weights = weights - rate * buffer
        warm = min(decay, (1 + t) / (10 + t))
        average = warm * average + (1 - warm) * weights
    return weights, average


def test_the_steps_are_those_of_the_paper():
    network, (x, y) = tiny(), images()
    options = {
        "sampling_prob": 1.0,
        "learning_rate": 0.5,
        "momentum": 0.9,
        "ema_decay": 0.15,
    }
    solver, public, plan = training(network, epsilon=float("inf"), **options)
    run = Run(summer=VerifiedSum(TorchSums(network)))
    result = fit_head(solver, ImageRows(x, y), public, plan, run)
    weights, average = reference(network, x, y, 3, 0.5, 0.9, 0.15)
    # a few of a million parts, thrice
    np.testing.assert_allclose(result.head.weights, weights, atol=1e-4)
    np.testing.assert_allclose(result.head.average, average, atol=1e-4)


def test_adamw_decays_the_weights_apart_from_the_gradient():
    network, (x, y) = tiny(), images()
    settings = {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "weight_decay": 0.5,
        "average": "last",
        "steps": 1,
    }
    ends = {}
    for decoupled in (False, True):
        solver, public, plan = training(
            network, epsilon=float("inf"), decoupled=decoupled, **settings
        )
        run = Run(noise=NoiseSource(0), summer=VerifiedSum(TorchSums(network)))
        ends[decoupled] = fit_head(solver, ImageRows(x, y), public, plan, run).head
    step = ends[True].weights - network.start + 0.01 * 0.5 * network.start
    # Adam's first step is the rate, by sign
    assert np.quantile(np.abs(step), 0.9) == pytest.approx(0.01, rel=1e-3)
    assert not np.allclose(ends[True].weights, ends[False].weights, atol=1e-4)


@pytest.mark.parametrize(
    ("stop", "epsilon"),
    [(0, 2.0), (2, 2.0), (3, 2.0)],
)
def test_a_training_resumes_from_its_checkpoint_and_releases_nothing_twice(
    stop, epsilon, tmp_path
):
    network, (x, y) = tiny(), images()
    seed = 5
    rows = ImageRows(x, y)

    def run(ledger, charged, done=0, resumed=None, after=None):
        solver, public, plan = training(
            network, steps=5, epsilon=epsilon, after=after, resumed=resumed
        )
        charged = charged or reserve(
            solver, plan, ledger, seed=seed, store=tmp_path / "releases"
        )
        sums = TorchSums(network, chunk=16)
        how = Run(
            charged=charged,
            noise=NoiseSource(seed),
            summer=VerifiedSum(sums),
            done=done,
        )
        return fit_head(solver, rows, public, plan, how), charged

    class Crash(Exception):
        pass

    whole, _ = run(Ledger(), None)
    kept = {}

    def after(state):
        if state.step == 2:
            kept["state"] = deepcopy(state)
        if state.step == stop:
            raise Crash

    ledger = Ledger(tmp_path / "ledger.sqlite")
    solver, _, plan = training(network, steps=5, epsilon=epsilon)
    charged = reserve(solver, plan, ledger, seed=seed, store=tmp_path / "second")
    if stop:
        with pytest.raises(Crash):
            run(ledger, charged, after=after)
    done = kept["state"].step if kept else 0
    charged._lock.close()
    again = ledger.resume(
        plan.digest(solver, "", seed), charged.fit_id, tmp_path / "second"
    )
    again.forget(done)
    assert len(list((tmp_path / "second").glob("*.npy"))) == max(0, stop - done)
    result, _ = run(ledger, again, done, kept.get("state"))
    np.testing.assert_array_equal(result.head.weights, whole.head.weights)
    np.testing.assert_array_equal(result.head.average, whole.head.average)
    states = ledger._db.execute(
        "SELECT sequence, state FROM progress ORDER BY id"
    ).fetchall()
    assert [s for s, state in states if state == "committed"] == list(range(5))
    assert len(ledger.fits()) == 1


def test_a_smaller_memory_gives_smaller_chunks():
    network = tiny()
    sizes = [chunk_rows(network, memory) for memory in (1, 30 << 20, 60 << 20, 1 << 40)]
    assert sizes[0] == 1
    assert sizes[0] < sizes[1] < sizes[2] <= sizes[3] == 256
    assert chunk_rows(tiny(views=8, augment="crop"), 1 << 40) == 32


def test_another_networks_query_is_refused():
    network, other, (x, y) = tiny(), tiny(classes=4), images()
    spec = ReleaseSpec("gradient", other.query.name, 1.0, 1.0, 40)
    charged = Ledger().reserve(
        [spec.row()],
        epsilon=1,
        delta=1e-3,
        relation="zero_out",
        description="",
        plan_hash="",
    )
    params = StepParams(RowTransform(), other.start.astype(np.float32), 0)
    with pytest.raises(ValueError, match="network's own"):
        release(
            other.query,
            params,
            ImageRows(x, y),
            spec,
            ledger=charged,
            noise=NoiseSource(),
            summer=VerifiedSum(TorchSums(network, chunk=8)),
        )


def test_each_release_is_of_the_parameters_that_it_was_asked_at():
    """One object sums all steps of a training; a step at the parameters of another is
    not what the solver steps on.
    """
    network = tiny()
    x, y = images(n=6)
    rows = x.reshape(6, -1).astype(np.float32)
    block = Block(np.arange(6), rows, y)
    keep = np.ones(6, bool)
    start = network.start.astype(np.float32)
    steps = [StepParams(RowTransform(), (1 + t) * start, t) for t in range(3)]

    def total(sums, params):
        return block_total(sums, block, keep, params)

    one = TorchSums(network, chunk=8)
    found = [total(one, params) for params in steps]
    for value, params in zip(found, steps, strict=True):
        alone = total(TorchSums(network, chunk=8), params)
        np.testing.assert_array_equal(value, alone)
    assert (
        np.linalg.norm(found[1] - found[0]) > 1e3 < np.linalg.norm(found[2] - found[1])
    )


@pytest.mark.parametrize("prob", [0.5, 1e-9])
def test_without_privacy_the_largest_gradient_of_the_batch_is_the_clip(prob):
    """A batch with no row at all is a sum of zeros; one with rows has their gradients,
    to 12 digits of the largest.
    """
    network, (x, y) = tiny(), images()
    found = one_release(network, x, y, prob=prob, clip_norm=float("inf"), seed=9)
    indices = poisson_sample(40, prob, NoiseSource(9).generator(0, "sample"))
    assert len(indices) > 0 or prob == 1e-9
    expected = (
        exact_sum(network, x[indices], y[indices], clip_norm=100.0)
        * (100 / CLIP_INTEGERS)
        if len(indices)
        else 0.0
    )
    np.testing.assert_allclose(
        found.value, expected + np.zeros(network.query.size), rtol=0, atol=40 * 1e-4
    )
    assert found.noise_sd == 0
