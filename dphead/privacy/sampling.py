"""Which rows take part in a release: all of them, or a secret Poisson sample."""

import numpy as np


def poisson_sample(n_rows: int, sampling_prob: float, generator: np.random.Generator) -> np.ndarray:
    """Indices of a Poisson sample, increasing, int64: each row is in it independently with probability sampling_prob.

    Guarantee: one 53-bit uniform per row slot, drawn from a fresh cryptographic stream; the sample's size is whatever
    it is (0 included), is secret, and is never stored. No row is dropped to fit a batch.
    """
    return np.flatnonzero(generator.random(n_rows) < sampling_prob)
