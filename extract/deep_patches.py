"""Random patches of ScatterNet's maps: layers that are learned from no image.

The filters of a layer are what the one below says of random patches of synthetic images
(dead leaves, `extract.patches`, and 1/frequency, `extract.synthetic`), whitened: Coates
and Ng (2012), whose layers are learned from the data, with scattering (Bruna, Mallat
2013) below. A seed makes all of it, so that it costs no privacy and no file. No private
image may be used here.

A map's channels are signed roots, brought to mean zero and variance one on synthetic
images, and at each place over their length plus one, as `--normalize local` does.
Products of whitened patches with the filters are divided by their root mean square,
split by their sign, and averaged: over a grid of places at the end, and between layers
over squares of 2 x 2.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from extract.errors import ExtractError
from extract.patches import dead_leaves
from extract.rowwise import EPSILON, place_lengths, rooted
from extract.scattering import ScatterNet
from extract.synthetic import COUNT, synthetic_images
from extract.threads import one_thread

SEED = 0  # of the patches that are drawn; the images have their own
# side of a patch, in places of a map, filters, and places along an axis of what leaves;
# benchmarks/results/ablation, "Patches of maps"
SIDE, FILTERS, PLACES = 3, 512, 3
BETWEEN = 128  # filters of a layer that is not the last; the same table
PATCHES = 20_000  # whose covariance is whitened; chosen, not measured
WHITEN = 1.0  # added to the eigenvalues, of their mean; the same table
FLOOR = 0.1  # added to the products' root mean square; chosen, not measured
SETTINGS = {
    "filters": FILTERS,
    "side": SIDE,
    "places": PLACES,
    "whiten": WHITEN,
    "seed": SEED,
}


class DeepPatches(nn.Module):
    """Input (B, C, H, W) as `first` takes it; output (B, 2 * FILTERS, h, w), where h
    and w are PLACES, or less where the last layer's maps are smaller than SIDE + PLACES
    - 1.

    basis: (C, C), the orthonormal map from RGB that inputs go through, or None.
    layers: of patches; each but the last halves the sides of the maps.

    Rows never mix: after the maps they are worked on one at a time, so that a row's
    bits depend on no place in a batch. ExtractError for maps smaller than SIDE.
    """

    def __init__(
        self,
        first: ScatterNet,
        colours: int,
        basis: torch.Tensor | None = None,
        layers: int = 1,
    ):
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList()
        height, width = first.shape
        synthetic = _synthetic((height, width), colours, basis)
        with torch.inference_mode(), one_thread():
            leaves, noise = (rooted(first(images)) for images in synthetic)
            for _ in range(layers - 1):
                layer = PatchLayer(leaves, noise, BETWEEN)
                leaves, noise = (_all_halved(layer, maps) for maps in (leaves, noise))
                self.layers.append(layer)
            self.layers.append(PatchLayer(leaves, noise, FILTERS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = rooted(self.first(images))
        return torch.cat([self._one(maps[i : i + 1]) for i in range(len(maps))])

    def _one(self, maps: torch.Tensor) -> torch.Tensor:
        """(1, channels, h', w') to (1, 2 * FILTERS, h, w)."""
        for layer in self.layers[:-1]:
            maps = _halved(layer, maps)
        found = self.layers[-1](maps)
        tall, wide = (min(PLACES, side) for side in found.shape[2:])
        return F.adaptive_avg_pool2d(found, (tall, wide))


class PatchLayer(nn.Module):
    """Input (1, channels, h, w); output (1, 2 * filters, h - SIDE + 1, w - SIDE + 1).

    leaves, noise: maps of synthetic images (COUNT, channels, h, w); noise gives
    channels their spread, both give patches.
    """

    mean: torch.Tensor
    spread: torch.Tensor
    kernels: torch.Tensor
    offset: torch.Tensor

    def __init__(self, leaves: torch.Tensor, noise: torch.Tensor, filters: int):
        super().__init__()
        if min(noise.shape[2:]) < SIDE:
            raise ExtractError(
                f"deep patches need maps of at least {SIDE} places a side, got "
                f"maps={tuple(noise.shape[2:])}. Choose a larger --image-size or a "
                "smaller --scatter-j."
            )
        channels = noise.transpose(0, 1).flatten(1)
        spread, mean = torch.std_mean(channels, dim=1)
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("spread", spread[:, None, None] + EPSILON)
        kernels, offset = _filters(self._drawn(torch.cat([leaves, noise])), filters)
        self.register_buffer("kernels", kernels)
        self.register_buffer("offset", offset)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        found = self._patches(maps)[0] @ self.kernels - self.offset
        found = found / (found.square().mean(dim=1, keepdim=True).sqrt() + FLOOR)
        sizes = [side - SIDE + 1 for side in maps.shape[2:]]
        found = found.T.reshape(1, -1, *sizes)
        return torch.cat([found.clamp_min(0), (-found).clamp_min(0)], dim=1)

    def _patches(self, maps: torch.Tensor) -> torch.Tensor:
        """(n, patches, channels * SIDE**2) of normalised maps."""
        maps = (maps - self.mean) / self.spread
        return F.unfold(maps / place_lengths(maps), SIDE).transpose(1, 2)

    def _drawn(self, maps: torch.Tensor) -> torch.Tensor:
        """PATCHES of all, in a random order: never all of them, nine times the maps."""
        each = math.prod(side - SIDE + 1 for side in maps.shape[2:])
        order = np.random.default_rng(SEED).permutation(len(maps) * each)[:PATCHES]
        images, places = np.divmod(order, each)
        drawn = torch.empty(len(order), maps.shape[1] * SIDE**2)
        for i in range(len(maps)):
            own = torch.from_numpy(np.flatnonzero(images == i))
            patches = self._patches(maps[i : i + 1])[0]
            drawn[own] = patches[torch.from_numpy(places)[own]]
        return drawn


def _all_halved(layer: nn.Module, maps: torch.Tensor) -> torch.Tensor:
    """`_halved` of each of many images."""
    return torch.cat([_halved(layer, maps[i : i + 1]) for i in range(len(maps))])


def _halved(layer: nn.Module, maps: torch.Tensor) -> torch.Tensor:
    """(1, channels, h, w) to what the next layer takes, half as long a side."""
    border = [SIDE // 2] * 4  # reflected, so that each place has a patch
    found = layer(F.pad(maps, border, mode="reflect"))
    return rooted(F.avg_pool2d(found, 2))


def _synthetic(
    shape: tuple[int, int], colours: int, basis: torch.Tensor | None
) -> list[torch.Tensor]:
    """Dead leaves and 1/frequency images, COUNT of each, as the network takes them."""
    leaves = torch.from_numpy(np.stack(list(dead_leaves(*shape, colours, COUNT))))
    noise = torch.from_numpy(np.stack(list(synthetic_images(*shape, colours, COUNT))))
    noise = noise[..., None] if colours == 1 else noise
    images = [leaves.float(), noise.permute(0, 3, 1, 2).float() / 255]
    if basis is None:
        return images
    return [torch.einsum("dc,bchw->bdhw", basis, one) for one in images]


def _filters(patches: torch.Tensor, filters: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(columns, filters) float32 filters of patches (n, columns), whitening included,
    and what each gives the mean patch (filters,).
    """
    patches = patches.double()
    mean = patches.mean(dim=0)
    patches -= mean
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    scales = (values.clamp_min(0) + WHITEN * values.mean()).rsqrt()
    whitening = (vectors * scales) @ vectors.T
    chosen = patches[:filters] @ whitening
    chosen /= torch.linalg.vector_norm(chosen, dim=1, keepdim=True)
    kernels = whitening @ chosen.T
    return kernels.float(), (mean @ kernels).float()
