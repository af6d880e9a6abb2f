"""Figures are drawn from a few fake rows."""

from benchmarks import figures


def size(path):
    from matplotlib.image import imread

    return imread(path).shape


def test_accuracy_against_epsilon(tmp_path):
    rows = [
        {"method": m, "epsilon": e, "accuracy": 0.8 + 0.01 * s}
        for m in ("dp-fc", "dp-ls")
        for e in (0.1, 1.0, float("inf"))
        for s in (0, 1)
    ]
    assert size(figures.accuracy(tmp_path / "a.png", rows, "tiny"))[1] > 500
