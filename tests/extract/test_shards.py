"""Shards of an extraction, and joining them."""

import errno
import shutil
import stat
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import dphead, fitted, refused
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.disk import write_names
from dphead_extract.run import extract
from dphead_extract.shards import Shard, join_shards, shared_identifiers
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.image import Source
from hypothesis import given
from hypothesis import strategies as st
from pictures import drawn, pack

from tests.extract.test_run import options


@pytest.fixture(scope="module")
def shards(tmp_path_factory, digits) -> Path:
    """A folder with 300 digits and their two shards (of five blocks of 64 rows: two and
    three).
    """
    folder = tmp_path_factory.mktemp("shards")
    images, labels = digits
    group = np.arange(300) % 7
    np.savez(
        folder / "digits.npz",
        images=images[:300],
        labels=labels[:300],
        group=group,
        split=np.arange(300) // 200,
    )
    for index in range(2):
        extract(options(folder / "digits.npz", folder / "f.h5", shard=Shard(index, 2)))
    return folder


@pytest.fixture
def copy(shards, tmp_path) -> Path:
    """The same folder, to be changed."""
    return Path(shutil.copytree(shards, tmp_path / "copy"))


def paths(folder, name="f.h5", count=2):
    return [Shard(index, count).path(folder / name) for index in range(count)]


def join_all(folder):
    join_shards(paths(folder), folder / "f.h5")


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 12))
def test_shards_are_whole_blocks_that_cover_all_rows(n_rows, block_rows, count):
    if -(-n_rows // block_rows) < count:
        with pytest.raises(ExtractError, match="needs at least one block"):
            Shard(0, count).rows(n_rows, block_rows)
        return
    ranges = [Shard(index, count).rows(n_rows, block_rows) for index in range(count)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == n_rows
    for before, after in pairwise(ranges):
        assert before[1] == after[0]
        assert after[0] % block_rows == 0
    assert all(start < stop for start, stop in ranges)


def test_joined_shards_are_the_file_of_one_process(copy):
    join_shards(paths(copy)[::-1], copy / "f.h5")
    # the same id and salt
    one = options(copy / "digits.npz", copy / "one.h5", same_data_as=copy / "f.h5")
    extract(one)
    assert (copy / "f.h5").read_bytes() == (copy / "one.h5").read_bytes()
    assert (copy / "f.h5.names.csv").read_text() == (
        copy / "one.h5.names.csv"
    ).read_text()
    assert stat.S_IMODE((copy / "f.h5.names.csv").stat().st_mode) == 0o600
    assert stat.S_IMODE((copy / "f.h5.shards.json").stat().st_mode) == 0o600
    one.output = copy / "f.h5"
    assert extract(one).already_complete


def test_a_shard_looks_at_its_own_images_only(tmp_path, monkeypatch):
    """Else every process would decode all images; size and channels are declared."""
    pack(tmp_path, {f"{i:02}.png": drawn(i) for i in range(20)})
    seen, raw = [], Source.raw

    def watched(source, row):
        seen.append(source.first + row)
        return raw(source, row)

    monkeypatch.setattr(Source, "raw", watched)
    choice = {"block_rows": 5, "batch_size": 5, "classes": Classes(ignore_labels=True)}
    given = options(tmp_path, tmp_path / "f.h5", shard=Shard(1, 2), **choice)
    given.backbone.image_size = 8
    extract(given)
    assert set(seen) == set(range(10, 20))


def test_shards_of_other_networks_images_or_ids_are_refused(copy):
    first, second = paths(copy)

    def shard(folder="."):
        return options(copy / "digits.npz", copy / folder / "f.h5", shard=Shard(1, 2))

    second.unlink()
    network = shard()
    network.backbone.settings["scatter_l"] = 4
    extract(network)
    with pytest.raises(
        FormatError, match=r"differ in backbone_kwargs\.scatter_l: 8 and 4"
    ):
        join_all(copy)
    (copy / "other").mkdir()  # another machine that was not given f.h5.shards.json
    extract(shard("other"))
    with pytest.raises(FormatError, match="differ in dataset_id"):
        join_shards([first, *paths(copy / "other")[1:]], copy / "f.h5")
    arrays = dict(np.load(copy / "digits.npz"))
    arrays["images"][0, 0, 0] += 1
    np.savez(copy / "digits.npz", **arrays)
    with pytest.raises(ExtractError, match="belongs to other images"):
        extract(shard())


def test_whole_and_damaged_files_are_refused(copy):
    first, second = paths(copy)
    join_all(copy)
    with pytest.raises(FormatError, match="is a whole features file"):
        join_shards([first, second, copy / "f.h5"], copy / "g.h5")
    with h5py.File(second, "r+") as file:
        file["features"][70, 3] += 1  # its second block
    with pytest.raises(
        FormatError, match=r"shard-1-of-2\.h5' is damaged from row 64 on"
    ):
        join_shards([first, second], copy / "g.h5")
    assert not (copy / "g.h5").exists()
    second.unlink()
    # the salt is still the same
    extract(options(copy / "digits.npz", copy / "f.h5", shard=Shard(1, 2)))
    join_shards([first, second], copy / "g.h5")
    assert (copy / "f.h5").read_bytes() == (copy / "g.h5").read_bytes()


def test_a_disk_without_hard_links_or_rights_is_named(tmp_path, monkeypatch):
    """As that of a FAT stick."""

    def none(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", none)
    monkeypatch.setattr("os.fchmod", none)
    with pytest.raises(ExtractError, match=r"hard links for -o"):
        shared_identifiers(tmp_path / "f.h5", "digest", None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ExtractError, match=r"owner only .* access rights"):
        write_names(tmp_path / "f.h5", ["one"])


def test_identifiers_are_drawn_once(tmp_path):
    drawn = shared_identifiers(tmp_path / "new" / "f.h5", "digest", None)
    assert shared_identifiers(tmp_path / "new" / "f.h5", "digest", None) == drawn
    assert shared_identifiers(tmp_path / "new" / "f.h5", "digest", drawn[0]) == drawn
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["f.h5.shards.json"]
    assert shared_identifiers(tmp_path / "g.h5", "digest", "ab" * 16)[0] == "ab" * 16
    with pytest.raises(ExtractError, match=r"a data set other than abab"):
        shared_identifiers(tmp_path / "new" / "f.h5", "digest", "ab" * 16)


def test_torchrun_fills_in_the_shard(monkeypatch):
    assert Shard.of_process() == Shard(0, 1)
    assert Shard.parse("3/8") == Shard(3, 8)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Shard.of_process() == Shard(1, 4)


def test_each_process_of_a_host_has_its_own_gpu(monkeypatch):
    import torch
    from dphead_extract.run import choose_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda:1")
    assert choose_device("cpu").type == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ExtractError, match="got local rank 2 and 2 GPUs"):
        choose_device("cuda")


COMMAND = ("--backbone", "scatternet", "--scatter-j", "1", "--classes", "10")
COMMAND += ("--block-rows", "64")


def test_command_line(copy):
    out = copy / "cli.h5"
    for index in range(2):
        shard = ("--shard", f"{index}/2")
        done = fitted("extract", copy / "digits.npz", "-o", out, *COMMAND, *shard)
    assert f"dphead features join {copy}/cli.shard-*-of-2.h5 -o {out}" in done.out
    parts = paths(copy, "cli.h5")
    missing = dphead("features", "join", parts[0], "-o", out)
    assert "the shards 0 to 1 once, got the shards 0." in refused(missing)
    joined = fitted("features", "join", *parts, "-o", out).out
    assert "300 rows x 144 features of 2 shards" in joined
