"""Blocks of rows: how many rows one has, padding, float16 widened to float32.

No size here depends on a private value: the shapes of blocks are public.
"""

import numpy as np

from dphead.privacy.contract import Block

CHUNK = 128  # rows that kernels add at a time: blocks have a multiple of it
BLOCK_ROWS = 2048  # of a block where nothing else decides; chosen, not measured
# bytes of a streamed block. First passes over 50,000 x 15,552 rows took 7.3, 6.5, 4.3 s
# with 32, 16, 8 MB (larger memory is taken from the system anew for each block),
# further ones 0.44, 0.51, 0.60 s; with blocks of 127 MB 10.6 and 0.70 s
# (commit a37b95d).
BLOCK_BYTES = 16 << 20
# blocks of rows in memory that are one, where there are so many for each core: fewer
# calls; chosen, not measured
BLOCKS_TOGETHER = 4
SAMPLE_ROWS = 2 * CHUNK  # of a block of a sample; chosen, not measured


def streamed_rows(n_features: int) -> int:
    """Rows of a block that is read from disk."""
    return max(CHUNK, min(BLOCK_ROWS, BLOCK_BYTES // (4 * n_features)) // CHUNK * CHUNK)


def rows_of_block(wanted: int, n_rows: int, sampled: bool) -> int:
    """A multiple of CHUNK, no larger than all n_rows need; for a sample one size for
    all, whatever there is.

    So no shape, and no message about memory, tells the size of a sample. That of a full
    batch tells a small n to 128 rows, also where n is private: as the number of blocks
    does, to this process alone (AUDIT.md, "Not protected").
    """
    most = min(wanted, SAMPLE_ROWS) if sampled else min(wanted, n_rows)
    return CHUNK * max(1, -(-most // CHUNK))


def padded(index: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int) -> Block:
    missing = rows - len(index)
    if missing:
        index = np.concatenate([index, np.full(missing, -1)])
        # zeros that nobody reads take no memory
        x, given = np.zeros((rows, x.shape[1]), np.float32), x
        x[: len(given)] = given
        y = np.concatenate([y, np.full((missing, *y.shape[1:]), -1, y.dtype)])
    return Block(index, x, y)


def to_float32(x: np.ndarray, out: np.ndarray) -> None:
    """out[...] = x, (k, d) float16 or float32.

    Seven times numpy's own speed for float16, bit for bit the same.

    A value that is not finite may come out as another that is not finite.
    """
    if x.dtype != np.float16:
        out[...] = x
        return
    huge = np.float32(2.0**112)
    tiny = np.float32(2.0**-112)
    with np.errstate(over="ignore"):
        for i in range(0, len(x), 64):  # in the cache
            values = out[i : i + 64]
            bits = values.view(np.int32)
            bits[...] = x[i : i + 64].view(np.int16)
            # exponent and fraction to their places; the sign is also in the three bits
            # below its own
            bits <<= 13
            bits &= np.int32(-0x70002000)
            values *= huge  # the exponents' biases differ by 112; denormal numbers too
            values *= huge  # what was not finite becomes infinite
            values *= tiny
