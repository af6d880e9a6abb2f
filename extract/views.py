"""Features that are means over views of an image: random shifts and flips of training images, or its mirror image.

De, Berrada, Hayes, Smith, Balle (2022, section 3.2) average gradients over random crops and flips of each image; here
the frozen network's features are averaged, once. A view depends on its own image and on public numbers, so it costs no
privacy: one image is still one row. The mean over an image and its mirror image is made of training and new images
alike: half of the directions vanish, and with them the noise on their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from extract.errors import ExtractError

SHARE = 8  # a view is shifted by up to a 1/SHARE of each side: 4 of 32 pixels, as De22 has it


@dataclass(frozen=True)
class Views:
    """count: random views of each image; 1 is the image as it is. flip: whether random views are mirrored, evenly.

    mirror: each view and its mirror image, rather than one of them.
    """

    count: int = 1
    flip: bool = True
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ExtractError(f"an image needs at least one view, got count={self.count}. Use --views 1 or more.")

    @property
    def total(self) -> int:
        """Images that a row is the mean of."""
        return self.count * (1 + self.mirror)

    def record(self) -> dict[str, Any]:
        """What the file's configuration says; nothing without views."""
        if self.total == 1:
            return {}
        mirror = {"mirror": True} if self.mirror else {}
        return {"views": {"count": self.count, "flip": self.flip and self.count > 1 and not self.mirror, **mirror}}

    def of(self, image: np.ndarray, row: int) -> list[np.ndarray]:
        """The `total` views of image (H, W) or (H, W, 3), of its shape. row: its public ordinal, which fixes them."""
        views = [image] if self.count == 1 else self._random(image, row)
        if self.mirror:
            views = [side for view in views for side in (view, np.ascontiguousarray(view[:, ::-1]))]
        return views

    def _random(self, image: np.ndarray, row: int) -> list[np.ndarray]:
        height, width = image.shape[:2]
        down, right = height // SHARE, width // SHARE
        border = [(down, down), (right, right), (0, 0)][: image.ndim]
        padded = np.pad(image, border, mode="reflect")
        rng = np.random.default_rng(row)
        views = []
        for _ in range(self.count):
            top, left = rng.integers(0, 2 * down + 1), rng.integers(0, 2 * right + 1)
            view = padded[top : top + height, left : left + width]
            mirrored = self.flip and not self.mirror and rng.integers(0, 2) == 1
            views.append(np.ascontiguousarray(view[:, ::-1] if mirrored else view))
        return views
