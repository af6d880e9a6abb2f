"""Which rows take part in a release: all, so many of a group, or a Poisson sample.

A sample is secret: neither it nor its size may be stored or handed out.
"""

import numpy as np


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


def within_cap(groups: np.ndarray, cap: int) -> np.ndarray:
    """(n,) bool: the first `cap` rows of each group.

    groups: (n,) int; a negative one is a group of this row alone.

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
    kept[order] = (rank < cap) | (ordered < 0)
    return kept
