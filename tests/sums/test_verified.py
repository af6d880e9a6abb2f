"""The verified sum refuses wrong sums of hostile rows before the charge."""

import numpy as np
import pytest
from core import STATISTICS, D, KnownNoise, M, integer_sum, reserve, spec_of, toy

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import SumTask
from dphead.privacy.ledger import Ledger
from dphead.privacy.release import release
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassCounts, ClassGrams, ClassSums, Gradient, Gram
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


class Counted(ArrayRows):
    reads = 0

    def blocks(self, indices=None, known=None):
        self.reads += 1
        return super().blocks(indices)


def values(asks, rows, block_sum=None, fit=None, together=True):
    """The values of the releases of one request; asks: (statistic, parameters, what the
    spec has besides) each.
    """
    specs = [spec_of(statistic, rows.n_rows, **more) for statistic, _, more in asks]
    own, fit = VerifiedSum(block_sum or CpuSums()), fit or reserve(specs)
    if together:
        own = own.one_pass([statistic for statistic, _, _ in asks])
    return [
        release(*one, rows, spec, ledger=fit, noise=KnownNoise(1), summer=own).value
        for (*one, _), spec in zip(asks, specs, strict=True)
    ]


@pytest.mark.parametrize(
    "block_sum",
    [CpuSums(compiled=False), CpuSums(), ReferenceSums()],
    ids=["numpy", "compiled", "reference"],
)
@pytest.mark.parametrize("m, relation", [(M, "zero_out"), (40, "replace_one")])
def test_one_pass_gives_the_statistics_of_a_request_their_own_values(
    block_sum, m, relation
):
    x, y = toy(600, 7, m)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, m, -1
    params = Params(RowTransform(True, np.full(7, 0.1, np.float32), None, 0.5))
    more = {"relation": relation, "clip_norm": 0.7}
    asks = [
        (Gram(m), params, more),
        (ClassSums(m), params, {**more, "sigma": 0.3, "label": "other"}),
        (ClassGrams(m), params, {**more, "sigma": 0.1, "label": "third"}),
    ]
    rows = Counted(x, y, 256)
    found = values(asks, rows, block_sum)
    assert rows.reads == 1
    alone = values(asks, rows, block_sum, together=False)
    assert all(map(np.array_equal, found, alone))
    assert rows.reads == 4


def test_sums_of_one_pass_serve_no_other_release():
    """Other parameters, clip norms and samples, and a second release of a statistic,
    read the rows again and get the value of a pass of their own.
    """
    plain, sampled = Params(), {"sampling_prob": 0.5}
    gram, sums = (Gram(M), plain, {}), (ClassSums(M), plain, {})
    cases = [
        [gram, (ClassSums(M), Params(RowTransform(unit_norm=True)), {})],
        [gram, (ClassSums(M), plain, {"clip_norm": 0.5})],
        [gram, (ClassSums(M), plain, sampled)],
        [(Gram(M), plain, sampled), (ClassSums(M), plain, sampled)],
        [gram, gram],
    ]
    for asks in [[gram, sums], *cases]:
        rows = Counted(*toy(40))
        found = values(asks, rows)
        assert rows.reads == (2 if asks in cases else 1)
        alone = values(asks, rows, together=False)
        assert all(map(np.array_equal, found, alone))


@pytest.mark.parametrize("other", [Gradient(M), ClassCounts(M)], ids=repr)
def test_statistics_of_other_integer_rows_share_no_pass(other):
    """A kernel would clip the rows of one statistic as those of the other."""
    rows = Counted(*toy(40))
    params = Params(weights=np.zeros((D, M), np.float32))
    for asks in ([ClassSums(M), other], [other, ClassSums(M)]):
        with pytest.raises(RuntimeError, match="does not use the same rows"):
            values([(statistic, params, {}) for statistic in asks], rows)
    assert rows.reads == 0


def test_a_fit_that_dies_between_two_releases_of_one_request_resumes(tmp_path):
    """The first value is loaded. Only values with noise were stored, so the second
    statistic is summed again.
    """
    rows, params = Counted(*toy(40)), Params()
    asks = [(statistic, params, {}) for statistic in (Gram(M), ClassSums(M))]
    specs = [spec_of(statistic, 40) for statistic, _, _ in asks]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    fit = reserve(specs, ledger, tmp_path / "fit")
    commit = fit.commit

    def dies(sequence, value):
        if sequence == 1:
            raise KeyboardInterrupt
        commit(sequence, value)

    fit.commit = dies
    with pytest.raises(KeyboardInterrupt):
        values(asks, rows, fit=fit)
    fit._lock.close()
    assert [file.name for file in (tmp_path / "fit").glob("*.npy")] == ["000000.npy"]
    found = values(asks, rows, fit=ledger.resume("hash", fit.fit_id, tmp_path / "fit"))
    assert rows.reads == 2
    alone = values(asks, rows, together=False)
    assert all(map(np.array_equal, found, alone))
