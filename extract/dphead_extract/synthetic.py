"""Draw synthetic images, which replace private images and spend no budget.

Natural images have a power spectrum near 1/frequency² and correlated colors (Field
1987; Burton, Moorhead 1987). Random images of this kind give the mean and the spread of
each channel of ScatterNet. The sizes of these channels differ by a factor of a hundred.
A head with a small budget cannot learn to correct this.

Dead leaves are discs that cover one another, with the edges and spectra of natural
images (Lee, Mumford, Huang 2001; Baradad and others 2021). Filters are learned from
both kinds of images. A fixed seed draws all images.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from dphead_extract.threads import one_thread

if TYPE_CHECKING:  # backbones import this module
    from dphead_extract.backbones.base import Backbone

N_SYNTHETIC = 400  # number of images; a choice, not measured
SYNTHETIC_SEED = 0  # seed of the images
_GRAY, _CONTRAST = 128.0, 50.0  # mean and standard deviation of a color's levels
# weights of luminance, red-blue and green-magenta in each color
_RED = [1.0, 0.3, 0.1]
_GREEN = [1.0, 0.0, -0.2]
_BLUE = [1.0, -0.3, 0.1]
_COLORS = np.array([_RED, _GREEN, _BLUE])
_LEAVES = 300  # discs of an image; a choice: the discs cover nearly all of it
# radii as shares of the image's shorter side, with a density proportional to r**-3; a
# choice
_SMALLEST_LEAF, _LARGEST_LEAF = 0.05, 0.5
_TINT = 0.2  # standard deviation of a disc's colors; a choice


def synthetic_images(
    height: int, width: int, colors: int, count: int = N_SYNTHETIC
) -> Iterator[np.ndarray]:
    """Yield random images, uint8 (height, width[, 3]), with 1/frequency amplitudes."""
    rng = np.random.default_rng(SYNTHETIC_SEED)
    frequency = np.hypot(
        np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    )
    frequency[0, 0] = 1 / max(height, width)
    for _ in range(count):
        noise = np.fft.fft2(rng.standard_normal((colors, height, width)))
        planes = np.fft.ifft2(noise / frequency).real
        planes /= planes.std(axis=(1, 2), keepdims=True)
        if colors == 3:
            planes = np.tensordot(_COLORS, planes, axes=1)
        image = np.clip(np.rint(_GRAY + _CONTRAST * planes), 0, 255).astype(np.uint8)
        yield (
            image[0] if colors == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
        )


def dead_leaves(
    height: int, width: int, colors: int, count: int = N_SYNTHETIC
) -> Iterator[np.ndarray]:
    """Yield random images of discs, (colors, height, width) from 0 to 1."""
    rng = np.random.default_rng(SYNTHETIC_SEED)
    down, right = np.mgrid[:height, :width]
    for _ in range(count):
        inverse = rng.uniform(_LARGEST_LEAF**-2, _SMALLEST_LEAF**-2, _LEAVES)
        radii = min(height, width) / np.sqrt(inverse)
        places = rng.uniform(0, 1, (_LEAVES, 2)) * [height, width]
        tints = _TINT * rng.standard_normal((_LEAVES, colors))
        if colors == 3:
            tints = tints @ _COLORS.T
        tints = np.clip(0.5 + tints, 0, 1)
        image = np.full((colors, height, width), 0.5)
        for radius, (y, x), tint in zip(radii, places, tints, strict=True):
            inside = (down - y) ** 2 + (right - x) ** 2 < radius**2
            image[:, inside] = tint[:, None]
        yield image


def synthetic_features(backbone: "Backbone") -> torch.Tensor:
    """Return the backbone's outputs for N_SYNTHETIC synthetic images.

    The features are computed with one CPU thread, because shards must not differ by a
    bit.
    """
    colors, height, width = backbone.input_shape
    images = synthetic_images(height, width, colors)
    pixels = np.stack([backbone.prepare(image) for image in images])
    with torch.inference_mode(), one_thread():
        return torch.cat(
            [
                backbone.module(backbone.inputs(torch.from_numpy(pixels[i : i + 16])))
                for i in range(0, len(pixels), 16)
            ]
        )
