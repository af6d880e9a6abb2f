"""Images that tests of extraction share."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def digits_npz(digits, tmp_path) -> Path:
    """A small .npz source: 300 digits, the first 200 train."""
    images, labels = digits
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        images=images[:300],
        labels=labels[:300],
        split=np.repeat([0, 1], [200, 100]),
    )
    return path
