"""Every claimed number stands in its table's part of the paper's text, and no row is
missing.
"""

import re
from collections import Counter

import pytest
from papers import PAPERS, span

from benchmarks import claims

# rows as printed and claimed numbers, counted by hand
COUNTS = {
    (paper, table): (known["rows"], known["numbers"])
    for paper, of_paper in PAPERS.items()
    for table, known in of_paper["tables"].items()
    if "rows" in known
}


def tables(paper, table):
    return [t for t in claims.tables(paper)["table"] if t["table"] == table]


def numbers(text):
    """Numbers that stand alone: no part of a name, a year, a fraction or an
    exponent.
    """
    text = re.sub(r"\(?\b20\d\d[ab]?\)|\b\d+/\d+", " ", text)
    return re.findall(r"(?<![\w=.,-])\d+(?:[.,]\d+)*(?![\w]|\.\d)", text)


@pytest.mark.parametrize("paper, table", COUNTS)
def test_the_file_has_every_row_and_number(paper, table):
    rows = sum(len(claims.rows(t)) for t in tables(paper, table))
    assert (rows, sum(c.table == table for c in claims.load(paper))) == COUNTS[
        paper, table
    ]


def test_the_files_have_these_tables_and_no_other():
    assert {(c.paper, c.table) for c in claims.load()} == set(COUNTS)
    assert {p: claims.tables(p)["text"] for p in claims.PAPERS} == {
        paper: known["text"] for paper, known in PAPERS.items()
    }


@pytest.mark.parametrize("paper, table", COUNTS)
def test_every_claimed_number_stands_in_its_table(paper, table):
    """As often as it is claimed, a standard deviation too; an upper bound stands in the
    caption and as dashes.
    """
    found = [c for c in claims.load(paper) if c.table == table]
    text = span(paper, table)
    claimed = Counter(
        n.lstrip("+") for c in found if not c.at_most for n in (c.value, c.sd) if n
    )
    assert not claimed - Counter(numbers(text))
    if any("at_most" in t for t in tables(paper, table)):
        assert sum(c.at_most for c in found) == len(
            re.findall(r"(?<=[ \d])-(?= |\n)", text)
        )
        assert all(re.search(rf"≤\s{c.value}%", text) for c in found if c.at_most)


def test_damaged_numbers_are_marked_and_not_guessed():
    damaged = {
        (c.paper, c.table, c.value, c.epsilon) for c in claims.load() if c.unreadable
    }
    assert damaged == {
        ("TB21", "3", "988", "3"),
        ("TB21", "3", "887", "3"),
        ("TB21", "16", "", ""),
        ("De22", "5", "94.8", ""),
        ("De22", "11", "76.6", ""),
    }
