"""Labelled paragraphs at 80 columns."""

from hypothesis import given
from hypothesis import strategies as st

from dphead.cli.text import INDENT, WIDTH, section

WORD = st.text("abcdefghij-/.", min_size=1, max_size=WIDTH - INDENT)


@given(st.lists(WORD, min_size=1, max_size=60))
def test_no_line_is_wider_than_the_page_and_no_word_is_broken(words):
    text = section("Label", [" ".join(words)])
    assert text.split() == ["Label", *words]
    assert all(len(line) <= WIDTH for line in text.splitlines())


def test_a_mark_stands_in_the_margin_and_a_command_on_one_line():
    command = f"dphead predict {'folder/' * 20} -o out.csv"
    lines = section("Next", ["first", "! a warning", command]).splitlines()
    assert lines[0] == "Next       first"
    assert lines[1] == "         ! a warning"
    assert lines[2] == " " * INDENT + command
