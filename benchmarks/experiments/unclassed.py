"""`DPPCA` and `DPRegressor` beside diffprivlib's and OpenDP's, on the same rows.

`python -m benchmarks unclassed --peer PYTHON` runs what is missing: PYTHON is one that
has diffprivlib and opendp. One JSON line a model, task and epsilon in
results/unclassed/, and the README there.
"""

import json
import signal
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments import unclassed_peer
from benchmarks.experiments.unclassed_peer import (
    N_COMPONENTS,
    PEERS,
    TASKS,
    Task,
    has_model,
)
from benchmarks.prose import table_of_peers, wrapped
from benchmarks.store import RESULTS, append, provenance, read
from dphead import DPPCA, DPRegressor

OUT = RESULTS / "unclassed"
ROWS = "rows.jsonl"
EPSILONS = (0.5, 1.0, 2.0, 8.0)
DRAWS = 10
DELTA = 1e-5
RELATIONS = ("zero_out", "replace_one")
PEER_SECONDS = 30  # of a processor, for all draws of a task and epsilon
WHY = """
Components: the share of the variance of the best 4 components that the model's hold
(1 is the best there is). Regression: R² on the rows themselves (below 0: worse than a
constant). Mean ± sd over 10 noise draws. All know the same row norm, entries and range
of targets. The guarantees differ: diffprivlib's and OpenDP's are pure ε-DP where a row
is replaced by another, ours (ε, 1e-5) by one row's contribution replaced by nothing
(`zero_out`) or by another's (`replace_one`); pure DP is the stronger promise at one ε.
diffprivlib's regression has no ridge, so noise that makes its matrix nearly singular
makes weights of any size. Both peers draw components by rejection, which takes the
longer the more rows there are and the larger ε is; seconds are of one processor, for
all ten draws.

Without a row here: OpenDP 0.16's regression (Theil and Sen's) is of one feature alone,
and it has no logistic regression. SmartNoise (smartnoise-synth 1.0.8) has a linear
regression and neither of the others; at ε = 2 it ended in an error on the tasks of one,
ten and twenty features: "Matrix is not positive definite" or, where its noisy matrix
was, one of numpy's (2.4) about its own sweep of the matrix.
"""


def ours(task: Task, epsilon: float, relation: str, seed: int) -> Any:
    """Our model, fitted."""
    shared = {
        "epsilon": epsilon,
        "delta": DELTA,
        "relation": relation,
        "row_norm": task.row_norm,
        "random_state": seed,
    }
    if task.y is None:
        return DPPCA(n_components=N_COMPONENTS, **shared).fit(task.x)
    return DPRegressor(bounds=task.bounds, **shared).fit(task.x, task.y)


def scores_of_peer(python: Path, peer: str, name: str, epsilon: float) -> list[float]:
    """Scores of a peer's model in each draw, none if it takes too long."""
    asked = f"{peer!r}, {name!r}, {epsilon}, {DRAWS}, {PEER_SECONDS}"
    command = [python, "-c", f"from unclassed_peer import tell; tell({asked})"]
    where = Path(unclassed_peer.__file__).parent
    done = subprocess.run(command, cwd=where, capture_output=True, text=True)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return []
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def run(python: Path | None) -> None:
    """The missing rows; the peers' only where their Python is given."""
    source = provenance()
    done = {(row["model"], row["task"], row["epsilon"]) for row in read(OUT / ROWS)}
    for name, make in TASKS.items():
        task = make()
        for epsilon in EPSILONS:
            models = [f"dphead, {relation}" for relation in RELATIONS]
            if python is not None:
                models += [peer for peer in PEERS if has_model(peer, name)]
            for model in models:
                if (model, name, epsilon) in done:
                    continue
                if model in PEERS and python is not None:
                    scores = scores_of_peer(python, model, name, epsilon)
                else:
                    relation = model.partition(", ")[2]
                    draws = range(DRAWS)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        fits = (ours(task, epsilon, relation, i) for i in draws)
                        scores = [task.score(fit) for fit in fits]
                row = {"model": model, "task": name, "epsilon": epsilon}
                append(OUT / ROWS, row | {"scores": scores} | source)


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
    ours = [f"dphead, {relation}" for relation in RELATIONS]
    lines = []
    for task in TASKS:
        peers = [peer for peer in PEERS if has_model(peer, task)]
        lines += [(task, model, EPSILONS) for model in (*ours, *peers)]
    return table_of_peers(read(OUT / ROWS), EPSILONS, lines, cell)


def cell(scores: list[float] | None) -> str:
    """Mean ± sd of draws."""
    if scores is None:
        return "—"
    if not scores:
        return f"more than {PEER_SECONDS} s"
    if np.mean(scores) < -1:
        return "below -1"
    return f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}"
