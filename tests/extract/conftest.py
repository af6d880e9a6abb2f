"""Images that tests of extraction share."""

from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real images and weights) beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits as uint8 images (1797, 8, 8) and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return np.rint(data.images * (255 / 16)).astype(np.uint8), data.target.astype(
        np.int64
    )


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
