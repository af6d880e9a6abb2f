"""Convolve ScatterNet's maps with random patches of synthetic images.

Each layer's filters are whitened random patches of the previous layer's maps of
synthetic images (dead leaves and 1/frequency, `synthetic`). Coates and Ng (2012) learn
such layers from the data. Here scattering (Bruna, Mallat 2013) comes first. A seed
generates all filters, so they need no weights file and spend no privacy budget. No
private image may be used here.

A map's channels are signed square roots with mean zero and variance one on the
1/frequency images. At each position the channels are divided by their length plus one,
as `--normalize local` does. Products of whitened patches with the filters are divided
by their root mean square plus _FLOOR, split by their sign, and averaged. The last layer
averages over a grid of positions, the others over squares of 2 x 2.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dphead_extract.backbones.base import BackboneOptions, register
from dphead_extract.backbones.fixed_filters import FixedFilters
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.errors import ExtractError
from dphead_extract.normalization import EPSILON, signed_sqrt, spatial_norms
from dphead_extract.synthetic import N_SYNTHETIC, dead_leaves, synthetic_images
from dphead_extract.threads import one_thread

SEED = 0  # seed of the patches; `SYNTHETIC_SEED` is that of the images
# side of a patch (positions of a map), number of filters, and positions along an axis
# of the output; benchmarks/results/ablation, "Patches of maps"
_SIDE, FILTERS, _PLACES = 3, 512, 3
BETWEEN = 128  # filters of a layer that is not the last; the same table
PATCHES = 20_000  # patches for the covariance; a choice, not measured
_WHITEN = 1.0  # added to each eigenvalue, in units of their mean; the same table
_FLOOR = 0.1  # added to the products' root mean square; a choice, not measured


class DeepPatches(nn.Module):
    """Convolve ScatterNet's maps with layers of random patches.

    Input: (B, C, H, W), as for `first`. Output: (B, 2 * FILTERS, h, w). h and w are
    _PLACES, or less if the last layer gets maps smaller than _SIDE + _PLACES - 1. The
    layers process one image at a time, so that the bits of a row do not depend on its
    position in a batch.

    Parameters
    ----------
    first : ScatterNet
        Computes the maps.
    colors : int
        Channels of the input.
    basis : (C, C) tensor or None
        Orthonormal color transform that was applied to the RGB inputs, or None.
    layers : int
        Layers of patches. Each layer except the last one halves the sides of the maps.

    Raises
    ------
    ExtractError
        If the maps are smaller than _SIDE.
    """

    def __init__(
        self,
        first: ScatterNet,
        colors: int,
        basis: torch.Tensor | None,
        layers: int,
    ):
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList()
        height, width = first.shape
        synthetic = _synthetic((height, width), colors, basis)
        with torch.inference_mode(), one_thread():
            leaves, noise = (signed_sqrt(first(images)) for images in synthetic)
            for _ in range(layers - 1):
                layer = _PatchLayer(leaves, noise, BETWEEN)
                leaves, noise = (
                    torch.cat([_halved(layer, one) for one in maps.split(1)])
                    for maps in (leaves, noise)
                )
                self.layers.append(layer)
            self.layers.append(_PatchLayer(leaves, noise, FILTERS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        maps = signed_sqrt(self.first(images))
        return torch.cat([self._one(one) for one in maps.split(1)])

    def _one(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the features (1, 2 * FILTERS, h, w) of maps (1, channels, h', w')."""
        for layer in self.layers[:-1]:
            maps = _halved(layer, maps)
        found = self.layers[-1](maps)
        tall, wide = (min(_PLACES, side) for side in found.shape[2:])
        return F.adaptive_avg_pool2d(found, (tall, wide))


class _PatchLayer(nn.Module):
    """Convolve maps with filters that are drawn from maps of synthetic images.

    Input (1, channels, h, w); output (1, 2 * filters, h - _SIDE + 1, w - _SIDE + 1).

    Parameters
    ----------
    leaves, noise : (N_SYNTHETIC, channels, h, w) tensors
        Maps of synthetic images. Patches are drawn from both. Each channel's mean and
        standard deviation are those of `noise`.
    filters : int
        Number of filters.

    Raises
    ------
    ExtractError
        If the maps are smaller than _SIDE.
    """

    mean: torch.Tensor
    spread: torch.Tensor
    kernels: torch.Tensor
    offset: torch.Tensor

    def __init__(self, leaves: torch.Tensor, noise: torch.Tensor, filters: int):
        super().__init__()
        if min(noise.shape[2:]) < _SIDE:
            raise ExtractError(
                f"--backbone deep-patches needs at least {_SIDE} x {_SIDE} positions "
                f"in the maps of ScatterNet, got {noise.shape[2]} x {noise.shape[3]}. "
                "Choose a larger --image-size or a smaller --scatter-j."
            )
        channels = noise.transpose(0, 1).flatten(1)
        spread, mean = torch.std_mean(channels, dim=1)
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("spread", spread[:, None, None] + EPSILON)
        kernels, offset = _filters(self._drawn(torch.cat([leaves, noise])), filters)
        self.register_buffer("kernels", kernels)
        self.register_buffer("offset", offset)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the layer's responses to maps."""
        found = self._patches(maps)[0] @ self.kernels - self.offset
        found = found / (found.square().mean(dim=1, keepdim=True).sqrt() + _FLOOR)
        sizes = [side - _SIDE + 1 for side in maps.shape[2:]]
        found = found.T.reshape(1, -1, *sizes)
        return torch.cat([found.clamp_min(0), (-found).clamp_min(0)], dim=1)

    def _patches(self, maps: torch.Tensor) -> torch.Tensor:
        """Return patches (n, patches, channels * _SIDE**2) of normalized maps."""
        maps = (maps - self.mean) / self.spread
        return F.unfold(maps / spatial_norms(maps), _SIDE).transpose(1, 2)

    def _drawn(self, maps: torch.Tensor) -> torch.Tensor:
        """Return at most PATCHES random patches, (n, channels * _SIDE**2).

        The loop takes one image at a time, because the patches of all images need nine
        times the memory of the maps.
        """
        each = math.prod(side - _SIDE + 1 for side in maps.shape[2:])
        order = np.random.default_rng(SEED).permutation(len(maps) * each)[:PATCHES]
        images, places = np.divmod(order, each)
        drawn = torch.empty(len(order), maps.shape[1] * _SIDE**2)
        for i in range(len(maps)):
            own = torch.from_numpy(np.flatnonzero(images == i))
            patches = self._patches(maps[i : i + 1])[0]
            drawn[own] = patches[torch.from_numpy(places)[own]]
        return drawn


def _halved(layer: nn.Module, maps: torch.Tensor) -> torch.Tensor:
    """Return the maps (1, more channels, h / 2, w / 2) that the next layer gets."""
    border = [_SIDE // 2] * 4  # reflect the border, so that each position has a patch
    found = layer(F.pad(maps, border, mode="reflect"))
    return signed_sqrt(F.avg_pool2d(found, 2))


def _synthetic(
    shape: tuple[int, int], colors: int, basis: torch.Tensor | None
) -> list[torch.Tensor]:
    """Return two batches of N_SYNTHETIC images: dead leaves, and 1/frequency."""
    leaves = torch.from_numpy(np.stack(list(dead_leaves(*shape, colors, N_SYNTHETIC))))
    noise = torch.from_numpy(
        np.stack(list(synthetic_images(*shape, colors, N_SYNTHETIC)))
    )
    noise = noise[..., None] if colors == 1 else noise
    images = [leaves.float(), noise.permute(0, 3, 1, 2).float() / 255]
    if basis is None:
        return images
    return [torch.einsum("dc,bchw->bdhw", basis, one) for one in images]


def _filters(patches: torch.Tensor, filters: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return filters of patches (n, columns), and their responses to the mean patch.

    The filters are (columns, filters) float32, with the whitening; the responses are
    (filters,).
    """
    patches = patches.double()
    mean = patches.mean(dim=0)
    patches -= mean
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    scales = (values.clamp_min(0) + _WHITEN * values.mean()).rsqrt()
    whitening = (vectors * scales) @ vectors.T
    chosen = patches[:filters] @ whitening
    chosen /= torch.linalg.vector_norm(chosen, dim=1, keepdim=True)
    kernels = whitening @ chosen.T
    return kernels.float(), (mean @ kernels).float()


@register
class _DeepPatchesFamily(FixedFilters):
    """Build `DeepPatches` networks at one or several scales."""

    names = ("deep-patches",)

    def nets(
        self,
        options: BackboneOptions,
        shape: tuple[int, int],
        colors: int,
        basis: torch.Tensor | None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        """Return a network for each scale, and the constants to record."""
        scales, angles = options.settings["scatter_j"], options.settings["scatter_l"]
        nets: list[nn.Module] = []
        for scale in scales:
            first = ScatterNet(scale, shape, angles)
            # Finer maps are halved until they are as small as the coarsest.
            layers = 1 + max(scales) - scale
            nets.append(DeepPatches(first, colors, basis, layers))
        recorded: dict[str, Any] = {"filters": FILTERS, "side": _SIDE}
        recorded |= {"places": _PLACES, "whiten": _WHITEN, "seed": SEED}
        if len(nets) > 1:
            recorded["between"] = BETWEEN
        return nets, recorded
