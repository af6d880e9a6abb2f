"""Whose images a features file holds: known again, asked for, or a new data set's."""

import numpy as np
import pytest
from commands import contents
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.format import open_features
from dphead_extract.index import Block, ImageIndex
from dphead_extract.people import People
from dphead_extract.run import extract
from dphead_extract.shards import Shard, blocks_of, join_shards, shards_path
from dphead_extract.sources.image import Source
from pictures import encoded, pack
from PIL import Image

from tests.extract.test_run import options as usual


@pytest.fixture
def index(tmp_path):
    return ImageIndex(tmp_path / "home")


def source(folder, images, name="a.npz"):
    np.savez(folder / name, images=images, labels=np.zeros(len(images), int))
    return folder / name


FORMATS = {1: "bmp", 2: "tif", 4: "tif"}  # by bytes of a sample


def write_images(folder, images):
    """Write image files whose names and sizes do not depend on the pixels."""
    for row, image in enumerate(images):
        path = folder / str(row % 2) / f"{row}.{FORMATS[image.itemsize]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def others(kind, images):
    """Return images, and others with equal names, sizes of files and 8-bit levels.

    The third result is the declared range. For "other pictures", levels differ.
    """
    halves = np.split(images, 2)
    if kind == "other pictures":
        return *halves, None
    one = halves[0].astype(np.float32)
    if kind == "lower bits":
        one = one // 2 * 257
        return one.astype(np.uint16), (one + 1).astype(np.uint16), None
    dtype = np.uint16 if kind == "samples outside the range" else np.float32
    one = one * 10 + 1000
    one[:, 0] = 0
    other = one.copy()
    other[:, 0] = 7
    return one.astype(dtype), other.astype(dtype), (1000, 3550)


KINDS = pytest.mark.parametrize(
    "kind",
    ["other pictures", "lower bits"]
    + [f"{what} outside the range" for what in ("samples", "floats")],
)


def run(path, output, index, **changes):
    """Extraction by a small network; `network` says which one of two."""
    return extract(options(path, output, index, **changes))


def options(path, output, index, network=1, image_size=None, **changes):
    settings = {"scatter_j": (1,), "scatter_l": network}
    small = {"block_rows": 16, "batch_size": 16, "check": False, "index": index}
    backbone = BackboneOptions("scatternet", settings=settings, image_size=image_size)
    return usual(path, output, backbone=backbone, **small | changes)


@pytest.fixture
def images(digits):
    return digits[0]


def test_another_network_keeps_the_data_set(images, index, tmp_path):
    path = source(tmp_path, images[:40])
    one = run(path, tmp_path / "one.h5", index)
    two = run(path, tmp_path / "two.h5", index, network=2)
    assert (one.recognized, two.recognized) == (False, True)
    assert one.dataset_id == two.dataset_id
    assert one.overlaps == two.overlaps == []
    alone = run(path, tmp_path / "three.h5", None)
    assert alone.dataset_id != one.dataset_id


def test_the_order_the_container_and_a_few_images_do_not_matter(
    images, index, tmp_path
):
    """A clinic adds patients, and packs its files anew."""
    first = run(source(tmp_path, images[:40]), tmp_path / "one.h5", index)
    more = run(source(tmp_path, images[50:4:-1], "b.npz"), tmp_path / "two.h5", index)
    files = {f"0/{row}.png": encoded(image) for row, image in enumerate(images[:40])}
    folder = pack(tmp_path / "folder", files)
    files = run(folder, tmp_path / "three.h5", index, image_size=8)
    assert first.dataset_id == more.dataset_id == files.dataset_id


def test_a_run_that_has_begun_keeps_its_id(images, index, tmp_path):
    """With and without what it was told at first; also where the index came later."""
    path = source(tmp_path, images[:40])
    before = run(path, tmp_path / "before.h5", None)
    one = run(path, tmp_path / "one.h5", index)
    assert before.dataset_id != one.dataset_id
    again = run(path, tmp_path / "before.h5", index)
    assert again.already_complete
    assert again.dataset_id == before.dataset_id
    assert [o.dataset_id for o in again.overlaps] == [one.dataset_id]
    apart = run(path, tmp_path / "apart.h5", index, new_data_set=True)
    assert run(path, tmp_path / "apart.h5", index).dataset_id == apart.dataset_id


def test_a_run_that_died_is_known_by_its_images(images, index, tmp_path):
    path = source(tmp_path, images[:60])

    def die(done, total, phase):
        if phase == "extracting features" and done >= 16:
            raise KeyboardInterrupt

    one = options(path, tmp_path / "one.h5", index)
    with pytest.raises(KeyboardInterrupt):
        extract(one, die)
    other = run(path, tmp_path / "two.h5", index, network=2)
    assert other.recognized
    assert extract(one).dataset_id == other.dataset_id


def test_shards_of_a_second_network_keep_the_data_set(images, index, tmp_path):
    path = source(tmp_path, images[:64])
    whole = run(path, tmp_path / "one.h5", index)
    parts = [
        run(path, tmp_path / "two.h5", index, network=2, shard=Shard(i, 2))
        for i in range(2)
    ]
    assert {p.dataset_id for p in parts} == {whole.dataset_id}
    new = source(tmp_path, images[200:264], "new.npz")
    others = [run(new, tmp_path / "new.h5", index, shard=Shard(i, 2)) for i in range(2)]
    assert len({p.dataset_id for p in others} | {whole.dataset_id}) == 2
    assert run(new, tmp_path / "new2.h5", index).dataset_id == others[0].dataset_id


def test_each_shard_is_asked_about_the_images_of_another_data_set(
    images, index, tmp_path
):
    """All of them may be in the last one."""
    known = run(source(tmp_path, images[:16]), tmp_path / "one.h5", index)
    mixed = np.concatenate([images[100:148], images[:14], images[100:102]])
    path = source(tmp_path, mixed, "mixed.npz")
    parts = [options(path, tmp_path / "m.h5", index, shard=Shard(i, 4)) for i in (0, 3)]
    first = extract(parts[0])
    with pytest.raises(ExtractError, match=f"--dataset-id {known.dataset_id}"):
        extract(parts[1])
    apart = run(path, tmp_path / "m.h5", index, shard=Shard(3, 4), new_data_set=True)
    assert apart.dataset_id == first.dataset_id != known.dataset_id
    assert extract(parts[1]).already_complete


@pytest.mark.parametrize("other", ["dataset_id", "same_data_as"])
def test_a_new_data_set_is_no_others(images, index, tmp_path, other):
    path = source(tmp_path, images[:20])
    made = run(path, tmp_path / "one.h5", index)
    named = {"dataset_id": made.dataset_id, "same_data_as": tmp_path / "one.h5"}[other]
    with pytest.raises(ExtractError, match="cannot be combined with --dataset-id"):
        run(path, tmp_path / "t.h5", index, new_data_set=True, **{other: named})


def test_only_a_written_file_says_that_the_index_has_its_images(
    images, index, tmp_path
):
    """dphead refuses other images under the id of a file from another machine."""
    path, there = source(tmp_path, images[:20]), ImageIndex(tmp_path / "there")
    run(path, tmp_path / "one.h5", there)
    with open_features(tmp_path / "one.h5") as file:
        known = file.dataset_id, file.salt, blocks_of(file)
    assert there.has_blocks(*known) and not index.has_blocks(*known)
    same = {"same_data_as": tmp_path / "one.h5"}
    others = source(tmp_path, images[20:40], "others.npz")
    with pytest.raises(FormatError, match="images differ"):
        run(others, tmp_path / "two.h5", index, **same)
    assert not index.has_blocks(*known)
    run(path, tmp_path / "again.h5", index, **same)
    assert index.has_blocks(*known)
    (index.folder / f"{known[0]}.digests").unlink()
    assert not index.has_blocks(*known)
    # a new entry has the images of one file only
    index.add(known[0], np.arange(3, dtype=np.uint64))
    assert not index.has_blocks(*known)


def test_an_older_entry_has_no_images_of_later_files(images, index, tmp_path):
    """One file of the index was restored from a backup."""

    def known(name):
        with open_features(tmp_path / f"{name}.h5") as file:
            return index.has_blocks(file.dataset_id, file.salt, blocks_of(file))

    def extract(name, rows, **options):
        path = source(tmp_path, images[rows], f"{name}.npz")
        return run(path, tmp_path / f"{name}.h5", index, **options).dataset_id

    dataset_id = extract("one", slice(20))
    entry = index.folder / f"{dataset_id}.digests"
    older = entry.read_bytes()
    same = {"dataset_id": dataset_id}
    extract("two", slice(20, 40), **same)
    assert known("one") and known("two")
    newest = entry.read_bytes()
    entry.write_bytes(older)
    assert not known("two")
    # a later command of the data set does not add the images of the second file
    extract("three", slice(40, 60), **same)
    assert known("three") and not known("two")
    extract("two", slice(20, 40), **same)
    assert known("two") and known("three") and not known("one")
    entry.write_bytes(newest)
    assert not known("three")
    # a mark does not bring back the marks of the newer entry
    other = dataset_id, "salt", [Block(0, 1, "images")]
    index.mark_blocks(*other)
    assert index.has_blocks(*other) and not known("three")


@KINDS
def test_a_shard_that_another_home_makes_again_is_not_known(
    images, index, tmp_path, kind
):
    """The other home has other images under the same names, and the shared salt."""
    folder, there = tmp_path / "images", ImageIndex(tmp_path / "there")
    path, joined = tmp_path / "m.h5", tmp_path / "joined.h5"
    shards = [Shard(part, 2) for part in range(2)]
    one, other, window = others(kind, images[:128])
    given = {"image_size": 8, "intensity": window}

    def extract(shard, index):
        run(folder, path, index, shard=shard, **given)
        return shard.path(path)

    def known(name):
        with open_features(name) as file:
            return index.has_blocks(file.dataset_id, file.salt, blocks_of(file))

    write_images(folder, one)
    made = [extract(shard, index) for shard in shards]
    join_shards(made, joined)
    assert known(joined)
    for name in (joined, made[1]):
        name.unlink()
    write_images(folder, other)
    extract(shards[1], there)
    join_shards(made, joined)
    assert [known(name) for name in (*made, joined)] == [True, False, False]
    write_images(folder, one)
    for shard, name in ((shards[1], path), (Shard(), joined)):
        with pytest.raises(ExtractError, match="rows of images that have changed"):
            run(folder, name, index, shard=shard, **given)
    # the same images, made again, are known by the marks of before
    for name in (joined, made[1]):
        name.unlink()
    extract(shards[1], there)
    join_shards(made, joined)
    assert known(joined)


def test_each_file_of_one_command_is_compared(images, index, tmp_path):
    """This home has written one of two files, and the other one has other images."""
    folder, there = tmp_path / "images", ImageIndex(tmp_path / "there")
    known, other = tmp_path / "known.h5", tmp_path / "other.h5"
    given = {"shard": Shard(0, 2), "image_size": 8}
    write_images(folder, images[:64])
    run(folder, known, index, **given)
    shards_path(other).write_bytes(shards_path(known).read_bytes())
    write_images(folder, images[64:128])
    run(folder, other, there, network=2, **given)
    write_images(folder, images[:64])
    beside = [options(folder, other, index, network=2, **given)]
    with pytest.raises(ExtractError, match=r"other.shard-0-of-2.h5' has rows of"):
        extract(options(folder, known, index, **given), beside=beside)


@KINDS
def test_a_file_of_other_images_with_the_same_names_is_not_known(
    images, index, tmp_path, kind
):
    """Another machine wrote the file. A listing has names and sizes, not pixels."""
    folder, there = tmp_path / "images", ImageIndex(tmp_path / "there")
    one, other, window = others(kind, images[:40])
    given = {"image_size": 8, "intensity": window}
    write_images(folder, one)
    run(folder, tmp_path / "one.h5", there, **given)
    write_images(folder, other)
    with pytest.raises(ExtractError, match="rows of images that have changed"):
        run(folder, tmp_path / "one.h5", index, **given)
    # the refused images can be a data set of their own
    assert run(folder, tmp_path / "two.h5", index, **given).recognized is False
    with open_features(tmp_path / "one.h5") as file:
        known = file.dataset_id, file.salt, blocks_of(file)
    assert not index.has_blocks(*known)
    write_images(folder, one)
    run(folder, tmp_path / "one.h5", index, **given)
    assert index.has_blocks(*known)
    write_images(folder, other)
    given["same_data_as"] = tmp_path / "one.h5"
    with pytest.raises(FormatError, match="images differ"):
        run(folder, tmp_path / "same.h5", index, **given)


@pytest.mark.parametrize("kind", ["gray", "gray as RGB", "color", "16 bits"])
def test_a_file_of_an_earlier_version_is_known_once_its_images_are_compared(
    images, index, tmp_path, monkeypatch, kind
):
    """Its row digests and the marks of its blocks were of 8-bit levels."""
    folder, out = tmp_path / "images", tmp_path / "one.h5"
    pictures = images[:20]
    if kind == "gray as RGB":
        pictures = np.repeat(pictures[..., None], 3, axis=-1)
    elif kind == "color":
        pictures = np.stack([images[:20], images[20:40], images[40:60]], axis=-1)
    elif kind == "16 bits":
        pictures = pictures.astype(np.uint16) * 257 // 2
    write_images(folder, pictures)
    with monkeypatch.context() as earlier:
        mark = index.mark
        names = {"images": "block"}
        earlier.setattr(Source, "forms", lambda self, raw, image: [image])
        earlier.setattr(index, "mark", lambda k, *of: mark(names.get(k, k), *of))
        run(folder, out, index, image_size=8)
    with open_features(out) as file:
        known = file.dataset_id, file.salt, blocks_of(file)
    assert not index.has_blocks(*known)
    if kind == "16 bits":
        with pytest.raises(ExtractError, match="rows of images that have changed"):
            run(folder, out, index, image_size=8)
        assert not index.has_blocks(*known)
    else:
        run(folder, out, index, image_size=8)
        assert index.has_blocks(*known)


def test_images_of_people_share_the_ledger_of_their_id_system(images, index, tmp_path):
    """Other images of the same people, and none that another ledger counts."""
    people = ImageIndex(tmp_path / "people")
    clinic, new = (People(people, "clinic", new=new) for new in (False, True))

    def table(first, count, person):
        path = tmp_path / f"{first}-{person}.npz"
        group = person + np.arange(count) // 2
        labels = np.zeros(count, int)
        part = images[first : first + count]
        np.savez(path, images=part, labels=labels, group=group)
        return path

    one = run(table(0, 40, 0), tmp_path / "one.h5", index, people=clinic)
    two = run(table(40, 40, 10), tmp_path / "two.h5", index, people=clinic)
    assert one.dataset_id == two.dataset_id == clinic.shared_id
    assert two.people == {"system": "clinic", "new": False} and not two.overlaps
    before = contents(tmp_path)
    with pytest.raises(ExtractError, match="1 of 20 people"):
        run(table(80, 40, 29), tmp_path / "three.h5", index, people=new)
    del (after := contents(tmp_path))["80-29.npz"]
    assert after == before
    own = run(table(80, 40, 30), tmp_path / "own.h5", index, people=new)
    again = run(table(80, 40, 30), tmp_path / "b.h5", index, network=2, people=new)
    assert own.dataset_id == again.dataset_id != one.dataset_id
    undeclared = table(80, 40, 31)
    with pytest.raises(ExtractError, match="declared id system"):
        run(undeclared, tmp_path / "c.h5", index, people=People(people))
    plain = run(table(120, 40, 50), tmp_path / "plain.h5", index)
    with pytest.raises(ExtractError, match=f"{plain.dataset_id}.*ledger people clinic"):
        run(table(120, 40, 60), tmp_path / "d.h5", index, people=clinic)


def test_a_shard_of_people_has_few_images_of_a_data_set_with_another_ledger(
    images, index, tmp_path
):
    """One of 32 in each of 40 shards: the archive has all images of the pilot."""
    pilot = run(source(tmp_path, images[:40]), tmp_path / "pilot.h5", index)
    every = images[40 : 40 + 1280].copy()
    every[::32] = images[:40]
    labels, group = np.zeros(1280, int), np.arange(1280)
    np.savez(tmp_path / "every.npz", images=every, labels=labels, group=group)
    clinic = People(ImageIndex(tmp_path / "people"), "clinic")
    shard = {"shard": Shard(0, 40), "block_rows": 32, "people": clinic}
    with pytest.raises(ExtractError, match=f"{pilot.dataset_id}.*ledger people clinic"):
        run(tmp_path / "every.npz", tmp_path / "every.h5", index, **shard)


def test_shards_of_new_people_are_one_data_set(images, index, tmp_path):
    people = People(ImageIndex(tmp_path / "people"), "clinic", new=True)
    path = tmp_path / "a.npz"
    labels, group = np.zeros(64, int), np.arange(64) // 4
    np.savez(path, images=images[:64], labels=labels, group=group)
    ids = {
        run(path, tmp_path / "a.h5", index, people=people, shard=Shard(i, 2)).dataset_id
        for i in (0, 1)
    }
    assert len(ids) == 1
    # the 16 people, the system, and each shard with its groups
    assert len(people.index.images(*ids)) == 16 + 1 + 2 * 2
