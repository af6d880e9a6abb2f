"""Compute the sums for `release`, checked before the charge and during each pass.

`release` must get its sums through this module only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.privacy.contract import Block, Summer, SumTask
from dphead.privacy.statistic_base import Params, Statistic
from dphead.privacy.statistics import ChannelMoment, Gradient
from dphead.privacy.transform import RowTransform
from dphead.sums.caches import KeptRows
from dphead.sums.passes import checked_sum
from dphead.sums.reference import (
    BlockSum,
    ReferenceSums,
    check_equal,
    empty_sum,
    largest_norm,
)

_KNOWN_ANSWER_PRODUCTS = 1 << 24  # products of one trial: about 0.02 s; chosen


class VerifiedSum:
    """Compute the verified sums of one fit, as the `Summer` of `release`.

    Parameters
    ----------
    block_sum : BlockSum, optional
        Summation backend for one block. The default is `ReferenceSums`.
    parts : SumOfParts, optional
        Sum over several processes. None if this process holds all rows.
    memory : int, default 0
        Bytes of integer rows to keep between passes.

    Guarantee
    ---------
    If `block_sum.is_compared(statistic)`, `check` compares the sums of hostile rows
    with the reference before the charge. In each pass, secret rows must give the
    reference's integers (`checked_sum`).
    """

    def __init__(
        self,
        block_sum: BlockSum | None = None,
        parts: Any = None,
        memory: int = 0,
    ) -> None:
        self.block_sum = ReferenceSums() if block_sum is None else block_sum
        # all passes share it: a gradient step uses the rows of the step before
        self.kept = KeptRows(memory)
        self._parts = parts
        self._checked: set[tuple[Statistic, int]] = set()
        self._norm: tuple[RowTransform, Any, float] | None = None

    def check(self, statistics: Iterable[Statistic], n_features: int) -> None:
        """Compare sums of hostile rows (`known_answers`) with the reference.

        Call it before the charge. Each pair of a statistic and a width is tested once.

        Raises
        ------
        RuntimeError
            If any integer differs from the reference.
        """
        compared = {
            (q, n_features) for q in statistics if self.block_sum.is_compared(q)
        }
        untried = {q for q, _ in compared - self._checked}
        known_answers(self.block_sum, untried, n_features)
        self._checked |= compared

    def __call__(self, task: SumTask) -> np.ndarray:
        """Return the exact integer sum that the task asks for, as int64."""
        return self.sums([task])[0]

    def sums(self, tasks: Sequence[SumTask]) -> list[np.ndarray]:
        """Return the sums of several tasks, computed in one pass (`checked_sum`)."""
        add = checked_sum if self._parts is None else self._parts
        return add(tasks, self.block_sum, self.kept)

    def one_pass(self, statistics: Sequence[Statistic]) -> Summer:
        """Return a `Summer` for the statistics of one request (`_OnePass`)."""
        return self if len(statistics) == 1 else _OnePass(self, statistics)

    def largest_norm(self, task: SumTask) -> float:
        """Return the largest norm before clipping, for fits without noise."""
        if self._parts is not None:  # each process must take part in each command
            return self._parts.largest_norm(task, self.block_sum)
        if task.indices is not None:
            return largest_norm(task, self.block_sum)
        # Each release of a fit without noise asks for this norm, and its pass takes ten
        # times the time of a compiled sum.
        transform, rows = task.params.transform, task.rows
        held = self._norm
        if held is None or held[0] is not transform or held[1] is not rows:
            held = self._norm = transform, rows, largest_norm(task, self.block_sum)
        return held[2]


class _OnePass:
    """Sum all statistics of a full-batch request in one pass, at its first release.

    Each release of a sample has its own pass.

    Guarantee
    ---------
    The sums of a full batch are in memory only, until the request is answered. Each sum
    is used for one release, with the same rows, parameters and clip norm.
    """

    def __init__(self, summer: VerifiedSum, statistics: Sequence[Statistic]) -> None:
        self._summer, self._statistics = summer, statistics
        self.largest_norm = summer.largest_norm
        self._pass: Any = None
        self._sums: dict[Statistic, np.ndarray] = {}

    def __call__(self, task: SumTask) -> np.ndarray:
        if task.indices is not None:  # each release has its own sample
            return self._summer(task)
        made_of = task.rows, task.params, task.clip_norm
        if made_of != self._pass or task.statistic not in self._sums:
            tasks = [replace(task, statistic=q) for q in self._statistics]
            sums = self._summer.sums(tasks)
            self._pass, self._sums = (
                made_of,
                dict(zip(self._statistics, sums, strict=True)),
            )
        return self._sums.pop(task.statistic)


def known_answers(
    block_sum: BlockSum, statistics: set[Statistic], n_features: int
) -> None:
    """Compare the block sum's integers with the reference's on hostile rows.

    The rows have features that broke sums before: one entry at the clip norm, tiny,
    huge and non-finite values, labels outside the classes, padding, and a partial last
    chunk. Gradients that support label sets are also tested with them.

    Parameters
    ----------
    block_sum : BlockSum
        Block sum to check.
    statistics : set of Statistic
        Statistics to test.
    n_features : int
        Number of features of the fit.

    Raises
    ------
    RuntimeError
        If any integer differs from the reference.
    """
    # A fixed seed: whether a fit is refused must not depend on chance.
    rng = np.random.default_rng(0)
    for statistic in sorted(statistics, key=repr):
        entries = int(np.prod(statistic.shape(n_features)))
        # 160 rows are a chunk of 128 and a partial one
        k = int(np.clip(_KNOWN_ANSWER_PRODUCTS // entries, 8, 160))
        blocks = [_hostile(rng, k, n_features, statistic.n_classes)]
        if isinstance(statistic, Gradient) and statistic.takes_sets:
            sets = _hostile_sets(rng, k, statistic.n_classes)
            blocks.append(replace(blocks[0], y=sets))
        # a center of about unit norm, as the mean of unit rows can have
        center = rng.normal(size=n_features) / np.sqrt(n_features)
        # channel moments do not support an appended constant
        append = 0.0 if isinstance(statistic, ChannelMoment) else 0.3
        centered = RowTransform(True, center, None, append)
        for transform in (RowTransform(), centered):
            width = transform.width(n_features)
            weights = rng.normal(size=(width, statistic.n_classes))
            ask = SumTask(statistic, Params(transform, weights), 1.0)
            for block in blocks:
                out = empty_sum(ask, n_features)
                rows = block_sum.rows(ask, block)
                out = block_sum.add(ask, rows, block.y, block.index >= 0, out)
                check_equal(ask, block_sum, [np.array(out)], block)


def _hostile(rng: np.random.Generator, k: int, d: int, m: int) -> Block:
    """Return a block of k hostile rows, with invalid labels and padding."""
    # a quarter has one entry at the clip norm, a quarter any size of float32
    quarter = k // 4
    half = k // 2
    x = rng.normal(size=(k, d)).astype(np.float32)
    x[:quarter] = 0
    # the entry is at another place in each row, to meet several columns of a tile
    places = np.arange(quarter)
    x[places, places % d] = 1
    sizes = np.logspace(-38, 36, half - quarter)  # float32 ranges from 1e-38 to 3e38
    with np.errstate(under="ignore"):
        x[quarter:half] *= sizes[:, None]
    x[half] = np.nan
    x[half + 1, 0] = np.inf
    # labels from -1 (no class) to m (one class too many)
    y = rng.integers(-1, m + 1, k).astype(np.int32)
    index = np.arange(k)
    index[-k // 8 :] = -1  # padding has features and labels that must not count
    return Block(index, x, y)


def _hostile_sets(rng: np.random.Generator, k: int, m: int) -> np.ndarray:
    """Return label sets (k, m) int8 of any size: empty, full and invalid sets too."""
    sets = (rng.random((k, m)) < rng.random((k, 1))).astype(np.int8)
    sets[::5] = 0
    sets[1::5] = 1
    sets[2::7] = -1
    sets[3::7, m // 2] = 2
    return sets
