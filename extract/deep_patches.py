"""Random patches of ScatterNet's maps: a second layer that is learned from no image.

The filters of a second layer are what the first says of random patches of synthetic
images (dead leaves, `extract.patches`, and 1/frequency, `extract.synthetic`), whitened:
Coates and Ng (2012), whose second layer is learned from the data, with scattering
(Bruna, Mallat 2013) below. A seed makes all of it, so that it costs no privacy and no
file. No private image may be used here.

A map's channels are signed roots, brought to mean zero and variance one on synthetic
images, and at each place over their length plus one, as `--normalize local` does.
Products of whitened patches with the filters are divided by their root mean square,
split by their sign, and averaged over a grid of places.
"""

from __future__ import annotations

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
    and w are PLACES, or less where maps are smaller than SIDE + PLACES - 1.

    basis: (C, C), the orthonormal map from RGB that inputs go through, or None.

    Rows never mix: after the maps they are worked on one at a time, so that a row's
    bits depend on no place in a batch. ExtractError for maps smaller than SIDE.
    """

    mean: torch.Tensor
    spread: torch.Tensor
    kernels: torch.Tensor
    offset: torch.Tensor

    def __init__(
        self, first: ScatterNet, colours: int, basis: torch.Tensor | None = None
    ):
        super().__init__()
        self.first = first
        height, width = first.shape
        leaves, noise = _synthetic((height, width), colours, basis)
        with torch.inference_mode(), one_thread():
            plain = rooted(first(noise))
            channels = plain.transpose(0, 1).flatten(1)
            spread, mean = torch.std_mean(channels, dim=1)
            self.register_buffer("mean", mean[:, None, None])
            self.register_buffer("spread", spread[:, None, None] + EPSILON)
            maps = torch.cat([rooted(first(leaves)), plain])
            if min(maps.shape[2:]) < SIDE:
                raise ExtractError(
                    f"deep patches need maps of at least {SIDE} places a side, got "
                    f"maps={tuple(maps.shape[2:])}. Choose a larger --image-size or a "
                    "smaller --scatter-j."
                )
            kernels, offset = _filters(self._normalised(maps))
        self.register_buffer("kernels", kernels)
        self.register_buffer("offset", offset)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = rooted(self.first(images))
        return torch.cat([self._one(maps[i : i + 1]) for i in range(len(maps))])

    def _normalised(self, maps: torch.Tensor) -> torch.Tensor:
        maps = (maps - self.mean) / self.spread
        return maps / place_lengths(maps)

    def _one(self, maps: torch.Tensor) -> torch.Tensor:
        """(1, channels, h', w') to (1, 2 * FILTERS, h, w)."""
        sizes = [side - SIDE + 1 for side in maps.shape[2:]]
        patches = F.unfold(self._normalised(maps), SIDE)[0].T  # a patch a row
        found = patches @ self.kernels - self.offset
        found = found / (found.square().mean(dim=1, keepdim=True).sqrt() + FLOOR)
        found = found.T.reshape(1, FILTERS, *sizes)
        halves = torch.cat([found.clamp_min(0), (-found).clamp_min(0)], dim=1)
        tall, wide = (min(PLACES, size) for size in sizes)
        return F.adaptive_avg_pool2d(halves, (tall, wide))


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


def _filters(maps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(channels * SIDE**2, FILTERS) float32 filters of patches, whitening included, and
    what each gives the mean patch (FILTERS,).
    """
    patches = F.unfold(maps, SIDE).transpose(1, 2).flatten(0, 1)
    order = np.random.default_rng(SEED).permutation(len(patches))[:PATCHES]
    patches = patches[torch.from_numpy(order)].double()
    mean = patches.mean(dim=0)
    patches -= mean
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    scales = (values.clamp_min(0) + WHITEN * values.mean()).rsqrt()
    whitening = (vectors * scales) @ vectors.T
    chosen = patches[:FILTERS] @ whitening
    chosen /= torch.linalg.vector_norm(chosen, dim=1, keepdim=True)
    kernels = whitening @ chosen.T
    return kernels.float(), (mean @ kernels).float()
