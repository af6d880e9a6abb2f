"""Numbers of blocks are widened to the same values."""

import numpy as np

from dphead.data.blocks import to_float32


def test_every_float16_becomes_the_float32_of_the_same_value():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    out = np.empty(halves.shape, np.float32)
    to_float32(halves, out)
    finite = np.isfinite(halves)
    expected = halves.astype(np.float32)
    # signs of zero too
    assert np.array_equal(out[finite].view(np.int32), expected[finite].view(np.int32))
    assert not np.isfinite(out[~finite]).any()
