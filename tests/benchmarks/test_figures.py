"""Pictures show the papers' numbers and the stored rows."""

from statistics import mean

import numpy as np

from benchmarks import claims, figures, jobs
from benchmarks.plots import new_figure


def test_a_panel_has_the_printed_numbers_and_ours():
    found = [
        c
        for c in claims.load("FC23")
        if c.row == "ImageNet-1K | DP-Adam | 10" and c.table == "4"
    ]
    (first, *_) = (jobs.small(c) for c in found if c.epsilon == "0.01")
    rows = {first.key: [{"accuracy": 0.25}, {"accuracy": 0.35}]}
    _, (axes,) = new_figure(1, (4, 3))
    figures.beside(axes, found, rows)
    printed, ours = (line.get_ydata() for line in axes.get_lines())
    # the table prints "at most 20" at 0.01, which is no number
    assert np.isnan(printed[0]) and printed[1] == 20.0 and printed[-1] == 56.3
    assert ours[0] == mean([100 * 0.25, 100 * 0.35]) and np.isnan(ours[1:]).all()
