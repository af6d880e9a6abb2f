"""Every claimed number stands in its table's part of the paper's text, and no row is
missing.
"""

import re
from collections import Counter

import pytest
from papers import TEXTS, span

from benchmarks import claims

# Rows as printed and claimed numbers, counted by hand.
COUNTS = {
    ("FC23", "1"): (27, 27 + 12),
    ("FC23", "2"): (16, 16 * 9),
    ("FC23", "3"): (24, 24 * 9),
    ("FC23", "4"): (24, 24 * 9),
    ("TB21", "1"): (13, 13 + 2 * 8),
    ("TB21", "2"): (3, 12),
    ("TB21", "3"): (3, 36),
    ("TB21", "11"): (3, 9),
    ("TB21", "16"): (0, 1),
    ("TB21", "19"): (3, 12),
    ("TB21", "20"): (2, 2),
    ("De22", "1"): (6, 4 * 4 + 2),
    ("De22", "2"): (6, 12),
    ("De22", "3"): (19, 19),
    ("De22", "4"): (2, 3),
    ("De22", "5"): (11, 3 + 8 * 2),
    ("De22", "6"): (2, 14),
    ("De22", "7"): (4, 8),
    ("De22", "9"): (8, 32),
    ("De22", "10"): (4, 4),
    ("De22", "11"): (10, 10),
    # an epsilon in each column of settings
    ("De22", "13"): (0, 6),
    ("De22", "14"): (0, 6),
    ("De22", "15"): (0, 1),
    ("De22", "16"): (0, 4),
    ("De22", "17"): (0, 4),
    ("De22", "18"): (0, 4),
    ("De22", "19"): (0, 4),
    ("De22", "20"): (0, 7),
    ("De22", "21"): (0, 5),
    ("De22", "22"): (0, 6),
    ("De22", "23"): (0, 2),
    ("TAN23", "1"): (4, 4),
    ("TAN23", "4"): (2, 4),
    ("TAN23", "5"): (4, 8),
    ("TAN23", "6"): (2, 6),
}


def tables(paper, table):
    return [t for t in claims.tables(paper)["table"] if t["table"] == table]


def numbers(text):
    """Numbers that stand alone: no part of a name, a year, a fraction or an
    exponent.
    """
    text = re.sub(r"\(?\b20\d\d[ab]?\)|\b\d+/\d+", " ", text)
    return re.findall(r"(?<![\w=.,-])\d+(?:[.,]\d+)*(?![\w]|\.\d)", text)


@pytest.mark.parametrize(("paper", "table"), COUNTS)
def test_the_file_has_every_row_and_number(paper, table):
    rows = sum(len(claims.rows(t)) for t in tables(paper, table))
    assert (rows, sum(c.table == table for c in claims.load(paper))) == COUNTS[
        paper, table
    ]


def test_the_files_have_these_tables_and_no_other():
    assert {(c.paper, c.table) for c in claims.load()} == set(COUNTS)
    assert {p: claims.tables(p)["text"] for p in claims.PAPERS} == TEXTS


@pytest.mark.parametrize(("paper", "table"), COUNTS)
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
