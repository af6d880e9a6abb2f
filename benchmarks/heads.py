"""Every method at every epsilon on a features file, with paired noise draws; resumable,
one JSON line a fit.

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
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile, open_features

from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import evaluate_scores
from dphead.data.arrays import ArrayRows
from dphead.data.features import FeaturesRows
from dphead.fit.loop import FitResult, Run, fit_head
from dphead.fit.report import guarantee
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo

METHODS = ("auto", "dp-ls", "dp-fc", "dp-adam", "dp-sgd", "prototypes", "dp-newton")
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, float("inf"))
DELTA = 1e-5


def sweep(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    draws: dict[str, int],
    epsilons: tuple[float, ...] = EPSILONS,
    together: int = 1,
) -> None:
    """Run what is missing in results/heads/<name>.jsonl.

    draws: noise draws for each method.

    together: so many fits of full-batch gradients share each pass, with float32 sums
        (`benchmarks.together`).
    """
    out = RESULTS / "heads" / f"{name}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["method"], str(r["epsilon"]), r["seed"]) for r in read(out)}
    with open_features(train) as file, open_features(test) as test_file:
        rows = FeaturesRows(file, memory=8 << 30)
        held_out = FeaturesRows(test_file, memory=0)
        x = held_out.features()
        y = held_out.labels()
        facts = ProblemInfo(rows.n_rows, rows.n_features, len(file.class_names or []))
        described = {"dataset": name, "features": describe(file, facts)}
        for method in methods:
            solver = make_method(method, facts, {}).solver
            wanted = [
                (e, seed)
                for e in epsilons
                for seed in range(draws[method] if np.isfinite(e) else 1)
            ]
            missing = [
                (e, seed) for e, seed in wanted if (method, str(e), seed) not in done
            ]
            for i in range(0, len(missing), together):
                part = missing[i : i + together]
                for (_, seed), result in zip(
                    part, _fits(solver, rows, facts, part, together > 1), strict=True
                ):
                    row = described | {
                        "method": method,
                        "settings": repr(solver),
                        "seed": seed,
                    }
                    row |= _measured(result, x, y) | {
                        "seconds": result.seconds / len(part)
                    }
                    append(
                        out,
                        row
                        | {"sums": "fused" if together > 1 else "audited"}
                        | provenance(),
                    )
                    print(
                        (
                            f"{name} {method:<10} eps {row['epsilon']:<4g} draw {seed} "
                            f"{row['accuracy']:.4f} {row['seconds']:6.1f} s"
                        ),
                        flush=True,
                    )


def _fits(
    solver: Any,
    rows: FeaturesRows,
    facts: ProblemInfo,
    tasks: list[tuple[float, int]],
    together: bool,
) -> list[FitResult]:
    """Fits of each (epsilon, seed)."""
    if together:
        from benchmarks.together import fit_together

        held = ArrayRows(rows.features(), rows.labels(), 256)
        return fit_together(
            held, facts, [(solver, seed, epsilon) for epsilon, seed in tasks], DELTA
        )
    plans = [
        make_plan(solver, facts, epsilon=epsilon, delta=DELTA) for epsilon, _ in tasks
    ]
    return [
        fit_head(solver, rows, facts, plan, Run(noise=NoiseSource(seed)))
        for plan, (_, seed) in zip(plans, tasks, strict=True)
    ]


def _measured(result: FitResult, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    plan = result.plan
    g = guarantee(result.plan)
    metrics = evaluate_scores(result.head.scores(x), y)
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
        if result.head.estimate is None
        else vars(result.head.estimate),
    }


def cost(
    name: str,
    train: Path,
    test: Path,
    methods: tuple[str, ...],
    repeats: int,
    epsilon: float = 1.0,
) -> None:
    """Wall seconds and peak memory of `dphead fit`, whole process, into
    results/cost.jsonl.
    """
    for method in methods:
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "DPHEAD_HOME": folder}
                command = [
                    sys.executable,
                    "-m",
                    "dphead",
                    "fit",
                    str(train),
                    "--method",
                    method,
                    "--epsilon",
                    str(epsilon),
                    "--test",
                    str(test),
                    "--test-is",
                    "public",
                    "-o",
                    f"{folder}/run",
                ]
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
    """(wall seconds, peak resident MB) of a child process, as /usr/bin/time -v reports
    them.
    """
    start = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def describe(file: FeaturesFile, facts: ProblemInfo) -> dict[str, Any]:
    """What the features are: these data are public, so a digest of the whole file's
    blocks may be stored.
    """
    digest = hashlib.sha256(
        np.ascontiguousarray(file.block_digest).tobytes()
    ).hexdigest()[:16]
    return {
        "backbone": file.attrs["backbone"],
        "digest": digest,
        "n_rows": facts.n_rows,
        "n_features": facts.n_features,
        "n_classes": facts.n_classes,
    }
