"""FC23's Tables 3 and 4 in miniature, and its search for DP-FC with the choice counted.

Heads of five methods beside each other on features of small public networks. Settings
are the best of `CANDIDATES` on a fixed fifth of the training rows, at each epsilon and
with a seed of its own; as in FC23 that choice is not accounted for. `python -m
benchmarks.experiments.small_tables FOLDER NAME [counted]` runs what is missing of the
features FOLDER/NAME-train.h5 and -test.h5.
"""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.features import BLOCK, fifth_apart
from benchmarks.heads import describe
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import evaluate_scores
from dphead.analysis.selection import selection_calibrate
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features
from dphead.fit.loop import Run, fit_head
from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo

OUT = RESULTS / "published" / "small_tables.jsonl"
COUNTED = RESULTS / "published" / "tuning.jsonl"
EPSILONS = (1.0, 8.0)
DELTA = 1e-5
DRAWS = 3
TRAIN, TEST = 20_000, 5_000  # rows
TRIALS = 50
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "dp-fc": [{"steps": 1}, {"steps": 10}],
    "dp-ls": [{}],
    "dp-newton": [{"steps": 1}],
    "dp-sgd": [
        {"steps": 10, "learning_rate": 8.0},
        {"steps": 30, "learning_rate": 8.0},
        {"steps": 30, "learning_rate": 32.0},
    ],
    "dp-adam": [
        {"steps": 10, "learning_rate": 0.1},
        {"steps": 30, "learning_rate": 0.1},
        {"steps": 100, "learning_rate": 0.03},
    ],
}
Rows = tuple[np.ndarray, np.ndarray]


def load(folder: Path, name: str, n_train: int, n_test: int) -> tuple[Rows, Rows, Any]:
    """Return training rows, test rows and the training file."""
    (rows, file), (held, _) = (
        load_features(folder / f"{name}-{split}.h5", memory=0)
        for split in ("train", "test")
    )
    train = rows.features()[:n_train], rows.labels()[:n_train]
    return train, (held.features()[:n_test], held.labels()[:n_test]), file


def fit(
    rows: Rows,
    n_classes: int,
    method: str,
    settings: dict[str, Any],
    epsilon: float,
    seed: int,
    preset: str | None = None,
) -> Any:
    """Return the head of one fit."""
    x, y = rows
    facts = ProblemInfo(len(x), x.shape[1], n_classes)
    solver = make_method(method, facts, dict(settings), preset).solver
    plan = make_plan(solver, facts, epsilon=epsilon, delta=DELTA)
    with np.errstate(all="ignore"):  # most of FC23's square diverges
        run = Run(noise=NoiseSource(seed))
        return fit_head(solver, ArrayRows(x, y, BLOCK), facts, plan, run).head


def accuracy(head: Any, rows: Rows) -> float:
    """Return the share of rows that a head gets right."""
    with np.errstate(all="ignore"):
        scores = np.nan_to_num(head.scores(rows[0]))
    return evaluate_scores(scores, rows[1])["accuracy"]


def run(folder: Path, name: str) -> None:
    """Run what is missing of a table: a method's cells, then the next's."""
    train, test, file = load(folder, name, TRAIN, TEST)
    n_classes = len(file.class_names)
    facts = ProblemInfo(len(train[0]), train[0].shape[1], n_classes)
    described = {"name": name, "features": describe(file, facts), "delta": DELTA}
    kept, held = fifth_apart(len(train[0]))
    part, judged = ((train[0][i], train[1][i]) for i in (kept, held))
    done = {(r["name"], r["method"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for epsilon, method in product(EPSILONS, CANDIDATES):
        if method == "dp-newton" and n_classes > 10:
            continue  # a Hessian for each class
        if (name, method, epsilon, DRAWS - 1) in done:
            continue
        candidates = CANDIDATES[method]
        scores = [
            accuracy(fit(part, n_classes, method, c, epsilon, 1000), judged)
            if len(candidates) > 1
            else 1.0
            for c in candidates
        ]
        best = candidates[int(np.argmax(scores))]
        for seed in range(DRAWS):
            head = fit(train, n_classes, method, best, epsilon, seed)
            found = {"method": method, "epsilon": epsilon, "settings": best}
            found |= {"seed": seed, "accuracy": accuracy(head, test)}
            found |= {"held_out": scores, "test_rows": len(test[0])}
            append(OUT, described | found | provenance())
            print(name, method, epsilon, seed, found["accuracy"], best, flush=True)


def counted(folder: Path, name: str, epsilon: float = 8.0, seed: int = 1) -> None:
    """Choose DP-FC's settings by random trials whose number and choice are counted."""
    train, test, file = load(folder, name, 50_000, 10_000)
    kept, held = fifth_apart(len(train[0]))
    part, judged = ((train[0][i], train[1][i]) for i in (kept, held))
    mu = 1 / selection_calibrate([GaussianEvent(1.0)], TRIALS, epsilon, DELTA)
    rng = np.random.default_rng([seed, 7])
    best: tuple[float, Any, dict[str, float]] = (-np.inf, None, {})
    count = int(rng.geometric(1 / TRIALS))
    for k in range(count):
        square = presets.load("fc23")["search"]["dp-fc"]
        settings = {
            key: float(np.exp(rng.uniform(*np.log(ends))))
            for key, ends in square.items()
            if key != "trials"
        }
        tried = settings | {"steps": 10}
        trial = epsilon_from_mu(mu, DELTA)
        head = fit(part, 10, "dp-fc", tried, trial, 10_000 * (seed + 1) + k, "fc23")
        right = accuracy(head, judged) * len(judged[0]) + rng.normal() / mu
        print(k, count, settings, right, flush=True)
        if right > best[0]:
            best = right, head, settings
    facts = ProblemInfo(len(train[0]), train[0].shape[1], 10)
    row = {"method": "dp-fc", "epsilon": epsilon, "delta": DELTA, "way": "accounted"}
    row |= {"preset": "fc23", "features": describe(file, facts), "seed": seed}
    row |= {"settings": best[2], "trials": count, "trial_mu": mu}
    append(COUNTED, row | {"accuracy": accuracy(best[1], test)} | provenance())


if __name__ == "__main__":
    with threadpool_limits(1, "blas"):
        (counted if sys.argv[3:] else run)(Path(sys.argv[1]), sys.argv[2])
