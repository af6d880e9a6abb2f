"""FC23's search over two settings, on CIFAR-10 from MobileNetV2: what it gains, and
what it gains when it is counted.

`not accounted`: as the paper does it. 50 trials by Optuna, each with the whole budget,
of the settings in the preset's search; the best on a fifth of the training rows is
fitted again on all rows. The choice looked at private rows at no charge, so these heads
are not private at the epsilon of their column.
`accounted`: settings drawn at random from the same square, K trials, K geometric with
mean 50 and secret. A trial is a head fitted on four fifths of the training rows and a
noisy count of the rows of the other fifth that it gets right;
a row is in one of the two parts, so that both may be mu-GDP. The head of the best count
leaves, and what a choice costs (`dphead.analysis.selection`) makes mu small enough for
the whole to have the column's epsilon.
`python -m benchmarks tuning` runs what is missing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import features
from benchmarks.fused import FusedSums
from benchmarks.store import RESULTS, append, provenance, read
from benchmarks.verdicts import header, measured
from dphead.analysis.metrics import evaluate_scores
from dphead.analysis.selection import selection_calibrate
from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu
from dphead.privacy.contract import Block, Known
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Statistic
from dphead.solvers import ProblemInfo
from dphead.sums.reference import SumTask
from dphead.sums.verified import VerifiedSum

OUT = RESULTS / "tuning.jsonl"
METHODS = {"dp-fc": {"steps": 10}, "dp-newton": {"steps": 1}, "dp-ls": {}}
EPSILONS = (0.1, 1.0, 8.0)
DELTA = 1e-5
TRIALS = 50
DRAWS = 5
FREE, COUNTED = "not accounted", "accounted"
Row = dict[str, Any]


class RememberedSums:
    """A `BlockSum` for rows of one block: sums that do not change from trial to trial
    are computed once.
    """

    parallel = False

    def __init__(self) -> None:
        self._fused = FusedSums()
        self._known: dict[tuple, np.ndarray] = {}

    def is_compared(self, query: Statistic) -> bool:
        """Never."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """As `FusedSums`."""
        return self._fused.norms(ask, block)

    def rows(self, ask: SumTask, block: Block) -> Block:
        """The block itself."""
        return block

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Add the block's statistics to out."""
        params = ask.params
        weights = None if params.weights is None else params.weights.tobytes()
        # where a trial begins
        start = params.weights is None or not np.diff(params.weights, axis=1).any()
        if not start:
            return self._fused.add(ask, self._fused.rows(ask, rows), y, used, out)
        key = (
            ask.query,
            ask.clip_norm,
            weights,
            params.transform.unit_norm,
            params.transform.append,
        )
        if key not in self._known:
            made = self._fused.rows(ask, rows)
            self._known[key] = self._fused.add(ask, made, y, used, np.zeros_like(out))
        out += self._known[key]
        return out


class Trials:
    """Fits of one method at any settings, on all training rows or on four fifths of
    them.
    """

    def __init__(self, dataset: str = "cifar10", name: str = "mobilenetv2-128") -> None:
        self.data = features.load(dataset, name)
        part = features.load(dataset, name, True)
        self.held_x, self.held_y, self.kept = part.x, part.y, part.facts
        self._rows = {data.facts: _OneBlock(data.rows) for data in (self.data, part)}
        self._sums = {facts: RememberedSums() for facts in self._rows}

    def head(
        self,
        method: str,
        settings: dict[str, float],
        epsilon: float,
        seed: int,
        facts: ProblemInfo,
    ) -> Any:
        """The head of one fit. facts: those of all rows, or `kept`."""
        solver = make_method(method, facts, METHODS[method] | settings, "fc23").solver
        plan = make_plan(solver, facts, epsilon=epsilon, delta=DELTA)
        run = Run(noise=NoiseSource(seed), summer=VerifiedSum(self._sums[facts]))
        with np.errstate(all="ignore"):  # most of the square diverges
            return fit_head(solver, self._rows[facts], facts, plan, run).head

    def correct(self, head: Any) -> int:
        """Held-out rows that a head gets right."""
        with np.errstate(all="ignore"):
            return int((head.scores(self.held_x).argmax(1) == self.held_y).sum())

    def accuracy(self, head: Any) -> float:
        """Of the test rows."""
        with np.errstate(all="ignore"):
            return evaluate_scores(
                np.nan_to_num(head.scores(self.data.x)), self.data.y
            )["accuracy"]


class _OneBlock:
    """All rows as one block, made once."""

    def __init__(self, rows: ArrayRows) -> None:
        self.n_rows, self.n_features, self.group_cap = (
            rows.n_rows,
            rows.n_features,
            rows.group_cap,
        )
        parts = list(rows.blocks())
        index, x, y = (
            np.concatenate([getattr(p, k) for p in parts]) for k in ("index", "x", "y")
        )
        self._block = Block(index, x, y)

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        if indices is not None:
            raise ValueError(
                "one block must be the full batch, got indices. Use full-batch methods."
            )
        yield self._block


def square(method: str, n_rows: int) -> dict[str, tuple[float, float]]:
    """Return what FC23 searched: the settings and their ranges.

    n_rows: of a trial, for a ridge that the paper adds to sums over rows.
    """
    found = {}
    for name, ends in presets.load("fc23")["search"][method].items():
        unit = n_rows if name == "summed_ridge" else 1
        if name != "trials":
            found[name.removeprefix("summed_")] = (ends[0] / unit, ends[1] / unit)
    return found


def not_accounted(
    trials: Trials, method: str, epsilon: float, seeds: Iterable[int]
) -> Iterator[Row]:
    """Optuna's choice, and the test accuracy of fits with it, a row a seed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        settings = {
            k: trial.suggest_float(k, *ends, log=True)
            for k, ends in square(method, trials.kept.n_rows).items()
        }
        return trials.correct(
            trials.head(method, settings, epsilon, 1000 + trial.number, trials.kept)
        )

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0)
    )
    study.optimize(objective, n_trials=TRIALS)
    for seed in seeds:
        head = trials.head(method, study.best_params, epsilon, seed, trials.data.facts)
        yield {
            "seed": seed,
            "settings": study.best_params,
            "trials": TRIALS,
            "accuracy": trials.accuracy(head),
        }


def trial_mu(epsilon: float) -> float:
    """The mu of a trial such that the choice among geometrically many with mean TRIALS
    has epsilon.
    """
    return 1 / selection_calibrate([GaussianEvent(1.0)], TRIALS, epsilon, DELTA)


def accounted(
    trials: Trials, method: str, epsilon: float, seeds: Iterable[int]
) -> Iterator[Row]:
    """The head of the best noisy score of K random trials, a row a seed."""
    mu = trial_mu(epsilon)
    for seed in seeds:
        rng = np.random.default_rng([seed, 7])
        best: tuple[float, Any, dict[str, float]] | None = None
        count = int(rng.geometric(1 / TRIALS))
        for k in range(count):
            settings = {
                k: float(np.exp(rng.uniform(*np.log(ends))))
                for k, ends in square(method, trials.kept.n_rows).items()
            }
            head = trials.head(
                method,
                settings,
                epsilon_from_mu(mu, DELTA),
                10_000 * (seed + 1) + k,
                trials.kept,
            )
            score = trials.correct(head) + rng.normal() / mu
            if best is None or score > best[0]:
                best = score, head, settings
        assert best is not None
        yield {
            "seed": seed,
            "settings": best[2],
            "trials": count,
            "trial_mu": mu,
            "accuracy": trials.accuracy(best[1]),
        }


SEARCHES = {FREE: not_accounted, COUNTED: accounted}


def run() -> None:
    """Run what is missing, one JSON line a draw: a method's cells, then the next's."""
    done = {(r["method"], r["epsilon"], r["way"], r["seed"]) for r in read(OUT)}
    threadpool_limits(1, "blas")  # small solves: threads would wait for each other
    trials = Trials()
    for method, epsilon, way in product(METHODS, EPSILONS, SEARCHES):
        cell = method, epsilon, way
        seeds = [seed for seed in range(DRAWS) if (*cell, seed) not in done]
        if not seeds:
            continue
        described = {
            "method": method,
            "epsilon": epsilon,
            "delta": DELTA,
            "way": way,
            "preset": "fc23",
            "features": trials.data.described,
        }
        for row in SEARCHES[way](trials, method, epsilon, seeds):
            append(OUT, described | row | provenance())
            print(
                f"{method} eps {epsilon:g} {way}, draw {row['seed']}: "
                f"{row['accuracy']:.4f} {row['settings']}",
                flush=True,
            )


def table(rows: Iterable[Row], defaults: dict[tuple[str, float], list[float]]) -> str:
    """Test accuracy in %, a line for each method that was searched and way.

    defaults: (method, epsilon) to accuracies in %.
    """
    cells: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    counts: dict[str, set[int]] = defaultdict(set)
    for r in rows:
        cells[r["method"], r["way"], r["epsilon"]].append(100 * r["accuracy"])
        if r["way"] == COUNTED:
            counts[r["method"]].add(r["trials"])
    lines = header(EPSILONS, "method", "settings")
    for method in METHODS:
        drawn = ", ".join(map(str, sorted(counts[method]))) or "none yet"
        names = {
            FREE: "50 trials by Optuna, not accounted",
            COUNTED: f"random trials, 50 on average (drawn: {drawn}), accounted",
        }
        ways = [
            (name, [cells.get((method, way, e)) for e in EPSILONS])
            for way, name in names.items()
        ]
        if not any(any(values) for _, values in ways):
            continue
        ways.append(
            ("our defaults, no search", [defaults.get((method, e)) for e in EPSILONS])
        )
        for name, values in ways:
            lines.append(
                f"| {method} | {name} | "
                + " | ".join(measured(v) if v else "—" for v in values)
                + " |"
            )
    return "\n".join(lines)
