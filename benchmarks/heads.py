"""Fit every method at every epsilon on a features file, with paired noise draws.

Each fit is one JSON line, and stored fits are not repeated.
Noise is seeded (draw k uses seed k for every method), so methods are compared on the
same draws. Accuracy is measured here with the features loaded once; time and memory are
those of the `dphead fit` command itself (`cost`).
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile, open_features

from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import evaluate_scores
from dphead.data.features import FeaturesRows
from dphead.fit.fit import FitResult, fit_rows
from dphead.fit.report import guarantee
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, float("inf"))
DELTA = 1e-5
_DIGESTED = 4096  # rows read at once


def sweep(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    draws: int,
    epsilons: tuple[float, ...] = EPSILONS,
) -> None:
    """Run the fits that are missing in results/heads/<name>.jsonl.

    Parameters
    ----------
    draws : int
        Number of noise draws for each method and epsilon.
    """
    out = RESULTS / "heads" / f"{name}.jsonl"
    done = {(r["method"], r["epsilon"], r["seed"]) for r in read(out)}
    with open_features(train) as file, open_features(test) as test_file:
        rows = FeaturesRows(file, memory=8 << 30)
        held_out = FeaturesRows(test_file, memory=0)
        x = held_out.features()
        y = held_out.labels()
        facts = ProblemInfo(rows.n_rows, rows.n_features, len(file.class_names or []))
        described = {"dataset": name, "features": describe(file, facts)}
        for method, epsilon in product(methods, epsilons):
            solver = make_method(method, facts, {}).solver
            plan = make_plan(solver, facts, epsilon=epsilon, delta=DELTA)
            for seed in range(draws if np.isfinite(epsilon) else 1):
                if (method, epsilon, seed) in done:
                    continue
                result = fit_rows(plan, rows, noise=NoiseSource(seed))
                row = {
                    "method": method,
                    "settings": repr(solver),
                    "seed": seed,
                    "seconds": result.seconds,
                }
                row |= described | measured(result, x, y) | provenance()
                append(out, row)
                print(
                    f"{name} {method:<10} eps {epsilon:<4g} draw {seed} "
                    f"{row['accuracy']:.4f} {row['seconds']:6.1f} s",
                    flush=True,
                )


def measured(result: FitResult, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    plan = result.plan
    g = guarantee(plan)
    metrics = evaluate_scores(result.trained.scores(x), y)
    return {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "relation": plan.relation,
        "mu": g["mu"],
        "exact_epsilon": g["epsilon"],
        "profiles": g["profiles"],
        "accuracy": metrics["accuracy"],
        "worst_class": metrics["worst_class_accuracy"],
        "expected": None
        if result.trained.estimate is None
        else vars(result.trained.estimate),
    }


def cost(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    repeats: int,
    epsilon: float = 1.0,
) -> None:
    """Measure wall seconds and peak memory of the command `dphead fit`.

    The rows are stored in results/cost.jsonl.
    """
    for method in methods:
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "DPHEAD_HOME": folder}
                command = [sys.executable, "-m", "dphead", "fit", str(train)]
                command += ["--method", method, "--epsilon", str(epsilon)]
                command += ["--test", str(test), "--test-is", "public"]
                command += ["-o", f"{folder}/run"]
                seconds, memory = timed(command, environment)
                accuracy = json.loads(Path(f"{folder}/run/report.json").read_text())[
                    "test"
                ]["accuracy"]
            row = {
                "dataset": name,
                "method": method,
                "epsilon": epsilon,
                "seconds": seconds,
                "peak_memory_mb": memory,
                "accuracy": accuracy,
                **provenance(),
            }
            append(RESULTS / "cost.jsonl", row)
            print(f"{name} {method:<10} {seconds:6.1f} s {memory:7.0f} MB", flush=True)


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command, and return (wall seconds, peak resident MB) of its process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def describe(file: FeaturesFile, facts: ProblemInfo) -> dict[str, Any]:
    """Return the backbone, the sizes and a digest of features and labels.

    Equal features have equal digests, unlike the file's own digests, which depend on
    its salt. The data of benchmarks are public, unlike a user's.
    """
    digest = hashlib.sha256(file.labels.tobytes())
    for start in range(0, facts.n_rows, _DIGESTED):
        digest.update(file.features[start : start + _DIGESTED].tobytes())
    return {
        "backbone": file.config["backbone"],
        "digest": digest.hexdigest()[:16],
        "n_rows": facts.n_rows,
        "n_features": facts.n_features,
        "n_classes": facts.n_classes,
    }
