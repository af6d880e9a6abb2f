"""`release`: what is refused, when it is charged, and that nothing a row holds can
raise, warn or skip the noise.
"""

import math
import sys
import warnings
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from core import (
    NAMES,
    STATISTICS,
    D,
    KnownNoise,
    M,
    integer_sum,
    release_one,
    reserve,
    run,
    sensitivity,
    spec_of,
    toy,
    verified,
)

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import ReleaseSpec
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource, rounded_noise
from dphead.privacy.release import noise_scale, release
from dphead.privacy.statistic_base import Params, Statistic
from dphead.privacy.statistics import ClassSums, Gradient, Gram, SigmoidHessians
from dphead.privacy.transform import RowTransform
from dphead.sums.cpu import CpuSums
from dphead.sums.verified import VerifiedSum

HOSTILE = np.array(
    [
        [np.nan] * D,
        [np.inf] * D,
        [-np.inf, 0, 0, 0],
        [3.4e38] * D,
        [1e30] * D,
        [1e-45] * D,
        [0.0] * D,
        [1, -1, 1e19, 0],
        [-0.0] * D,
        [1e-19] * D,
    ],
    np.float32,
)
LABELS = np.array([0, 1, 2, 0, 1, 2, -1, M, 2**31 - 1, -(2**31)])


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize(
    "transform",
    [RowTransform(), RowTransform(True, np.full(D, 0.1, np.float32), None, 0.0)],
)
@pytest.mark.parametrize("weight", [0.0, 1e36])
def test_nothing_raises_or_warns_because_of_a_rows_value(statistic, transform, weight):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, len(HOSTILE)):
            params = Params(transform, np.full((D, M), weight, np.float32))
            rows = ArrayRows(HOSTILE[-n:], LABELS[-n:])
            for block_sum in (CpuSums(compiled=False), CpuSums()):
                released = release_one(statistic, params, rows, block_sum=block_sum)
                assert np.isfinite(released.value).all()
                assert np.any(released.value != 0)


@pytest.mark.parametrize("statistic", STATISTICS, ids=NAMES)
@pytest.mark.parametrize("relation", ["zero_out", "add_remove", "replace_one"])
@pytest.mark.parametrize("sampling_prob", [1.0, 0.5])
def test_the_noise_is_never_below_its_multiple_of_the_sensitivity(
    statistic, relation, sampling_prob
):
    """Compared as fractions: not by a last bit.

    Poisson batches have the zero-out sensitivity.
    """
    for sigma in (0.3, 1.0, 1.1, 7.7):
        spec = spec_of(
            statistic,
            100,
            sigma=sigma,
            clip_norm=0.7,
            relation=relation,
            sampling_prob=sampling_prob,
        )
        unit, sd = noise_scale(statistic, spec, 0.0)
        squared = statistic.sensitivity_sq(
            relation if sampling_prob == 1 else "zero_out", 0.7, 0.0
        )
        exact = Fraction(sigma) ** 2 * squared
        assert exact <= Fraction(sd) ** 2 <= exact * (1 + Fraction(1, 2**49))
        assert unit == statistic.unit(0.7, 0.0)


def test_an_epsilon_of_infinity_adds_nothing():
    """And clips nothing: an entry of a row is rounded by half a unit, 1/8190 of the
    longest row.
    """
    x, y = toy(300)
    value = release_one(
        ClassSums(M), Params(), ArrayRows(x, y), sigma=0.0, clip_norm=math.inf
    ).value
    exact = [[x[y == c, j].sum(dtype=float) for c in range(M)] for j in range(D)]
    longest = np.linalg.norm(x.astype(float), axis=1).max()
    np.testing.assert_allclose(value, exact, rtol=0, atol=300 * longest / 4095)


@pytest.mark.parametrize("wrong", [np.float64, np.int32, "shape"])
def test_a_sum_that_is_not_of_64_bit_integers_of_the_querys_shape_is_refused(wrong):
    spec = spec_of(ClassSums(M), 40)

    def summer(request):
        if wrong == "shape":
            return np.zeros((D, M + 1), np.int64)
        return np.zeros((D, M), wrong)

    with pytest.raises(TypeError, match="not int64 of shape"):
        run(ClassSums(M), ArrayRows(*toy(40)), spec, reserve([spec]), summer=summer)


@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": math.nan},
        {"clip_norm": math.inf},
        {"clip_norm": 1e-7},
        {"clip_norm": -1.0},
        {"clip_norm": np.float32(1)},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": True},
        {"noise_multiplier": 2**53 + 1},  # float64 has no such number
        {"noise_multiplier": 0.0, "clip_norm": math.nan},
        {"sampling_prob": 0.0},
        {"sampling_prob": math.nan},
        {"relation": "add_one"},
        {"n_rows": -1},
        {"n_rows": np.int64(5)},
        {"n_rows": 5.0},
        {"label": None},
        {"group_cap": np.int64(3)},
        {"group_cap": 3, "sampling_prob": 0.1, "relation": "replace_one"},
    ],
    ids=str,
)
def test_a_spec_that_would_not_mean_what_it_says_is_refused(change):
    good = {"label": "a", "statistic": "q", "clip_norm": 1.0, "noise_multiplier": 1.0}
    ReleaseSpec(**good, n_rows=5)
    with pytest.raises(ValueError):
        ReleaseSpec(**{**good, "n_rows": 5, **change})


class Broken(Statistic):
    """A sensitivity that is not a positive number must never turn the noise off."""

    value: int = 0
    max_entry = 1

    def unit(self, clip_norm, append=0.0):
        return 1.0

    def sensitivity_sq(self, relation, clip_norm, append=0.0):
        return type(self).value

    def shape(self, width):
        return (width, 1)

    def factors(self, xp, chunk):
        return chunk.rows.q, chunk.keep[:, None].astype(np.int64)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 0, -1, 2**200, np.int64(4), 4.0, True]
)
def test_no_sensitivity_turns_the_noise_off(value):
    """And a whole number of numpy may be the rest of a larger one."""
    Broken.value = value
    with np.errstate(all="ignore"), pytest.raises((ValueError, OverflowError)):
        release_one(Broken(M), Params(), ArrayRows(*toy(20)))


class Counted(ArrayRows):
    reads = 0

    def blocks(self, indices=None, known=None):
        Counted.reads += 1
        return super().blocks(indices)


@pytest.fixture
def rows():
    Counted.reads = 0
    return Counted(*toy(40))


def test_a_release_that_was_not_planned_reads_nothing(rows):
    statistic = ClassSums(M)
    spec = spec_of(statistic, 40)
    ledger = reserve([spec])
    others = [
        spec_of(statistic, 40, sigma=0.9),
        spec_of(statistic, 40, clip_norm=2.0),
        spec_of(statistic, 40, relation="replace_one"),
        spec_of(statistic, 40, sampling_prob=0.5),
        spec_of(statistic, 40, label="other"),
    ]
    for other in others:
        with pytest.raises(LedgerError):
            run(statistic, rows, other, ledger)
    with pytest.raises(ValueError, match="and the charged plan has"):
        run(Gram(M), rows, spec, ledger)
    assert Counted.reads == 0
    run(statistic, rows, spec, ledger)
    with pytest.raises(LedgerError):  # one more step than was accounted for (defect 3)
        run(statistic, rows, spec, ledger)
    assert Counted.reads == 1


def test_nothing_is_charged_or_released_while_torch_compiles_the_caller(
    rows, monkeypatch
):
    """Compiled numpy draws other noise. `finetune/test_own_loop.py` compiles a step."""
    statistic = ClassSums(M)
    spec = spec_of(statistic, 40)
    ledger, book = reserve([spec]), Ledger()
    compiler = SimpleNamespace(get_eval_frame_callback=lambda: None)
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.eval_frame", compiler)
    reserve([spec])
    compiler.get_eval_frame_callback = lambda: run
    for use in (
        lambda: run(statistic, rows, spec, ledger),
        lambda: reserve([spec], book),
    ):
        with pytest.raises(RuntimeError, match="torch compiles"):
            use()
    assert Counted.reads == book.count_fits() == 0
    compiler.get_eval_frame_callback = lambda: None
    run(statistic, rows, spec, ledger)  # it is still the next release


def test_a_seed_needs_a_charge_that_says_so(rows):
    """Before a row is read; and what says so counts as a release without noise."""
    statistic = ClassSums(M)
    given = {"noise": NoiseSource(0), "summer": verified()}
    spec = spec_of(statistic, 40)
    with pytest.raises(ValueError, match="Noise from a seed is not private"):
        release(statistic, Params(), rows, spec, ledger=reserve([spec]), **given)
    marked = spec_of(statistic, 40, private=False)
    with pytest.raises(LedgerError, match="is not the next one"):
        release(statistic, Params(), rows, marked, ledger=reserve([spec]), **given)
    assert Counted.reads == 0
    known = reserve([marked])
    release(statistic, Params(), rows, marked, ledger=known, **given)
    assert known.ledger.spent(1e-5).epsilon == np.inf


def test_the_public_number_of_rows_must_be_the_planned_one_except_where_it_is_private(
    rows,
):
    statistic = ClassSums(M)
    for relation in ("zero_out", "replace_one"):
        spec = spec_of(statistic, 39, relation=relation)
        with pytest.raises(ValueError, match="n_rows"):
            run(statistic, rows, spec, reserve([spec]))
    assert Counted.reads == 0
    spec = spec_of(statistic, 39, relation="add_remove")
    run(statistic, rows, spec, reserve([spec]))


def test_the_charge_is_durable_before_the_first_row_is_read(tmp_path):
    """A second connection sees the reservation and the start while the rows are being
    read.
    """
    statistic = ClassSums(M)
    x, y = toy(40)
    spec = spec_of(statistic, 40)
    path = tmp_path / "ledger.sqlite"
    seen = []

    class Spy(ArrayRows):
        def blocks(self, indices=None, known=None):
            fit = Ledger(path).fits()[0]
            seen.append([r["state"] for r in fit["releases"]])
            return super().blocks(indices)

    fit = reserve([spec, spec], Ledger(path), tmp_path / "run")
    run(statistic, Spy(x, y), spec, fit)
    run(statistic, Spy(x, y), spec, fit)
    assert seen == [["started", "reserved"], ["committed", "started"]]


def test_a_stored_value_is_flushed_before_it_is_logged(tmp_path, monkeypatch):
    """Logged first, a crash could leave a release that counts as observed and whose
    value is lost or half written.
    """
    import os

    statistic = ClassSums(M)
    spec = spec_of(statistic, 40)
    fit = reserve([spec], Ledger(tmp_path / "l.sqlite"), tmp_path / "run")
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            f"dphead.privacy.atomic_write.os.{name}",
            lambda *a, n=name, f=real: (order.append(n), f(*a))[1],
        )

    def trace(sql):
        """What SQLite runs: an insertion is logged when its transaction is over."""
        if sql == "COMMIT":
            order.append(sql)

    fit.ledger._db.set_trace_callback(trace)
    run(statistic, ArrayRows(*toy(40)), spec, fit)
    # the first is that of "started", and the second file notes the return
    written = ["fsync", "replace", "fsync"]
    assert order == ["COMMIT", *written, "COMMIT", *written]


@pytest.mark.parametrize("sigma", [1e-6, 1e12])
def test_releases_that_do_not_fit_their_grid_are_refused(rows, sigma):
    """Before the charge and before a row is read."""
    spec = spec_of(ClassSums(M), 40, sigma=sigma)
    ledger = reserve([spec])
    with pytest.raises(ValueError, match="units of the sum"):
        run(ClassSums(M), rows, spec, ledger)
    assert Counted.reads == 0
    assert ledger.ledger.fits()[0]["releases"][0]["state"] == "reserved"


def test_sums_without_noise_never_reach_the_disk(tmp_path):
    x, y = toy(50)
    statistic = Gram(M)
    spec = spec_of(statistic, 50, clip_norm=float("inf"), sigma=0.0)
    ledger = reserve([spec], store=tmp_path / "store", epsilon=float("inf"))
    with pytest.raises(ValueError, match="are never stored"):
        run(statistic, ArrayRows(x, y), spec, ledger)
    assert not list((tmp_path / "store").glob("*.npy"))


def test_a_private_number_of_rows_has_room_whatever_the_public_one(monkeypatch):
    """Under add_remove a sum has room for 2**30 rows, so that what is refused tells
    nothing of n.
    """
    statistic = Gram(M)
    spec = spec_of(statistic, 1, relation="add_remove")
    monkeypatch.setattr(Gram, "max_entry", 2**32)
    noise_scale(statistic, spec, 0.0)
    monkeypatch.setattr(Gram, "max_entry", 2**32 + 1)
    with pytest.raises(ValueError, match=r"could reach 2\*\*62"):
        noise_scale(statistic, spec, 0.0)


def test_no_norm_of_private_rows_is_asked_for_where_there_is_a_clip():
    """The largest norm is a row's own, exact: it stands for a clip of infinity alone,
    which takes no noise.
    """
    asked = []

    class Watched(VerifiedSum):
        def __call__(self, request):
            asked.append(request.clip_norm)
            return super().__call__(request)

        def largest_norm(self, request):
            asked.append("norm")
            return super().largest_norm(request)

    statistic = ClassSums(M)
    rows = ArrayRows(*toy(40))
    for sigma, clip_norm in ((1.0, 0.7), (0.0, 0.7), (0.0, math.inf)):
        spec = spec_of(statistic, 40, sigma=sigma, clip_norm=clip_norm)
        run(statistic, rows, spec, reserve([spec]), summer=Watched())
    assert asked[:3] == [0.7, 0.7, "norm"]
    assert len(asked) == 4


def test_the_value_is_the_sum_plus_the_seeded_noise_on_the_grid():
    """To the last bit: the integers of the sum and of the noise, drawn again from the
    same seed and added once.
    """
    x, y = toy(300)
    for statistic, relation in (
        (Gram(M), "zero_out"),
        (ClassSums(M), "replace_one"),
        (Gradient(M), "add_remove"),
    ):
        params = Params(RowTransform(append=0.5), np.zeros((D + 1, M), np.float32))
        spec = spec_of(statistic, 300, clip_norm=0.7, sigma=1.9, relation=relation)
        ledger = reserve([spec, spec])
        noise = KnownNoise(8)
        unit, sd = noise_scale(statistic, spec, 0.5)
        for sequence in (0, 1):
            released = release(
                statistic,
                params,
                ArrayRows(x, y),
                spec,
                ledger=ledger,
                noise=noise,
                summer=verified(),
            )
            assert released.noise_sd == pytest.approx(
                1.9 * sensitivity(statistic, 0.7, relation, 0.5), rel=1e-12
            )
            z = rounded_noise(
                NoiseSource(8).generator(sequence, "noise"),
                released.value.shape,
                sd,
                statistic.symmetric,
            )
            assert np.array_equal(
                released.value, (integer_sum(statistic, params, x, y, 0.7) + z) * unit
            )


def test_no_noise_at_a_clip_norm_gives_the_clipped_sum_in_real_numbers():
    x, y = toy(300)
    statistic = ClassSums(M)
    released = release_one(
        statistic, Params(), ArrayRows(x, y), sigma=0.0, clip_norm=0.7
    )
    assert np.array_equal(
        released.value,
        integer_sum(statistic, Params(), x, y, 0.7) * statistic.unit(0.7),
    )
    assert released.noise_sd == 0


@pytest.mark.parametrize("value", [np.int64(4), 4.0, True, np.float64(4)])
def test_a_sensitivity_that_came_round_is_refused(value):
    """A whole number of numpy may be the rest of a larger one."""
    Broken.value = value
    with pytest.raises(ValueError, match="sensitivity_sq must be a Python int"):
        release_one(Broken(M), Params(), ArrayRows(*toy(20)))


def test_a_value_is_committed_before_it_is_returned(tmp_path, monkeypatch):
    statistic = ClassSums(M)
    spec = spec_of(statistic, 40)
    fit = reserve([spec], Ledger(tmp_path / "l.sqlite"), tmp_path / "run")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("dphead.privacy.atomic_write.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        run(statistic, ArrayRows(*toy(40)), spec, fit)
    assert fit.ledger.fits()[0]["releases"][0]["state"] == "started"


def test_sums_that_could_overflow_are_refused_before_they_are_read(rows):
    """n times what a row adds stays below 2**62, whatever the statistic."""
    statistic = SigmoidHessians(M)
    n = 2**62 // statistic.max_entry
    noise_scale(statistic, spec_of(statistic, n), 0.0)
    with pytest.raises(ValueError, match=r"could reach 2\*\*62"):
        noise_scale(statistic, spec_of(statistic, n + 1), 0.0)
