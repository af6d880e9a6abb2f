"""Hugging Face datasets as sources: read in place, each row by itself."""

import json

import numpy as np
import pyarrow as pa
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import open_features
from dphead_extract.features.rows import group_ids
from dphead_extract.importing import ImportOptions, import_features
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.opening import open_source
from pictures import drawn as png
from pyarrow import csv, parquet

NAMES = ["cat", "dog", "eel"]
TWO = {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}


def table(seeds, **columns):
    images = [{"bytes": png(seed), "path": None} for seed in seeds]
    made = pa.table({"image": images, **columns})
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": TWO})})


@pytest.fixture
def hub(tmp_path):
    """A folder as on the hub: 90 rows of train in two files, 10 of test."""
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    labels = np.arange(100) % 3
    for name, part in (
        ("test-00000-of-00001", range(90, 100)),
        ("train-00000-of-00002", range(50)),
        ("train-00001-of-00002", range(50, 90)),
    ):
        rows = table(part, label=labels[part], patient=[f"p{i // 2}" for i in part])
        parquet.write_table(rows, folder / f"{name}.parquet", row_group_size=20)
    return folder.parent


def test_a_folder_of_the_hub_is_a_source(hub):
    whole = open_source(hub, Classes(NAMES))
    assert whole.kind == "dataset" and whole.n_rows == 100
    assert whole.group is None  # none named so
    train = open_source(hub, Classes(NAMES), "train", columns=Columns(group="patient"))
    assert train.n_rows == 90
    assert train.labels.tolist() == (np.arange(90) % 3).tolist()
    assert train.split_names == ["train"]
    assert train.class_names == NAMES
    groups = [f"p{i // 2}" for i in range(90)]
    assert train.group is not None
    assert train.group.tolist() == group_ids(groups, 90).tolist()
    for row in (0, 1, 49, 50, 89, 3):  # forwards, and back
        assert train.raw(row) == png(row)
    part = train.part(60, 70)
    assert [part.raw(i) for i in range(10)] == [png(i) for i in range(60, 70)]
    assert train.digest != whole.digest


def test_class_names_of_the_header_are_declared_or_must_be_those(hub):
    public = open_source(hub, Classes(folder_names_public=True))
    assert public.class_names == NAMES
    assert public.labels[:4].tolist() == [0, 1, 2, 0]
    numbers = open_source(hub, Classes(["0", "1", "2"]))
    assert numbers.labels[:4].tolist() == [0, 1, 2, 0]
    with pytest.raises(ExtractError, match=r"the data set's header.*has cat,dog"):
        open_source(hub, Classes(["dog", "cat", "eel"]))
    with pytest.raises(ExtractError, match="--classes is required"):
        open_source(hub)
    assert (open_source(hub, Classes(ignore_labels=True)).labels == -1).all()


def test_a_folder_of_splits_and_one_file_are_sources_too(tmp_path):
    labels = ["eel", "", None, "dog", "cat", "cat", "cat"]
    rows = table(range(7), label=labels)
    for split in ("train", "test"):
        path = tmp_path / "saved" / split / "data-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(rows, path, row_group_size=3)
    test = open_source(tmp_path / "saved", Classes(NAMES), "test")
    assert test.labels.tolist() == [2, -1, -1, 1, 0, 0, 0]
    assert [test.raw(i) for i in range(7)] == [png(i) for i in range(7)]
    one = open_source(path, Classes(NAMES))
    assert one.split_names == ["all"] and one.n_rows == 7


def test_one_row_of_a_dataset_changes_no_other(tmp_path):
    others = [("cat", "p1", "train"), ("eel", "p9", "test"), ("", "", "")]
    others += [("9", "-1", "val"), (None, None, None)]
    found = []
    for label, group, split in others:
        columns = {"label": [label, "dog", "cat", "dog"]}
        columns |= {"group": [group, "p1", "p2", "p1"]}
        columns |= {"split": [split, "train", "test", ""]}
        parquet.write_table(table(range(4), **columns), tmp_path / "f.parquet")
        classes = Classes(NAMES, allow_unlabeled=True)
        source = open_source(tmp_path / "f.parquet", classes)
        said = (source.labels, source.group, source.split)
        rest = [array[1:].tolist() for array in said]
        found.append((rest, source.split_names, [source.raw(i) for i in (1, 2, 3)]))
    assert all(one == found[0] for one in found)


def test_shards_that_are_named_like_no_split_are_told_with_their_rows(hub):
    assert not open_source(hub, Classes(NAMES)).doubts
    rows = table(range(3), label=[0, 1, 2], patient=["p"] * 3)
    parquet.write_table(rows, hub / "data" / "dev-00000-of-00001.parquet")
    (hub / "@eaDir").mkdir()
    (hub / "@eaDir" / "copy.parquet").write_bytes(b"hidden")
    for split in ("all", "train"):
        said = open_source(hub, Classes(NAMES), split).doubts
        assert said[0].endswith("3 ('data/dev-00000-of-00001.parquet': 3)")
    for file in hub.glob("data/t*.parquet"):
        file.rename(file.with_name(f"my{file.name}"))
    (said,) = open_source(hub, Classes(NAMES)).doubts  # no name is a split
    assert "validation: 103 (" in said


STRUCTS = (
    [("path", pa.string()), ("bytes", pa.binary())],
    [("bytes", pa.large_binary()), ("path", pa.large_string())],
    [("width", pa.int32()), ("bytes", pa.binary_view())],
)


@pytest.mark.parametrize("kind", [*map(pa.struct, STRUCTS), pa.binary_view()])
def test_bytes_of_images_are_found_by_name_in_any_binary_type(tmp_path, kind):
    """pandas, polars and DuckDB order fields and choose types in their own ways."""
    held = [{"bytes": png(i)} if pa.types.is_struct(kind) else png(i) for i in range(3)]
    rows = pa.table({"image": pa.array(held, kind), "label": [0, 1, 0]})
    parquet.write_table(rows, tmp_path / "f.parquet")
    source = open_source(tmp_path / "f.parquet", Classes(["0", "1"]))
    assert [source.raw(i) for i in range(3)] == [png(i) for i in range(3)]


def test_unusable_datasets_are_refused_in_a_line(hub, tmp_path):
    with pytest.raises(ExtractError, match="no column 'photo'"):
        open_source(hub, Classes(NAMES), columns=Columns(image="photo"))
    with pytest.raises(ExtractError, match="not bytes of images"):
        open_source(hub, Classes(NAMES), columns=Columns(image="label"))
    with pytest.raises(ExtractError, match="Remove --layout"):
        open_source(hub, Classes(NAMES), layout="class")
    other = pa.table({"image": [b"a"], "label": [1]})
    parquet.write_table(other, hub / "data" / "train-00002-of-00002.parquet")
    with pytest.raises(ExtractError, match="has different column types"):
        open_source(hub, Classes(NAMES))
    (hub / "data" / "test-00000-of-00001.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ExtractError, match="pyarrow cannot read"):
        open_source(hub, Classes(NAMES))
    (tmp_path / "images").mkdir()
    with pytest.raises(ExtractError, match="needs a table of images"):
        open_source(tmp_path / "images", columns=Columns(image="photo"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "windows-1252", "latin-1"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_clinics_table_is_read_as_it_is(tmp_path, encoding, separator):
    """Its own names of columns, its encoding, and the separator of its header."""
    lines = [["Dateiname", "Größe", "Patient", "Diagnose"]]
    lines += [[f"bild {i}.png", "1,5;2", f"Müller {i // 2}", "naïv"] for i in range(4)]
    text = "\n".join(separator.join(f'"{cell}"' for cell in line) for line in lines)
    (tmp_path / "table.csv").write_text(text, encoding=encoding)
    for i in range(4):
        (tmp_path / f"bild {i}.png").write_bytes(png(i))
    named = {"path": "Dateiname", "group": "Patient", "label": "Diagnose"}
    columns = Columns(**named, encoding=encoding.removesuffix("-sig"))
    source = open_source(tmp_path, Classes(["naïv"]), columns=columns)
    assert source.labels.tolist() == [0] * 4
    groups = [f"Müller {i // 2}" for i in range(4)]
    assert source.group is not None
    assert source.group.tolist() == group_ids(groups, 4).tolist()
    assert [source.raw(i) for i in range(4)] == [png(i) for i in range(4)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_paths_of_windows_are_found(tmp_path, kind):
    """A file whose own name has a backslash stays that file."""
    files = {"a/b/0.png": r"a\b\0.png", r"own\1.png": r"own\1.png"}
    (tmp_path / "a" / "b").mkdir(parents=True)
    for i, name in enumerate(files):
        (tmp_path / name).write_bytes(png(i))
    rows = pa.table({"path": [*files.values()]})
    if kind == "csv":
        csv.write_csv(rows, tmp_path / "t.csv")
    else:
        parquet.write_table(rows, tmp_path / "t.parquet")
    source = open_source(tmp_path / f"t.{kind}")
    assert [*source.names] == [*files]
    assert [source.raw(i) for i in range(2)] == [png(0), png(1)]


@pytest.mark.parametrize(
    "header, columns, said",
    [
        ("filename;patient_id;dx", {}, "--columns path=NAME,label=NAME,group=NAME"),
        ("filename;dx", {"path": "file"}, "in --columns: filename"),
    ],
)
def test_a_table_of_other_columns_says_what_to_type(tmp_path, header, columns, said):
    (tmp_path / "t.csv").write_text(f"{header}\na.png;b;c\n")
    with pytest.raises(ExtractError, match=said):
        open_source(tmp_path / "t.csv", columns=Columns(**columns))
    (tmp_path / "u.csv").write_text(f"{header}\n")
    with pytest.raises(ExtractError, match=r"needs one table in .*t\.csv, u\.csv"):
        open_source(tmp_path, columns=Columns(path="path"))


def test_several_tables_of_paths_are_refused(tmp_path):
    for name in ("a", "b"):
        parquet.write_table(pa.table({"path": ["1.png"]}), tmp_path / f"{name}.parquet")
    with pytest.raises(ExtractError, match="has 2 tables of paths"):
        open_source(tmp_path)


def labeled(path, names, patients, **columns):
    """A Parquet file whose patients and splits are positions in lists of names."""
    splits = ["test", "train"]
    named = {"patient": names, "part": splits, "label": NAMES}
    kinds = {k: {"names": v, "_type": "ClassLabel"} for k, v in named.items()}
    made = pa.table(
        {
            **columns,
            "label": [0] * len(patients),
            "patient": [p if p is None else names.index(p) for p in patients],
            "part": [splits.index("train")] * len(patients),
        }
    )
    meta = {"huggingface": json.dumps({"info": {"features": kinds}})}
    parquet.write_table(made.replace_schema_metadata(meta), path)


def groups_of_images(folder, files):
    for name, (names, patients) in files.items():
        images = [{"bytes": png(len(name)), "path": None}] * len(patients)
        labeled(folder / f"{name}.parquet", names, patients, image=images)
    columns = Columns(group="patient", split="part")
    return open_source(folder, Classes(NAMES), "train", columns=columns).group


def groups_of_paths(folder, files):
    (folder / "a.png").write_bytes(png(0))
    columns, found = Columns(path="file", group="patient", split="part"), []
    for name, (names, patients) in files.items():
        path = folder / f"{name}.parquet"
        labeled(path, names, patients, file=["a.png"] * len(patients))
        source = open_source(path, Classes(["0"]), "train", columns=columns)
        found.append(source.group)
    return np.concatenate(found)


def groups_of_embeddings(folder, files):
    columns, found = Columns(("x",), group="patient", split="part", label="label"), []
    for name, (names, patients) in files.items():
        path = folder / f"{name}.parquet"
        labeled(path, names, patients, x=np.arange(len(patients)))
        options = ImportOptions(path, path.with_suffix(".h5"), columns, Classes(["0"]))
        import_features(options)
        with open_features(options.output) as file:
            assert {file.split_names[code] for code in file.split} == {"train"}
            found.append(file.group)
    return np.concatenate(found)


@pytest.mark.parametrize(
    "groups", [groups_of_images, groups_of_paths, groups_of_embeddings]
)
@pytest.mark.parametrize(
    "ids",
    [["P-1", "P-2", "P-3", "P-4"], [5001, 5002, 5003, 5004]],
    ids=["texts", "numbers"],
)
def test_groups_of_class_labels_are_their_names(tmp_path, groups, ids):
    """A position is another person in a file with another list of names."""
    files = {"2024": (ids[:3], ids[:3]), "2025": (ids[2:], [ids[2], *ids[2:], None])}
    found = groups(tmp_path, files)
    wanted = [name for _, patients in files.values() for name in patients]
    assert found.tolist() == group_ids(wanted, 7).tolist()


@pytest.mark.parametrize(
    "names, position, said",
    [
        (["P-1", "P-2", "P-3"], -2, "numbers beyond its 3 names"),
        (["P-1", "P-2", "P-3"], 3, "numbers beyond its 3 names"),
        ([["P-1"]], 0, "no names for the class labels of the column 'patient'"),
    ],
)
def test_a_position_without_a_name_is_refused(tmp_path, names, position, said):
    path = tmp_path / "t.parquet"
    labeled(path, names, names[:1], x=[0.0])
    table = parquet.read_table(path)
    place = table.schema.get_field_index("patient")
    parquet.write_table(table.set_column(place, "patient", [[position]]), path)
    columns = Columns(("x",), group="patient")
    options = ImportOptions(path, tmp_path / "t.h5", columns)
    options.classes = Classes(ignore_labels=True)
    with pytest.raises(ExtractError, match=said):
        import_features(options)
