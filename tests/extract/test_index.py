"""The index of images: what it knows again, what it keeps to itself, and its faults."""

import hashlib
import multiprocessing
import stat

import numpy as np
import pytest
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.rows import row_digest
from dphead_extract.index import ImageIndex, Overlap, recognized

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


@pytest.fixture
def index(tmp_path):
    return ImageIndex(tmp_path / "home" / "images")


def images(n, seed=0, shape=(8, 8)):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def digests(index, pictures):
    return np.array([index.digest(p) for p in pictures], np.uint64)


def test_images_are_known_by_their_pixels_and_shape(index):
    one = images(1)[0]
    assert index.digest(one) == index.digest(np.asfortranarray(one))
    others = (one ^ np.uint8(one == one[0, 0]), one.reshape(4, 16), one[:, ::-1])
    assert len({index.digest(x) for x in (one, *others)}) == 4


def test_no_digest_says_anything_without_the_homes_secret(index, tmp_path):
    """Whoever has the files and guesses an image cannot confirm it: neither by a plain
    digest, nor by that of a features file or of another home.
    """
    pictures = images(20)
    index.add(A, digests(index, pictures))
    stored = (index.folder / f"{A}.digests").read_bytes()
    other = ImageIndex(tmp_path / "other")
    for picture in pictures:
        data = repr(picture.shape).encode() + picture.tobytes()
        guesses = [hashlib.blake2b(data, digest_size=8).digest()]
        guesses.append(row_digest("00" * 16, picture.shape, picture.tobytes())[:8])
        guesses.append(other.digest(picture).to_bytes(8, "little"))
        assert not any(bytes(guess) in stored for guess in guesses)
        assert index.digest(picture).to_bytes(8, "little") in stored


def test_the_index_is_its_owners_alone(index):
    index.add(A, digests(index, images(3)))
    assert stat.S_IMODE(index.folder.stat().st_mode) == 0o700
    names = {path.name for path in index.folder.iterdir()}
    assert names == {"key", "lock", f"{A}.digests"}
    for path in index.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_data_set_holds_all_images_that_were_ever_its(index):
    pictures = images(30)
    index.add(A, digests(index, pictures[:20]))
    index.add(A, digests(index, pictures[10:]))
    again = ImageIndex(index.folder)
    assert set(again.images(A).tolist()) == set(digests(index, pictures).tolist())
    assert len(again.images(B)) == 0


def test_overlaps_count_distinct_images_and_name_the_largest_first(index):
    pictures = images(100)
    index.add(A, digests(index, pictures[:10]))
    index.add(B, digests(index, pictures[:60]))
    index.add(C, digests(index, images(10, seed=1)))
    twice = np.concatenate([pictures[:40], pictures[:40]])
    found = index.overlaps(digests(index, twice))
    assert found == [Overlap(B, 40, 40, 60), Overlap(A, 10, 40, 10)]
    assert index.overlaps(digests(index, twice), but=B) == found[1:]
    assert index.overlaps(digests(index, images(5, seed=2))) == []


@pytest.mark.parametrize(
    "shared, own, theirs, is_same, is_notable",
    [
        (51, 100, 100, True, True),
        (50, 100, 100, False, True),
        (100, 100, 200, False, True),  # a half of the other: a trial on some
        (5, 100, 1000, False, True),
        (4, 100, 1000, False, False),  # an accident
    ],
)
def test_what_is_the_same_and_what_is_no_accident(
    shared, own, theirs, is_same, is_notable
):
    overlap = Overlap(A, shared, own, theirs)
    assert (overlap.same, overlap.notable) == (is_same, is_notable)
    if is_notable and not is_same:
        with pytest.raises(ExtractError, match=rf"--dataset-id {A} .*--new-data-set"):
            recognized([overlap])
    else:
        assert recognized([overlap]) == (A if is_same else None)


def claim(folder, found, start):
    index = ImageIndex(folder)
    start.wait()
    found.put(index.claim(digests(index, images(500)))[0])


def test_networks_that_are_begun_together_have_one_data_set(index):
    """Each asks before the other's images are noted, but for the lock; the key is made
    once too.
    """
    context = multiprocessing.get_context("fork")
    found, start = context.Queue(), context.Event()
    running = [
        context.Process(target=claim, args=(index.folder, found, start))
        for _ in range(6)
    ]
    for process in running:
        process.start()
    start.set()
    ids = {found.get(timeout=600) for _ in running}
    for process in running:
        process.join()
    assert len(ids) == 1


@pytest.mark.parametrize("change", ["bit", "cut", "empty", "key", "no key", "short"])
def test_a_damaged_index_is_refused(index, change):
    """Read as empty, it would open a fresh ledger in silence."""
    index.add(A, digests(index, images(4)))
    path = index.folder / f"{A}.digests"
    data = bytearray(path.read_bytes())
    key = index.folder / "key"
    if change == "bit":
        data[20] ^= 1
    path.write_bytes(data[:-3] if change == "cut" else data)
    if change == "empty":
        path.write_bytes(b"")
    elif change == "key":
        key.write_bytes(bytes(32))
    elif change == "no key":
        key.unlink()
    elif change == "short":
        key.write_bytes(b"")
    with pytest.raises(FormatError, match=r"image index .*backup"):
        ImageIndex(index.folder).overlaps(np.arange(3, dtype=np.uint64))


def test_an_index_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    """Else images that were seen before would pass for new ones."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FormatError, match="is not writable"):
        ImageIndex(tmp_path / "file" / "images").digest(images(1)[0])
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(FormatError, match="is not writable"):
        ImageIndex(tmp_path / "home" / "images").digest(images(1)[0])


def test_a_link_in_the_place_of_the_indexs_lock_is_refused(index, tmp_path):
    index.add(A, digests(index, images(4)))
    (index.folder / "lock").unlink()
    (index.folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExtractError, match="lock' is a link"):
        index.add(A, digests(index, images(4, seed=1)))
    assert not (tmp_path / "elsewhere").exists()
