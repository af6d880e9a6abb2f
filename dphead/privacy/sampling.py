"""Which rows take part in a release: all, so many of a group, a Poisson sample, or
those that an epoch's random allocation gives it.

A sample is secret: neither it nor its size may be stored or handed out.
"""

from dataclasses import dataclass, field

import numpy as np

NO_GROUP = -1  # as a features file has it


def poisson_sample(
    n_rows: int, sampling_prob: float, generator: np.random.Generator
) -> np.ndarray:
    """Indices of a Poisson sample, increasing, int64: each row is in it independently
    with probability sampling_prob, rounded down to 53 bits.

    Guarantee: one 53-bit uniform per row slot, drawn from a fresh cryptographic stream;
    the sample's size is whatever it is (0 included), is secret, and is never stored. No
    row is dropped to fit a batch.
    """
    most = np.floor(sampling_prob * 2.0**53) / 2.0**53  # uniforms have 53 bits
    return np.flatnonzero(generator.random(n_rows) < most)


def random_steps(n_rows: int, steps: int, generator: np.random.Generator) -> np.ndarray:
    """(n_rows,) int64: for each row one of `steps` steps, uniform and independent.

    Guarantee: exactly uniform for uniform bits: of the 2**64 numbers so many as are
    left over by a division into `steps` equal parts are drawn again.
    """
    left_over = np.uint64(2**64 % steps)
    found = np.zeros(n_rows, np.uint64)
    missing = np.arange(n_rows)
    while len(missing):
        drawn = generator.integers(0, 2**64, len(missing), np.uint64)
        found[missing] = drawn
        missing = missing[drawn < left_over]
    return (found % np.uint64(steps)).astype(np.int64)


@dataclass
class Allocation:
    """Which step of the current epoch uses which rows. Memory of one fit's process.

    It must not be stored, copied or drawn a second time in an epoch: a row could be
    used twice, for which nobody is charged (proofs/allocation.md).
    """

    _steps: np.ndarray | None = field(default=None, repr=False)
    _next: int = 0  # the step that may be taken of it

    def rows(
        self, step: int, steps: int, n_rows: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Increasing slots of the rows of a step of an epoch, int64.

        Guarantee: rows are drawn for step 0 alone. Of any later step the rows are those
        of that draw if this process released all steps between, and none otherwise: so
        an epoch uses a row once at most, whoever goes on with it.
        """
        if step == 0:
            self._steps = random_steps(n_rows, steps, generator)
        elif step != self._next:
            self._steps = None
        self._next = -1  # until this release is committed
        if self._steps is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self._steps == step)

    def released(self, step: int) -> None:
        """That step's release is committed: the next one may be taken."""
        self._next = step + 1


def within_cap(groups: np.ndarray, cap: int) -> np.ndarray:
    """(n,) bool: the first `cap` rows of each group.

    groups: (n,) ids; NO_GROUP (-1), which no group has, is a row on its own.

    Guarantee: at most `cap` rows of a group are kept, and which of them depends on that
    group's slots alone.
    """
    if cap < 1 or cap != int(cap):
        raise ValueError(
            "a group must keep a whole number of rows, at least one, got "
            f"group_cap={cap}. Use 1 or more."
        )
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.searchsorted(ordered, ordered)  # of its group
    rank = np.arange(len(groups)) - first
    kept = np.empty(len(groups), bool)
    kept[order] = (rank < cap) | (ordered == NO_GROUP)
    return kept
