"""Convolve images with random patches of synthetic images: learned from no image.

Coates and Ng (2012) convolve an image's whitened patches with random patches of the
data. Here the random patches come from synthetic images of dead leaves (Lee, Mumford,
Huang 2001; Baradad and others 2021). These are discs that cover one another, with the
edges and spectra of natural images. A seed generates all filters. They spend no budget
and need no file. No private image may be used here.

Each patch of an image loses its mean and is divided by its contrast. Its products with
the filters, which include the whitening, are split by their sign. Each half is averaged
over a grid of places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dphead_extract.backbones.base import Backbone, BackboneOptions, register
from dphead_extract.backbones.fixed_filters import (
    FixedFilters,
    refuse_shifted_pixels,
    scales_of,
)
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.errors import ExtractError
from dphead_extract.synthetic import COLORS

SEED = 0  # one seed for all draws here: the filters are the same everywhere
IMAGES = 200  # images of dead leaves; a choice, not measured
PATCHES = 40_000  # patches for the covariance; a choice, not measured
# side of a patch, pixels between patches, filters, and places along an axis;
# benchmarks/results/ablation, "patches"
SIDE, STRIDE, FILTERS, PLACES = 6, 2, 512, 3
# length of the patches' part of a row beside ScatterNet's parts; the same table
WEIGHT = 0.8
# added to a patch's variance, for pixels from 0 to 1; Coates and Ng 2012
CONTRAST = 10 / 255**2
_WHITEN = 0.1  # added to the eigenvalues; Coates and Ng 2012
# Filters are rounded to multiples of 1/GRID. Processors with eigenvectors that differ
# in the last bits therefore agree on nearly all filters.
GRID = 2**14
_LEAVES = 300  # discs of an image; a choice: they cover nearly all of it
# radii as shares of the image's shorter side; their density falls as their cube; a
# choice
SMALLEST_LEAF, LARGEST_LEAF = 0.05, 0.5
_TINT = 0.2  # standard deviation of a disc's colors; a choice


def dead_leaves(
    height: int, width: int, colors: int, count: int = IMAGES
) -> Iterator[np.ndarray]:
    """Yield random images (colors, height, width) from 0 to 1: discs over discs."""
    rng = np.random.default_rng(SEED)
    down, right = np.mgrid[:height, :width]
    for _ in range(count):
        inverse = rng.uniform(LARGEST_LEAF**-2, SMALLEST_LEAF**-2, _LEAVES)
        radii = min(height, width) / np.sqrt(inverse)
        places = rng.uniform(0, 1, (_LEAVES, 2)) * [height, width]
        tints = _TINT * rng.standard_normal((_LEAVES, colors))
        if colors == 3:
            tints = tints @ COLORS.T
        tints = np.clip(0.5 + tints, 0, 1)
        image = np.full((colors, height, width), 0.5)
        for radius, (y, x), tint in zip(radii, places, tints, strict=True):
            inside = (down - y) ** 2 + (right - x) ** 2 < radius**2
            image[:, inside] = tint[:, None]
        yield image


def filters(height: int, width: int, colors: int) -> tuple[np.ndarray, np.ndarray]:
    """Return filters of normalized patches, and their responses to the mean patch.

    The filters are (FILTERS, colors * SIDE**2) float32, with the whitening; the
    responses are (FILTERS,).
    """
    rng = np.random.default_rng([SEED, 1])
    each = PATCHES // IMAGES
    found = []
    for image in dead_leaves(height, width, colors):
        windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), (1, 2))
        tops = rng.integers(0, windows.shape[1], each)
        lefts = rng.integers(0, windows.shape[2], each)
        found.append(windows[:, tops, lefts].swapaxes(0, 1).reshape(each, -1))
    patches = np.concatenate(found)
    patches -= patches.mean(axis=1, keepdims=True)
    patches /= np.sqrt(patches.var(axis=1, keepdims=True) + CONTRAST)
    mean = patches.mean(axis=0)
    patches -= mean
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    whitening = (vectors / np.sqrt(values + _WHITEN)) @ vectors.T
    chosen = patches[rng.choice(len(patches), FILTERS, replace=False)] @ whitening
    chosen /= np.linalg.norm(chosen, axis=1, keepdims=True)
    weights = np.rint(chosen @ whitening * GRID) / GRID
    return weights.astype(np.float32), (weights @ mean).astype(np.float32)


class PatchNet(nn.Module):
    """Convolve images with random patches of synthetic images.

    Input (B, C, H, W) float32 from 0 to 1; output (B, 2 * FILTERS, PLACES, PLACES).
    Rows never mix. Images are processed one at a time, so a row's bits do not depend on
    its place in a batch.

    Parameters
    ----------
    shape : (int, int)
        Height and width of the input.
    colors : int
        Channels of the input.
    basis : (C, C) tensor, optional
        The orthonormal map from RGB that the input went through. Default: none.

    Raises
    ------
    ExtractError
        If an axis is too short.
    """

    kernels: torch.Tensor
    total: torch.Tensor
    offset: torch.Tensor
    back: torch.Tensor | None

    def __init__(
        self, shape: tuple[int, int], colors: int, basis: torch.Tensor | None = None
    ):
        super().__init__()
        least = SIDE + STRIDE * (PLACES - 1)
        if min(shape) < least:
            raise ExtractError(
                f"patches need images of at least {least} pixels a side, got {shape=}. "
                "Choose a larger --image-size."
            )
        weights, offset = filters(*shape, colors)
        kernels = torch.from_numpy(weights).reshape(FILTERS, colors, SIDE, SIDE)
        self.register_buffer("kernels", kernels)
        self.register_buffer("total", kernels.sum(dim=(1, 2, 3))[:, None, None])
        self.register_buffer("offset", torch.from_numpy(offset)[:, None, None])
        self.register_buffer("back", None if basis is None else basis.T.contiguous())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        return torch.cat([self._one(image) for image in images.float()])

    def _one(self, image: torch.Tensor) -> torch.Tensor:
        """Turn one image (C, H, W) into (1, 2 * FILTERS, PLACES, PLACES)."""
        if self.back is not None:
            image = torch.tensordot(self.back, image, dims=1)
        image = image[None]
        mean, square = (
            F.avg_pool2d(x, SIDE, STRIDE).mean(1, keepdim=True)
            for x in (image, image * image)
        )
        contrast = (square - mean * mean).clamp_min(0) + CONTRAST
        found = F.conv2d(image, self.kernels, stride=STRIDE) - mean * self.total
        found = found * torch.rsqrt(contrast) - self.offset
        halves = torch.cat([found.clamp_min(0), (-found).clamp_min(0)], dim=1)
        return F.adaptive_avg_pool2d(halves, PLACES)


@register
class PatchesFamily(FixedFilters):
    """Convolve images with random patches."""

    names = ("patches",)
    drawn = True

    def nets(
        self,
        options: BackboneOptions,
        shape: tuple[int, int],
        colors: int,
        basis: torch.Tensor | None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        """Return the one network."""
        refuse_shifted_pixels(options)
        kwargs = {"filters": FILTERS, "side": SIDE, "stride": STRIDE}
        kwargs |= {"places": PLACES, "seed": SEED}
        return [PatchNet(shape, colors, basis)], kwargs


@register
class ScatterNetAndPatchesFamily(PatchesFamily):
    """Join the features of ScatterNet and of random patches."""

    names = ("scatternet+patches",)
    takes = FixedFilters.takes | {"scatter_j", "scatter_l"}

    def nets(
        self,
        options: BackboneOptions,
        shape: tuple[int, int],
        colors: int,
        basis: torch.Tensor | None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        """Return a ScatterNet for each scale, and the patches last."""
        patches, kwargs = super().nets(options, shape, colors, basis)
        nets = [ScatterNet(j, shape, options.scatter_l) for j in options.scatter_j]
        return [*nets, *patches], scales_of(options) | kwargs | {"weight": WEIGHT}

    def build(
        self, options: BackboneOptions, size: tuple[int, int], has_color: bool
    ) -> Backbone:
        """Return the backbone, with the length of the patches' part of a row."""
        backbone = super().build(options, size, has_color)
        backbone.weights = (1.0,) * len(options.scatter_j) + (WEIGHT,)
        return backbone
