"""Names that others chose: on a terminal, in a spreadsheet, and read back."""

import io

import pytest
from dphead_extract.safe_text import one_line, printable, read_csv, write_csv
from hypothesis import given
from hypothesis import strategies as st

CELLS = st.text(alphabet="=+-@'; \t\r\nab,\"1.\uff1d") | st.text()


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1))
def test_cells_are_read_as_they_were_written(rows):
    text = io.StringIO(write_csv(rows), newline="")
    assert list(read_csv(text)) == rows


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(1)", "'@SUM(1)"),
        ("-cmd", "'-cmd"),
        ("+cmd", "'+cmd"),
        (" =1", "' =1"),
        ("'=1", "''=1"),
        ("a;=1", "a;'=1"),  # of a locale that separates cells by semicolons
        (';"=1', '";\'""=1"'),  # there, the first quote begins a quoted cell
        ("\uff1d1", "'\uff1d1"),
        ("-0.5", "-0.5"),
        (-0.5, "-0.5"),
        ("+1e5", "+1e5"),
        ("a=b-c", "a=b-c"),
        (None, ""),
    ],
)
def test_no_text_begins_a_formula_and_numbers_stay_numbers(cell, written):
    assert write_csv([["x", cell]]) == f"x,{written}\n"


def test_a_terminal_obeys_nothing_in_a_text():
    codes = [*range(32), *range(127, 160), 0x202E, 0x2066, 0xDC9B]
    for code in codes:
        shown = printable(f"a{chr(code)}b")
        assert shown.isprintable() or chr(code) in "\t\n"
        assert shown.isascii()
    for text in ("Käse 猫 🐈", "line\nline\tcolumn", "\udcff"):
        assert printable(text) == text


def test_a_name_of_one_line_adds_no_line():
    assert one_line("a\nProblems\tnone\x1b[2J") == "a\\x0aProblems\\x09none\\x1b[2J"
