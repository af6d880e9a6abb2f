"""Turn an image file into the input of `model.onnx`.

`dphead export` writes this file as `prepare.py` next to the decoder, `decode.py`. This
file needs only the decoder, numpy and Pillow.

rows = prepare("picture.png", folder)[None]
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.images import open_picture
from PIL import Image


def prepare(file: str | Path, folder: str | Path) -> np.ndarray:
    """Return an image file as (channels, height, width) float32 from 0 to 1.

    The image is decoded, resized and cropped as in the extraction, by the transform in
    the folder's head.json.

    Raises
    ------
    UnreadableImage
        If the extraction would refuse the file.
    """
    facts = json.loads((Path(folder) / "head.json").read_text())
    picture = transformed(open_picture(file, folder), facts["features"]["transform"])
    pixels = np.asarray(picture, np.float32) / 255
    channels = len(picture.getbands())
    return pixels.reshape(picture.height, picture.width, channels).transpose(2, 0, 1)


def transformed(picture: Image.Image, transform: dict[str, Any]) -> Image.Image:
    """Return an image in the size of the input, as timm's transform does.

    The image is resized to the input's size divided by `crop_pct`, and its center is
    taken. The crop mode "squash" scales each side separately. "border" scales the image
    until it fits, and fills the margin with the mean. Every other mode scales it until
    it covers this size.
    """
    _, height, width = transform["input_size"]
    tall, wide = (math.floor(side / transform["crop_pct"]) for side in (height, width))
    mode, ratios = transform["crop_mode"], (picture.height / tall, picture.width / wide)
    fill: Any = 0
    if mode == "squash":
        size = wide, tall
    elif mode == "border":
        size = _divided(picture, max(ratios))
        fill = tuple(round(255 * value) for value in transform["mean"])
    elif tall == wide:
        short, long = sorted(picture.size)
        longer = int(tall * long / short)
        size = (longer, tall) if picture.width > picture.height else (tall, longer)
    else:
        size = _divided(picture, min(ratios))
    resampling = Image.Resampling[transform["interpolation"].upper()]
    picture = picture if picture.size == size else picture.resize(size, resampling)
    fill = fill[0] if fill and picture.mode == "L" else fill
    made = Image.new(picture.mode, (width, height), fill)
    made.paste(picture, (_begin(width, size[0]), _begin(height, size[1])))
    return made


def _divided(picture: Image.Image, ratio: float) -> tuple[int, int]:
    return round(picture.width / ratio), round(picture.height / ratio)


def _begin(side: int, picture: int) -> int:
    """Return the start of a centered picture, negative if the picture is cut off."""
    return (side - picture) // 2 if side > picture else -round((picture - side) / 2)
