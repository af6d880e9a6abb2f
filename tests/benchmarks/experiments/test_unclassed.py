"""What DPPCA and DPRegressor are measured by, and what is missing of it."""

import json
import sys

import numpy as np
import pytest

from benchmarks.experiments import unclassed
from benchmarks.experiments.unclassed_peer import N_COMPONENTS, TASKS, Task


class Held:
    """A model with given components."""

    def __init__(self, components):
        self.components_ = np.asarray(components)


def test_the_best_components_hold_all_and_others_less():
    x = np.random.default_rng(0).normal(size=(500, 6)) * [
        6,
        5,
        4,
        3,
        2,
        1,
    ]
    task = Task(x, 1.0, (0.0, 1.0))
    _, _, best = np.linalg.svd(x - x.mean(axis=0))
    assert task.score(Held(best[:N_COMPONENTS])) == pytest.approx(1.0)
    # any basis of the same space, also one that is not orthogonal
    mixed = np.triu(np.ones((N_COMPONENTS, N_COMPONENTS))) @ best[:N_COMPONENTS]
    assert task.score(Held(mixed)) == pytest.approx(1.0)
    assert task.score(Held(best[-N_COMPONENTS:])) < 0.5


@pytest.mark.parametrize("name", TASKS)
def test_public_numbers_of_a_task_are_those_of_its_rows(name):
    task = TASKS[name]()
    norms = np.linalg.norm(
        task.x,
        axis=1,
    )
    assert np.quantile(norms, 0.9) <= task.row_norm
    assert np.quantile(
        np.abs(task.x),
        0.999,
    ) <= max(np.abs(task.entries))
    if task.y is not None:
        assert task.bounds[0] <= task.y.min() and task.y.max() <= task.bounds[1]


def test_what_is_missing_is_run_and_rendered(tmp_path, monkeypatch):
    """A peer is any Python that prints as many scores, if there is such a model."""
    monkeypatch.setattr(unclassed, "OUT", tmp_path / "unclassed")
    monkeypatch.setattr(unclassed, "EPSILONS", (8.0,))
    monkeypatch.setattr(unclassed, "DRAWS", 2)
    monkeypatch.setattr(
        unclassed,
        "TASKS",
        {"diabetes": TASKS["diabetes"]},
    )
    unclassed.run(None)
    assert len(unclassed.read(unclassed.OUT / "rows.jsonl")) == 2
    stub = tmp_path / "unclassed_peer.py"
    stub.write_text(f"def tell(*_):\n    print({json.dumps([0.25, 0.75])!r})\n")
    monkeypatch.setattr(unclassed.unclassed_peer, "__file__", str(stub))
    unclassed.run(sys.executable)
    unclassed.run(sys.executable)
    assert len(unclassed.read(unclassed.OUT / "rows.jsonl")) == 3
    (readme,) = unclassed.write()
    assert "| diabetes | diffprivlib | 0.500 ± 0.354 |" in readme.read_text()
