"""Files that are whole, or as they were before."""

import errno
import fcntl
import os
import stat

import pytest

from dphead.privacy import atomic_write
from dphead.privacy.atomic_write import (
    ForeignFile,
    lock_file,
    names_before_links,
    own_folder,
    write_atomically,
    write_folder,
    write_text,
)

VICTIM = b"another program's file"
# what whoever may write to a folder can put in the place of dphead's own file
PLANTED = {
    "link": lambda name, victim: name.symlink_to(victim),
    "dangling link": lambda name, victim: name.symlink_to(victim.with_name("missing")),
    "link to a folder": lambda name, victim: name.symlink_to(victim.parent),
    "second name": lambda name, victim: name.hardlink_to(victim),
    "pipe": lambda name, victim: os.mkfifo(name),
}


def planted(tmp_path, kind, name):
    """Plant something under a name, and return it and the victim's folder."""
    victim = tmp_path / "elsewhere" / "victim"
    victim.parent.mkdir()
    victim.write_bytes(VICTIM)
    name = tmp_path / name
    PLANTED[kind](name, victim)
    return name, victim.parent


def unharmed(elsewhere):
    return {p.name: p.read_bytes() for p in elsewhere.iterdir()} == {"victim": VICTIM}


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
    write_text(link, "new", typed=True)
    assert link.is_symlink()
    assert there.read_text() == "new"
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


def test_a_device_is_written_as_it_is_and_says_when_it_is_full(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text", typed=True)
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full_device = tmp_path / "full"
    full_device.symlink_to("/dev/full")
    with pytest.raises(
        OSError, match=rf"{full_device} could not be written completely \(No space"
    ):
        write_text(full_device, "text", typed=True)


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


@pytest.mark.parametrize("name", ["f.json", "f.json.part"])
@pytest.mark.parametrize("kind", PLANTED)
def test_what_lies_in_the_place_of_a_file_is_replaced_and_never_written(
    tmp_path, kind, name
):
    _, elsewhere = planted(tmp_path, kind, name)
    write_text(path := tmp_path / "f.json", "new")
    assert unharmed(elsewhere)
    assert {p.name for p in tmp_path.iterdir()} == {"f.json", "elsewhere"}
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.read_text() == "new"
    assert path.stat().st_nlink == 1


def test_a_partial_file_that_appears_at_the_last_moment_is_not_written(
    tmp_path, monkeypatch
):
    """Another process may plant a link after the old partial file was removed."""
    own = atomic_write.open_own

    def late(path, *given):
        PLANTED["link"](path, tmp_path / "elsewhere" / "victim")
        return own(path, *given)

    _, elsewhere = planted(tmp_path, "dangling link", "unused")
    monkeypatch.setattr(atomic_write, "open_own", late)
    with pytest.raises(ForeignFile, match=r"f.json.part is a link"):
        write_text(tmp_path / "f.json", "new")
    assert unharmed(elsewhere)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_lock_is_never_another_file(tmp_path, kind):
    name, elsewhere = planted(tmp_path, kind, "lock")
    if kind == "second name":  # a backup may have one; a lock writes nothing
        lock_file(name).close()
    else:
        with pytest.raises(ForeignFile, match=f"{name} is a link, a pipe"):
            lock_file(name)
    assert unharmed(elsewhere)


@pytest.mark.parametrize("kind", PLANTED)
def test_an_own_folder_is_never_another_one(tmp_path, kind):
    name, elsewhere = planted(tmp_path, kind, "releases")
    with pytest.raises(ForeignFile, match=f"{name} is a link, a pipe"):
        own_folder(name)
    assert unharmed(elsewhere)


def test_a_typed_link_of_another_user_is_refused(tmp_path, monkeypatch):
    """Anybody can put a link into /tmp."""
    link, elsewhere = planted(tmp_path, "link", "f.csv")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    owner = os.lstat(link).st_uid
    if owner == 0:  # links of root, such as /dev/stdout, are trusted
        os.chown(link, 1234, -1, follow_symlinks=False)
    with pytest.raises(OSError, match=r"of another user.*path of the file itself"):
        write_text(link, "new", typed=True)
    assert unharmed(elsewhere)


def test_a_path_has_a_name_before_each_link(tmp_path, monkeypatch):
    """Each name leads to one file, and the names are those that the system walks."""
    (tmp_path / "a/2026").mkdir(parents=True)
    (tmp_path / "a/now").symlink_to("2026")
    (tmp_path / "data").symlink_to(tmp_path / "a")
    (tmp_path / "a/2026/one").symlink_to("../2026/./two")
    (tmp_path / "a/2026/two").touch()
    monkeypatch.chdir(tmp_path / "a")
    names = ["data/now/one", "a/now/one", "a/2026/one"]
    found = names_before_links("../data/now/../now//one")
    # `now/..` is the folder of the target, and without the link the folder above it
    assert found == tuple(f"{tmp_path}/{one}" for one in (*names[:2], *names[1:]))
    for path in (tmp_path / "data/now/one", "now/one", "2026/one", "2026/two"):
        assert {os.path.realpath(one) for one in names_before_links(path)} <= {
            f"{tmp_path}/a/2026/two"
        }
    assert names_before_links("now/one") == tuple(f"{tmp_path}/{n}" for n in names[1:])
    assert names_before_links("2026/two") == names_before_links("none/x") == ()
    (tmp_path / "loop").symlink_to("loop")
    assert {*names_before_links(tmp_path / "loop")} == {f"{tmp_path}/loop"}
