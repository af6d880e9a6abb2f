"""Ways of placing or removing the noise of least squares, and of setting its ridge.

Fits on four fifths of CIFAR-10's training rows, measured on the other fifth. `python -m
benchmarks ablation --part least-squares` runs what is missing, one JSON line a fit in
results/ablation/least_squares.jsonl; the README there has the table.
"""

from collections.abc import Callable

import numpy as np

from benchmarks import features
from benchmarks.features import training_rows
from benchmarks.heads import DELTA
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.variants import EPSILONS, row_of
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.privacy.transform import RowTransform
from dphead.runs.loop import Run, fit_head
from dphead.solvers import LeastSquares, PlannedRelease, PublicFacts
from dphead.solvers.base import Answer, Steps
from dphead.solvers.head import center_classes, float_rows
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.stein import SpectralRidge, candidates

OUT = RESULTS / "ablation" / "least_squares.jsonl"
DRAWS = 3


class Recorded:
    """Least squares that remembers the sums that were released to it."""

    def __init__(self, inner: LeastSquares) -> None:
        self.inner, self.name, self.answers = inner, inner.name, {}
        self.transform = RowTransform()

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The inner solver's."""
        return self.inner.plan(facts)

    def solve(self, facts: PublicFacts) -> Steps:
        """The inner solver's."""
        steps = self.inner.solve(facts)
        answer: Answer | None = None
        while True:
            try:
                ask = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            answer = yield ask
            self.answers[ask.label], self.transform = answer, ask.params.transform


Solve = Callable[[float], np.ndarray]  # weights for a ridge


def gram_variants(
    gram: Answer, sums: Answer, n: int, rng: np.random.Generator
) -> dict[str, Solve]:
    """Ways of treating the released Gram matrix."""
    d = len(gram.value)
    sd = gram.noise_sd
    right = center_classes(sums.value)
    values, vectors = np.linalg.eigh(gram.value)

    def solving(matrix: np.ndarray) -> Solve:
        return lambda ridge: RidgeSolver(matrix, ridge)(right)

    more = np.triu(rng.normal(size=(d, d)), 1) * sd / 2**0.5
    shrunk = np.where(
        values > 0,
        np.sqrt(np.maximum(values**2 - 2 * sd**2 * d, 0)),
        0,
    )
    return {
        "dp-ls": solving(gram.value),
        "noise mirrored, not symmetric": solving(gram.value + more + more.T),
        "positive, of known trace": solving(
            (vectors * on_simplex(values, n)) @ vectors.T
        ),
        "spectrum shrunk (Wigner)": solving((vectors * shrunk) @ vectors.T),
    }


def on_simplex(values: np.ndarray, total: float) -> np.ndarray:
    """The nearest non-negative numbers of that sum."""
    ordered = np.sort(values)[::-1]
    shifts = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    return np.maximum(values - shifts[ordered > shifts][-1], 0)


def whitened(
    rows: np.ndarray,
    y: np.ndarray,
    gram: Answer,
    sums: Answer,
    power: float,
    rng: np.random.Generator,
) -> Solve:
    """Class sums released in the coordinates (G̃/n + λ)^-power, rows clipped to their
    root mean square there.
    """
    n, d = rows.shape
    values, vectors = np.linalg.eigh(gram.value / n)
    shape = (np.maximum(values, 0) + gram.noise_sd * (2 * d) ** 0.5 / n) ** -power
    radius = float(np.sqrt((shape**2 * on_simplex(values, 1)).sum()))
    map_ = ((vectors * shape) @ vectors.T).astype(np.float32)
    total = np.zeros((d, 10))
    for i in range(0, n, 4096):
        part = rows[i : i + 4096] @ map_
        part *= np.minimum(1, radius / np.linalg.norm(part, axis=1, keepdims=True))
        total += part.T.astype(np.float64) @ np.eye(10)[y[i : i + 4096]]
    noisy = total + sums.noise_sd * radius * rng.normal(size=total.shape)
    right = center_classes((vectors / shape) @ (vectors.T @ noisy))
    return lambda ridge: RidgeSolver(gram.value, ridge)(right)


def run() -> None:
    """The missing rows of least squares: one fit gives the sums of a draw, and each
    variant treats them.
    """
    source = provenance()
    done = {(r["epsilon"], r["seed"]) for r in read(OUT)}
    data = features.load("cifar10", "mobilenetv2-128", held_out=True)
    x, y = training_rows(data)
    for seed in range(DRAWS):
        for epsilon in EPSILONS:
            if (epsilon, seed) in done:
                continue
            found = one_draw(data, x, y, epsilon, seed)
            for variant, accuracy in found.items():
                row = row_of(variant, epsilon, seed, accuracy, data)
                append(OUT, row | source)
            print(f"eps {epsilon:g} draw {seed}: {found}", flush=True)


def one_draw(
    data: features.Loaded, x: np.ndarray, y: np.ndarray, epsilon: float, seed: int
) -> dict[str, float]:
    """Held-out accuracy of each variant and rule for λ."""
    solver = Recorded(LeastSquares(shrink=False))
    rng = np.random.default_rng([seed, 5])
    n = data.facts.n_rows
    plan = make_plan(solver, data.facts, epsilon=epsilon, delta=DELTA)
    fit_head(solver, data.rows, data.facts, plan, Run(noise=NoiseSource(seed)))
    gram = solver.answers["gram"]
    sums = solver.answers["class sums"]
    rows, held = (float_rows(solver.transform, part)[0] for part in (x, data.x))
    variants = gram_variants(gram, sums, n, rng)
    for power in (0.25, 0.5):
        variants[f"whitened before noise, p = {power}"] = whitened(
            rows, y, gram, sums, power, rng
        )

    def accuracy(weights: np.ndarray) -> float:
        return float(
            np.mean((held @ weights.astype(np.float32)).argmax(axis=1) == data.y)
        )

    rule = ridge_for(data.facts, gram.noise_sd, None)
    grid = candidates(n, gram.noise_sd, data.facts.n_features)
    found = {}
    for name, solve in variants.items():
        found[name] = accuracy(solve(rule))
        found[f"{name}, best λ of {len(grid)} for the held-out rows"] = max(
            accuracy(solve(r)) for r in grid
        )
    spectral = SpectralRidge(gram.value, gram.noise_sd, sums.value, sums.noise_sd)
    plugged = grid[int(np.argmin([spectral.plug_in(r) for r in grid]))]
    found["λ by Stein's criterion"] = accuracy(spectral.weights(spectral.best(grid)))
    found["λ by the plug-in loss"] = accuracy(spectral.weights(plugged))
    return found
