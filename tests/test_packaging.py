"""What a wheel and an sdist hold."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = (
    "import sys; from setuptools import build_meta; "
    "getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An sdist and a wheel, built where the environment asks for fast math."""
    if not (ROOT / "MANIFEST.in").exists():
        pytest.skip("needs MANIFEST.in, which a clone has")
    folder = tmp_path_factory.mktemp("build")
    ignored = shutil.ignore_patterns(
        "__pycache__", ".*", "build", "site", "*.egg-info", "*.so"
    )
    shutil.copytree(ROOT, folder / "src", ignore=ignored)
    # as if git had told it
    (folder / "src" / "dphead" / "commit.txt").write_text("0123456789ab")
    env = {**os.environ, "CFLAGS": "-ffast-math -funsafe-math-optimizations"}
    for kind in ("sdist", "wheel"):
        command = [sys.executable, "-c", BUILD, kind, str(folder)]
        subprocess.run(
            command, cwd=folder / "src", env=env, capture_output=True, check=True
        )
    return folder


@pytest.fixture(scope="module")
def built(folder):
    """Names in the sdist, without its top folder, and in the wheel, whose metadata."""
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*-cp311-abi3-*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return names, set(archive.namelist()), archive.read(about).decode()


def test_the_wheel_has_two_packages_and_their_data(built):
    _, wheel, _ = built
    tops = {name.split("/")[0] for name in wheel if ".dist-info" not in name}
    assert tops == {"dphead", "dphead_extract"}
    for kind in (
        "dphead/analysis/card/templates/*.j2",
        "dphead/planning/presets/*.toml",
        "dphead/privacy/**/*.md",
    ):
        for path in ROOT.glob(kind):
            assert path.relative_to(ROOT).as_posix() in wheel
    assert "dphead/commit.txt" in wheel
    if shutil.which("cc"):
        assert "dphead/sums/kernels/plain.abi3.so" in wheel
    for path in ROOT.glob("dphead/sums/kernels/*.[ch]"):  # a library is of their digest
        assert path.relative_to(ROOT).as_posix() in wheel


def test_compiled_sums_leave_subnormal_numbers_as_they_are(folder):
    """gcc -ffast-math links code that flushes them to zero as a library is loaded."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder / "wheel", names)
    if not names:
        pytest.skip("needs a C compiler")
    code = (
        "import ctypes, sys; list(map(ctypes.CDLL, sys.argv[1:])); "
        "print(float('1e-308') / 4)"
    )
    paths = [str(folder / "wheel" / name) for name in names]
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 1e-308 / 4 > 0


def test_the_sdist_has_what_its_tests_need(built):
    sdist, _, _ = built
    for folder in ("tests", "benchmarks", "dphead", "extract"):
        for path in ROOT.glob(f"{folder}/**/*.[pch]*"):
            if path.suffix in (".py", ".c", ".h"):
                assert path.relative_to(ROOT).as_posix() in sdist
    for name in (
        "README.md",
        "docs/epsilon.md",
        "Dockerfile",
        "Makefile",
        "mkdocs.yml",
        "CITATION.cff",
        "dphead/commit.txt",
    ):
        assert name in sdist
    results = [name for name in sdist if name.startswith("benchmarks/results/")]
    assert all(name.endswith("/README.md") or "." not in name for name in results)


def test_what_a_package_index_shows_has_no_relative_link(built):
    *_, about = built
    assert "## From images to a head" in about
    links = re.findall(r"\]\(([^)]*)\)", about)
    assert links and all(link.startswith("https://") for link in links), links


def test_windows_is_refused_in_one_line():
    code = "import sys; sys.platform = 'win32'; import dphead"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.endswith(
        "dphead runs on Linux and macOS. On Windows, install it in WSL."
    )
