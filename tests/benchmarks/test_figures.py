"""Figures are drawn from a few fake rows."""

from benchmarks import figures, jobs


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


def test_the_noise_law(tmp_path):
    assert figures.noise_law(tmp_path / "n.png", n_rows=2000, powers=(10,)).exists()


def test_claims_beside_measurements_need_two_points(tmp_path):
    pairs = jobs.select("TB21/1/mnist")
    rows = [
        {"key": job.key, "accuracy": 0.97 + 0.001 * i}
        for i, (_, job) in enumerate(pairs)
    ]
    assert figures.claimed_and_measured(tmp_path / "c.png", rows[:1], "mnist") == []
    assert figures.claimed_and_measured(tmp_path / "c.png", rows, "mnist") == [
        tmp_path / "c.png"
    ]
