"""Choose block sizes, pad blocks, and widen float16 rows to float32.

No shape depends on a row's value or on a sample. The shape of a full batch reveals a
small number of rows, rounded up to a multiple of 128 (`rows_of_block`).
"""

import numpy as np

from dphead.privacy.contract import Block

_CHUNK = 128  # rows that kernels add at a time; a block has a multiple of them
BLOCK_ROWS = 2048  # default number of rows of a block; chosen, not measured
# Bytes of a streamed block. First passes over 50,000 x 15,552 rows took 7.3, 6.5, 4.3 s
# with 32, 16, 8 MB (the system allocates larger memory anew for each block). Further
# passes took 0.44, 0.51, 0.60 s. Blocks of 127 MB took 10.6 and 0.70 s (commit
# a37b95d).
_BLOCK_BYTES = 16 << 20
# number of blocks in memory that are joined into a large one, for fewer calls; chosen,
# not measured
BLOCKS_TOGETHER = 4
_SAMPLE_ROWS = 2 * _CHUNK  # largest block of a sample; chosen, not measured


def streamed_rows(n_features: int) -> int:
    """Return the number of rows per block read from disk."""
    return max(
        _CHUNK, min(BLOCK_ROWS, _BLOCK_BYTES // (4 * n_features)) // _CHUNK * _CHUNK
    )


def rows_of_block(wanted: int, n_rows: int, sampled: bool) -> int:
    """Return the number of rows per block, a multiple of _CHUNK.

    Blocks of a sample have one size for all n_rows. Therefore no shape, and no message
    about memory, depends on the size of a sample. The shape of a full batch reveals a
    small n to within 128 rows, even if n is private. So does the number of blocks.
    Shape and number are visible to this process only (AUDIT.md, "Not protected").
    """
    most = min(wanted, _SAMPLE_ROWS) if sampled else min(wanted, n_rows)
    return _CHUNK * max(1, -(-most // _CHUNK))


def padded(index: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int) -> Block:
    """Return a block of `rows` rows, padded with index -1 and label -1."""
    missing = rows - len(index)
    if missing:
        index = np.concatenate([index, np.full(missing, -1)])
        # the system allocates no memory for zeros that are never read
        x, given = np.zeros((rows, x.shape[1]), np.float32), x
        x[: len(given)] = given
        y = np.concatenate([y, np.full((missing, *y.shape[1:]), -1, y.dtype)])
    return Block(index, x, y)


def to_float32(x: np.ndarray, out: np.ndarray) -> None:
    """Write x (k, d), float16 or float32, to out as float32.

    For float16, this is seven times as fast as numpy. Finite values are the same bit
    for bit. A value that is not finite may become another value that is not finite.
    """
    if x.dtype != np.float16:
        out[...] = x
        return
    huge = np.float32(2.0**112)
    tiny = np.float32(2.0**-112)
    with np.errstate(over="ignore"):
        for i in range(0, len(x), 64):  # 64 rows stay in the cache
            values = out[i : i + 64]
            bits = values.view(np.int32)
            bits[...] = x[i : i + 64].view(np.int16)
            # Shift exponent and fraction to their places. Sign extension also fills the
            # three bits below the sign, which the mask clears.
            bits <<= 13
            bits &= np.int32(-0x70002000)
            values *= huge  # the exponents' biases differ by 112; denormals fit too
            values *= huge  # a value that is not finite becomes infinite
            values *= tiny
