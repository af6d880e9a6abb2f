"""Whole trainings through `release`: the noise, the sample and the charge are those of
the heads.
"""

import numpy as np
import pytest
import torch
from core import KnownNoise, reserve
from finetune.core import ImageRows, images, tiny, training
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from dphead.finetune.gradients import CLIP_INTEGERS, PerExample, clipped
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.fit.fit import fit_rows
from dphead.privacy.contract import ReleaseSpec, SumTask
from dphead.privacy.ledger import Ledger
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.sampling import poisson_sample
from dphead.privacy.transform import RowTransform
from dphead.sums.verified import VerifiedSum


def exact_sum(network, x, y, clip_norm=1.0):
    """The clipped sum of all rows in one call, in whole numbers of C /
    CLIP_INTEGERS.
    """
    gradients = PerExample(network.model)
    gradients.set(torch.from_numpy(network.start))
    inputs = network.spec.inputs(x.astype(np.float32), 0)
    keep = torch.from_numpy((y >= 0) & (y < network.spec.n_classes))
    return clipped(
        gradients.parts(inputs, torch.from_numpy(np.maximum(y, 0))), keep, clip_norm
    ).numpy()


def block_total(sums, block, keep=None, params=None, clip_norm=1.0):
    """The int64 sum over a block's rows, or over those to keep."""
    network = sums.network
    params = params or StepParams(RowTransform(), network.start.astype(np.float32), 0)
    ask = SumTask(network.statistic, params, clip_norm)
    keep = block.index >= 0 if keep is None else keep
    return sums.add(
        ask,
        sums.rows(ask, block),
        block.y,
        keep,
        np.zeros(network.statistic.size, np.int64),
    )


def one_release(network, x, y, *, seed=0, chunk=7, clip_norm=1.0, **of_spec):
    """What `release` returns for one step at the start.

    of_spec: sigma, prob and relation.
    """
    relation = of_spec.get("relation", "zero_out")
    sigma, prob = of_spec.get("sigma", 0.0), of_spec.get("prob", 1.0)
    given = (clip_norm, sigma, len(x), prob, relation)
    spec = ReleaseSpec("gradient", network.statistic.name, *given)
    charged = reserve([spec])
    params = StepParams(RowTransform(), network.start.astype(np.float32), 0)
    sums = TorchSums(network, chunk=chunk)
    rows = ImageRows(x, y)
    return release(
        network.statistic,
        params,
        rows,
        spec,
        ledger=charged,
        noise=KnownNoise(seed),
        summer=VerifiedSum(sums),
    )


def test_virtual_batches_give_the_sum_of_the_whole_batch():
    """128 rows fill their block, so that the last chunk of 33 is not all
    padding.
    """
    network, (x, y) = tiny(), images(n=128)
    found = one_release(network, x, y, chunk=33, clip_norm=0.1)
    # rows of a chunk of another size may differ in the last bits of float32 (another
    # kernel): a few of a million parts
    assert_allclose(
        in_units(found, 0.1), exact_sum(network, x, y, clip_norm=0.1), rtol=0, atol=16
    )


def in_units(released, clip_norm=1.0):
    """The whole numbers that a release without noise was made of."""
    whole = np.rint(released.value * (CLIP_INTEGERS / clip_norm))
    assert_allclose(released.value, whole * (clip_norm / CLIP_INTEGERS), rtol=1e-12)
    return whole


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
        size = network.statistic.size
        # nothing is added for rounding
        assert released.noise_sd == pytest.approx(0.2, rel=1e-12)
        # the sample sd of `size` = 19,000 normals has a relative sd of 0.5 %
        assert values[chunk].std() == pytest.approx(0.2, rel=5 / np.sqrt(2 * size))
    # the same seed: the same one draw, of whole numbers
    assert_allclose(values[5], values[40], rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", [3, 2**31])
def test_a_row_without_a_class_counts_zero(label):
    network, (x, y) = tiny(), images()
    outside, blank = y.copy(), y.copy()
    outside[5], blank[5] = label, -1
    other = x.copy()
    other[5] = 0  # what the row holds does not count either
    found = one_release(network, x, outside, clip_norm=0.1)
    alone = one_release(network, other, blank, clip_norm=0.1)
    assert_array_equal(found.value, alone.value)
    without = np.delete(np.arange(40), 5)
    expected = exact_sum(network, x[without], y[without], clip_norm=0.1)
    # other chunks, other kernels
    assert_allclose(in_units(found, 0.1), expected, rtol=0, atol=16)


class Inverse(nn.Module):
    """An inverse, which raises for a matrix that is singular in float32."""

    def forward(self, x):
        x = x.flatten(2)
        return torch.linalg.inv(x @ x.transpose(1, 2) / 64 + 1e-3 * torch.eye(3))


class Root(nn.Module):
    """A root at zero, whose gradient is NaN."""

    def forward(self, x):
        return (x - 0.5).sum((2, 3)).abs().sqrt() * 0 + x.mean((2, 3))


@pytest.mark.parametrize("layer, width, value", [(Inverse(), 9, 1e6), (Root(), 3, 0.5)])
def test_a_row_whose_computation_raises_adds_zero_and_changes_no_other_row(
    layer, width, value, recwarn
):
    first = nn.Conv2d(3, 3, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.eye(3)[:, :, None, None])
    module = nn.Sequential(first, layer, nn.Flatten(), nn.Linear(width, 3))
    spec = NetworkSpec(ModelSpec("a:b"), (3, 8, 8), 3, pixels=False)
    network = Network(spec, module=module)
    x, y = images(20)
    x = x.astype(np.float32) / 255
    x[[5, 6]] = value
    sums, found = TorchSums(network, chunk=8), []
    with torch.autograd.set_detect_anomaly(True):
        recwarn.clear()  # torch warns of the mode itself
        if width == 9:
            with pytest.raises(RuntimeError, match="singular"):
                exact_sum(network, x.reshape(20, -1), y)
        for labels in (y, np.where(np.isin(np.arange(20), [5, 6]), -1, y)):
            (block,) = ImageRows(x, labels).blocks()
            found.append(block_total(sums, block, clip_norm=1e-2))
    assert_array_equal(*found)
    assert found[0].any() and not recwarn.list


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
            <= network.statistic.sensitivity_sq("zero_out", clip_norm)
        )
        assert replaced <= network.statistic.sensitivity_sq("replace_one", clip_norm)


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


@pytest.mark.parametrize("sample", [None, [1, 4, 6, 7, 11]], ids=["full", "poisson"])
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
        assert_array_equal(statistic, whole[row])


def test_under_add_remove_an_image_with_views_moves_the_sum_by_at_most_the_clip_norm():
    network, (x, y) = tiny(views=2, augment="crop"), images(n=40)
    options = {"relation": "add_remove", "clip_norm": 0.01, "chunk": 8}
    whole, less = (
        in_units(one_release(network, x[i:], y[i:], **options), 0.01) for i in (0, 1)
    )
    moved = (whole - less).astype(np.int64)
    assert 0 < int((moved**2).sum()) <= CLIP_INTEGERS**2


def test_views_are_averaged_before_the_clip():
    network, (x, y) = tiny(views=4, augment="crop"), images(n=1)
    found = one_release(network, x, y, clip_norm=100.0).value
    views, others = (network.spec.inputs(x.astype(np.float32), t)[0] for t in (0, 1))
    assert not torch.equal(views, others)
    each = []
    for view in views:
        parts = PerExample(network.model).parts(view[None, None], torch.from_numpy(y))
        each.append(
            clipped(parts, torch.tensor([True]), 100.0).numpy() * (100 / CLIP_INTEGERS)
        )
    # truncation takes up to 100 / CLIP_INTEGERS = 1e-4 of each entry
    assert_allclose(found, np.mean(each, axis=0), rtol=0, atol=2e-4)
    small = in_units(one_release(network, x, y, clip_norm=1e-3), 1e-3)
    # one row of four views counts once; truncation takes up to 1 of each of 19,000
    # entries of a million's length
    assert (1 - 1e-3) * CLIP_INTEGERS <= np.linalg.norm(small) <= CLIP_INTEGERS


def test_it_is_charged_before_the_first_row_is_read_and_spends_what_it_reports():
    network, (x, y) = tiny(), images()
    _, _, plan = training(network)
    ledger = Ledger()
    rows = ImageRows(x, y)
    original = rows.blocks

    def watched(indices=None, known=None):
        assert len(ledger.fits()[0]["releases"]) == 3
        return original(indices)

    rows.blocks = watched
    summer = VerifiedSum(TorchSums(network, chunk=20))
    result = fit_rows(plan, rows, ledger=ledger, summer=summer)
    assert [r["state"] for r in ledger.fits()[0]["releases"]] == ["committed"] * 3
    assert result.plan.epsilon_spent() <= 2.0
    assert result.plan.events() == ledger.events()


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
    assert_allclose(
        found.value, expected + np.zeros(network.statistic.size), rtol=0, atol=40 * 1e-4
    )
    assert found.noise_sd == 0


def test_each_release_is_of_the_parameters_that_it_was_asked_at():
    """One object sums all steps of a training."""
    network = tiny()
    block = next(ImageRows(*images(n=6)).blocks())
    one = TorchSums(network, chunk=8)
    found = []
    for t in range(3):
        weights = (1 + t) * network.start.astype(np.float32)
        params = StepParams(RowTransform(), weights, t)
        found.append(block_total(one, block, params=params))
        alone = block_total(TorchSums(network, chunk=8), block, params=params)
        assert_array_equal(found[-1], alone)
    assert min(np.linalg.norm(np.diff(found, axis=0), axis=1)) > 1e3
