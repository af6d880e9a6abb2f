"""Turn an image file into the input of `model.onnx`.

`dphead export` writes this file as `prepare.py` next to the decoder, `decode.py`. It
imports only that, numpy and Pillow.

rows = prepare("picture.png", folder)[None]
"""

import json
import math
from pathlib import Path

import numpy as np
from dphead_extract.images import open_picture
from PIL import Image


def prepare(file: str | Path, folder: str | Path) -> np.ndarray:
    """Return an image file as (channels, height, width) float32 from 0 to 1.

    The image is decoded as in the extraction, then resized and center-cropped as timm
    does for the network in the folder's head.json.

    Raises
    ------
    ValueError
        If the network's input is not square, or not a center crop.
    UnreadableImage
        If the extraction would refuse the file.
    """
    facts = json.loads((Path(folder) / "head.json").read_text())
    transform = facts["features"]["transform"]
    channels, height, width = transform["input_size"]
    if height != width or transform["crop_mode"] != "center":
        raise ValueError(
            "prepare() needs a square input cut from the middle, got "
            f"{transform['input_size']}, {transform['crop_mode']}. Use timm's."
        )
    picture = open_picture(file, folder)
    shorter = math.floor(height / transform["crop_pct"])
    picture = _resized(picture, shorter, transform["interpolation"])
    left = round((picture.width - width) / 2)
    top = round((picture.height - height) / 2)
    cut = picture.crop((left, top, left + width, top + height))
    pixels = np.asarray(cut, np.float32) / 255
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _resized(picture: Image.Image, shorter: int, interpolation: str) -> Image.Image:
    """Resize the shorter side to a length, and the other in proportion."""
    wide = picture.width > picture.height
    short, long = sorted(picture.size)
    longer = int(shorter * long / short)
    size = (longer, shorter) if wide else (shorter, longer)
    if picture.size == size:
        return picture
    return picture.resize(size, Image.Resampling[interpolation.upper()])
