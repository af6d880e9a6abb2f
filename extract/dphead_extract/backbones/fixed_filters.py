"""Build backbones with fixed filters, which a formula or a seed defines.

These backbones have no weights to load.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from dphead_extract.backbones.base import Backbone, BackboneOptions, Family
from dphead_extract.backbones.families import traits_of
from dphead_extract.errors import ExtractError
from dphead_extract.images import with_channels, without_ends

# rows of an orthonormal color transform of RGB, times sqrt(12)
_LUMINANCE = [2.0, 2.0, 2.0]
_RED_GREEN = [6**0.5, -(6**0.5), 0.0]
_YELLOW_BLUE = [2**0.5, 2**0.5, -2 * 2**0.5]
_OPPONENT = torch.tensor([_LUMINANCE, _RED_GREEN, _YELLOW_BLUE]) / 12**0.5


class Scales(nn.Module):
    """Concatenate the flattened outputs of several transforms to (B, d)."""

    def __init__(self, nets: list[nn.Module]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        return torch.cat([net(images).flatten(1) for net in self.nets], dim=1)


class FixedFilters(Family):
    """Provide the image transform that backbones with fixed filters share.

    The settings identify the filters. A digest cannot, because the last bits of the
    filters depend on the processor.
    """

    # large, because these backbones split batches into pieces that fit in the cache
    cpu_batch = 128

    def nets(
        self,
        options: BackboneOptions,
        shape: tuple[int, int],
        colors: int,
        basis: torch.Tensor | None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        """Return the networks whose outputs are joined, and their constants.

        Constants are recorded beside the family's settings.

        Parameters
        ----------
        options : BackboneOptions
            Options of the user.
        shape : (int, int)
            Height and width of the input.
        colors : int
            Channels of the input.
        basis : (3, 3) tensor or None
            Color transform that was applied to the RGB inputs, or None.
        """
        raise NotImplementedError

    def build(
        self, options: BackboneOptions, size: tuple[int, int], has_color: bool
    ) -> Backbone:
        """Return the backbone with its transform."""
        colors = 3 if has_color else 1
        opponent = has_color and options.colors == "opponent"
        basis = _OPPONENT if opponent else None
        resized = options.sides is not None and options.interpolation != "none"
        interpolation = (options.interpolation or "bicubic") if resized else None
        height, width = options.sides or size
        nets, constants = self.nets(options, (height, width), colors, basis)
        names = traits_of(options.name).settings
        mean, std = (_channel_tensor(v, colors) for v in (options.mean, options.std))

        def prepare(image: np.ndarray) -> np.ndarray:
            picture = with_channels(image, colors)
            if picture.size != (width, height):
                how = interpolation or "bicubic"
                picture = _resize_to_cover(picture, (height, width), how)
            return np.asarray(picture).reshape(height, width, colors)

        return Backbone(
            name=options.name,
            kwargs={k: options.settings[k] for k in names} | constants,
            weights_sha256="",
            transform={
                "image_size": [height, width],
                "interpolation": interpolation,
                "colors": colors,
                "scale": [0.0, 1.0],
                "mean": list(options.mean) if options.mean else None,
                "std": list(options.std) if options.std else None,
                **({"color_space": "opponent"} if opponent else {}),
            },
            module=nets[0] if len(nets) == 1 else Scales(nets),
            prepare=prepare,
            input_shape=(colors, height, width),
            mean=mean,
            std=std,
            basis=basis,
        )

    def recorded(
        self, kwargs: dict[str, Any], transform: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options that a features file recorded."""
        return {
            "settings": {k: kwargs[k] for k in traits_of(self.names[0]).settings},
            "colors": transform.get("color_space", "rgb"),
            "image_size": tuple(transform["image_size"]),
            "channels": transform["colors"],
        }


def _channel_tensor(
    values: tuple[float, ...] | None, channels: int
) -> torch.Tensor | None:
    if values is None:
        return None
    if len(values) not in (1, channels):
        raise ExtractError(
            f"--mean and --std must have 1 or {channels} values, got {len(values)}."
        )
    return (
        torch.tensor(values, dtype=torch.float32)
        .expand(channels)
        .reshape(channels, 1, 1)
    )


def _resize_to_cover(
    picture: Image.Image, size: tuple[int, int], interpolation: str
) -> Image.Image:
    """Scale an image to just cover `size` (height, width), and crop its center."""
    tall, wide = size
    picture = without_ends(picture, tall, wide)
    width, height = picture.size
    scale = max(tall / height, wide / width)
    shape = (max(wide, round(width * scale)), max(tall, round(height * scale)))
    resized = picture.resize(shape, Image.Resampling[interpolation.upper()])
    left, top = (resized.width - wide) // 2, (resized.height - tall) // 2
    return resized.crop((left, top, left + wide, top + tall))
