"""Extract features from image files, train a head, and classify new images."""

from pathlib import Path

import numpy as np
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.sources.classes import Classes
from PIL import Image
from sklearn.datasets import load_digits

from dphead import DPAutoClassifier

pixels, digits = load_digits(return_X_y=True)
for i, (image, digit) in enumerate(zip(pixels.reshape(-1, 8, 8), digits, strict=True)):
    folder = Path("images", "test" if i % 4 == 0 else "train", str(digit))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(folder / f"{i}.png")

extract(
    ExtractOptions(
        "images",
        "digits.h5",
        BackboneOptions(
            "scatternet", image_size=8, channels=1, settings={"scatter_j": (1,)}
        ),
        classes=Classes([str(k) for k in range(10)]),
        layout="split/class",
    )
)
head = DPAutoClassifier(epsilon=1.0, split="train").fit("digits.h5")
print(f"accuracy {head.score('digits.h5', split='test'):.3f}")
print(f"ledger {head.ledger_.path}")
