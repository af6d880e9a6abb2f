"""Plots: what is drawn are the numbers of the accountant; no picture is compared with
another.
"""

import sys

import numpy as np
import pytest

from benchmarks.accounting import TB21_CIFAR10
from dphead.analysis import plots
from dphead.analysis.iteration import iteration_epsilon
from dphead.analysis.tradeoff import REPORTED_RATES, gaussian_tradeoff
from dphead.planning.calibration import epsilon_by
from dphead.privacy.accounting import GaussianEvent, epsilon

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


@pytest.mark.parametrize("sigma", [0.3, 4.0, 100.0])
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
    assert (
        figures[0].get_suptitle() == "a title (an unused row has another in its place)"
    )


def test_the_accuracy_curve_has_each_budgets_mean_range_and_the_ceiling(
    tmp_path, figures
):
    draws = [(0.5, 0.7), (0.9, 0.8)]
    plots.accuracy_plot(tmp_path / "curve.png", [1.0, 4.0], draws, 0.95, "a title")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)
    (axes,) = figures[0].axes
    means, ceiling = axes.lines
    np.testing.assert_allclose(means.get_xydata(), [[1, 60], [4, 85]])
    np.testing.assert_allclose(ceiling.get_ydata(), 95)
    corners = axes.collections[0].get_paths()[0].vertices
    assert {(1, 50), (1, 70), (4, 80), (4, 90)} <= set(map(tuple, corners.round(9)))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4"]
    assert axes.get_title() == "a title"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_sampled_batches_and_other_formats(tmp_path, ending):
    plots.tradeoff_plot(
        tmp_path / f"curve.{ending}", [GaussianEvent(2.0, 0.1, 3)], "add_remove"
    )
    assert (tmp_path / f"curve.{ending}").stat().st_size > 1000


def test_figure_9_has_the_noise_that_meets_each_epsilon(tmp_path, figures):
    """TB21: below epsilon = 40 DP-SGD needs less noise, above it more. 98 batches: 1 %
    of the rows is no whole one.
    """
    noise = plots.figure9(tmp_path / "figure9.png", [3.0, 50.0])
    ours = noise["DP-SGD"]
    theirs = noise["amplification by iteration, every row"]
    assert ours[0] < theirs[0]
    assert ours[1] > theirs[1]
    assert noise["epsilon"] == [3.0, 50.0]
    for i, eps in enumerate(noise["epsilon"]):
        events = [GaussianEvent(ours[i], 512 / 50_000, 977)]
        assert epsilon(events, 1e-5, accountant="rdp") == pytest.approx(eps, rel=1e-5)
        found = iteration_epsilon(theirs[i], 98, 10, 1e-5)
        assert found.epsilon == pytest.approx(eps, rel=1e-5)
        assert found.covered == 1
    drawn = [list(line.get_ydata()) for line in figures[0].axes[0].lines]
    assert drawn == [ours, theirs]


def test_figure_9_names_the_rows_that_are_covered(tmp_path, monkeypatch):
    # DP-SGD's noise is not looked at
    monkeypatch.setattr(plots, "calibrate", lambda *_, **__: 1.0)
    noise = plots.figure9(
        tmp_path / "figure9.svg", [30.0, 40.0], batch_size=100, n_rows=20_000, epochs=1
    )
    assert list(noise)[2] == "amplification by iteration, 99 % of rows"


def test_the_stored_curve_is_tb21s_row():
    assert epsilon_by("rdp-classic", TB21_CIFAR10, 1e-5) == pytest.approx(
        2.997, abs=1e-3
    )


def test_what_cannot_be_drawn_is_refused_before_it_is_computed(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a plot must be one of"):
        plots.tradeoff_plot(tmp_path / "curve.h5", [GaussianEvent(1.0)])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        ImportError, match=r"plots must have matplotlib, got none\. Install it"
    ):
        plots.tradeoff_plot(tmp_path / "curve.png", [GaussianEvent(1.0)])
    assert list(tmp_path.iterdir()) == []
