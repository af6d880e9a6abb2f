"""Measure channel means and spreads on synthetic images: no private image is used.

ScatterNet's channels differ in size by a factor of a hundred, and a head with a small
budget cannot learn to undo that. Natural images have a power spectrum near 1/frequency²
and correlated colors (Field 1987; Burton, Moorhead 1987). Random images of that kind,
drawn with a fixed seed, give each channel's size and spend no budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from dphead_extract.threads import one_thread

if TYPE_CHECKING:  # backbones import patches, and patches import this module
    from dphead_extract.backbones.base import Backbone

COUNT = 400  # number of images; a choice, not measured
SEED = 0  # seed of the images, which are the same everywhere
GRAY, CONTRAST = 128.0, 50.0  # mean and standard deviation of a color, of 255
# each color from luminance, red-blue, green-magenta
_RED = [1.0, 0.3, 0.1]
_GREEN = [1.0, 0.0, -0.2]
_BLUE = [1.0, -0.3, 0.1]
COLORS = np.array([_RED, _GREEN, _BLUE])


def synthetic_images(
    height: int, width: int, colors: int, count: int = COUNT
) -> Iterator[np.ndarray]:
    """Yield random images, uint8 (height, width[, 3]), with a 1/frequency spectrum.

    Their amplitudes fall as 1/frequency.
    """
    rng = np.random.default_rng(SEED)
    frequency = np.hypot(
        np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    )
    frequency[0, 0] = 1 / max(height, width)
    for _ in range(count):
        noise = np.fft.fft2(rng.standard_normal((colors, height, width)))
        planes = np.fft.ifft2(noise / frequency).real
        planes /= planes.std(axis=(1, 2), keepdims=True)
        if colors == 3:
            planes = np.tensordot(COLORS, planes, axes=1)
        image = np.clip(np.rint(GRAY + CONTRAST * planes), 0, 255).astype(np.uint8)
        yield (
            image[0] if colors == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
        )


def synthetic_features(backbone: Backbone) -> torch.Tensor:
    """Return the backbone's outputs for COUNT synthetic images.

    The features are computed with one CPU thread, because shards must not differ by a
    bit.
    """
    colors, height, width = backbone.input_shape
    inputs = [
        backbone.prepare(image) for image in synthetic_images(height, width, colors)
    ]
    with torch.inference_mode(), one_thread():
        return torch.cat(
            [
                backbone.module(torch.stack(inputs[i : i + 16]))
                for i in range(0, len(inputs), 16)
            ]
        )
