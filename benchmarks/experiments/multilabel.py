"""`DPMultiLabelClassifier` beside one logistic regression a label.

These are diffprivlib's, and scikit-learn's without privacy. `python -m benchmarks
multilabel --peer PYTHON` runs what is missing: PYTHON is one that has diffprivlib. One
JSON line a model, task and epsilon in results/multilabel/, and the README there.
"""

import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments import multilabel_peer
from benchmarks.experiments.multilabel_peer import TASKS, Task, without_privacy
from benchmarks.prose import table_of_peers, wrapped
from benchmarks.store import RESULTS, append, provenance, read
from dphead import DPMultiLabelClassifier

OUT = RESULTS / "multilabel"
ROWS = "rows.jsonl"
EPSILONS = (0.5, 1.0, 2.0, 8.0)
DRAWS = 3
DELTA = 1e-5
OURS = {
    "dphead, zero_out": {"relation": "zero_out"},
    "dphead, replace_one": {"relation": "replace_one"},
    "dphead, dp-fc": {"method": "dp-fc", "settings": {"intercept": 0.3}},
    "dphead, dp-newton": {"method": "dp-newton", "settings": {"intercept": 0.3}},
}
PEER = "diffprivlib"
PLAIN = "scikit-learn, no privacy"
PEER_SECONDS = 300  # for all draws of a task and epsilon
METRICS = ("subset accuracy", "macro F1", "mean average precision")
WHY = """
Mean over 3 noise draws, in rows that were not fitted: subset accuracy (all labels of a
row right) / macro F1 / mean average precision, in %. ± is the sd of the draws' subset
accuracy. The first two lines of a task are `auto`; the others of ours are named, with
zero_out. The guarantees differ: diffprivlib's is pure ε-DP where a row is replaced by
another, and each label's regression has an equal share of ε; ours is (ε, 1e-5), of one
gradient of all labels together, where one row's contribution is replaced by nothing
(`zero_out`) or by another's (`replace_one`). Pure DP is the stronger promise at one ε.
All know the same public number: rows have norm 1.
"""


def ours(task: Task, epsilon: float, name: str, seed: int) -> Any:
    """Our model, fitted."""
    model = DPMultiLabelClassifier(
        epsilon=epsilon, delta=DELTA, random_state=seed, **OURS[name]
    )
    return model.fit(*task.split(test=False))


def scores_of_peer(python: Path, name: str, epsilon: float) -> list[list[float]]:
    """Scores of diffprivlib's models in each draw, none if it takes too long."""
    told = f"from multilabel_peer import tell; tell({name!r}, {epsilon}, {DRAWS})"
    try:
        done = subprocess.run(
            [python, "-c", told],
            cwd=Path(multilabel_peer.__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=PEER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return []
    return json.loads(done.stdout.splitlines()[-1])


def wanted(python: Path | None) -> list[tuple[str, str, float]]:
    """(task, model, epsilon) of each row."""
    models = [*OURS, PEER] if python is not None else list(OURS)
    private = [(t, m, e) for t in TASKS for m in models for e in EPSILONS]
    return private + [(t, PLAIN, np.inf) for t in TASKS]


def run(python: Path | None) -> None:
    """The missing rows; the peer's only where its Python is given."""
    source = provenance()
    done = {(row["task"], row["model"], row["epsilon"]) for row in read(OUT / ROWS)}
    for name, model, epsilon in wanted(python):
        if (name, model, epsilon) in done:
            continue
        task = TASKS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if model == PEER and python is not None:
                scores = scores_of_peer(python, name, epsilon)
            elif model == PLAIN:
                scores = [task.score(without_privacy(task))]
            else:
                fits = (ours(task, epsilon, model, seed) for seed in range(DRAWS))
                scores = [task.score(fit) for fit in fits]
        row = {
            "model": model,
            "task": name,
            "epsilon": epsilon,
            "scores": scores,
        }
        append(OUT / ROWS, row | {"metrics": METRICS} | source)


def write() -> list[Path]:
    """The README of the rows."""
    path = OUT / "README.md"
    path.write_text(readme(), encoding="utf-8")
    return [path]


def readme() -> str:
    """What the rows say."""
    return wrapped(f"# {__doc__}\n{table()}\n{WHY}")


def table() -> str:
    """A line a task and model."""
    lines = []
    for task in TASKS:
        lines += [(task, model, EPSILONS) for model in (*OURS, PEER)]
        lines.append((task, PLAIN, (np.inf,)))
    return table_of_peers(read(OUT / ROWS), EPSILONS, lines, cell)


def cell(scores: list[list[float]] | None) -> str:
    """Means of draws in %, and the sd of the first."""
    if scores is None:
        return "—"
    if not scores:
        return f"more than {PEER_SECONDS} s"
    percent = 100 * np.array(scores)
    accuracy, f1, precision = (f"{mean:.1f}" for mean in percent.mean(axis=0))
    spread = f" ± {percent[:, 0].std(ddof=1):.1f}" if len(percent) > 1 else ""
    return f"{accuracy}{spread} / {f1} / {precision}"
