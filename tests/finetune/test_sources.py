"""Sources of images: what a resume compares."""

import numpy as np
from dphead_extract.sources.classes import Classes, class_names

from dphead.finetune.options import FinetuneOptions
from dphead.finetune.settings import Settings
from dphead.finetune.sources import load_data
from dphead.fit.ledgers import image_index


def test_nobody_without_the_key_gets_the_digest_of_the_images(tmp_path, monkeypatch):
    images = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)
    np.savez(tmp_path / "images.npz", images=images, labels=["a", "b", "a"])
    asked = FinetuneOptions(
        features=tmp_path / "images.npz",
        out=tmp_path / "run",
        epsilon=1.0,
        ledger=tmp_path / "ledger.sqlite",
        settings=Settings("wrn-10-1", batch_size=2, steps=1),
        classes=Classes(class_names("a,b")),
    )

    def digest(index):
        return load_data(asked, asked.features, None, index).digest

    own = digest(image_index())
    assert own == digest(image_index())
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "another home"))
    assert own != digest(image_index())
    assert digest(None) == ""
