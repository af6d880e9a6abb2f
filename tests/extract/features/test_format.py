"""Features files: what is written is read back, and what is damaged is refused."""

import os
from contextlib import suppress

import h5py
import numpy as np
import pytest
from dphead_extract.features import writing
from dphead_extract.features.format import (
    FeaturesWriter,
    FormatError,
    Header,
    check_blocks,
    group_ids,
    open_features,
    row_digest,
    verify,
    write_features,
)
from dphead_extract.features.reading import open_h5
from dphead_extract.features.rows import text_group
from dphead_extract.features.seal import read_seal, write_seal
from dphead_extract.features.writing import extents
from features import edited, with_config
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal


def sample(n=50, d=7, seed=0):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(n, d)).astype(np.float32)
    return rows, draw.integers(0, 3, n)


def header(n=50, d=7, **changes):
    fields = {
        "class_names": ["a", "b", "c"],
        "classes_declared": "classes-flag",
        "block_rows": 16,
        "config": {"x": 1},
    }
    return Header(n, d, **(fields | changes))


def fill(writer, features, labels, blocks=None):
    while writer.next_row < len(features) and blocks != 0:
        rows = slice(*writer.next_block())
        digests = [
            row_digest(writer.salt, r.shape, r.tobytes()) for r in features[rows]
        ]
        columns = {"labels": labels[rows], "row_digest": np.stack(digests)}
        writer.append(features[rows], columns)
        blocks = None if blocks is None else blocks - 1


BAD_GROUPS = {
    "truths": np.array([True] * 3 + [False] * 3),
    "complex numbers": np.array([1j] * 3 + [2j] * 3),
    "dates": np.array([0] * 3 + [1] * 3, "M8[D]"),
    # float64 would make one of neighbors; some platforms have no longer float
    "long numbers": np.array([1] * 3 + [2] * 3, np.longdouble),
}


@pytest.mark.parametrize("group", BAD_GROUPS.values(), ids=BAD_GROUPS)
def test_groups_that_a_cast_could_merge_or_take_apart_are_refused(tmp_path, group):
    """A writer takes ids alone, and no values that a cast could merge."""
    if group.dtype == np.float64:
        pytest.skip("longdouble is float64 here")
    x, y = sample(6)
    with pytest.raises(FormatError, match=r"at most 64 bits.*and dtype .*astype"):
        write_features(tmp_path / "f.h5", x, y, ["a", "b", "c"], group=group)
    assert list(tmp_path.iterdir()) == []
    header = Header(6, 7, has_group=True)
    with (
        FeaturesWriter(tmp_path / "w.h5", header) as writer,
        pytest.raises(FormatError, match="integers that fit int64"),
    ):
        writer.append(x, {"labels": y, "group": group})


TEXTS = st.text(max_size=6)
ITEMS = st.one_of(TEXTS, st.integers(-5, 2**63 - 1), st.none(), st.just(float("nan")))


@given(st.lists(ITEMS, min_size=1, max_size=12))
def test_the_id_of_a_group_is_made_of_that_group_alone(items):
    """Beside any others, and in a list as in an array of objects."""
    ids = group_ids(items, len(items))
    assert ids.tolist() == [group_ids([item], 1)[0] for item in items]
    objects = np.fromiter(items, object, len(items))
    assert group_ids(objects, len(items)).tolist() == ids.tolist()
    for item, one in zip(items, ids, strict=True):
        missing = not isinstance(item, int | str) or not str(item).strip()
        assert (one == -1) == missing and one >= -1


def test_the_id_of_a_text_is_fixed():
    """A file goes on where an earlier version left it, and files share groups."""
    assert text_group("patient 7") == 996562260400971173


@pytest.mark.parametrize("item", [1j, True, np.True_, np.longdouble(1), [1], object()])
def test_a_group_that_is_neither_text_nor_number_is_refused(item):
    with pytest.raises(FormatError, match="must be texts or numbers"):
        group_ids(["a", item], 2)


def test_written_arrays_come_back(tmp_path):
    x, y = sample()
    group = np.arange(50) // 5
    y[3], y[4] = 99, -7  # outside the classes
    path = tmp_path / "f.h5"
    names = ["a", "b", "c"]
    made = write_features(path, x, y, names, group=group, split_names=["train"])
    with open_features(path) as file:
        assert (file.n_rows, file.n_features, file.dtype) == (50, 7, np.float32)
        assert (file.class_names, file.split_names) == (names, ["train"])
        assert file.classes_public and file.valid.all()
        assert_array_equal(file.features[:], x)
        wanted = np.where(y == np.clip(y, 0, 2), y, -1)
        assert_array_equal(file.labels, wanted)
        assert_array_equal(file.group, group_ids(group, 50))
        assert (file.labels.dtype, file.group.dtype) == (np.int32, np.int64)
        assert file.dataset_id == made and len(made) == 32
    problem = "rows without a label, or with a label outside the classes: 2 (rows 3, 4)"
    assert verify(path) == [problem]


def test_another_dataset_id_is_refused_on_resume(tmp_path):
    FeaturesWriter(tmp_path / "a.h5", header()).close()
    with pytest.raises(FormatError, match="begun for the data set"):
        FeaturesWriter(tmp_path / "a.h5", header(dataset_id="0" * 32))
    with pytest.raises(FormatError, match="32 lower-case hexadecimal"):
        FeaturesWriter(tmp_path / "b.h5", header(dataset_id="my-data"))


def test_one_writer_at_a_time(tmp_path):
    with (
        FeaturesWriter(tmp_path / "a.h5", header()),
        pytest.raises(FormatError, match="Another process is writing"),
    ):
        FeaturesWriter(tmp_path / "a.h5", header())
    FeaturesWriter(tmp_path / "a.h5", header()).close()


def test_nothing_is_written_before_the_lock(tmp_path, monkeypatch):
    """Two equal commands begin together, and the other one has the lock."""

    def busy(*_):
        raise BlockingIOError

    monkeypatch.setattr("dphead_extract.features.disk.fcntl.flock", busy)
    with pytest.raises(FormatError, match="Another process is writing"):
        FeaturesWriter(tmp_path / "a.h5", header())
    assert (tmp_path / "a.h5.part").stat().st_size == 0


def test_a_file_that_was_finished_before_the_lock_stays(tmp_path, monkeypatch):
    path, other = tmp_path / "a.h5", tmp_path / "b.h5"
    write_features(other, *sample(), ["a", "b", "c"])

    def late(*_):
        other.rename(path)

    monkeypatch.setattr("dphead_extract.features.disk.fcntl.flock", late)
    with pytest.raises(FormatError, match="Another process is writing"):
        FeaturesWriter(path, header())
    assert list(tmp_path.iterdir()) == [path]
    assert verify(path) == []


def test_a_part_with_a_damaged_layout_starts_again(tmp_path):
    x, y = sample()
    part = tmp_path / "a.h5.part"
    part.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(20))
    with FeaturesWriter(tmp_path / "a.h5", header()) as writer:
        assert writer.next_row == 0
        fill(writer, x, y, blocks=3)
    damage(part, 2100)
    with FeaturesWriter(tmp_path / "a.h5", header()) as writer:
        assert writer.next_row == 0


def test_features_that_are_not_finite_are_refused(tmp_path):
    x, y = sample()
    x[5, 2] = np.nan
    with pytest.raises(FormatError, match="finite"):
        write_features(tmp_path / "a.h5", x, y, ["a", "b", "c"])
    valid = np.ones(50, bool)
    valid[5] = False
    write_features(tmp_path / "b.h5", x, y, ["a", "b", "c"], valid=valid)
    with open_features(tmp_path / "b.h5") as file:
        assert not file.valid[5]
        assert not file.features[5].any()
    assert verify(tmp_path / "b.h5") == [
        "masked rows (unreadable, or not finite): 1 (rows 5)"
    ]
    with pytest.raises(FormatError, match="float32"):
        write_features(tmp_path / "c.h5", np.full((2, 2), 1e6), dtype="float16")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p.unlink(), "is not a features file"),
        (
            lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
            "damaged or cut short",
        ),
        (lambda p: edited(p, lambda f: None, complete=False), "finished"),
        (
            lambda p: edited(p, lambda f: f.attrs.modify("schema_version", 99)),
            "schema version 99, .* version 2",
        ),
        (
            lambda p: edited(p, lambda f: f.attrs.modify("dataset_id", "../../a")),
            "damaged",
        ),
        (
            lambda p: edited(p, lambda f: f.__delitem__("labels"), digests=False),
            "damaged",
        ),
        (
            lambda p: edited(p, lambda f: f.__delitem__("block_digest"), digests=False),
            "damaged",
        ),
        *(
            (
                lambda p, fact=fact: edited(p, with_config(**fact), digests=False),
                "damaged",
            )
            for fact in (
                {"backbone": None},
                {"class_names": [1, 2, 3]},
                {"class_names": ["a", "b", "\ud800"]},
                {"class_names": "abc"},
                {"block_rows": "8"},
                {"normalization": "x"},
                {"split_names": [["train"]]},
                {"class_names": {}},
                {"holdout": 3},
                {"shard": "x"},
                {"shard": {"index": "x", "count": 2, "n_rows": 50}},
                {"transform": None},
                {"backbone_kwargs": {"parts": "x"}},
            )
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path, change, message):
    path = tmp_path / "f.h5"
    write_features(path, *sample(), ["a", "b", "c"])
    change(path)
    with pytest.raises(FormatError, match=message):
        open_features(path)


def test_a_name_that_no_report_could_hold_is_refused(tmp_path):
    """A lone surrogate. A byte of a path that is no UTF-8 is another surrogate."""
    with pytest.raises(FormatError, match=r"UTF-8 can encode, got 'a.ud800'"):
        write_features(tmp_path / "f.h5", *sample(), ["a\ud800", "b", "c"])
    write_features(tmp_path / "f.h5", *sample(), ["a\udc80", "b", "c"])
    open_features(tmp_path / "f.h5").close()


@pytest.mark.parametrize(
    "fact",
    [
        {"normalization": "unit"},
        {"transform": "none"},
        {"backbone_kwargs": "x"},
        {"backbone": "\ud800"},
    ],
)
def test_a_fact_that_no_reader_takes_is_refused(tmp_path, fact):
    with pytest.raises(FormatError, match="must be dicts"):
        write_features(tmp_path / "f.h5", *sample(), ["a", "b", "c"], **fact)


def test_verify_finds_a_changed_value(tmp_path):
    write_features(tmp_path / "f.h5", *sample(), ["a", "b", "c"], block_rows=16)
    with h5py.File(tmp_path / "f.h5", "r+") as file:
        file["features"][20, 0] = np.inf
    problems = verify(tmp_path / "f.h5")
    assert problems[0].startswith("rows 16 to 31 changed since they were written")


def test_a_part_of_a_file_has_the_group_ids_of_the_file(tmp_path):
    """As names, they would be the ids of other people."""
    names = ["P-1", "P-1", None, "P-2", "P-3"]
    write_features(tmp_path / "a.h5", np.eye(5, 2), group=names)
    with open_features(tmp_path / "a.h5") as file:
        ids = file.group
    part = np.concatenate([ids[:3], ids[[4]]])
    write_features(tmp_path / "b.h5", np.eye(4, 2), group=part)
    with open_features(tmp_path / "b.h5") as file:
        assert file.group.tolist() == group_ids([*names[:3], "P-3"], 4).tolist()
    assert group_ids(group_ids(names, 5), 5).tolist() == ids.tolist()
    # numbers are names
    five = [5, 6, -1]
    for made in (
        ids + 0,
        np.append(ids[:2], five),
        np.r_[ids[:2], five],
        np.full_like(ids, 5),
    ):
        assert group_ids(made, 5).tolist() == group_ids(made.tolist(), 5).tolist()
    assert group_ids(ids.astype(str), 5).tolist() != ids.tolist()
    assert isinstance(ids.max(), np.int64)
    for other in (np.empty_like(ids), ids.copy(), ids[[0, 1, 2, 3, 4]]):
        other[:] = ids
        assert group_ids(other, 5).tolist() == ids.tolist()
        with pytest.raises(FormatError, match="Only an array of ids can be assigned"):
            other[2:] = five
    with pytest.raises(ValueError, match="read-only"):
        ids[:1] = ids[1:2]


def test_verify_finds_rows_and_groups_in_two_splits(tmp_path):
    x, y = sample()
    x[40] = x[3]
    split = np.repeat([0, 1], [30, 20])
    group = np.arange(50)
    group[45] = group[7]
    names = {"split_names": ["train", "test"]}
    write_features(
        tmp_path / "f.h5", x, y, ["a", "b", "c"], split=split, group=group, **names
    )
    assert verify(tmp_path / "f.h5") == [
        "equal images in two splits: 2 (rows 3 = 40)",
        "equal images in two classes: 2 (rows 3 = 40)",
        "equal images in two groups: 2 (rows 3 = 40)",
        "rows whose group is in two splits: 2 (rows 7, 45)",
    ]


def test_digests_are_salted_and_names_are_nowhere(tmp_path):
    x, y = sample()
    for name in ("a.h5", "b.h5"):
        write_features(tmp_path / name, x, y, ["a", "b", "c"])
    with open_features(tmp_path / "a.h5") as a, open_features(tmp_path / "b.h5") as b:
        assert (a.row_digest != b.row_digest).any(axis=1).all()
        assert a.config_hash == b.config_hash
        assert a.dataset_id != b.dataset_id


def test_nothing_counts_before_it_is_on_the_disk(tmp_path, monkeypatch):
    """A loss of power keeps what was synced: a digest without its block, or a name
    without its file, would be trusted.

    What each sync and the renaming find on the disk: (file, its blocks with rows, its
    blocks with a digest, complete).
    """
    x, y = sample()
    events = []
    sync = writing.sync_path
    rename = os.replace
    part = tmp_path / "a.h5.part"
    path = tmp_path / "a.h5"

    def found(name):
        with h5py.File(part, "r", locking=False) as file:
            rows = sum(
                bool(np.any(file["features"][i : i + 16])) for i in range(0, 50, 16)
            )
            digests = int(file["block_digest"][:].any(axis=1).sum())
            events.append((name, rows, digests, read_seal(part)))

    def watched_sync(where):
        if where == part:
            found("sync")
        else:
            assert where == tmp_path
            events.append(("sync folder", path.exists()))
        sync(where)

    def watched_rename(source, target):
        assert (source, target) == (part, path)
        found("rename")
        rename(source, target)

    monkeypatch.setattr(writing, "sync_path", watched_sync)
    monkeypatch.setattr(writing.os, "replace", watched_rename)
    with FeaturesWriter(path, header()) as writer:
        fill(writer, x, y)
        writer.finish()
    blocks = [("sync", i + 1, i, False) for i in range(4)]
    end = [
        ("sync", 4, 4, False),
        ("sync", 4, 4, True),
        ("rename", 4, 4, True),
        ("sync folder", True),
    ]
    assert events == [("sync", 0, 0, False), *blocks, *end]


def test_a_file_that_lacks_rows_is_not_finished(tmp_path):
    x, y = sample()
    for blocks in (0, 3):
        with FeaturesWriter(tmp_path / "a.h5", header()) as writer:
            fill(writer, x, y, blocks=blocks)
            with pytest.raises(FormatError, match="`finish` needs 50 rows"):
                writer.finish()
        assert not (tmp_path / "a.h5").exists()


# --- damage ---------------------------------------------------------------------------

MARK = range(2068, 2072)


def damage(path, at, bit=1):
    held = bytearray(path.read_bytes())
    held[at] ^= bit
    path.write_bytes(held)


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_anywhere_is_found_before_hdf5_or_a_fit_sees_it(tmp_path, seed):
    """In each part of the file: the seal and its padding, what HDF5 reads, and rows.

    Of HDF5's mark of a file that is open it refuses some values, and others change
    nothing.
    """
    path = tmp_path / "f.h5"
    write_features(path, *sample(), ["a", "b", "c"], block_rows=16)
    with open_h5(path)[0] as file:
        columns = list(extents(file).values())
    size = path.stat().st_size
    rng = np.random.default_rng(seed)
    inside = [int(rng.integers(first, first + n)) for first, n in columns]
    places = [0, 15, 16, 100, 2047, 2048, *MARK, size - 1, *inside]
    places += rng.integers(0, size, 40).tolist()
    for at in places:
        bit = 1 << int(rng.integers(8))
        damage(path, at, bit)
        assert not sound(path) or at in MARK
        damage(path, at, bit)
    assert sound(path)


def sound(path):
    try:
        with open_features(path) as file:
            check_blocks(file)
    except FormatError:
        return False
    return True


@pytest.mark.parametrize("lost", ["features", "block_digest"])
def test_a_resumed_file_goes_on_from_its_first_damaged_block(tmp_path, lost):
    x, y = sample()
    with FeaturesWriter(tmp_path / "a.h5", header()) as writer:
        fill(writer, x, y, blocks=3)
        part = writer.part
    with h5py.File(part, "r+") as file:
        file[lost][1 if lost == "block_digest" else 20] = 0
    with FeaturesWriter(tmp_path / "a.h5", header()) as writer:
        assert writer.next_row == 16
        fill(writer, x, y)
        writer.finish()
    with open_features(tmp_path / "a.h5") as file:
        assert_array_equal(file.rows(0, 50), x)
    assert verify(tmp_path / "a.h5") == []


def virtual(file):
    rows = h5py.VirtualLayout((50, 7), "f4")
    rows[:] = h5py.VirtualSource("other.h5", "x", (50, 7))
    file.create_virtual_dataset("features", rows)


def soft_link(file):
    file.create_dataset("rows", data=np.zeros((50, 7), "f4"))
    file["features"] = h5py.SoftLink("/rows")


@pytest.mark.parametrize(
    "hostile",
    [
        lambda f: f.__setitem__("features", h5py.ExternalLink("other.h5", "x")),
        lambda f: f.__setitem__("features", h5py.SoftLink("/labels")),
        lambda f: f.create_dataset(
            "features", (50, 7), "f4", external=[("other.bin", 0, h5py.h5f.UNLIMITED)]
        ),
        lambda f: f.create_dataset("features", (50, 7), "f4", chunks=(10, 7)),
        virtual,
        soft_link,
        lambda f: f.create_dataset("features", (10**9, 10**5), "float32"),
        lambda f: f.create_dataset("features", (50, 4), "f4", compression="gzip"),
        lambda f: f.create_dataset(
            "features", (50, 4), "f4", external=[("rows.bin", 0, h5py.h5f.UNLIMITED)]
        ),
        lambda f: f.create_group("features"),
    ],
)
def test_columns_that_are_not_in_the_file_are_refused_unread(
    tmp_path, hostile, monkeypatch
):
    path = tmp_path / "f.h5"
    write_features(path, *sample(), ["a", "b", "c"])
    # sound rows in other files, which a reader that follows links would take
    monkeypatch.chdir(tmp_path)
    sample()[0].tofile("other.bin")
    with h5py.File("other.h5", "w") as other:
        other["x"] = sample()[0]

    with h5py.File(path, "r+") as file:
        del file["features"]
        hostile(file)
        here = {k: v for k, v in file.items() if k not in ("features", "rows")}
        columns = [(v.id.get_offset(), v.nbytes) for v in here.values()]
    write_seal(path, columns, complete=True)
    with pytest.raises(FormatError, match="damaged"):
        open_features(path)


@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "pipe"])
def test_what_lies_in_the_place_of_the_part_is_never_written(tmp_path, kind):
    """Whoever may write to the folder could have a victim's file truncated."""
    (victim := tmp_path / "victim").write_text("another program's file")
    part = tmp_path / "f.h5.part"
    if kind == "second name":
        part.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.symlink_to(victim if kind == "link" else tmp_path / "missing")
    with pytest.raises(FormatError, match=r"f.h5.part' is a link, a pipe"):
        write_features(tmp_path / "f.h5", *sample(), ["a", "b", "c"])
    assert victim.read_text() == "another program's file"
    assert {p.name for p in tmp_path.iterdir()} == {"victim", "f.h5.part"}


def test_a_part_that_becomes_a_link_is_not_followed(tmp_path, monkeypatch):
    (victim := tmp_path / "victim").write_text("another program's file")

    def replaced(self):
        self.part.unlink()
        self.part.symlink_to(victim)
        return False

    monkeypatch.setattr(FeaturesWriter, "_resume", replaced)
    with suppress(OSError, FormatError):
        write_features(tmp_path / "f.h5", *sample(), ["a", "b", "c"])
    assert victim.read_text() == "another program's file"
