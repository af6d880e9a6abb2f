"""TB21's Figure 10: privacy amplification by iteration beside DP-SGD, on CIFAR-10 from
ScatterNet.

The solver is noisy gradient descent of which only the last iterate leaves (Feldman,
Mironov, Talwar, Thakurta 2018): rows are brought to the unit sphere, the batches are
fixed and public, there is no momentum, and the step is at most 2 / beta. Its guarantee
(`benchmarks.iteration`) is replace-one, holds for 99 % of the rows, as in the
paper's footnote 12, and is no sum of releases, so that a ledger cannot hold it: this is
a comparison, and no method of dphead. Accuracy is that of a held-out fifth of the
training rows, the best of a few settings for both, as the figure has it. `python -m
benchmarks last-iterate` runs what is missing.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import features, runner
from benchmarks.fused import residual_of
from benchmarks.iteration import iteration_epsilon, iteration_noise
from benchmarks.jobs import Job
from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.privacy.noise import NoiseSource

OUT = RESULTS / "last_iterate.jsonl"
EPSILONS = (1.0, 2.0, 3.0)
DELTA = 1e-5
FRACTION = 0.99
DATASET, FEATURES = "cifar10", "scatternet-g27"
BIAS = 0.1  # constant appended to unit rows
SMOOTHNESS = (1 + BIAS**2) / 2  # of the softmax loss of such a row: Böhning 1992
LIPSCHITZ = np.sqrt(2 * (1 + BIAS**2))  # of the same
RATES = tuple(2 / SMOOTHNESS * share for share in (0.125, 0.25, 0.5, 0.99))
BATCHES = 20
EPOCHS = (10, 30)
DPSGD = {
    "batch_size": [2048],
    "epochs": [10, 30],
    "base_learning_rate": [0.25, 0.5, 1.0],
}
Row = dict[str, Any]


def last_iterates(
    rows: ArrayRows,
    rates: np.ndarray,
    noises: np.ndarray,
    epochs: int,
    batches: int,
    seed: int,
) -> Any:
    """Weights (fits, n_features + 1, n_classes) after `epochs` passes in one fixed
    order of `batches` batches.

    rates: steps on the mean gradient; noises: standard deviation of the noise in a sum
    of gradients, over LIPSCHITZ. Fits see the same batches. ValueError for a step
    beyond 2 / SMOOTHNESS: the guarantee would not hold.
    """
    if (rates > 2 / SMOOTHNESS).any():
        raise ValueError(
            f"a step must be at most {2 / SMOOTHNESS:.4g}, got rates={rates}. Lower it."
        )
    m = 1 + max(int(b.y.max()) for b in rows.blocks())
    order = np.random.default_rng(0).permutation(rows.n_rows)  # public
    weights = np.zeros((len(rates), rows.n_features + 1, m))
    for step in range(epochs * batches):
        index = np.sort(order[step % batches :: batches])
        total = np.zeros_like(weights)
        stacked = np.concatenate(weights.astype(np.float32), axis=1)
        for block in rows.blocks(index):
            norm = np.linalg.norm(block.x, axis=1, keepdims=True)
            x = block.x / np.maximum(norm, 1e-12)
            z = (x @ stacked[:-1] + np.float32(BIAS) * stacked[-1]).reshape(
                len(x), len(rates), m
            )
            residual = (
                residual_of(z, block.y, "softmax")
                * ((block.index >= 0) & (block.y >= 0))[:, None, None]
            )
            flat = residual.reshape(len(x), -1)
            total[:, :-1] += (
                (flat.T @ x)
                .reshape(len(rates), m, -1)
                .transpose(
                    0,
                    2,
                    1,
                )
            )
            total[:, -1] += BIAS * residual.sum(0)
        z = (
            NoiseSource(seed)
            .generator(step, "noise")
            .standard_normal(weights.shape[1:])
        )
        total += (noises * LIPSCHITZ)[:, None, None] * z
        weights -= (rates / len(index))[:, None, None] * total
    return weights


def iterated(seed: int = 0) -> list[Row]:
    """A row for each epsilon and setting."""
    data = features.load(DATASET, FEATURES, True)
    found = []
    for epochs in EPOCHS:
        pairs = list(product(EPSILONS, RATES))
        sigma = {
            e: iteration_noise(e, BATCHES, epochs, DELTA, FRACTION) for e in EPSILONS
        }
        weights = last_iterates(
            data.rows,
            np.array([r for _, r in pairs]),
            np.array([sigma[e] for e, _ in pairs]),
            epochs,
            BATCHES,
            seed,
        )
        x = data.x / np.maximum(
            np.linalg.norm(data.x, axis=1, keepdims=True),
            1e-12,
        )
        for (epsilon, rate), w in zip(pairs, weights, strict=True):
            scores = x @ w[:-1].astype(np.float32) + BIAS * w[-1]
            known = iteration_epsilon(sigma[epsilon], BATCHES, epochs, DELTA, FRACTION)
            found.append(
                {
                    "method": "iteration",
                    "epsilon": epsilon,
                    "noise_multiplier": sigma[epsilon],
                    "covered": known.covered,
                    "worst_epsilon": known.worst_epsilon,
                    "relation": "replace_one",
                    "seed": seed,
                    "settings": {
                        "epochs": epochs,
                        "batches": BATCHES,
                        "learning_rate": rate,
                    },
                    "accuracy": float((scores.argmax(1) == data.y).mean()),
                }
            )
    return found


def dpsgd_jobs() -> list[Job]:
    """DP-SGD in TB21's form, with its accounting."""
    return [
        Job(
            DATASET,
            FEATURES,
            "dp-sgd",
            epsilon,
            preset="tb21",
            settings=dict(zip(DPSGD, values, strict=True)),
            accountant="rdp-classic",
            held_out=True,
            draws=1,
        )
        for epsilon in EPSILONS
        for values in product(*DPSGD.values())
    ]


def run() -> None:
    """Run what is missing, one JSON line a fit."""
    rows = read(OUT)
    if not any(r["method"] == "iteration" for r in rows):
        with threadpool_limits(1, "blas"):
            for row in iterated():
                append(
                    OUT,
                    row
                    | {"dataset": DATASET, "features": FEATURES, "delta": DELTA}
                    | provenance(),
                )
    done = {r.get("key") for r in rows}
    tasks = [(job, 0, str(OUT)) for job in dpsgd_jobs() if job.key not in done]
    for group in runner.groups(tasks):
        jobs = [job for job, _, _ in group]
        for job, row in zip(jobs, runner.fit_together(jobs, 0), strict=True):
            append(OUT, {"method": "dp-sgd", "epsilon": job.epsilon} | row)


def table(rows: Iterable[Row]) -> str:
    """The best held-out accuracy in % of each method, a column an epsilon; and what the
    worst row has.
    """
    best: dict[tuple[str, float], Row] = {}
    settings: dict[str, set[str]] = defaultdict(set)
    for r in rows:
        key = r["method"], r["epsilon"]
        settings[r["method"]].add(str(r.get("settings") or r["job"]["settings"]))
        if key not in best or r["accuracy"] > best[key]["accuracy"]:
            best[key] = r
    lines = [
        "| method | settings tried | "
        + " | ".join(f"ε = {e:g}" for e in EPSILONS)
        + " |"
    ]
    lines.append("|---" * (len(EPSILONS) + 2) + "|")
    for method, name in (
        ("dp-sgd", "DP-SGD, RDP"),
        ("iteration", "amplification by iteration"),
    ):
        cells = [best.get((method, e)) for e in EPSILONS]
        values = " | ".join(f"{100 * r['accuracy']:.2f}" if r else "—" for r in cells)
        lines.append(f"| {name} | {len(settings[method])} | {values} |")
    worst = [best.get(("iteration", e)) for e in EPSILONS]
    values = " | ".join(f"{r['worst_epsilon']:.3g}" if r else "—" for r in worst)
    lines.append(f"| ε of the 1 % of rows that come last | | {values} |")
    return "\n".join(lines)
