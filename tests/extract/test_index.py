"""The index of images: what it knows again, what it keeps to itself, and its faults."""

import errno
import fcntl
import hashlib
import multiprocessing
import os
import shutil
import stat
from contextlib import nullcontext
from pathlib import Path

import dphead_extract.index as index_module
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


def test_a_new_home_is_durable_before_the_index_is_used(index, monkeypatch):
    """A ledger in it would else be lost with the name of the home."""
    synced, held = [], os.fsync

    def noted(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        held(file)

    monkeypatch.setattr(os, "fsync", noted)
    index.claim(np.arange(3, dtype=np.uint64))
    home = index.folder.parent
    assert synced[:2] == [str(home), str(home.parent)]


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
    assert found == [Overlap(B, 40, 40, 60, 40, 40), Overlap(A, 10, 40, 10, 40, 10)]
    assert index.overlaps(digests(index, twice), but=B) == [
        Overlap(A, 10, 40, 10, 10, 10)
    ]
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


def test_a_data_set_that_grows_hides_no_shared_images(index):
    """A is a year of a system, and B an archive with a few images of its first year."""
    for _ in range(2):  # a command can be repeated
        index.add(A, np.arange(4, dtype=np.uint64))
        index.add(B, np.arange(100, dtype=np.uint64))
    assert len(index._names()) == 2
    for year in (1000, 2000, 2000):
        index.add(A, np.arange(year, year + 200, dtype=np.uint64))
        for one, other in ((A, B), (B, A)):
            assert [found.dataset_id for found in index.sharing(one)] == [other]
        with pytest.raises(
            ExtractError, match=r"4 of 96 .* at least a twentieth of the images"
        ):
            recognized(index.overlaps(np.arange(96, dtype=np.uint64), but=B))
    assert len(index._names()) == 5 and len(index.images(A)) == 404
    index.add(C, np.arange(2000, 2001 + 96, dtype=np.uint64) + 199)
    assert index.sharing(C) == []  # one image of 97, and of 200


def test_images_of_a_part_in_several_data_sets_add_up(index):
    """Each has 3 of 100 images of the first year, and no twentieth of all years."""
    for year in (0, 1000):
        index.add(A, np.arange(year, year + 100, dtype=np.uint64))
    for name, first in ((B, 97), (C, 100 - 200)):
        assert index.sharing(A) == []
        new = np.arange(first + 3, first + 100)
        known = np.arange(3) + 3 * (name == B)
        index.add(name, np.concatenate([known, new + 10**5]).astype(np.uint64))
    assert {found.dataset_id for found in index.sharing(A)} == {B, C}
    assert [found.dataset_id for found in index.sharing(C)] == [A]


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
    with pytest.raises(FormatError, match=r"index.* backup|damaged.* backup"):
        ImageIndex(index.folder).overlaps(np.arange(3, dtype=np.uint64))


@pytest.mark.parametrize(
    "number, passed", [(errno.ENOLCK, True), (errno.ENOSYS, True), (errno.EIO, False)]
)
def test_only_a_file_system_without_locks_goes_without_them(
    tmp_path, monkeypatch, number, passed
):
    """Two commands would give the same images two data sets, or lose some of them."""

    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    outcome = nullcontext() if passed else pytest.raises(OSError, match="error")
    with outcome, ImageIndex(tmp_path).locked():
        assert passed


def test_a_full_disk_is_no_home_of_another_user(tmp_path, monkeypatch):
    """A charge goes on without the lock of people only if nobody can declare any."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(Exception) as found, ImageIndex(tmp_path).locked():
        pass
    assert "No space left" in str(found.value)


def test_an_index_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    """Else images that were seen before would pass for new ones."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FormatError, match="is not writable"):
        ImageIndex(tmp_path / "file" / "images").digest(images(1)[0])
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(FormatError, match="is not writable"):
        ImageIndex(tmp_path / "home" / "images").digest(images(1)[0])


@pytest.fixture
def sized(tmp_path):
    """Open an index whose sizes are noted in another folder, as in a home."""

    def opened():
        return ImageIndex(tmp_path / "home" / "images", tmp_path / "ledgers" / "sizes")

    opened().add(A, np.arange(100, dtype=np.uint64))
    return opened


def older(index, state):
    """Bring an index, to which B was added, into an earlier state."""
    before = index.folder.with_name("before")
    shutil.copytree(index.folder, before)
    index.add(B, np.arange(100, 150, dtype=np.uint64))
    if state == "smaller":
        index.add(A, np.arange(200, 210, dtype=np.uint64))
        shutil.copy(before / f"{A}.digests", index.folder)
        return
    if state == "sizes":
        index.sizes.unlink()
        return
    shutil.rmtree(index.folder)
    if state == "empty":  # the mount point of a volume that is away
        index.folder.mkdir()
    elif state != "removed":
        before.rename(index.folder)


@pytest.mark.parametrize("state", ["backup", "smaller", "removed", "empty", "sizes"])
def test_an_index_that_is_missing_or_older_is_refused(sized, state):
    """Its images would else be those of a new data set, with a ledger of its own."""
    older(sized(), state)
    said = "would not count" if state == "sizes" else "not recognize all known images"
    with pytest.raises(FormatError, match=said):
        sized().claim(np.arange(100, 150, dtype=np.uint64))
    with pytest.raises(FormatError, match=said):
        sized().add(A if state == "smaller" else B, np.arange(3, dtype=np.uint64))
    assert (sized().folder / "key").exists() == (state not in ("removed", "empty"))


def test_what_is_left_of_an_index_is_used_as_its_error_says(sized):
    older(sized(), "backup")
    sized().sizes.unlink()
    with pytest.raises(FormatError, match="noted"):
        sized().knows(A)
    (sized().folder / "noted").unlink()
    assert sized().knows(A) and not sized().knows(B)
    older(sized(), "empty")  # from now on, the sizes of A are noted again
    with pytest.raises(FormatError, match="not recognize"):
        sized().claim(np.arange(100, dtype=np.uint64))


@pytest.mark.parametrize("held", [b"{", b"null", b"\xff"])
def test_damaged_sizes_leave_the_index_as_it_is(sized, held):
    """An older copy of the index would forget images."""
    sized().sizes.write_bytes(held)
    with pytest.raises(FormatError, match="and nothing else in"):
        sized().claim(np.arange(100, dtype=np.uint64))
    sized().sizes.unlink()
    (sized().folder / "noted").unlink()
    assert sized().claim(np.arange(100, dtype=np.uint64)) == (A, True)
    older(sized(), "empty")
    with pytest.raises(FormatError, match="not recognize"):
        sized().claim(np.arange(100, dtype=np.uint64))


def test_an_index_without_sizes_gets_them_with_its_next_entry(sized):
    """An earlier version wrote none."""
    sized().sizes.unlink()
    (sized().folder / "noted").unlink()
    sized().add(B, np.arange(100, 150, dtype=np.uint64))
    (sized().folder / f"{A}.digests").unlink()
    with pytest.raises(FormatError, match=A):
        sized().sharing(B)


def test_a_process_that_dies_beside_the_sizes_leaves_an_index_in_use(
    sized, monkeypatch
):
    """The sizes are noted after a file has grown, and before it shrinks."""
    held = index_module.write_private

    def dies(path, data, once=False):
        if path == sized().sizes:
            raise KeyboardInterrupt
        held(path, data, once)

    monkeypatch.setattr(index_module, "write_private", dies)
    with pytest.raises(KeyboardInterrupt):
        sized().add(A, np.arange(300, dtype=np.uint64))
    monkeypatch.undo()
    assert len(sized().images(A)) == 300
    # the repeated command adds nothing, but notes the sizes
    sized().add(A, np.arange(300, dtype=np.uint64))
    file = sized().folder / f"{A}.digests"
    assert sized()._sizes()[file.name] == file.stat().st_size
    with sized().locked():
        sized()._write(A, np.arange(301, dtype=np.uint64))
    assert sized()._sizes()[file.name] == file.stat().st_size

    def breaks(path, data, once=False):
        if path.suffix == ".digests":
            raise KeyboardInterrupt
        held(path, data, once)

    monkeypatch.setattr(index_module, "write_private", breaks)
    with pytest.raises(KeyboardInterrupt):
        sized()._write(A, np.arange(5, dtype=np.uint64))
    assert len(sized().images(A)) == 301


def test_a_link_in_the_place_of_the_indexs_lock_is_refused(index, tmp_path):
    index.add(A, digests(index, images(4)))
    (index.folder / "lock").unlink()
    (index.folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExtractError, match="lock' is a link"):
        index.add(A, digests(index, images(4, seed=1)))
    assert not (tmp_path / "elsewhere").exists()


def old_digest(key, image):
    """The digest of an image as the first version of the index computed it."""
    data = repr(image.shape).encode() + image.tobytes()
    return hashlib.blake2b(data, digest_size=8, key=key).digest()


def keep_old(index, dataset_id, pictures):
    """Write an entry as the first version did: a seal, and the sorted digests."""
    index.digest(pictures[0])  # makes the key
    key = (index.folder / "key").read_bytes()
    found = sorted(int.from_bytes(old_digest(key, p), "little") for p in pictures)
    data = np.array(found, "<u8").tobytes()
    seal = hashlib.blake2b(data, digest_size=16, key=key).digest()
    (index.folder / f"{dataset_id}.digests").write_bytes(seal + data)


def forms(index, pictures):
    """The digests of gray pictures, whether they are stored as gray or as RGB."""
    colored = np.repeat(pictures[..., None], 3, axis=-1)
    found = [index.digests(both) for both in zip(pictures, colored, strict=True)]
    return np.array(found, np.uint64)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_index_of_an_earlier_version_forgets_no_image(index, channels):
    """It knows them by gray pixels, or by three equal channels, as they were stored."""
    pictures = images(60)
    stored = pictures if channels == 1 else np.repeat(pictures[..., None], 3, axis=-1)
    keep_old(index, A, stored)
    before = (index.folder / f"{A}.digests").read_bytes()
    seen = forms(index, pictures)
    known = index.overlaps(seen[:40])
    assert [(one.shared, one.own, one.theirs) for one in known] == [(40, 40, 60)]
    index.add(B, np.concatenate([seen[:40], forms(index, images(60, seed=1))]))
    assert (index.folder / f"{A}.digests").read_bytes() == before
    # without the pictures, as in a fit
    for own, other, n in ((A, B, 100), (B, A, 60)):
        (found,) = index.overlaps(index.images(own), but=own)
        assert (found.dataset_id, found.shared, found.theirs) == (other, 40, n)
    assert index.claim(seen) == (A, True)
    assert len(index.images(A)) == 60


def test_two_earlier_data_sets_meet_in_an_image_that_is_seen_again(index):
    """One holds it as gray pixels, the other as RGB."""
    pictures = images(50)
    keep_old(index, A, pictures)
    keep_old(index, B, np.repeat(pictures[..., None], 3, axis=-1))
    assert index.overlaps(index.images(A), but=A) == []
    index.add(A, forms(index, pictures))
    (found,) = index.overlaps(index.images(B), but=B)
    assert (found.shared, found.own, found.theirs) == (50, 50, 50)


@pytest.mark.parametrize("read", ["upper bytes", "rounded"])
@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_copy_that_is_read_with_8_bits_is_known(index, order, read):
    """16-bit gray images in A, and what is read of their copies in B, in any order."""
    gray = np.random.default_rng(0).integers(0, 2**16, (40, 6, 6)).astype(np.float64)
    upper = (gray // 256).astype(np.uint8)
    levels = np.rint(gray / 257).astype(np.uint8)
    deep = zip(gray, levels, gray, levels, upper, strict=True)
    copies = upper if read == "upper bytes" else levels
    seen = {A: [index.digests(each) for each in deep], B: forms(index, copies)}
    first, last = ((one, np.array(seen[one], np.uint64)) for one in order)
    index.add(*first)
    assert [(one.shared, one.same) for one in index.overlaps(last[1])] == [(40, True)]
    index.add(*last)
    # without the images, as in a fit
    (found,) = index.overlaps(index.images(A), but=A)
    assert (found.dataset_id, found.shared, found.theirs) == (B, 40, 40)


def test_an_image_takes_eight_bytes_whatever_its_forms(index):
    index.add(A, forms(index, images(100)))
    index.add(B, forms(index, images(100)))
    sizes = [path.stat().st_size for path in index.folder.glob("*.digests")]
    assert sizes == [16 + 800] * 2


@pytest.mark.parametrize("change", ["cut", "bit"])
def test_damaged_pairs_are_refused(index, change):
    """Without them, an image of an earlier data set would be new."""
    pictures = images(4)
    keep_old(index, A, np.repeat(pictures[..., None], 3, axis=-1))
    index.add(B, forms(index, pictures))
    path = index.folder / "aliases.digests"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data if change == "bit" else data[:-8])
    with pytest.raises(FormatError, match=r"index.* backup|damaged.* backup"):
        index.images(A)


def test_overlaps_below_a_twentieth_add_up(index):
    """The 2nd file takes a tenth of a data set, and the 23rd would take all of it."""
    known = digests(index, images(437))
    index.add(A, known)
    parts = known.reshape(23, 19)
    new = [digests(index, images(500, seed=1 + i)) for i in range(23)]
    files = [np.concatenate(both) for both in zip(parts, new, strict=True)]
    assert not index.claim(files[0])[1]  # 19 of 437 images
    for file in files[1:]:
        with pytest.raises(ExtractError, match="38 of these 437 are in other data"):
            index.claim(file)
    # the same images again are not more of them
    again = np.concatenate([parts[0], new[3]])
    assert not index.claim(again)[1]
    # once it is decided, each further file with such images needs a decision
    index.add(C, files[1])
    with pytest.raises(ExtractError, match="57 of these 437 are in other data"):
        index.claim(files[2])


@pytest.mark.parametrize("grows", ["add", "claim"])
def test_images_that_are_elsewhere_together_stay_known_when_a_data_set_grows(
    index, grows
):
    """Two others each have three of its 100 images: no part has a twentieth in one."""
    every = np.arange(1000, dtype=np.uint64)
    # as an earlier version did
    for name, first in ((B, 0), (C, 3)):
        own = every[600 + 100 * first :][:97]
        index.extend(name, np.append(every[first : first + 3], own))
    index.extend(A, every[:100])
    for end in (190, 300):
        if grows == "claim":
            assert index.claim(every[:end]) == (A, True)
        else:
            index.add(A, every[end - 90 : end])
    found = index.overlaps(index.images(A), but=A)
    assert [one.notable for one in found] == [False, False]
    again = ImageIndex(index.folder)
    known = {
        name: [one.dataset_id for one in again.sharing(name)] for name in (A, B, C)
    }
    assert known == {A: [B, C], B: [A], C: [A]}


def test_images_shared_with_parts_that_overlap_stay_known_when_a_data_set_grows(index):
    """Eight of 150 are notable, but no part of 100 has five of them."""
    every = np.arange(1000, dtype=np.uint64)
    index.add(A, every[:100])
    index.add(A, every[50:150])
    index.add(B, np.concatenate([every[:4], every[146:150], every[600:992]]))
    assert [one.dataset_id for one in index.sharing(A)] == [B]
    index.add(A, every[200:400])
    (found,) = index.overlaps(index.images(A), but=A)
    assert not found.notable
    assert [one.dataset_id for one in index.sharing(A)] == [B]
    assert [one.dataset_id for one in index.sharing(B)] == [A]


def test_a_few_images_in_common_stay_few(index):
    every = np.arange(1000, dtype=np.uint64)
    index.add(A, every[:100])
    index.add(B, every[96:196])
    index.add(A, every[200:300])
    assert index.sharing(A) == index.sharing(B) == []


def test_a_file_of_images_of_many_data_sets_needs_a_decision(index):
    """It takes a few images of each, and all of its images are known."""
    ids = [f"{i:032x}" for i in range(25)]
    for i, dataset_id in enumerate(ids):
        index.add(dataset_id, digests(index, images(100, seed=i)))
    mixed = [digests(index, images(100, seed=i))[:4] for i in range(25)]
    with pytest.raises(ExtractError, match="100 of the 100 are in other data sets"):
        index.claim(np.concatenate(mixed))


def test_a_small_data_set_is_noticed_beside_a_large_one(index):
    """The large one shares more images, but fewer of its own."""
    large, small = images(1000), images(20, seed=1)
    index.add(A, digests(index, large))
    index.add(B, digests(index, small))
    new = [images(500, seed=2), large[:8], small[:4]]
    with pytest.raises(ExtractError, match=f"--dataset-id {B}"):
        index.claim(digests(index, np.concatenate(new)))
