"""Columns of numpy, pandas, pyarrow and lists: each item is read by itself."""

import numpy as np
import pyarrow as pa
import pytest
from dphead_extract.errors import FormatError
from dphead_extract.features.format import group_ids
from dphead_extract.features.writing import write_features
from dphead_extract.items import declared_dtype, is_missing, read_column
from dphead_extract.sources.classes import Classes, interpreted

# neighbors beyond 2**53: as floats they would be one
BIG = [2**60 + 1, 2**60 + 2, 2**60 + 3]


class Polars:
    """A column that decides its array's dtype by its values."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, row):
        return self.values[row]

    def __array__(self, dtype=None, copy=None):
        array = np.array([np.nan if v is None else v for v in self.values])
        return array.astype(dtype)


def of_pandas(dtype):
    def made(values):
        pandas = pytest.importorskip("pandas")
        return pandas.Series(values, dtype="object").astype(dtype)

    return made


def of_arrow(values):
    return pa.array(values)


def chunked(values):
    parts = values[:1], values[1:]
    return pa.chunked_array([pa.array(part, pa.int64()) for part in parts])


def coded(values):
    return of_arrow(values).dictionary_encode()


def masked(values):
    filled = [7 if v is None else v for v in values]
    return np.ma.array(filled, np.int64, mask=[v is None for v in values])


def category(values):
    """As pandas makes it of whole numbers, without the missing one."""
    pandas = pytest.importorskip("pandas")
    known = pandas.Index(sorted({v for v in values if v is not None}), dtype="int64")
    codes = [-1 if v is None else known.get_loc(v) for v in values]
    return pandas.Series(pandas.Categorical.from_codes(codes, known))


WITH_MISSING = {
    "list": list,
    "objects": lambda values: np.array(values, object),
    "masked": masked,
    "polars": Polars,
    "Int64": of_pandas("Int64"),
    "int64[pyarrow]": of_pandas("int64[pyarrow]"),
    "category": category,
    "pyarrow": of_arrow,
    "chunked": chunked,
    "dictionary": coded,
}


@pytest.mark.parametrize("make", WITH_MISSING.values(), ids=WITH_MISSING)
@pytest.mark.parametrize("other", [None, 5, -1, 2**62])
def test_one_item_changes_no_other(make, other):
    values = [BIG[i % 3] for i in range(9)]
    before, after = (make(values), make([*values[:4], other, *values[5:]]))
    read = [read_column(column).tolist() for column in (before, after)]
    assert read[0] == values
    assert read[1][:4] + read[1][5:] == values[:4] + values[5:]
    assert is_missing(read[1][4]) if other is None else read[1][4] == other
    assert declared_dtype(before) == declared_dtype(after)
    ids = group_ids(after, 9)
    alone = [group_ids([value], 1)[0] for value in values]
    assert ids.tolist() == [*alone[:4], group_ids([other], 1)[0], *alone[5:]]
    assert (ids[4] == -1) == (other is None)  # -1 as a value names a group


def test_missing_groups_of_any_kind_are_rows_on_their_own():
    pandas = pytest.importorskip("pandas")
    missing = [None, np.nan, np.float32("nan"), np.longdouble("nan"), pandas.NA]
    ids = group_ids([1, *missing, pandas.NaT, " ", b""], 9)
    assert ids[0] >= 0
    assert ids[1:].tolist() == [-1] * 8


@pytest.mark.parametrize(
    "dtype", ["boolean", "datetime64[ns]", "timedelta64[ns]", "bool[pyarrow]"]
)
def test_groups_are_refused_by_what_their_column_declares(dtype):
    for values in ([1, 0, 1], [None, None, None]):
        with pytest.raises(FormatError, match="numbers of at most 64 bits"):
            group_ids(of_pandas(dtype)(values), 3)


BEYOND = 2**63 + 5  # a hash of 64 bits without a sign
NAMING = {
    "int64": lambda v: np.array(v, np.int64),
    ">i8": lambda v: np.array(v, ">i8"),
    "float64": lambda v: np.array(v, np.float64),
    "text": lambda v: np.array([str(x) for x in v]),
    "text of floats": lambda v: [f"{float(x)!r} " for x in v],
    "bytes": lambda v: np.array([str(x).encode() for x in v]),
    "list of floats": lambda v: [float(x) for x in v],
    "Float64": lambda v: of_pandas("Float64")(v),
    "Int64": lambda v: of_pandas("Int64")(v),
    "string": lambda v: of_pandas("string")([str(x) for x in v]),
    "float64[pyarrow]": lambda v: of_pandas("float64[pyarrow]")(v),
}


@pytest.mark.parametrize("make", NAMING.values(), ids=NAMING)
def test_equal_values_name_one_group_in_every_type(make):
    """Half of all signed 64-bit hashes are negative: such an id is one like any other.
    No value becomes the mark of a missing one.
    """
    values = [-1541654, 0, -1, 7, 2**52]
    assert group_ids(make(values), 5).tolist() == group_ids(values, 5).tolist()
    assert len(set(group_ids(values, 5))) == 5
    assert (group_ids(values, 5) >= 0).all()


def test_one_text_is_one_group_however_its_accents_are_stored():
    """File names of macOS have accents apart: one patient would count as two."""
    composed, apart = "M\u00fcller", "Mu\u0308ller"
    assert len(set(group_ids([composed, apart, apart.encode()], 3))) == 1
    assert len(set(group_ids(np.array([composed, apart]), 2))) == 1


def test_unsigned_and_long_ids_are_told_apart():
    ids = [BEYOND, BEYOND + 1, -BEYOND, 10**20, 10**5000, 10**5000 + 1]
    found = group_ids(ids, 6)
    assert len(set(found)) == 6 and (found >= 0).all()
    assert group_ids(np.array(ids[:2], np.uint64), 2).tolist() == found[:2].tolist()
    assert group_ids([str(i) for i in ids[:4]], 4).tolist() == found[:4].tolist()


@pytest.mark.parametrize("text", ["007", "1.10", "1e5", "+1", "0x1", "1_0"])
def test_a_text_that_python_would_not_write_is_no_number(text):
    """Such as a patient 10 of site 1, or a hash in hexadecimal digits."""
    number = int(text, 0) if text in ("0x1", "1_0") else float(text)
    assert group_ids([text], 1)[0] != group_ids([number], 1)[0]


def test_texts_of_numpy_are_read_one_by_one():
    texts = np.array(["a", "b", None], np.dtypes.StringDType(na_object=None))
    assert read_column(texts).tolist() == ["a", "b", None]
    assert group_ids(texts, 3)[2] == -1


def test_a_text_that_is_no_utf8_is_its_bytes_and_what_cannot_be_read_is_none():
    """Bytes that are no UTF-8 among pyarrow's texts; a date beyond Python's."""
    pandas = pytest.importorskip("pandas")
    ends = pa.py_buffer(np.array([0, 1, 2, 3], np.int32).tobytes())
    buffers = [None, ends, pa.py_buffer(b"a\xffb")]
    texts = pa.Array.from_buffers(pa.string(), 3, buffers)
    chunks = pa.chunked_array([texts])
    # one patient, not a row on its own: as in a list of bytes
    wanted = group_ids([b"a", b"\xff", b"b"], 3).tolist()
    for column in (
        texts,
        chunks,
        texts.dictionary_encode(),
        pandas.Series(pandas.arrays.ArrowExtensionArray(texts)),
        pandas.Series(pandas.arrays.ArrowStringArray(chunks)),
    ):
        assert group_ids(column, 3).tolist() == wanted
    dates = pa.array([1, 2**30], pa.int32()).cast(pa.date32())
    assert read_column(dates).tolist()[1] is None


def test_a_table_of_another_library_is_no_column():
    with pytest.raises(FormatError, match=r"one value per row.*Select one column"):
        read_column(pa.table({"a": [1, 2]}))


@pytest.mark.parametrize(
    "groups, exact",
    [
        (np.array([2.0**53 - 1, np.nan]), True),
        (np.array([2.0**53, 1]), False),
        (np.array([2.0**24 - 1], np.float32), True),
        (np.array([2.0**24], np.float32), False),
        (np.array([-(2.0**11)], np.float16), False),
        (np.array([2**60]), True),
        (["110101199003070000", "12E5", "1e-05", b"P-1.5"], True),
        (["1.1010119900307e+17"], False),  # as pandas writes the float
        (["1.10101E+17"], False),  # as spreadsheets do
        (["1,10101E+17"], False),
        ([b" 1e+17 "], False),
        (["9007199254740993.0"], False),
        (np.array([7.5]), True),
        (np.array([7.1], np.float32), False),  # 7.099999904632568
        ([np.float32(7.1)], False),
        (np.array([np.float32(2**24)], object), False),
        ([np.float16(2**11)], False),
        (pa.array([1.1e17, None]), False),
        (pa.array([2.0**24], pa.float32()), False),
        (pa.array([1.1e17]).dictionary_encode(), False),
    ],
)
def test_a_number_that_may_be_rounded_names_no_group_of_a_file(groups, exact, tmp_path):
    """The same id has all its digits in another file."""
    found = []
    for read in (
        lambda: interpreted({"group": groups}, len(groups), Classes(), ["all"]),
        lambda: write_features(
            tmp_path / "x.h5", np.ones((len(groups), 2)), group=groups
        ),
    ):
        try:
            read()
        except FormatError as error:
            found.append("from a source that has all digits" in str(error))
    assert found == ([] if exact else [True, True])
