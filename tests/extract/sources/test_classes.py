"""One small table through every reader: the same classes, splits and groups."""

import json

import numpy as np
import pyarrow as pa
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import open_features
from dphead_extract.importing import ImportOptions, import_features
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.columns import Columns
from dphead_extract.sources.opening import open_source
from pictures import drawn as png
from pyarrow import csv, parquet

from dphead.data.arrays import group_ids
from dphead.privacy.sampling import within_cap

# grades from 1, as positions from 0 they would be shifted and merged
CLASSES = ["2", "3", "1"]
LABEL = [3, 1, 2, None, 1, 3]
# half of all signed 64-bit hashes are negative
GROUP = [-1541654101129638711, -1, -1541654101129638711, None, -1, 7]
SPLIT = ["train", "test", "train", None, "val", "test"]
N = len(LABEL)
WANTED = {
    "labels": [1, 2, 0, -1, 2, 1],
    "group": group_ids(GROUP, N).tolist(),
    "split": ["train", "test", "train", "none", "validation", "test"],
}


def texts(values):
    return ["" if value is None else str(value) for value in values]


def write_csv(path, first, names=("label", "group", "split")):
    columns = (first[1], *map(texts, (LABEL, GROUP, SPLIT)))
    table = pa.table(dict(zip((first[0], *names), columns, strict=True)))
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        how = csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        csv.write_csv(table, path, how)


def arrow_table(first, kind):
    """Whole numbers with nulls, texts, or dictionaries of texts."""
    columns = {"label": pa.array(LABEL), "group": pa.array(GROUP)}
    if kind != "numbers":
        columns = {name: column.cast(pa.string()) for name, column in columns.items()}
    if kind == "dictionaries":
        columns = {name: column.dictionary_encode() for name, column in columns.items()}
    return pa.table(first | columns | {"split": pa.array(SPLIT)})


def imported(path, columns=None):
    output = path.with_name("out.h5")
    options = ImportOptions(path, output, columns or Columns(), Classes(CLASSES))
    import_features(options)
    with open_features(output) as file:
        return file.labels, file.group, [file.split_names[code] for code in file.split]


def listed(path, layout=None, columns=None):
    source = open_source(path, Classes(CLASSES), "all", layout, columns)
    names = [source.split_names[code] for code in source.split]
    return source.labels, source.group, names


def embeddings_csv(folder):
    write_csv(folder / "t.csv", ("x", range(N)))
    return imported(folder / "t.csv")


def embeddings_parquet(kind):
    def read(folder):
        table = arrow_table({"x": np.arange(6.0)}, kind)
        parquet.write_table(table, folder / "t.parquet")
        return imported(folder / "t.parquet")

    return read


def embeddings_npz(folder):
    named = {"label": texts(LABEL), "group": texts(GROUP), "split": texts(SPLIT)}
    np.savez(folder / "t.npz", features=np.ones((N, 2)), **named)
    return imported(folder / "t.npz")


def embeddings_npz_of_numbers(folder):
    """-1 for a label that is missing."""
    label = np.array([-1 if value is None else value for value in LABEL])
    split = np.array([0, 1, 0, -1, 2, 1])
    named = {"label": label, "group": texts(GROUP), "split": split}
    np.savez(folder / "t.npz", features=np.ones((N, 2)), **named)
    return imported(folder / "t.npz")


def images_manifest(name, *columns):
    """columns: names of the columns of paths, labels, groups and splits."""
    roles = ("path", "label", "group", "split")

    def read(folder):
        for i in range(N):
            (folder / f"{i}.png").write_bytes(png(i))
        path, *others = columns or roles
        paths = [f"{i}.png" for i in range(N)]
        write_csv(folder / name, (path, paths), others)
        named = dict(zip(roles, columns, strict=False))
        return listed(folder / name, None, Columns(**named))

    return read


def images_npz(*roles):
    def read(folder):
        images = np.zeros((N, 8, 8), np.uint8)
        named = dict(zip(roles, map(texts, (LABEL, GROUP, SPLIT)), strict=True))
        np.savez(folder / "t.npz", images=images, **named)
        return listed(folder / "t.npz")

    return read


def images_dataset(kind, header=None):
    """header: class names, where labels are positions among them."""

    def read(folder):
        images = [{"bytes": png(i), "path": None} for i in range(N)]
        table = arrow_table({"image": images}, kind)
        if header is not None:
            at = [
                None if value is None else header.index(str(value)) for value in LABEL
            ]
            label = {"names": header, "_type": "ClassLabel"}
            said = {"info": {"features": {"label": label}}}
            table = table.set_column(1, "label", [at])
            table = table.replace_schema_metadata({"huggingface": json.dumps(said)})
        parquet.write_table(table, folder / "t.parquet")
        return listed(folder / "t.parquet")

    return read


READERS = {
    "CSV": embeddings_csv,
    "Parquet": embeddings_parquet("numbers"),
    "Parquet of texts": embeddings_parquet("texts"),
    "Parquet of dictionaries": embeddings_parquet("dictionaries"),
    "npz": embeddings_npz,
    "npz of numbers": embeddings_npz_of_numbers,
    "manifest": images_manifest("t.csv"),
    "manifest, other names": images_manifest("t.tsv", "file", "dx", "mrn", "part"),
    "manifest, Parquet": images_manifest("t.parquet", "file", "dx", "mrn", "part"),
    "npz of images": images_npz("labels", "group", "split"),
    "npz of images, other names": images_npz("label", "groups", "splits"),
    "Hugging Face": images_dataset("numbers"),
    "Hugging Face, texts": images_dataset("texts"),
    "Hugging Face, names in the header": images_dataset("numbers", CLASSES),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_reader_gives_a_row_the_same_class_group_and_split(read, tmp_path):
    labels, group, split = read(tmp_path)
    found = {"labels": labels.tolist(), "group": group.tolist(), "split": split}
    assert found == WANTED
    assert within_cap(group, 1).tolist() == [True, True, False, True, False, True]


def test_booleans_are_no_splits_in_any_file(tmp_path):
    """True could mean a training row or a test row."""
    split = np.array([True, False])
    np.savez(tmp_path / "rows.npz", features=np.ones((2, 2)), split=split)
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 8, 8)), split=split)
    for name, column in (("x", [0.5, 1.5]), ("path", ["1.png", "2.png"])):
        table = pa.table({name: column, "split": split})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        csv.write_csv(table, tmp_path / f"{name}.csv")
    for read, names in (
        (imported, ("rows.npz", "x.parquet", "x.csv")),
        (listed, ("images.npz", "path.parquet", "path.csv")),
    ):
        for name in names:
            with pytest.raises(ExtractError, match=r"'[Ff]alse'\. Write these"):
                read(tmp_path / name)


def test_positions_are_for_a_number_of_classes_alone(tmp_path):
    images = np.zeros((3, 8, 8), np.uint8)
    np.savez(tmp_path / "t.npz", images=images, labels=[0, 1, 2])
    counted = open_source(tmp_path / "t.npz", Classes(class_names("3")))
    assert counted.labels.tolist() == [0, 1, 2]
    with pytest.raises(ExtractError, match="type --classes N"):
        open_source(tmp_path / "t.npz", Classes(class_names("cat,dog,eel")))
    shifted = Classes(class_names("1,2,3"), allow_unlabeled=True)
    assert open_source(tmp_path / "t.npz", shifted).labels.tolist() == [-1, 0, 1]
    signed = Classes(class_names("-1,1"), allow_unlabeled=True)
    assert signed.encode(np.array([-1, 1, 0]), 3)[0].tolist() == [0, 1, -1]


@pytest.mark.parametrize("names", [[" a", "a ", "c"], ["a", " ", "c"]])
def test_a_headers_names_are_distinct_without_white_space(names):
    """Otherwise the rows of two classes would become one class."""
    with pytest.raises(ExtractError, match="must be distinct"):
        Classes(names).encode(["a", "c"], 2)


def test_a_negative_label_other_than_minus_one_is_refused():
    for labels in (np.array([-1, -2]), ["-1", "-2"], [-1, -2]):
        with pytest.raises(ExtractError, match="the label '-2'"):
            Classes(class_names("2")).encode(labels, 2)


GROUPS = ["007", "7", "PERSON-1", "person-1", "1.05", "1.5", "10", "1", "1.0", None]


def test_people_whose_ids_differ_by_zeros_or_case_are_told_in_every_format(tmp_path):
    """Each is a person of her own: a cap and a split take them apart."""
    n = len(GROUPS)
    texts = ["" if name is None else name for name in GROUPS]
    np.savez(tmp_path / "i.npz", images=np.zeros((n, 8, 8), np.uint8), group=texts)
    np.savez(tmp_path / "f.npz", features=np.ones((n, 2)), group=texts)
    table = pa.table({"path": ["1.png"] * n, "group": GROUPS})
    csv.write_csv(table, tmp_path / "i.csv")
    parquet.write_table(table, tmp_path / "i.parquet")
    table = pa.table({"x": np.ones(n), "group": GROUPS})
    csv.write_csv(table, tmp_path / "f.csv")
    expected = ["ids that differ only by case or leading zeros are different"]
    expected = [f"{expected[0]} groups: 2 ('007' and '7'; 'PERSON-1' and 'person-1')"]
    for name in ("i.npz", "i.csv", "i.parquet"):
        assert open_source(tmp_path / name).doubts == expected
    for name in ("f.npz", "f.csv"):
        options = ImportOptions(tmp_path / name, tmp_path / f"{name}.h5", block_rows=1)
        assert expected[0] in import_features(options).problems
        assert b"PERSON-1" not in (tmp_path / f"{name}.h5").read_bytes()
