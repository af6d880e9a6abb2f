"""Choose the rows that take part in a release.

The rows of a release are all rows, a Poisson sample, or the rows that random allocation
assigns to the release. A group cap limits the rows of each group.

A sample is secret: neither the sample nor its size may be stored or returned to a user.
A slot is the position of a row in its source.
"""

from dataclasses import dataclass, field

import numpy as np

NO_GROUP = -1  # stored in features files for a row without a group


def poisson_sample(
    n_rows: int, sampling_prob: float, generator: np.random.Generator
) -> np.ndarray:
    """Return the increasing slots of a Poisson sample.

    Each row is in the sample independently, with probability `sampling_prob` rounded
    down to 53 bits.

    Parameters
    ----------
    n_rows : int
        Number of slots.
    sampling_prob : float
        Sampling rate, in (0, 1].
    generator : numpy.random.Generator
        A fresh cryptographic stream (`NoiseSource.generator`).

    Returns
    -------
    ndarray of int64
        Slots in the sample, possibly none.

    Guarantee
    ---------
    Each slot gets one 53-bit uniform number from the generator. The size of the
    sample is random, possibly 0. It is secret and never stored. No row is dropped to
    fit a batch.
    """
    # Rounded down, so that a row is sampled with at most the charged probability.
    most = np.floor(sampling_prob * 2.0**53) / 2.0**53  # uniforms have 53 bits
    return np.flatnonzero(generator.random(n_rows) < most)


def random_steps(n_rows: int, steps: int, generator: np.random.Generator) -> np.ndarray:
    """Assign each row to one of `steps` steps, uniformly and independently.

    Parameters
    ----------
    n_rows : int
        Number of slots.
    steps : int
        Steps of the epoch, at least 1.
    generator : numpy.random.Generator
        A fresh cryptographic stream.

    Returns
    -------
    ndarray of int64, shape (n_rows,)
        The step of each row, from 0.

    Guarantee
    ---------
    The assignment is exactly uniform if the generator's bits are uniform. Numbers below
    2**64 mod `steps` are drawn again.
    """
    # Numbers below this would make some steps more likely.
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
    """Hold in memory the rows of each step of the current epoch.

    An allocation must not be stored, copied or drawn twice in an epoch: a row could
    then be used twice, which is not charged (proofs/allocation.md).
    """

    _steps: np.ndarray | None = field(default=None, repr=False)
    _next: int = 0  # the only step that may use `_steps`

    def rows(
        self, step: int, steps: int, n_rows: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Return the slots used in one step of an epoch, in increasing order.

        Parameters
        ----------
        step : int
            Step of the epoch, from 0.
        steps : int
            Steps of the epoch.
        n_rows : int
            Number of slots.
        generator : numpy.random.Generator
            A fresh cryptographic stream. Only step 0 draws from this stream.

        Returns
        -------
        ndarray of int64
            Slots of the step's rows.

        Guarantee
        ---------
        Rows are assigned to steps at step 0 only. A later step gets its rows if this
        process released all earlier steps of the epoch, and no rows otherwise. So the
        released steps of an epoch use a row at most once, even if another process
        continues the epoch.
        """
        if step == 0:
            self._steps = random_steps(n_rows, steps, generator)
        # After a restart or an uncommitted step, rows could be used twice.
        elif step != self._next:
            self._steps = None
        self._next = -1  # until this release is committed
        # No rows: the release is noise alone, which is charged all the same.
        if self._steps is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self._steps == step)

    def released(self, step: int) -> None:
        """Record that `step` is committed, so that the next step may use its rows."""
        self._next = step + 1


def within_cap(groups: np.ndarray, cap: int) -> np.ndarray:
    """Return which rows are among the first `cap` rows of their group.

    Parameters
    ----------
    groups : ndarray of int, shape (n,)
        Group id of each row. A row with NO_GROUP (-1) belongs to no group and is kept.
    cap : int
        Largest number of rows kept per group, at least 1.

    Returns
    -------
    ndarray of bool, shape (n,)
        True for the rows that are kept.

    Raises
    ------
    ValueError
        If `cap` is below 1 or not whole.

    Guarantee
    ---------
    At most `cap` rows of a group are kept. The choice depends on that group's slots
    only.
    """
    if cap < 1 or cap != int(cap):
        raise ValueError(
            "`--group-cap` (`group_cap`) must be a whole number of at least 1, "
            f"got {cap}. Use 1 for one row per group."
        )
    # Depends on the group's own slots only (proofs/groups.md).
    return (ranks(groups) < cap) | (groups == NO_GROUP)


def ranks(ids: np.ndarray) -> np.ndarray:
    """Return for each row the number of earlier rows with the same id, shape (n,)."""
    # Stable, so that the rows of an id stay in the order of their slots.
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    found = np.empty(len(ids), np.int64)
    found[order] = np.arange(len(ids)) - np.searchsorted(ordered, ordered)
    return found
