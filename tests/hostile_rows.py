"""Rows that try to move a sum further than its noise is for.

The sums are measured without noise, so there is no chance in it, and no private row may
be used. Rows of any size, of opposite signs, and rows that are not finite are tried.
They are tried at the first and the last release of each label. If these depend on
weights, they are also tried at weights that are wrong for the rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from dphead.analysis.audit_rows import Sums, UnrecordedSpec
from dphead.analysis.audit_transcript import Problem, Seen, transcript
from dphead.planning.plan import Plan
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistic_base import Params
from dphead.solvers.base import Solver

# Choices, not measured.
HOSTILE_NORMS = (1.0, 10.0, 1e6)  # norms of hostile rows, in clip norms
# score of a clipped hostile row for the wrong class, at the weights of `_wrong`
WRONG_SCORE = 5.0


@dataclass(frozen=True)
class Pair:
    """Hold two rows that may be in the same slots.

    `canary` and `neighbor` are (row, class). The neighbor is for replace_one.
    """

    name: str
    canary: tuple[np.ndarray, int]
    neighbor: tuple[np.ndarray, int]


def pairs(n_features: int, n_classes: int, clip_norm: float) -> list[Pair]:
    """Return hostile rows of every kind that a features file may hold."""
    first = np.zeros(n_features, np.float32)
    first[0] = clip_norm
    even = np.full(n_features, clip_norm / np.sqrt(n_features), np.float32)
    found = []
    for size, (name, row) in product(
        HOSTILE_NORMS, (("first axis", first), ("all features", even))
    ):
        row = np.float32(size) * row
        found.append(Pair(f"{size:g} clip norms, {name}", (row, 0), (-row, 0)))
        found.append(
            Pair(
                f"{size:g} clip norms, {name}, opposite",
                (-row, 0),
                (row, n_classes - 1),
            )
        )
    far = np.float32(HOSTILE_NORMS[1]) * first
    for name, value in (
        ("nan", np.nan),
        ("inf", np.inf),
        ("-inf", -np.inf),
        ("largest", 3e38),
        ("least", 1e-45),
    ):
        one = even.copy()
        one[-1] = value
        found.append(Pair(f"one entry {name}", (one, 0), (far, 0)))
        found.append(
            Pair(
                f"all entries {name}",
                (np.full(n_features, value, np.float32), 0),
                (-far, 0),
            )
        )
    found.append(Pair("a label beyond the classes", (far, n_classes), (-far, 0)))
    return found


def asked(solver: Solver, plan: Plan, problem: Problem, clip: float) -> Iterator[Seen]:
    """Yield the first and last release of each label in one fit.

    Each is also yielded at weights that are wrong for hostile rows, if it has weights.
    """
    labels = [s.label for s in plan.specs]
    wanted = {labels.index(name) for name in labels} | {
        len(labels) - 1 - labels[::-1].index(name) for name in labels
    }
    specs: list[Any] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    sums = Sums(problem.world(True))
    facts = plan.budgeted(problem.facts)
    fit = transcript(solver, facts, specs, NoiseSource(), sums)
    for i, seen in enumerate(fit):
        if i not in wanted:
            continue
        yield seen
        params = seen.params
        if type(params) is Params and params.weights is not None:
            yield replace(seen, params=replace(params, weights=_wrong(params, clip)))


def _wrong(params: Params, clip: float) -> np.ndarray:
    """Return weights that give a row along the first axis to the last class.

    The row is as long as the clip norm.
    """
    assert params.weights is not None
    weights = np.zeros_like(params.weights)
    weights[0, 0] = -WRONG_SCORE / clip
    weights[0, -1] = WRONG_SCORE / clip
    return weights
