"""Where papers.toml says that each table of a paper stands in its text, for the tests
that look up what claims and presets say.
"""

import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "papers"
PAPERS = tomllib.loads(Path(__file__).with_name("papers.toml").read_text())


def text_of(paper: str) -> str:
    """Return a paper's text; skip the test where there are no texts."""
    if not FOLDER.is_dir():
        pytest.skip("needs ../shared/papers (the papers' texts) beside the repository")
    return (FOLDER / PAPERS[paper]["text"]).read_text()


def span(paper: str, table: str) -> str:
    """Return a table's part of its paper's text."""
    known = PAPERS[paper]["tables"][table]
    text, first, last = text_of(paper), known["first"], known["last"]
    assert text.count(first) == 1, (
        f"{paper} Table {table}: {first!r} must stand in the text once"
    )
    start = text.index(first)
    return text[start : text.index(last, start + len(first)) + len(last)]
