"""How much of its budget least squares does best to give its Gram matrix, on data of
many sizes, beside the share that its rule takes.

Exact sums of random training rows, made once in floating point with the exact centre,
and the noise of the plan, the same draw for every share; accuracy on other training
rows. `python -m benchmarks ablation --part gram-share` runs what is missing, one JSON
line for all shares of a draw and epsilon in results/ablation/gram_share.jsonl; the
README there has the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.experiments.axes import cifar100
from benchmarks.experiments.longer_steps import some_rows
from benchmarks.features import Loaded, training_rows
from benchmarks.heads import DELTA
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.variants import OTHER_ROWS, paired, spread
from dphead.planning.plan import make_plan
from dphead.privacy.transform import RowTransform
from dphead.solvers import LeastSquares, PublicFacts
from dphead.solvers.head import float_rows
from dphead.solvers.shrinkage import shrunk_ridge, shrunk_weights

OUT = RESULTS / "ablation" / "gram_share.jsonl"
MOBILENET = "mobilenetv2-128"
SCATTERNET = "scatternet-local"
BEFORE = "0.35"
RULE = "rule"
SHARES = (BEFORE, "0.05", "0.1", "0.2", "0.5", "0.65", RULE)
FEW = (BEFORE, "0.2", "0.5", RULE)  # where a fit takes a minute
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
SIZES = ("n_rows", "n_features", "n_classes")
UNEVEN = 1.0  # the Gaussian rows' spectrum falls as i^-UNEVEN
TEST_ROWS = 5_000  # of them


@dataclass(frozen=True)
class Problem:
    """Exact sums of n rows on the sphere around their mean, and others (k, d) to
    measure on, with their classes (k,).
    """

    facts: PublicFacts
    gram: np.ndarray
    sums: np.ndarray
    x: np.ndarray
    y: np.ndarray


def problem(x: np.ndarray, y: np.ndarray, held: np.ndarray, of: np.ndarray) -> Problem:
    """Of training rows (n, d) and classes (n,), and of others."""
    unit = float_rows(RowTransform(True), x)[0]
    transform = RowTransform(True, unit.mean(axis=0))
    rows = float_rows(transform, x)[0]
    n_rows, n_features = rows.shape
    facts = PublicFacts(n_rows, n_features, int(y.max()) + 1)
    members = [rows[y == j] for j in range(facts.n_classes)]
    sums = np.stack([part.sum(axis=0, dtype=np.float64) for part in members], axis=1)
    gram = (rows.T @ rows).astype(np.float64)
    return Problem(facts, gram, sums, float_rows(transform, held)[0], of)


def stored(dataset: str, features: str, n: int, n_classes: int, seed: int) -> Problem:
    """n random training rows; classes as `some_rows`."""
    return of_rows(some_rows(dataset, features, n, n_classes, seed))


def of_rows(data: Loaded) -> Problem:
    """Of features in memory."""
    return problem(*training_rows(data), data.x, data.y)


def many_classes(seed: int) -> Problem:
    """CIFAR-100's training rows, those of `axes`."""
    return of_rows(cifar100())


def pixels(seed: int) -> Problem:
    """Four fifths of scikit-learn's digits as they are, and the others."""
    from sklearn.datasets import load_digits

    x, y = (np.asarray(a, np.float32) for a in load_digits(return_X_y=True))
    order = np.random.default_rng(seed).permutation(len(x))
    kept, held = np.split(order, [len(x) * 4 // 5])
    y = y.astype(int)
    return problem(x[kept], y[kept], x[held], y[held])


def gaussian(n: int, d: int, n_classes: int, apart: float, seed: int) -> Problem:
    """Rows of trace 1 around class means of squared length `apart`."""
    rng = np.random.default_rng([seed, n, d, n_classes])
    sizes = np.arange(1, d + 1) ** (-UNEVEN / 2)
    spread_out = np.sqrt(sizes)  # means differ in more directions than rows do
    sizes /= np.linalg.norm(sizes)
    spread_out *= np.sqrt(apart) / np.linalg.norm(spread_out)
    means = rng.normal(size=(n_classes, d)) * spread_out + rng.normal(size=d) * sizes
    y = rng.integers(0, n_classes, n + TEST_ROWS)
    y[:n_classes] = np.arange(n_classes)
    x = rng.standard_normal((len(y), d), dtype=np.float32) * sizes.astype(np.float32)
    x += means[y].astype(np.float32)
    return problem(x[:n], y[:n], x[n:], y[n:])


Made = Callable[[int], Problem]
# title: (how it is made of a seed, draws, shares)
PROBLEMS: dict[str, tuple[Made, int, tuple[str, ...]]] = {
    "digits, 64 pixels": (pixels, 10, SHARES),
    "digits": (partial(stored, "digits", SCATTERNET, 1_077, 10), 10, SHARES),
    "digits, odd or even": (
        partial(stored, "digits", SCATTERNET, 1_077, 2),
        10,
        SHARES,
    ),
    **{
        f"Gaussian, {apart:g} apart": (partial(gaussian, n, d, m, apart), 2, SHARES)
        for n, d, m, apart in (
            (500, 16, 10, 0.3),
            (2_000, 256, 2, 0.01),
            (2_000, 256, 10, 0.05),
            (20_000, 256, 100, 0.05),
            (100_000, 256, 10, 0.005),
            (100_000, 64, 1_000, 0.3),
        )
    },
    "CIFAR-10": (partial(stored, "cifar10", MOBILENET, 40_000, 10), 3, SHARES),
    "CIFAR-10, few rows": (partial(stored, "cifar10", MOBILENET, 5_000, 10), 3, FEW),
    "CIFAR-10, odd or even": (
        partial(stored, "cifar10", MOBILENET, 40_000, 2),
        2,
        FEW,
    ),
    "CIFAR-10, clusters": (
        partial(stored, "cifar10", MOBILENET, 40_000, 100),
        2,
        FEW,
    ),
    "CIFAR-100": (many_classes, 2, FEW),
    "MNIST": (partial(stored, "mnist", SCATTERNET, 50_000, 10), 1, FEW),
    "Fashion-MNIST": (
        partial(stored, "fashion-mnist", SCATTERNET, 50_000, 10),
        1,
        FEW,
    ),
}


def accuracies(
    of: Problem, epsilon: float, shares: tuple[str, ...], seed: int
) -> dict[str, float]:
    """Accuracy at each share, on one noise draw."""
    d, m = of.sums.shape
    rng = np.random.default_rng([seed, 7])
    triangle = np.tril(rng.normal(size=(d, d)))
    gram_noise = (triangle + triangle.T) / np.sqrt(2)
    np.fill_diagonal(gram_noise, np.diag(triangle))
    sums_noise = rng.normal(size=(d, m))
    found = {}
    for share in shares:
        solver = LeastSquares(gram_share=RULE if share == RULE else float(share))
        plan = make_plan(solver, of.facts, epsilon=epsilon, delta=DELTA)
        # unit rows: a row moves either sum by one, at most
        sd = {s.label: s.noise_multiplier for s in plan.specs}
        gram_sd, sums_sd = sd["gram"], sd["class sums"]
        gram = of.gram + gram_sd * gram_noise
        sums = of.sums + sums_sd * sums_noise
        ridge = shrunk_ridge(of.facts, gram_sd, None)
        weights = shrunk_weights(gram, gram_sd, sums, sums_sd, ridge)
        scores = of.x @ weights.astype(np.float32)
        found[share] = float(np.mean(scores.argmax(axis=1) == of.y))
    return found


def run() -> None:
    """The missing draws of each problem; CIFAR-100's only where it was extracted."""
    source = provenance()
    done = {(r["data"], r["epsilon"], r["seed"]) for r in read(OUT)}
    for title, (make, draws, shares) in PROBLEMS.items():
        for seed in range(draws):
            missing = [e for e in EPSILONS if (title, e, seed) not in done]
            if not missing:
                continue
            try:
                of = make(seed)
            except FileNotFoundError as error:
                print(f"{title}: {error}", flush=True)
                break
            for epsilon in missing:
                found = accuracies(of, epsilon, shares, seed)
                row = {"data": title, "epsilon": epsilon, "seed": seed}
                row |= {name: getattr(of.facts, name) for name in SIZES}
                row |= {"accuracies": found, "delta": DELTA, "measured_on": OTHER_ROWS}
                append(OUT, row | source)
                print(f"{title}, eps {epsilon:g} draw {seed}: {found}", flush=True)


def table() -> str:
    """A line for each problem and epsilon: % at the share of before, then differences
    in points on the same draws.
    """
    rows = read(OUT)
    lines = [
        "| data | n × d, classes | ε | draws | " + " | ".join(SHARES) + " |",
        "|---" * (4 + len(SHARES)) + "|",
    ]
    for title in dict.fromkeys(r["data"] for r in rows):
        for epsilon in EPSILONS:
            own = [r for r in rows if (r["data"], r["epsilon"]) == (title, epsilon)]
            if own:
                lines.append(_line(title, epsilon, own))
    return "\n".join(lines)


def _line(title: str, epsilon: float, own: list[dict]) -> str:
    of: dict[str, dict[int, float]] = {share: {} for share in SHARES}
    for row in own:
        for share, accuracy in row["accuracies"].items():
            of[share][row["seed"]] = 100 * accuracy
    first, base = own[0], of[BEFORE]
    sizes = f"{first['n_rows']:,} × {first['n_features']:,}, {first['n_classes']:,}"
    line = f"| {title} | {sizes} | {epsilon:g} | {len(own)} |"
    line += f" {np.mean(list(base.values())):.2f} |"
    for share in SHARES[1:]:
        gaps = paired(of[share], base)
        line += f" {spread(gaps) if gaps else '—'} |"
    return line
