"""Add to a package its compiled sums, its commit, and its README without local links.

pyproject.toml has everything else.
"""

import platform
import re
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

COMMIT = run_path("dphead/fit/provenance.py")["commit"]()
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def record(folder: str) -> None:
    """Write the commit into the package below a folder, if the commit is known."""
    if COMMIT:
        (Path(folder) / "dphead" / "commit.txt").write_text(COMMIT)


SOURCES = run_path("dphead/sums/kernels/sources.py")
FLAGS, DIGEST = SOURCES["FLAGS"], SOURCES["digest"]()
C_FILES = [str(file) for file in SOURCES["files"]() if file.suffix == ".c"]
AVX512 = ["-mavx512bw", "-mavx512dq", "-mavx512vl"]
# One library for each instruction set; processor.c names the best one.
INSTRUCTION_SETS = {"plain": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS |= {
        "avx2": ["-mavx2"],
        "avx512": AVX512,
        "avx512vnni": [*AVX512, "-mavx512vnni"],
    }


def extension(name: str, flags: list[str]) -> Extension:
    """Return the library of an instruction set.

    It does not use Python's headers. Without a C compiler, the installation has no
    libraries, and numpy computes all sums.
    """
    return Extension(
        f"dphead.sums.kernels.{name}",
        C_FILES,
        define_macros=[("SOURCES", f'"{DIGEST}"')],
        extra_compile_args=FLAGS + flags,
        # gcc -ffast-math links code that flushes subnormal numbers to zero
        extra_link_args=FLAGS,
        libraries=["m"],
        py_limited_api=True,
        optional=True,
    )


class Build(build_py):
    """Build the package with its commit."""

    def run(self) -> None:
        """Build, then record the commit. An editable installation asks git."""
        super().run()
        if not self.editable_mode:
            record(self.build_lib)


class Release(sdist):
    """Make the sdist with its commit."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        """Copy the files, then record the commit."""
        super().make_release_tree(base_dir, files)
        record(base_dir)


readme = Path("README.md").read_text("utf-8")
setup(
    cmdclass={"build_py": Build, "sdist": Release},
    ext_modules=[extension(*item) for item in INSTRUCTION_SETS.items()],
    options={
        # one wheel for all versions of Python
        "bdist_wheel": {"py_limited_api": "cp311"},
        # dates of files do not tell whether a library has the digest
        "build_ext": {"force": True},
    },
    long_description=LINK.sub(r"\1", PICTURE.sub("", readme)),
    long_description_content_type="text/markdown",
)
