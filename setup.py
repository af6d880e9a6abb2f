"""Add to a package its commit, and its README without links to files of the clone.

pyproject.toml has everything else.
"""

import re
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

COMMIT = run_path("dphead/fit/provenance.py")["commit"]()
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def record(folder: str) -> None:
    """Write the commit into the package below a folder, if the commit is known."""
    if COMMIT:
        (Path(folder) / "dphead" / "commit.txt").write_text(COMMIT)


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
    long_description=LINK.sub(r"\1", PICTURE.sub("", readme)),
    long_description_content_type="text/markdown",
)
