"""Predictions on a screen and in a file."""

import sys

from dphead.cli.predictions import write_predictions

ROWS = [{"row": 0, "class": "c\nProblems: none found", "probability": 1.0}]


def test_a_name_adds_no_line_to_a_screen_and_keeps_its_own_in_a_pipe(
    monkeypatch, capsys
):
    for on_screen, lines in ((True, 2), (False, 3)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=on_screen: shown)
        write_predictions(ROWS, None, "csv")
        assert len(capsys.readouterr().out.splitlines()) == lines
