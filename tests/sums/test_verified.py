"""The verified sum refuses wrong sums of hostile rows before the charge."""

import numpy as np
import pytest
from core import STATISTICS, D, M, integer_sum, toy

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import SumTask
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums, Gradient
from dphead.privacy.transform import RowTransform
from dphead.sums import kernels
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ReferenceSums
from dphead.sums.verified import VerifiedSum


class Wrong(CpuSums):
    """Off by one where `where` says so of (rows, y, used)."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def add(self, ask, rows, y, used, out):
        out = super().add(ask, rows, y, used, out)
        out[0, 0] += np.any(self.where(rows, y, used))
        return out


CASES = {
    "padding": lambda rows, y, used: ~used & (rows.scale > 0),
    "no class": lambda rows, y, used: y == -1,
    "class beyond": lambda rows, y, used: y == M,
    "not finite": lambda rows, y, used: rows.scale == 0,
    "one entry": lambda rows, y, used: (rows.q != 0).sum(axis=1) == 1,
    "last row": lambda rows, y, used: len(y) % 128 != 0,
}


@pytest.mark.parametrize("d", [1, D, 700])
def test_sums_that_are_right_pass(d):
    statistics = [q for q in STATISTICS if not getattr(q, "n_channels", 0)]
    for way in (CpuSums(compiled=False), CpuSums(), ReferenceSums()):
        VerifiedSum(way).check(
            statistics if d < 100 else [Gradient(M), ClassSums(M)], d
        )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("statistic", [ClassSums(M), Gradient(M)], ids=lambda q: q.name)
def test_a_kernel_that_is_off_by_one_on_a_hostile_row_is_refused_before_the_charge(
    case, statistic
):
    verified = VerifiedSum(Wrong(CASES[case]))
    with pytest.raises(RuntimeError, match="differs from the reference"):
        verified.check([statistic], D)


SETS = {
    "none": lambda rows, y, used: y.ndim == 2 and used & (y == 0).all(axis=1),
    "all": lambda rows, y, used: y.ndim == 2 and used & (y == 1).all(axis=1),
    "no set": lambda rows, y, used: y.ndim == 2 and used & (y == 2).any(axis=1),
    "masked": lambda rows, y, used: y.ndim == 2 and used & (y == -1).all(axis=1),
}


@pytest.mark.parametrize("case", SETS)
def test_sums_of_label_sets_are_tried_where_gradients_take_them(case):
    verified = VerifiedSum(Wrong(SETS[case]))
    for statistic in (Gradient(M, "sigmoid"), Gradient(M, "sigmoid", "features")):
        with pytest.raises(RuntimeError, match="differs from the reference"):
            verified.check([statistic], D)
    verified.check([Gradient(M)], D)


@pytest.mark.parametrize("kernel", ["gradient", "class sums"])
def test_a_compiled_kernel_is_itself_what_is_checked(monkeypatch, kernel):
    """Sums of another layout went to other loops: the kernel that ran was never
    compared.
    """
    name, statistic = {
        "gradient": ("add_gradient", Gradient(M)),
        "class sums": ("add_class_rows", ClassSums(M)),
    }[kernel]
    real = getattr(kernels, name)

    def wrong(*args):
        real(*args)
        args[-1][0, 0] += 1

    monkeypatch.setattr(kernels, name, wrong)
    way = CpuSums()
    with pytest.raises(RuntimeError, match="differs from the reference"):
        VerifiedSum(way).check([statistic], D)
    x, y = toy(200)
    with pytest.raises(RuntimeError, match="differs from the reference"):
        integer_sum(statistic, Params(weights=np.zeros((D, M))), x, y, block_sum=way)


def test_without_noise_each_transform_of_the_rows_is_measured_once():
    """A norm of other rows, of another transform or of a sample is never reused."""

    class Counted(ReferenceSums):
        passes = 0

        def norms(self, ask, block):
            self.passes += 1
            return super().norms(ask, block)

    way, (x, y) = Counted(), toy(100)
    verified, ways = VerifiedSum(way), (RowTransform(), RowTransform(unit_norm=True))
    rows, longer = ArrayRows(x, y), ArrayRows(3 * x, y)
    largest = np.linalg.norm(x, axis=1).max()

    def norm(rows, transform, indices=None):
        return verified.largest_norm(
            SumTask(Gradient(M), Params(transform), 1.0, rows, indices)
        )

    assert norm(rows, ways[0]) == norm(rows, ways[0]) == pytest.approx(largest)
    assert way.passes == 1
    assert norm(longer, ways[0]) == pytest.approx(3 * largest)
    assert norm(longer, ways[1]) == pytest.approx(1)
    few = np.arange(3)
    some = np.linalg.norm(x[:3], axis=1).max()
    assert norm(rows, ways[0], few) == norm(rows, ways[0], few) == pytest.approx(some)
    assert norm(rows, ways[0]) == pytest.approx(largest)
    assert way.passes == 6
