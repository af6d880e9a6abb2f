"""Labels and targets: none decides how another is read, stops a fit or warns."""

import sys
import warnings
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from dphead_extract.features.format import write_features
from numpy.testing import assert_array_equal

from dphead import (
    DPPCA,
    DPFinetuneClassifier,
    DPMultiLabelClassifier,
    DPPrototypeClassifier,
    DPRegressor,
    PrivateNotice,
)
from dphead.data.arrays import ArrayRows
from dphead.estimators import inputs, labels
from dphead.privacy.ledger import Ledger
from dphead.sums.verified import VerifiedSum

CLASSES = np.array([2**60 + 1, 2**60 + 2])


class Evil:
    """What is asked of it stops the fit."""

    def _stop(self, *_):
        raise KeyboardInterrupt

    __eq__ = __hash__ = __float__ = __int__ = __index__ = __len__ = __bool__ = _stop
    __array__ = __complex__ = __str__ = __iter__ = _stop

    @property
    def __class__(self):
        raise KeyboardInterrupt


class EvilNumber(np.float64):
    __eq__ = __hash__ = __float__ = Evil._stop


def strange():
    """Every kind of scalar of numpy's, and what else may stand among labels."""
    kinds = [np.dtype(code).type for code in "?" + np.typecodes["AllInteger"]]
    kinds += [np.dtype(code).type for code in np.typecodes["AllFloat"]]
    found = [kind(value) for kind in kinds for value in (0, 1)]
    for code in np.typecodes["AllFloat"]:
        found += [np.dtype(code).type(value) for value in ("nan", "inf")]
    bits = np.array([0x7F800001], np.uint32).view(np.float32)[0]
    found += [bits, np.longdouble("1e4000"), 10**400, 1j, float("nan"), b"a", "a"]
    found += [np.str_("a"), np.bytes_(b"a")]
    found += [np.void(b"a"), np.datetime64("NaT")]
    found += [np.timedelta64(1), Decimal("nan"), Decimal("sNaN"), Fraction(1, 3)]
    found += [date(2020, 1, 1), datetime(2020, 1, 1)]
    found += [None, [1], {}, object(), Evil(), EvilNumber(1.0)]
    found += [np.array([1.0]), np.array(1.0), slice(1)]
    pandas = sys.modules.get("pandas")
    return found + ([] if pandas is None else [pandas.NA, pandas.NaT])


# infinity has the hash of 314159, and 2**61 that of 1
MANY = [0, 314159, 2**61]


@pytest.mark.parametrize("classes", [MANY, [0.0, 0.5], ["a"], [b"a"]])
def test_no_item_warns_or_stops_and_each_is_read_alone(classes):
    pytest.importorskip("pandas")
    items, names = strange(), np.array(classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = labels.positions(labels.label_column([*items, classes[0]]), names)
        targets = labels.numbers([*items, 2.5])
        for item, at, target in zip(items, found, targets, strict=False):
            assert labels.positions(labels.label_column([item]), names)[0] == at
            assert_array_equal(labels.numbers([item])[0], target)
    assert found[-1] == 0 and targets[-1] == 2.5


@pytest.mark.parametrize("kind", ["Int64", "int64[pyarrow]", "category", "pyarrow"])
def test_one_missing_label_moves_no_sum_beyond_its_bound(kind, monkeypatch, tmp_path):
    """As floats all labels of two large neighbors would be one class."""
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    asked, call = [], VerifiedSum.__call__

    def watched(verified, request):
        asked.append((request.statistic, request.spec, call(verified, request)))
        return asked[-1][2]

    monkeypatch.setattr(VerifiedSum, "__call__", watched)
    draw = np.random.default_rng(0)
    at = draw.integers(0, 2, 200)
    x = draw.normal(size=(200, 4)) + at[:, None]
    for missing in (False, True):
        known = pandas.Series(CLASSES[at]).astype(
            kind if kind != "pyarrow" else "int64"
        )
        if kind == "pyarrow":
            y = pa.array(CLASSES[at], mask=(np.arange(200) == 7) & missing)
        else:
            known = known.astype(kind)
            y = known.where(np.arange(200) != 7) if missing else known
        model = DPPrototypeClassifier(
            classes=CLASSES, delta=1e-3, center_share=0.0, random_state=1
        )
        model.fit(x, y)
    ((statistic, spec, one), (_, _, other)) = asked[0], asked[len(asked) // 2]
    moved = int(((one - other).astype(object) ** 2).sum())
    assert 0 < moved <= statistic.sensitivity_sq("zero_out", spec.clip_norm)


def test_a_columns_declared_kind_must_be_that_of_the_classes():
    pandas = pytest.importorskip("pandas")
    for dtype in ("Int64", "int64[pyarrow]", "datetime64[ns]"):
        for values in ([1, 2], [None, None]):
            series = pandas.Series(values, dtype="object").astype(dtype)
            with pytest.raises(ValueError, match="must have the same type"):
                DPPrototypeClassifier(classes=["a", "b"]).fit(np.ones((2, 1)), series)


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "Float64", "int64[pyarrow]"])
def test_frames_of_sets_and_masked_ones_are_read_item_by_item(dtype):
    pandas = pytest.importorskip("pandas")
    from dphead.estimators.multilabel import indicators

    sets = [[0, 1], [1, 0], [1, 1]]
    frame = pandas.DataFrame(sets).astype(dtype)
    holed = frame.copy()
    holed.iloc[1, 0] = pandas.NA
    assert indicators(frame).tolist() == sets
    masked = np.ma.array(frame.to_numpy(int), mask=holed.isna())
    for given in (holed, masked):
        wanted = [sets[0], [np.nan, 0], sets[2]]
        assert_array_equal(indicators(given), wanted)
    with pytest.raises(ValueError, match="indicator matrix"):
        indicators(frame.astype("object"))


def test_features_of_other_libraries_are_refused_by_type_and_masked_ones_none():
    pa = pytest.importorskip("pyarrow")
    for values in ([None, 1.0], [None, None], ["a", "b"]):
        with pytest.raises(ValueError, match=r"pandas frame, got Table"):
            inputs.row_numbers(pa.table({"a": values}))
    for dtype in (np.int64, np.float32, np.longdouble, bool):
        x = np.ma.array(np.ones((2, 2)), dtype)
        x[0, 1] = np.ma.masked
        assert_array_equal(inputs.row_numbers(x), [[1, np.nan], [1, 1]])


def test_rows_in_memory_are_plain_arrays():
    pandas = pytest.importorskip("pandas")
    x, y = (np.ones((3, 2)), np.zeros(3, int))
    for wrong in (pandas.DataFrame(x), np.ma.array(x), x.astype(object)):
        with pytest.raises(
            ValueError, match="`x` must be a plain numpy array of real numbers"
        ):
            ArrayRows(wrong, y)
    series = pandas.Series(y, dtype="Int64")
    for wrong in (series, np.ma.array(y), y.astype(object)):
        with pytest.raises(
            ValueError, match="`y` must be a plain numpy array of real numbers"
        ):
            ArrayRows(x, wrong)


TEXTS = ["str", "string[python]", "string[pyarrow]", "category", "pyarrow", "T", "U1"]


def texts_of(dtype, values):
    if dtype == "T":
        return np.array(values, np.dtypes.StringDType())
    if dtype == "U1":
        return np.array(values)
    if dtype == "pyarrow":
        return pytest.importorskip("pyarrow").array(values)
    return pytest.importorskip("pandas").Series(values).astype(dtype)


@pytest.mark.parametrize("dtype", TEXTS)
def test_texts_that_a_column_declares_are_no_numbers(dtype):
    y, ledger = texts_of(dtype, ["1", "2"] * 10), Ledger()
    x, images = np.zeros((20, 2)), np.zeros((20, 8, 8), np.uint8)
    for make, given, rows in (
        (DPPrototypeClassifier, {"classes": [1, 2]}, x),
        (DPFinetuneClassifier, {"classes": [1, 2]}, images),
        (DPRegressor, {"bounds": (1.0, 2.0)}, x),
    ):
        with pytest.raises(ValueError, match=r"must have the same type|real numbers"):
            make(ledger=ledger, delta=1e-3, **given).fit(rows, y)
    with pytest.raises(ValueError, match="must have the same type"):
        DPPrototypeClassifier(ledger=ledger, classes=[b"1", b"2"]).fit(x, y)
    assert ledger.fits() == []
    model = DPPrototypeClassifier(ledger=ledger, classes=["1", "2"], delta=1e-3)
    assert list(model.fit(x, y).classes_) == ["1", "2"]


@pytest.mark.parametrize(
    "dtype, classes, held",
    [
        ("float32", [0.1, 1.0], False),
        ("float64", np.float32([0.1, 1.0]), False),
        ("float32", np.float32([0.1, 1.0]), True),
        ("float32", [0.5, 1.0], True),
        ("float16", [2049, 1], False),
        ("float64", [2**53 + 1, 1], False),
        ("float64", [2**53, 1], True),
        ("uint8", [-1, 1], False),
        ("int64", [0.5, 1.0], False),
        ("int64", [0.0, 1.0], True),
        ("bool", [0, 1], True),
        ("bool", [1, 2], False),
        ("int8", [1, 300], False),
        ("object", [0.1, 300], True),
    ],
)
def test_each_class_must_be_a_value_of_the_labels_dtype(dtype, classes, held):
    """0.1 is another number in float32, and -1 is 255 in uint8: those rows would count
    zero after the charge.
    """
    names = inputs.declared(classes)
    if held:
        labels.require_same_kind(np.dtype(dtype), names)
        found = labels.positions(names.astype(dtype), names)
        assert found.tolist() == [0, 1]
        return
    with pytest.raises(ValueError, match="cannot hold the class"):
        labels.require_same_kind(np.dtype(dtype), names)


CASES = ["cat", "Cat", None, "dog", float("nan"), "bird"] * 10
NOTICES = {
    "classifier": (
        lambda: DPPrototypeClassifier(classes=["cat", "dog"], delta=1e-3),
        CASES,
        "20 of 60 labels match no class",
    ),
    "regressor": (
        lambda: DPRegressor(bounds=(0.0, 1.0), delta=1e-3),
        [0.5, "0.5", None, float("inf"), 1, 0] * 10,
        "20 of 60 targets are not finite numbers",
    ),
    "label sets": (
        lambda: DPMultiLabelClassifier(method="dp-sgd", delta=1e-3),
        np.array([[1, -1], [0, 1], [1, np.nan]] * 20),
        "20 of 60 label sets have values other than one and zero",
    ),
    "network": (
        lambda: DPFinetuneClassifier(
            model="wrn-10-1",
            groups=4,
            classes=["cat", "dog"],
            delta=1e-3,
            noise_multiplier=9.0,
            batch_size=30,
            steps=1,
        ),
        CASES,
        "20 of 60 labels match no class",
    ),
}


@pytest.mark.parametrize("name", NOTICES)
def test_labels_that_match_no_class_are_told_to_the_data_holder(name, capfd):
    """Once, after the fit, without those that are missing. Where warnings are errors
    the fit still returns, since a row's value must not stop it.
    """
    make, y, text = NOTICES[name]
    shape = (60, 8, 8) if name == "network" else (60, 2)
    x = np.zeros(shape, np.uint8 if name == "network" else float)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make().fit(x, y)
    told = [one for one in warned if one.category is PrivateNotice]
    assert len(told) == 1
    assert f"for the data holder only: {text}" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivateNotice)
        try:
            model = make().fit(x, y)
        except PrivateNotice:
            model = None
    assert model is not None and model.privacy_.epsilon <= 1.0
    assert text in capfd.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "20 of 60" not in repr(vars(model))


ROWS = {
    "classifier": (NOTICES["classifier"][0], ["cat", "dog"] * 30),
    "regressor": (NOTICES["regressor"][0], np.zeros(60)),
    "label sets": (NOTICES["label sets"][0], np.eye(2)[[0, 1] * 30]),
    "components": (lambda: DPPCA(n_components=1, delta=1e-3), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_training_masks_are_told_to_the_data_holder(name, recwarn):
    make, y = ROWS[name]
    x = np.zeros((60, 2))
    x[:3, 0] = np.nan, np.inf, 1e39
    make().fit(x) if y is None else make().fit(x, y)
    told = [str(w.message) for w in recwarn if w.category is PrivateNotice]
    assert len(told) == 1
    assert "only: 3 of 60 rows hold NaN, infinity or a number" in told[0]


@pytest.mark.parametrize("name", ROWS)
def test_a_column_that_hides_all_others_is_told_to_the_data_holder(name, recwarn):
    """Unit rows hardly show the others. With a smaller column they do."""
    make, y = ROWS[name]
    x = np.random.default_rng(0).normal(size=(60, 9))
    for scale, count in ((50.0, 0), (1000.0, 1)):
        scaled = x * np.r_[1, scale, np.ones(7)]
        make().fit(scaled) if y is None else make().fit(scaled, y)
        found = [str(w.message) for w in recwarn if w.category is PrivateNotice]
        assert len(found) == count
    assert "only: column 1 has over 99.9 % of the squared length" in found[0]


def test_a_row_that_numpy_masks_has_no_class_at_prediction_either():
    x = np.random.default_rng(0).normal(size=(60, 2))
    fitted = DPPrototypeClassifier(classes=["cat", "dog"], delta=1e-3)
    fitted.fit(x, ["cat", "dog"] * 30)
    hidden = np.ma.masked_array(x, mask=False)
    hidden[:2, 0] = np.ma.masked
    assert np.isnan(fitted.predict_proba(hidden)).any(axis=1).sum() == 2
    assert np.isnan(DPPCA(n_components=1).fit(x).transform(hidden)[:2]).all()
    assert fitted.score(np.full((2, 2), np.nan), ["cat", "dog"]) == 0


@pytest.mark.parametrize(
    "classes", [[0, "unknown"], [True, "a"], [b"a", "b"], ["cat", "cat "], ["", "a"]]
)
def test_classes_of_two_types_or_of_one_name_are_refused(classes):
    """numpy would turn the number into a string, which no label equals."""
    with pytest.raises(ValueError, match="`classes` must be distinct"):
        inputs.declared(classes)


@pytest.mark.parametrize("kind", [Decimal, Fraction])
def test_exact_numbers_are_labels_targets_and_classes(kind):
    """As a database returns them."""
    large = 2**53 + 1  # no float
    names = inputs.declared([kind(0), kind(1), kind(large)])
    given = labels.label_column([kind(1), kind(large), kind(large - 1), kind("0.5")])
    assert labels.positions(given, names).tolist() == [1, 2, -1, -1]
    assert labels.positions(given[3:], np.array([0.5, 1.0])).tolist() == [0]
    assert labels.numbers(given).tolist() == [1, 2**53, 2**53, 0.5]
    odd = labels.label_column([Decimal("sNaN"), Decimal("inf"), Decimal("1e999999")])
    assert (labels.positions(odd, names) == -1).all()


def test_white_space_and_the_form_of_an_accent_make_no_other_class():
    """One rule: `features import` reads labels by the same names."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    given = np.array(["cat ", decomposed, "", " "])
    for classes in (["cat", composed], [" cat", decomposed]):
        names = inputs.declared(classes)
        for column in (given, given.astype(object), given.tolist()):
            found = labels.positions(labels.label_column(column), names)
            at = [names.tolist().index(one) for one in classes]
            assert found.tolist() == [*at, -1, -1]
    notice = labels.unmatched_labels(np.array(["", "dog"]), names)
    assert "only: 1 of 2 labels match no class" in notice
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = DPPrototypeClassifier(classes=["cat", "dog"], delta=1e-3)
    y = ["cat ", "dog"] * 30
    fitted = model.fit(x, y)
    assert fitted.score(x, y) == fitted.score(x, ["cat", "dog"] * 30)


def test_a_file_without_a_label_of_the_classes_has_no_accuracy(tmp_path):
    x, path = np.random.default_rng(0).normal(size=(4, 2)), tmp_path / "rows.h5"
    model = DPPrototypeClassifier(classes=["cat", "dog"], delta=1e-3)
    model.fit(np.tile(x, (15, 1)), ["cat", "dog"] * 30)
    write_features(path, x, np.full(4, -1), ["cat", "dog"])
    with pytest.raises(ValueError, match="no labels of the head's classes"):
        model.score(path)
