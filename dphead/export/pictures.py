"""Turn an image file into the input of `model.onnx`.

`dphead export` writes this file as `prepare.py` next to the decoder, `decode.py`. This
file needs only the decoder, numpy and Pillow.

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
        If the network needs another crop than the center of a square.
    UnreadableImage
        If the extraction would refuse the file.
    """
    facts = json.loads((Path(folder) / "head.json").read_text())
    transform = facts["features"]["transform"]
    _, height, width = transform["input_size"]
    square = height == width and transform["crop_mode"] == "center"
    if not square and transform["crop_mode"] != "squash":
        raise ValueError(
            "prepare() needs a square input and the crop mode center, got "
            f"{transform['input_size']} and {transform['crop_mode']}. Use "
            "`timm.data.create_transform` with the transform in head.json."
        )
    picture = open_picture(file, folder)
    if transform["crop_mode"] == "squash":  # a network of `dphead finetune`
        return _pixels(picture.resize((width, height), Image.Resampling.BICUBIC))
    shorter = math.floor(height / transform["crop_pct"])
    picture = _resized(picture, shorter, transform["interpolation"])
    left = round((picture.width - width) / 2)
    top = round((picture.height - height) / 2)
    return _pixels(picture.crop((left, top, left + width, top + height)))


def _pixels(picture: Image.Image) -> np.ndarray:
    pixels = np.asarray(picture, np.float32) / 255
    channels = len(picture.getbands())
    return pixels.reshape(picture.height, picture.width, channels).transpose(2, 0, 1)


def _resized(picture: Image.Image, shorter: int, interpolation: str) -> Image.Image:
    """Resize the shorter side to a length, and the other in proportion."""
    wide = picture.width > picture.height
    short, long = sorted(picture.size)
    longer = int(shorter * long / short)
    size = (longer, shorter) if wide else (shorter, longer)
    if picture.size == size:
        return picture
    return picture.resize(size, Image.Resampling[interpolation.upper()])
