"""Audit how a row moves sums in each slot, and check that invalid rows move no sum.

A slot is the position of a row in its source. The checks are exact. They compare sums
before noise, and count released numbers that are not whole units.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.analysis.audit_laws import LawResult
from dphead.analysis.audit_rows import AuditRows, Sums
from dphead.analysis.audit_transcript import (
    SHARED_ROWS,
    Problem,
    Seen,
    random_places,
    share_of_sensitivity,
)

_PLACES = 64  # slots that are tried; chosen, not measured
_LARGEST = 3e38  # close to the largest float32
# relative tolerance if a movement is compared with the sensitivity: both are rounded
# square roots
_ROUNDING = 1e-9

_NamedRow = tuple[str, tuple[np.ndarray, int]]  # name of a defect, row and class


def exact_findings(
    problems: Sequence[Problem],
    kinds: Sequence[Mapping[Any, Seen]],
    share: float,
    broken: int,
) -> Iterator[LawResult]:
    """Yield the results of exact tests of sums before noise. The p-values are 0 or 1.

    Parameters
    ----------
    problems : sequence of Problem
        Rows and canaries.
    kinds : sequence of mappings to Seen
        For each problem, one release of each kind.
    share : float
        Largest movement of a sum by the canary in the fits, divided by the sensitivity.
    broken : int
        Released entries in the fits that are not whole numbers of units.

    Notes
    -----
    The tests try at most 64 slots. A row must move a sum by the same integers in every
    slot and group, whatever the other rows are. A row that is not finite, or that has
    no declared class, must move no sum. No row may move a sum by more than the
    sensitivity. Released numbers must be whole units.
    """
    slots = _slots(problems[0].facts.n_rows)
    apart: list[int] = []
    idle: set[str] = set()
    for i, problem in enumerate(problems):
        releases = list(kinds[i].values())
        expected = _moves(problem, releases)
        for slot in slots[i :: len(problems)]:
            found = _moves(_elsewhere(problem, int(slot)), releases)
            if not all(map(np.array_equal, found, expected)):
                apart.append(int(slot))
        idle |= _moving(problem, releases)
        for x in _extreme_rows(problem.canary[0]):
            label = problem.canary[1]
            other = (-x, label) if problem.neighbor else None
            placed = replace(_elsewhere(problem), canary=(x, label), neighbor=other)
            for seen, move in zip(releases, _moves(placed, releases), strict=True):
                share = max(share, share_of_sensitivity(seen, move))
    every, moved = "all releases", "movement by the canary"
    held = float(share <= 1 + _ROUNDING)
    yield LawResult(moved, every, held, f"{share:.6g} of the sensitivity")
    shown = f"different integers in {len(apart)} of {len(slots)} slots"
    yield LawResult(moved, "each slot and group", float(not apart), shown)
    shown = f"sums moved by rows with {', '.join(sorted(idle)) or 'nothing'}"
    yield LawResult("rows without effect", every, float(not idle), shown)
    shown = f"{broken:,} released numbers are between two units"
    yield LawResult("whole units", every, float(not broken), shown)


def _slots(n_rows: int) -> np.ndarray:
    """Return at most 64 slots to try, in random order.

    The first and the last slot are among them.
    """
    random = np.random.default_rng()
    if n_rows <= _PLACES:
        return random.permutation(n_rows)
    inner = 1 + random.choice(n_rows - 2, _PLACES - 2, replace=False)
    return random.permutation(np.append(inner, [0, n_rows - 1]))


def _elsewhere(problem: Problem, slot: int | None = None) -> Problem:
    """Return the problem with new shared rows, and its canary in `slot`.

    Without `slot`, the canary gets a random slot.
    """
    random = np.random.default_rng()
    facts, copies = problem.facts, problem.copies
    count = int(random.integers(min(SHARED_ROWS, facts.n_rows - copies) + 1))
    signs = random.choice(np.array([-1, 1], np.float32), (count, 1))
    return replace(
        problem,
        x=signs * problem.canary[0],
        y=random.integers(0, facts.n_classes, count),
        **random_places(facts.n_rows, count, copies, slot),
    )


def _moves(problem: Problem, releases: Sequence[Seen]) -> list[np.ndarray]:
    """Return the integers by which the canary moves the sum of each release."""
    without, inside = (Sums(problem.world(has)) for has in (False, True))
    return [
        inside.total(seen.statistic, seen.params, seen.spec)
        - without.total(seen.statistic, seen.params, seen.spec)
        for seen in releases
    ]


def _moving(problem: Problem, releases: Sequence[Seen]) -> set[str]:
    """Return the names of invalid rows (`_idle_rows`) that move a sum."""
    n_rows, rows = problem.facts.n_rows, list(_idle_rows(problem))

    def totals(some: Sequence[_NamedRow]) -> list[np.ndarray]:
        x = np.array([row for _, (row, _) in some])
        y = np.array([label for _, (_, label) in some])
        places = random_places(n_rows, len(some) - 1, 1)
        sums = Sums(AuditRows(x, y, n_rows, **places, group_cap=problem.group_cap))
        return [sums.total(r.statistic, r.params, r.spec) for r in releases]

    canary = ("", problem.canary)
    expected = totals([canary])

    def moved(some: Sequence[_NamedRow]) -> bool:
        return not all(map(np.array_equal, totals([*some, canary]), expected))

    # all rows are tried together first, because a network's sum takes long
    size = n_rows - 1
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return {row[0] for part in parts if moved(part) for row in part if moved([row])}


def _idle_rows(problem: Problem) -> Iterator[_NamedRow]:
    """Yield rows that must move no sum: the defect's name, the row and its class."""
    x, label = problem.canary
    for value in (np.nan, np.inf, -np.inf):
        for entries in (slice(0, 1), slice(-1, None), slice(None)):
            row = x.copy()
            row[entries] = value
            yield f"{value:g}", (row, label)
    n_classes = problem.facts.n_classes
    # 2**32 would wrap to class 0 in 32 bits
    for other in (-1, -2, n_classes, n_classes + 1, 2**31 - 1, 2**31, 2**32):
        yield f"class {other}", (x, other)


def _extreme_rows(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield finite rows of extreme sizes and shapes."""
    peak = np.zeros_like(x)
    peak[-1] = _LARGEST
    with np.errstate(under="ignore"):
        yield from (np.float32(size) * x for size in (1e3, 1e18, 1e36, 1e-18, 1e-40))
    yield from (peak, np.full_like(x, _LARGEST), np.full_like(x, -1))
    yield np.random.default_rng().standard_normal(len(x)).astype(np.float32)
