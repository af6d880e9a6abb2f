"""Files that are whole, or as they were before."""

import errno
import fcntl
import os
import stat

import pytest

from dphead.privacy.atomic_write import (
    lock_file,
    write_atomically,
    write_folder,
    write_text,
)


def full(_):
    raise OSError(28, "No space left on device")


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("before")
    with pytest.raises(
        OSError, match=rf"{path} could not be written completely \(No space"
    ):
        write_atomically(path, full)
    assert [p.name for p in tmp_path.iterdir()] == ["f.csv"]
    assert path.read_text() == "before"


def test_a_file_that_is_replaced_keeps_its_rights_and_its_link(tmp_path):
    there = tmp_path / "there.csv"
    there.touch()
    there.chmod(0o600)
    link = tmp_path / "link.csv"
    link.symlink_to(there)
    write_text(link, "new")
    assert link.is_symlink()
    assert there.read_text() == "new"
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


def test_a_device_is_written_as_it_is_and_says_when_it_is_full(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full_device = tmp_path / "full"
    full_device.symlink_to("/dev/full")
    with pytest.raises(
        OSError, match=rf"{full_device} could not be written completely \(No space"
    ):
        write_text(full_device, "text")


def test_a_name_of_a_file_that_is_no_utf8_keeps_its_bytes(tmp_path):
    write_text(tmp_path / "names.csv", os.fsdecode(b"a\xff.png"))
    assert (tmp_path / "names.csv").read_bytes() == b"a\xff.png"


def test_a_folder_is_whole_or_not_there(tmp_path):
    out = tmp_path / "a" / "out"

    def half(folder):
        (folder / "one").write_text("1")
        full(None)

    with pytest.raises(
        OSError, match=rf"{out} could not be written completely \(No space"
    ):
        write_folder(out, half)
    assert list(out.parent.iterdir()) == []
    write_folder(out, lambda folder: (folder / "one").write_text("1"))
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "one").stat().st_mode) == 0o644


def test_an_interruption_leaves_what_was_there(tmp_path):
    path = tmp_path / "f.csv"

    def interrupted(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_taken_leaves_the_file_to_its_holder(
    tmp_path, monkeypatch
):
    """flock may fail for a moment, while another process holds the file."""

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with lock_file(tmp_path / "lock") as held:
        monkeypatch.setattr(fcntl, "flock", none)
        with pytest.raises(OSError, match=r"has no locks .*No locks available"):
            lock_file(tmp_path / "lock")
        monkeypatch.undo()
        assert os.path.samestat(os.fstat(held.fileno()), os.stat(tmp_path / "lock"))
        assert lock_file(tmp_path / "lock") is None
