"""The layout of what commands print."""

from dphead.cli.text import filled, releases_table, section, table

_SENTENCE = "dphead can fail to recognize fits on the same rows outside the id system. "
_COMMAND = "dphead fit features.h5 --split train --test-split test --epsilon 1 -o run"


def test_only_a_command_ends_its_lines_with_a_backslash():
    """All lines of a command can be copied; a sentence has other line ends."""
    assert "\\" not in section("Note", [_SENTENCE * 3])
    assert section("Next", [_COMMAND]).count(" \\\n") == 1
    copied = filled(_COMMAND, " " * 11).replace(" \\\n", " ")
    assert copied.split() == _COMMAND.split()


def test_a_name_adds_no_line_to_a_table():
    assert len(table(["class"], [["a\nProblems: none"]]).splitlines()) == 3


def test_a_table_of_releases_is_rounded_in_the_safe_direction():
    row = {"label": "a", "count": 1, "clip_norm": 1.0, "mu": 0.123456}
    row |= {"noise_multiplier": 1.23456789, "sampling_prob": 0.01000001}
    shown = releases_table([row], "").split("\n")[-1].split("│")
    assert [float(cell) for cell in shown[3:]] == [1.2345, 0.01001, 0.1235]
