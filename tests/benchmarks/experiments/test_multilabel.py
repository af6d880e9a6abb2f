"""Multi-label heads beside one regression a label: the tasks, the peer, the table."""

import json
import sys

import numpy as np
import pytest

from benchmarks.experiments import multilabel
from benchmarks.experiments.multilabel_peer import TASKS, Task, without_privacy


class Given:
    """A model with these scores, of rows for tests."""

    def __init__(self, scores):
        self.scores = np.asarray(scores, float)

    def predict(self, x):
        return (self.scores > 0).astype(int)

    def decision_function(self, x):
        return self.scores


def test_scores_are_of_rows_that_were_not_fitted():
    y = np.array(
        [
            [1, 0],
            [9, 9],
            [9, 9],
            [9, 9],
            [1, 1],
            [9, 9],
            [9, 9],
            [9, 9],
        ]
    )
    task = Task(np.zeros((8, 3)), y)
    assert task.split(test=True)[1].tolist() == [[1, 0], [1, 1]]
    assert (task.split(test=False)[1] == 9).all()
    assert task.score(Given([[1, -1], [1, 1]])) == [1.0, 1.0, 1.0]
    # one label of one row is missed: half of the rows; a label without its only one
    accuracy, f1, precision = task.score(Given([[1, -1], [1, -2]]))
    assert (accuracy, f1, precision) == (0.5, 0.5, 0.75)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_of_several_labels_and_unit_rows(name):
    task = TASKS[name]()
    np.testing.assert_allclose(np.linalg.norm(task.x, axis=1), 1.0)
    assert task.y.shape[1] >= 4 and set(np.unique(task.y)) == {0, 1}
    counts = task.y.sum(axis=1)
    assert (counts > 1).mean() > 0.1 and (counts == 0).any()
    again = TASKS[name]()
    assert np.array_equal(task.x, again.x) and np.array_equal(task.y, again.y)


def test_what_is_missing_is_run_and_rendered(tmp_path, monkeypatch):
    """The peer is any Python that prints as many scores."""
    monkeypatch.setattr(
        multilabel,
        "OUT",
        tmp_path / "multilabel",
    )
    monkeypatch.setattr(
        multilabel,
        "EPSILONS",
        (8.0,),
    )
    monkeypatch.setattr(
        multilabel,
        "DRAWS",
        2,
    )
    monkeypatch.setattr(
        multilabel,
        "TASKS",
        {"digits": TASKS["digits"]},
    )
    multilabel.run(None)
    rows = multilabel.read(multilabel.OUT / "rows.jsonl")
    assert len(rows) == len(multilabel.OURS) + 1
    plain = next(row for row in rows if row["model"] == multilabel.PLAIN)
    task = TASKS["digits"]()
    assert plain["scores"] == [task.score(without_privacy(task))]
    stub = tmp_path / "multilabel_peer.py"
    scores = json.dumps([[0.25, 0.5, 0.75], [0.75, 0.5, 0.25]])
    stub.write_text(f"def tell(*_):\n    print({scores!r})\n")
    monkeypatch.setattr(
        multilabel.multilabel_peer,
        "__file__",
        str(stub),
    )
    multilabel.run(sys.executable)
    multilabel.run(sys.executable)
    assert len(multilabel.read(multilabel.OUT / "rows.jsonl")) == len(rows) + 1
    (readme,) = multilabel.write()
    said = "| digits | diffprivlib | 50.0 ± 35.4 / 50.0 / 50.0 |"
    assert said in readme.read_text(encoding="utf-8")
