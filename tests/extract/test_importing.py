"""Embeddings of every kind of file become the rows that it holds."""

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from commands import (
    dphead,
    fitted,
    refused,
    words,
)
from dphead_extract import importing
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.format import group_ids, open_features
from dphead_extract.importing import ImportOptions, encoded, finite, import_features
from dphead_extract.sources import table_files
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.schema import Schema
from dphead_extract.sources.table_files import floats
from dphead_extract.sources.tables import open_embeddings as open_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

KINDS = ["npz", "csv", "tsv", "parquet", "list.parquet"]
NAMES = ["cat", "dog", "eel"]
WIDTH = 4


def rows(n=50, seed=0):
    """Features (n, 4), labels, groups and splits, as texts."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, WIDTH))
    label = np.array(NAMES)[draw.integers(0, 3, n)]
    group = np.array([f"patient {i // 3}" for i in range(n)])
    split = np.where(np.arange(n) < n // 2, "train", "test")
    return x, label, group, split


def write(folder: Path, kind: str, x, label, group, split) -> tuple[Path, Columns]:
    """A file of a kind with these rows, and what its columns are."""
    path = folder / f"rows.{kind}"
    columns = {"label": label, "group": group, "split": split}
    singles = {f"f{i}": x[:, i] for i in range(WIDTH)}
    if kind == "npz":
        np.savez(path, features=x, **columns)
    elif kind in ("csv", "tsv"):
        how = pa.csv.WriteOptions(delimiter="," if kind == "csv" else "\t")
        pa.csv.write_csv(pa.table(singles | columns), path, how)
    elif kind == "parquet":
        pa.parquet.write_table(pa.table(singles | columns), path)
    else:
        lists = pa.array([list(map(float, row)) for row in x], pa.list_(pa.float32()))
        table = pa.table({"vector": lists, **columns})
        pa.parquet.write_table(table, path, row_group_size=7)
        return path, Columns(("vector",), width=WIDTH)
    return path, Columns()


def imported(path: Path, columns=None, **changes):
    """Everything that is stored of a file."""
    output = path.with_suffix(".h5")
    output.unlink(missing_ok=True)
    fields = {"classes": Classes(NAMES), "block_rows": 16} | changes
    import_features(ImportOptions(path, output, columns or Columns(), **fields))
    with open_features(output) as file:
        return file.block(0, file.n_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_rows_it_holds(tmp_path, kind):
    x, label, group, split = rows()
    x[5, 2] = np.nan
    x[9, 0] = 1e300  # beyond float32
    got = imported(*write(tmp_path, kind, x, label, group, split))
    valid = np.ones(50, bool)
    valid[[5, 9]] = False
    assert got["valid"].tolist() == valid.tolist()
    assert_array_equal(got["features"][valid], x[valid].astype(np.float32))
    assert not got["features"][~valid].any()
    assert got["labels"].tolist() == [NAMES.index(name) for name in label]
    assert got["group"].tolist() == group_ids(group, 50).tolist()
    assert got["split"].tolist() == [0] * 25 + [2] * 25


HOSTILE = st.fixed_dictionaries(
    {
        "x": st.lists(st.floats(), min_size=WIDTH, max_size=WIDTH),
        "label": st.sampled_from([*NAMES, "", "a horse", "0", "nan", "1e5"]),
        "group": st.sampled_from(["", "0", "patient 3", "Ω", "nan", "-1", "x" * 500]),
        "split": st.sampled_from(["", "train", "val", "TEST"]),
    }
)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(HOSTILE, st.integers(0, 29))
def test_one_row_changes_nothing_of_any_other(tmp_path, kind, other, at):
    x, *texts = rows(30)
    texts = [text.tolist() for text in texts]
    before = encoded_rows(*write(tmp_path, kind, x, *texts))
    x[at] = other["x"]
    for text, name in zip(texts, ("label", "group", "split"), strict=True):
        text[at] = other[name]
    after = encoded_rows(*write(tmp_path, kind, x, *texts))
    rest = np.arange(30) != at
    assert set(before) == {"features", "valid", "labels", "group", "split"}
    for name in before:
        assert before[name].dtype == after[name].dtype
        assert_array_equal(before[name][rest], after[name][rest])


def encoded_rows(path: Path, columns) -> dict[str, np.ndarray]:
    """What would be stored of a file's rows, without the disk."""
    table = open_table(path, columns)
    classes = Classes(NAMES, allow_unlabeled=True)
    options = ImportOptions(path, path, columns, classes)
    found = []
    for block in table.read(8, True):
        row = encoded(block, table, options, range(len(block["features"])))
        row["features"], row["valid"] = finite(block["features"], "float32")
        found.append(row)
    return {name: np.concatenate([row[name] for row in found]) for name in found[0]}


def test_arrays_keep_their_precision_and_name_classes_by_position(tmp_path):
    x, *_ = rows()
    path, group = tmp_path / "x.npz", np.arange(50, dtype=np.uint64) + 2**63
    halves = x.astype(np.float16)
    np.savez(path, features=halves, label=np.arange(50) % 4, group=group)
    with pytest.raises(ExtractError, match=r"the label '0' and 3 more.*--classes N"):
        imported(path)
    got = imported(path, classes=Classes(class_names("3"), allow_unlabeled=True))
    assert_array_equal(got["features"], halves)
    assert got["features"].dtype == np.float16  # as the whole file is
    assert got["labels"][:5].tolist() == [0, 1, 2, -1, 0]
    assert got["group"].tolist() == group_ids(group.tolist(), 50).tolist()


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, ">i4"])
def test_arrays_of_another_byte_order_or_length_are_read(tmp_path, dtype):
    x = np.arange(8).reshape(4, 2).astype(dtype)
    np.savez(tmp_path / "e.npz", features=x, label=np.array([1, 0, 1, 0], ">i8"))
    got = imported(tmp_path / "e.npz", classes=Classes(class_names("2")))
    assert_array_equal(got["features"], np.arange(8).reshape(4, 2))
    assert got["labels"].tolist() == [1, 0, 1, 0]


def test_lists_of_another_length_are_masked_rows_and_missing_values_none(tmp_path):
    vectors = [[1, 2, 3, 4], [1, 2], None, [1, None, 3, 4], [5, 6, 7, 8], []]
    labels, groups = [0, None, 2, 1, 1, 0], [None, 7, 7, 0, -3, 2**40]
    columns = {"label": pa.array(labels, pa.int8()), "groups": groups}
    path = tmp_path / "f.parquet"
    pa.parquet.write_table(pa.table({"v": vectors} | columns), path, row_group_size=4)
    three = {"classes": Classes(class_names("3")), "block_rows": 2}
    got = imported(path, Columns(("v",), width=4), **three)
    assert got["valid"].tolist() == [True, False, False, False, True, False]
    assert got["features"][4].tolist() == [5, 6, 7, 8]
    assert got["labels"].tolist() == [0, -1, 2, 1, 1, 0]
    assert got["group"].tolist() == group_ids(groups, 6).tolist()
    assert got["group"][0] == -1
    with pytest.raises(ExtractError, match="--columns width=N is required"):
        imported(path, Columns(("v",)), **three)
    fixed = pa.array(vectors[:1] * 6, pa.list_(pa.int32(), 4))
    pa.parquet.write_table(pa.table({"v": fixed} | columns), path)
    assert imported(path, Columns(("v",)), **three)["features"].shape == (6, 4)


@pytest.mark.parametrize("kind", [pa.ListArray, pa.LargeListArray])
def test_a_list_that_is_none_may_still_span_numbers(kind):
    starts = pa.array([0, 2, 4, 6], "int32" if kind is pa.ListArray else "int64")
    none = pa.array([False, True, False])
    lists = kind.from_arrays(starts, pa.array(np.arange(6.0)), mask=none)
    found = floats(pa.chunked_array([lists]), 2)
    assert_array_equal(found, [[0, 1], [np.nan, np.nan], [4, 5]])


def test_a_text_that_is_no_utf8_stops_no_other_row(tmp_path):
    ends = pa.py_buffer(np.array([0, 3, 4, 7], np.int32).tobytes())
    texts = [None, ends, pa.py_buffer(b"cat\xffeel")]
    column = pa.Array.from_buffers(pa.string(), 3, texts)
    table = pa.table({"f": [1.0, 2.0, 3.0], "label": column, "group": column})
    path = tmp_path / "f.parquet"
    pa.parquet.write_table(table, path)
    got = imported(path, classes=Classes(NAMES, allow_unlabeled=True))
    assert got["labels"].tolist() == [0, -1, 2]
    wanted = group_ids([b"cat", b"\xff", b"eel"], 3).tolist()
    assert got["group"].tolist() == wanted


def test_columns_of_features_are_named_or_are_all_others(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("id,b_1,kind,b_2\n1,0.5,cat,x\n2,,dog,3\n3,1e2,dog,4\n")

    def space(*names):
        got = imported(path, Columns(names, label="kind"))
        with open_features(path.with_suffix(".h5")) as file:
            return got["features"].tolist(), file.feature_space

    assert space("b_2", "b_*")[0] == [[0, 0], [0, 0], [4, 100]]
    every, all_three = space()
    assert every[2] == [3, 100, 4]
    assert space("id", "b_1", "b_2")[1] == all_three
    assert space("b_1", "id", "b_2")[1] != all_three
    for columns in (Columns(("b_3",)), Columns(label="b_3")):
        with pytest.raises(ExtractError, match="no column 'b_3'"):
            imported(path, columns)


def test_a_killed_import_goes_on(tmp_path, monkeypatch):
    path, columns = write(tmp_path, "csv", *rows())
    whole = imported(path, columns)
    output = path.with_suffix(".h5")
    output.unlink()
    append = importing.FeaturesWriter.append

    def dies(writer, *block):
        if writer.next_row == 32:
            raise KeyboardInterrupt
        append(writer, *block)

    monkeypatch.setattr(importing.FeaturesWriter, "append", dies)
    options = ImportOptions(path, output, columns, Classes(NAMES), block_rows=16)
    with pytest.raises(KeyboardInterrupt):
        import_features(options)
    monkeypatch.undo()
    import_features(options)
    with open_features(output) as file:
        found = file.block(0, 50)
    for name in set(whole) - {"row_digest"}:
        assert_array_equal(found[name], whole[name])
    assert import_features(options).already_complete
    with monkeypatch.context() as version:  # that reads rows in another way
        version.setattr("dphead_extract.importing._READING", 0)
        with pytest.raises(FormatError, match="other images or labels"):
            import_features(options)
    path.write_text(path.read_text().replace("cat", "dog", 1))
    with pytest.raises(FormatError, match="other images or labels"):
        import_features(options)


def npy(array: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


def huge() -> bytes:
    """A header that asks for a terabyte, with nothing behind it."""
    data = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 128)}
    np.lib.format.write_array_header_1_0(data, header)
    return data.getvalue()


HOSTILE_ARRAYS = {
    "pickled": npy(np.array([{"a": 1}], object)),
    "huge": huge(),
    "no array": pickle.dumps([1, 2]),
    "flat": npy(np.ones(5)),
    "complex": npy(np.ones((5, 2), complex)),
    "cut": npy(np.ones((100, 4)))[:-8],
}


@pytest.mark.parametrize("data", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_hostile_arrays_are_refused_in_a_line(tmp_path, data):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", data)
    with pytest.raises(
        ExtractError, match=r"must .* got .*\.|cannot be read|Python"
    ) as e:
        imported(path)
    said = "has an array of Python objects" in str(e.value)
    assert said == (data == HOSTILE_ARRAYS["pickled"])
    assert not path.with_suffix(".h5.part").exists()


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "must name columns of numbers"),
        ("a,b,label\n", "has no rows"),
        ("a,a\n1,2\n", "two columns 'a'"),
        ("a,b\n1,2\n1\n", "line 3"),
        ('a,b\n1,"2\n3,4\n"5,6\n', "line 2"),
        ('a,b\n1,2\n3,"4\n5,6"\n', "line 3"),
        ("a,b\nx,y\n,\n", "Each of the 2 rows has a cell that is not a number"),
        ("a,split\n1,night\n", "A split must be one of"),
        ("a,label\n1,horse\n", "the label 'horse'"),
        ("0.1,0.2\n0.3,0.4\n", "must name the columns"),
        (",a\n0,1\n", "its column '' is likely an index"),
        ("a,Label\n1,0\n", "label=NAME is required, .* but 'Label'"),
        ("a,group,GROUPS\n1,0,1\n", "but 'group', 'GROUPS'"),
        ("a;b\n1;2\n0,5;1\n", "column 'a' .* has '0,5', which is not a number"),
        ("a,b\n1,2\n1,12_5\n", "column 'b' .* has '12_5', which is not a number"),
        ("a,b\n1,2\n1,1 000.5\n", "has '1 000.5', which is not a number"),
    ],
)
def test_unusable_tables_are_refused_in_a_line(tmp_path, text, said):
    path = tmp_path / "f.csv"
    path.write_text(text)
    with pytest.raises(ExtractError, match=said):
        imported(path)
    assert [p.name for p in tmp_path.iterdir()] == ["f.csv"]


def test_another_column_of_labels_and_an_index_are_no_features(tmp_path):
    """As a feature they would give the class away, or the order of the rows."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [0.5, 1], "kind": ["cat", "dog"], "label": [0, 1]})
    frame.to_parquet(tmp_path / "f.parquet", index=False)
    with pytest.raises(ExtractError, match="its column 'label'"):
        imported(tmp_path / "f.parquet", Columns(label="kind"))
    got = imported(tmp_path / "f.parquet", Columns(("a",), label="kind"))
    assert got["features"].tolist() == [[0.5], [1]]
    frame[["a"]].set_axis([7, 3]).to_parquet(tmp_path / "g.parquet")
    with pytest.raises(ExtractError, match="its column '__index_level_0__'"):
        imported(tmp_path / "g.parquet")


def test_a_line_without_an_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "f.csv"
    for text in ("a,b\n1,2\n" + "1," * 5000, "a," * 5000):
        path.write_text(text)
        with pytest.raises(ExtractError, match="a line of more than 1000 bytes"):
            imported(path)


def test_test_rows_are_whole_groups(tmp_path):
    arrays = {"label": np.arange(60) % 2, "mrn": np.arange(60) // 3}
    np.savez(tmp_path / "f.npz", features=np.ones((60, 2)), **arrays)
    arguments = ["features", "import", tmp_path / "f.npz", "-o", tmp_path / "f.h5"]
    arguments += ["--test-fraction", "0.3:groups", "--classes", 2]
    assert "needs a column of groups" in refused(dphead(*arguments))
    done = fitted(*arguments, "--columns", "group=mrn")
    assert "--split train --test-split test" in words(done.out)
    with open_features(tmp_path / "f.h5") as file:
        assert file.holdout == {"fraction": 0.3, "by": "group", "positions": True}
        splits = set(zip(file.group.tolist(), file.split.tolist(), strict=True))
    assert len(splits) == 20 and {split for _, split in splits} == {0, 1}


def test_arrays_that_are_not_read_are_named(tmp_path):
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.savez(tmp_path / "e.npz", features=rows, y=np.arange(6), patients=np.arange(6))
    done = import_features(ImportOptions(tmp_path / "e.npz", tmp_path / "e.h5"))
    assert done.problems[:2] == [
        "array that is not read: patients",
        "array that is not read: y",
    ]


def test_texts_with_a_nul_name_different_groups(tmp_path):
    """Ids of patients that are raw bytes, for example; pyarrow cuts such texts."""
    ids = ["\0a", "\0b", "q\0a", "q\0b"]
    rows = np.ones((8, 2), np.float32)
    np.savez(tmp_path / "e.npz", features=rows, group=np.repeat(np.array(ids), 2))
    import_features(ImportOptions(tmp_path / "e.npz", tmp_path / "e.h5"))
    with open_features(tmp_path / "e.h5") as file:
        _, counts = np.unique(file.group, return_counts=True)
    assert counts.tolist() == [2, 2, 2, 2]


def test_text_that_utf_8_cannot_encode_is_refused_with_advice_that_works(tmp_path):
    """`values.astype(str)` would change nothing."""
    rows, group = np.ones((4, 2), np.float32), np.array(["a", "a", "b", "b\ud800"])
    np.savez(tmp_path / "e.npz", features=rows, group=group)
    options = ImportOptions(tmp_path / "e.npz", tmp_path / "e.h5")
    with pytest.raises(ExtractError, match="'group' holds text that UTF-8") as refused:
        import_features(options)
    advice = re.search("`(np.+)`", str(refused.value))[1]
    group = eval(advice, {"np": np, "values": group})
    np.savez(tmp_path / "e.npz", features=rows, group=group)
    import_features(options)
    with open_features(tmp_path / "e.h5") as file:
        _, counts = np.unique(file.group, return_counts=True)
    assert sorted(counts.tolist()) == [1, 1, 2]


def test_arrays_that_hold_no_texts_or_numbers_are_refused(tmp_path):
    rows = np.ones((2, 2), np.float32)
    np.savez(tmp_path / "e.npz", features=rows, group=np.array([1j, 2j]))
    with pytest.raises(ExtractError, match="'group' must hold text or numbers"):
        import_features(ImportOptions(tmp_path / "e.npz", tmp_path / "e.h5"))


SCHEMA = """
age = [20, 100]
sex = ["f", "m"]
weight = {values = [40, 140], missing = true}
grade = {values = ["1", "2", "3"], missing = true}
"""
PEOPLE = """name,grade,age,sex,weight,label
Ann,1,60,f,90,well
Bob,2.0,20,m,,ill
Cid,4,130,m,1e9,ill
Dan,,inf,m,65,well
Eve,3,,f,65,well
Flo,3,40,x,65,well
"""


def of_schema(folder: Path, text=SCHEMA) -> Schema:
    (folder / "schema.toml").write_text(text)
    return Schema.read(str(folder / "schema.toml"))


def test_a_schema_scales_numbers_and_gives_each_category_a_column(tmp_path):
    """Every other column of the file is left out."""
    (tmp_path / "p.csv").write_text(PEOPLE)
    schema = of_schema(tmp_path)
    names = "age,sex=f,sex=m,weight,weight missing,grade=1,grade=2,grade=3"
    assert schema.names == (*names.split(","), "grade missing", "constant")
    classes = Classes(["well", "ill"])
    got = imported(tmp_path / "p.csv", classes=classes, schema=schema)
    assert got["features"].tolist() == [
        [0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
        [-1, 0, 1, 0, 1, 0, 1, 0, 0, 1],
        [1, 0, 1, 1, 0, 0, 0, 0, 1, 1],
        [1, 0, 1, -0.5, 0, 0, 0, 0, 1, 1],
        *[[0] * 10] * 2,  # no age, and a sex that was not declared: masked
    ]
    assert got["valid"].tolist() == [True] * 4 + [False] * 2
    assert got["labels"].tolist() == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 5), st.sampled_from(["", "nan", "x", "1e400", "-1", "f", "3"]))
def test_one_row_of_a_schema_changes_no_other(tmp_path, kind, at, cell):
    """Whatever is in its cells."""
    schema, path = of_schema(tmp_path), tmp_path / f"p.{kind}"

    def encoded(lines):
        names, *rows = (line.split(",") for line in lines)
        if kind == "csv":
            path.write_text("\n".join(lines))
        else:
            cells = zip(names, zip(*rows, strict=True), strict=True)
            pa.parquet.write_table(pa.table(dict(cells)), path)
        table = open_table(path, Columns(), schema)
        return np.concatenate([block["features"] for block in table.read(4, True)])

    lines = PEOPLE.splitlines()
    if kind == "parquet":  # numbers are numbers there
        text = 'sex = ["f", "m"]\ngrade = {values = ["1"], missing = true}'
        schema = of_schema(tmp_path, text)
    before = encoded(lines)
    lines[1 + at] = ",".join([cell] * 6)
    after = encoded(lines)
    assert np.nan_to_num(np.abs(after)).max() <= 1
    rest = np.arange(6) != at
    assert_array_equal(before[rest], after[rest])


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "has no column"),
        ("age = 5", "'age' as 5. Declare a range"),
        ("age = [5, 5]", "Declare a range"),
        ("age = [-1e308, 1e308]", "Declare a range"),
        ("age = [5, inf]", "Declare a range"),
        ("age = [1, 2, 3]", "Declare a range"),
        ('sex = ["f", " f"]', "Declare a range"),
        ('sex = ["f", 1]', "Declare a range"),
        ("age = {missin = true}", "'age' as {missin = true}. Declare a range"),
        ("age = [0", "--schema needs a TOML file"),
        ("height = [0, 2]", "no column 'height'"),
        ("label = [0, 1]", "no column 'label'"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(tmp_path, text, said):
    (tmp_path / "p.csv").write_text(PEOPLE)
    with pytest.raises(ExtractError, match=re.escape(said)):
        imported(tmp_path / "p.csv", schema=of_schema(tmp_path, text))
    np.savez(tmp_path / "p.npz", features=np.zeros((2, 3)))
    with pytest.raises(ExtractError, match="--schema needs a table"):
        imported(tmp_path / "p.npz", schema=of_schema(tmp_path))
    with pytest.raises(ExtractError, match="--schema cannot be combined"):
        imported(tmp_path / "p.csv", Columns(("age",)), schema=of_schema(tmp_path))
    assert not list(tmp_path.glob("p.h5*"))


@pytest.mark.parametrize("text", ['smoker = ["true", "false"]', "smoker = [0, 1]"])
def test_booleans_of_a_schema_are_refused(tmp_path, text):
    """Each library writes them in its own way, so that no category would match."""
    path = tmp_path / "p.parquet"
    pa.parquet.write_table(pa.table({"smoker": [True, False]}), path)
    with pytest.raises(ExtractError, match=r"got a column of bool\. Convert"):
        imported(path, schema=of_schema(tmp_path, text))


def test_new_rows_of_a_table_are_encoded_by_the_schema_of_the_head(tmp_path):
    """In the order of the schema, whose names are not in alphabetical order."""
    draw = np.random.default_rng(0)
    age, sex = draw.integers(20, 100, 400), draw.integers(0, 2, 400)
    lines = [
        f"{'fm'[s]},{a},{int(a + 30 * s > 75)}" for a, s in zip(age, sex, strict=True)
    ]
    text = "\n".join(["sex,age,label", *lines])
    (tmp_path / "p.csv").write_text(text)
    (tmp_path / "schema.toml").write_text('sex = ["f", "m"]\nage = [20, 100]')
    made = ["-o", tmp_path / "p.h5", "--schema", tmp_path / "schema.toml"]
    said = fitted("features", "import", tmp_path / "p.csv", *made, "--classes", 2)
    assert "sex=f, sex=m, age, constant" in words(said.out)
    assert "none found" in said.out  # equal rows are no findings
    fitted("fit", tmp_path / "p.h5", "--epsilon", 8, "-o", tmp_path / "run")
    lines = [line.rpartition(",")[0] + ",x" for line in text.splitlines()[1:]]
    (tmp_path / "n.csv").write_text("\n".join(["sex,age,more", *lines]))
    found = fitted("predict", tmp_path / "run", tmp_path / "n.csv").out.splitlines()
    found = np.array([int(line.split(",")[1]) for line in found[1:]])
    assert np.mean(found == (age + 30 * sex > 75)) > 0.9
