"""Augment cached features: a row is the mean over views of its image.

De, Berrada, Hayes, Smith, Balle (2022, section 3.2) average gradients over random crops
and flips of each image. Here the frozen backbone's features are averaged, once. A view
depends only on the pixels of its image, not on the position of the image, and spends no
budget. One image is still one row, and a removed row changes no other row. Equal images
have equal views.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

# a view is shifted by up to 1/SHIFT_SHARE of each side: 4 of 32 pixels, as in De22
_SHIFT_SHARE = 8


@dataclass(frozen=True)
class Views:
    """Describe the views of each image.

    Attributes
    ----------
    count : int
        Number of views; 1 means only the unchanged image.
    flip : bool
        Whether each view is mirrored with probability one half.
    """

    count: int = 1
    flip: bool = True

    def record(self) -> dict[str, Any]:
        """Return the settings of the views for the features file; {} without views."""
        if self.count == 1:
            return {}
        how = {"count": self.count, "flip": self.flip, "keyed_by": "image"}
        return {"views": how}

    def of(self, image: np.ndarray) -> list[np.ndarray]:
        """Return the views of one image, uint8, each with the shape of the image.

        The pixels of the image seed the random shifts and mirrors.
        """
        if self.count == 1:
            return [image]
        height, width = image.shape[:2]
        down, right = height // _SHIFT_SHARE, width // _SHIFT_SHARE
        border = [(down, down), (right, right), (0, 0)][: image.ndim]
        padded = np.pad(image, border, mode="reflect")
        content = repr(image.shape).encode() + image.tobytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        views = []
        for _ in range(self.count):
            top, left = rng.integers(0, 2 * down + 1), rng.integers(0, 2 * right + 1)
            view = padded[top : top + height, left : left + width]
            mirrored = self.flip and rng.integers(0, 2) == 1
            views.append(np.ascontiguousarray(view[:, ::-1] if mirrored else view))
        return views
