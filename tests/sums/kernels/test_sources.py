"""A library that was compiled from other C sources is not used."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dphead.fit.duration import missing_kernels
from dphead.sums import kernels
from dphead.sums.kernels import sources


@pytest.fixture
def library():
    """These tests compile their own."""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Compile the plain library beside a copy of the C sources, with any digest."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler named cc")
    for file in Path(sources.FOLDER).glob("*.[ch]"):
        shutil.copy(file, tmp_path)

    def built(digest, files="*.c"):
        command = ["cc", "-O0", "-shared", "-fPIC", f'-DSOURCES="{digest}"']
        command += ["-o", str(tmp_path / "plain.abi3.so")]
        command += [*map(str, tmp_path.glob(files)), "-lm"]
        subprocess.run(command, check=True)
        monkeypatch.setattr(sources, "FOLDER", tmp_path)
        monkeypatch.setattr(kernels, "library", next(kernels.libraries(), None))
        return tmp_path

    return built


def test_hidden_files_and_folders_are_no_sources(tmp_path, monkeypatch):
    """Emacs locks an edited file by a link to nowhere."""
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    (tmp_path / "rows.c").write_text("int one;")
    digest = sources.digest()
    (tmp_path / ".#rows.c").symlink_to("user@host.1")
    (tmp_path / "old.c").mkdir()
    assert sources.files() == [tmp_path / "rows.c"]
    assert sources.digest() == digest


def test_a_library_of_these_sources_is_used(build):
    folder = build(sources.digest())
    assert kernels.library is not None and str(folder) in kernels.library._name
    assert missing_kernels(3600.0) == ""


@pytest.mark.parametrize("files", ["*.c", "processor.c"])
def test_a_library_of_other_sources_or_functions_is_not_used(build, files):
    """A change of an argument cannot be seen in a library, a missing function can."""
    digest = "0" * 16 if files == "*.c" else sources.digest()
    build(digest, files)
    assert kernels.library is None
    assert "type `pip install --no-deps .`" in missing_kernels(3600.0)


def test_edited_or_missing_sources_need_a_new_library(build):
    folder = build(sources.digest())
    (folder / "kernels.h").write_text("/* other arguments */")
    assert next(kernels.libraries(), None) is None
    for file in folder.glob("*.[ch]"):
        file.unlink()
    assert next(kernels.libraries(), None) is None
