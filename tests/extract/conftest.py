"""Images that tests of extraction share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dphead_extract.features.format import open_features
from dphead_extract.sources.classes import Classes

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
def in_two_batch_sizes(digits_npz, tmp_path) -> Callable[[Any], Path]:
    """Makes features of 40 digits by a backbone, whose rows are the same whether images
    come in batches of 8 or of 3; gives one file.
    """
    # here, since other tests of this folder run without torch
    from dphead_extract.normalization import RowNorm
    from dphead_extract.run import ExtractOptions, extract

    def extracted(backbone: Any) -> Path:
        how = {"normalize": RowNorm("local"), "limit": 40, "workers": 2}
        how |= {"backbone": backbone, "classes": Classes.parse("10")}
        paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
        for size, path in zip((8, 3), paths, strict=True):
            extract(ExtractOptions(digits_npz, path, batch_size=size, **how))
        with open_features(paths[0]) as a, open_features(paths[1]) as b:
            assert np.array_equal(a.rows(0, 40), b.rows(0, 40))
        return paths[0]

    return extracted


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
