"""Plots: what is drawn are the numbers of the accountant; no picture is compared with
another.
"""

import numpy as np
import pytest

from benchmarks import plots
from dphead.analysis.tradeoff import REPORTED_RATES, gaussian_tradeoff
from dphead.privacy.accounting import GaussianEvent

pytest.importorskip("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def figures(monkeypatch):
    """Figures as they were saved."""
    saved = []
    save = plots.save_figure
    monkeypatch.setattr(
        plots,
        "save_figure",
        lambda figure, path: (saved.append(figure), save(figure, path)),
    )
    return saved


@pytest.mark.parametrize("sigma", [0.3, 4.0])
def test_the_tradeoff_curve_is_the_accountants(tmp_path, figures, sigma):
    plots.tradeoff_plot(
        tmp_path / "new" / "curve.png", [GaussianEvent(sigma)], title="a title"
    )
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(PNG)
    left, right = figures[0].axes
    x, y = left.lines[0].get_data()
    # 1e-15: the curve is taken from 1 twice
    np.testing.assert_allclose(y, gaussian_tradeoff(2 / sigma, x), atol=1e-15)
    x, y = right.lines[0].get_data()
    np.testing.assert_allclose(y, 1 - gaussian_tradeoff(2 / sigma, x))
    points = [line.get_data() for line in right.lines if line.get_marker() == "o"]
    assert [p[0][0] for p in points] == list(REPORTED_RATES)
    assert [t.get_text() for t in right.texts] == [
        f"{100 * p[1][0]:.3g} %" for p in points
    ]
    assert figures[0].get_suptitle() == "a title (an unused row is replaced by another)"
