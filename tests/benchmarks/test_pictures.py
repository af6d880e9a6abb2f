"""Pictures of what commands print."""

import re
from pathlib import Path

import pytest
from commands import every_command

from benchmarks import pictures

ROOT = Path(__file__).parents[2]


def test_a_command_is_typed_in_a_terminal_of_a_known_width(tmp_path):
    typed = "dphead ledger show missing.h5"
    code, text = pictures.in_terminal(typed, tmp_path, tmp_path / "home", 80)
    assert code == 2 and text.startswith("Error: "), text
    code, text = pictures.in_terminal("dphead --help", tmp_path, tmp_path / "home", 60)
    assert code == 0 and 40 < pictures.widest(text) <= 60


def test_colours_have_no_width():
    assert pictures.widest("a\n\x1b[1;32mfour\x1b[0m\n") == 4
    assert pictures.widest("") == 0


def test_a_picture_has_the_command_and_its_text_and_asks_nobody_for_a_font(tmp_path):
    path = pictures.draw(tmp_path, "check", "Data\u00a0set \x1b[1mepsilon\x1b[0m\n")
    text = path.read_text()
    for word in ("dphead", "check", "run", "epsilon"):
        assert word in text
    assert "url(h" not in text and 'url("h' not in text and "@font-face" not in text
    # the same text gives the same picture
    again = pictures.draw(tmp_path, "check", "Data\u00a0set \x1b[1mepsilon\x1b[0m\n")
    assert again.read_text() == text


@pytest.mark.parametrize("words", every_command())
def test_every_command_of_the_command_line_has_a_picture(words):
    """And so a place on the page, as the next test says."""
    typed = pictures.COMMANDS.values()
    assert any(line.startswith(f"dphead {words} ") for line in typed)


@pytest.mark.parametrize("name", pictures.COMMANDS)
def test_the_page_shows_every_command_and_the_picture_is_of_it(name):
    page = (ROOT / "docs/tour.md").read_text()
    assert f"(pictures/commands/{name}.svg)" in page
    picture = (ROOT / pictures.OUT / f"{name}.svg").read_text()
    shown = re.sub(r"<[^>]*>", " ", picture).replace("&#160;", " ")
    for word in pictures.COMMANDS[name].split()[:3]:
        assert word in shown
    assert "/tmp" not in shown and "/root" not in shown
