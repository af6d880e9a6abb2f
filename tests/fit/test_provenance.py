"""Which source made a run."""

import re
import subprocess

from dphead.fit.provenance import commit


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True)


def test_a_checkout_has_a_commit_that_says_when_files_were_changed(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    found = commit(tmp_path)
    assert found is not None and re.fullmatch("[0-9a-f]{12}", found)
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == found
    commit.cache_clear()  # as in another process
    assert commit(tmp_path) == f"{found}-dirty"


def test_what_is_no_checkout_or_has_no_commit_has_none(tmp_path):
    assert commit(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    commit.cache_clear()
    assert commit(tmp_path) is None


def test_an_installed_package_has_the_commit_of_its_build(tmp_path):
    (tmp_path / "dphead").mkdir()
    (tmp_path / "dphead" / "commit.txt").write_text("0123456789ab")
    assert commit(tmp_path) == "0123456789ab"


def test_a_machine_without_git_still_writes_a_report(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None
