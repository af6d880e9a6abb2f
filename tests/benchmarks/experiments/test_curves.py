"""Accuracy and epsilon after each epoch, on a few fake rows."""

from benchmarks.experiments import curves
from benchmarks.jobs import Job


def test_a_curve_ends_where_the_budget_does(tiny, monkeypatch):
    monkeypatch.setattr(curves, "SETTINGS", {"batch_size": 128, "epochs": 4})
    wanted = [
        Job(
            "mnist",
            "scatternet",
            "dp-sgd",
            e,
            preset="tb21",
            clip_only=e == float("inf"),
            settings={"batch_size": 128, "epochs": 4, "base_learning_rate": 1.0},
        )
        for e in (3.0, float("inf"))
    ]
    private, clipped = curves.curves(wanted)
    epochs, accuracies, pld, rdp = zip(*private["points"], strict=True)
    assert epochs == (1, 2, 3)
    assert list(pld) == sorted(pld)
    assert pld[-1] < 3
    assert rdp[-1] > pld[-1]
    assert clipped["points"][-1][2:] == [None, None]
    assert clipped["points"][-1][1] > 0.8
    assert min(accuracies) >= 0
