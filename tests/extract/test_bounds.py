"""Files without an end, and texts without a bound, are refused."""

import os

import pytest
from dphead_extract.bounds import is_plain, read_text
from dphead_extract.errors import ExtractError
from dphead_extract.sources.classes import Classes, class_names
from dphead_extract.sources.opening import open_source


def test_only_a_file_with_an_end_is_plain(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert is_plain(tmp_path / "file")
    assert is_plain(tmp_path / "link")
    for name in ("pipe", "missing", ".", "/dev/zero", "a\0b", "x" * 5000):
        assert not is_plain(tmp_path / name)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_source_that_is_a_pipe_is_refused(kind, tmp_path):
    os.mkfifo(tmp_path / f"pipe.{kind}")
    with pytest.raises(ExtractError, match="is a pipe or a device"):
        open_source(tmp_path / f"pipe.{kind}", Classes(class_names("3")))


@pytest.mark.parametrize("name", ["data_batch_1.bin", "train-images-idx3-ubyte"])
def test_a_pipe_among_arrays_is_refused(name, tmp_path):
    os.mkfifo(tmp_path / name)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes(8))
    with pytest.raises(ExtractError, match="is a pipe or a device"):
        open_source(tmp_path, Classes(class_names("10")))


def test_images_that_are_pipes_count_as_missing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    os.mkfifo(tmp_path / "a" / "2.png")
    source = open_source(tmp_path, Classes(class_names("a,b")))
    assert [source.raw(row) for row in range(2)] == [b"", None]


def test_a_text_is_read_only_where_it_has_an_end_and_a_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(OSError, match="a pipe, a device or a folder"):
            read_text(path)
    text = tmp_path / "names"
    text.write_text("12345")
    assert read_text(text, 5) == "12345"
    with pytest.raises(OSError, match="5 bytes, more than 4"):
        read_text(text, 4)
