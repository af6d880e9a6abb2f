"""Images that cannot be read are named before a backbone is loaded."""

import numpy as np
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.sources import first_look as module
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.first_look import first_look
from dphead_extract.sources.opening import open_source
from pictures import encoded


@pytest.fixture
def folder(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(encoded(pixels))
        (tmp_path / f"{i}.jpg").write_bytes(encoded(pixels, "JPEG"))
    return tmp_path


def looked(folder, *names):
    table = folder / "table.csv"
    table.write_text("".join(f"{line}\n" for line in ("path", *names)))
    first_look(open_source(table, Classes(ignore_labels=True)))


def test_every_missing_file_is_counted_and_named(folder):
    looked(folder, "0.png", "1.jpg")
    with pytest.raises(ExtractError, match=r"2 of 4 images do not exist: a\.png, b/c"):
        looked(folder, "0.png", "a.png", "1.png", "b/c.jpg")


@pytest.mark.parametrize("kind", ["png", "jpg"])
@pytest.mark.parametrize("left", [0, 20, 0.5])
def test_a_file_that_is_cut_short_is_named(folder, kind, left):
    path = folder / f"1.{kind}"
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data)) if left == 0.5 else left])
    with pytest.raises(ExtractError, match=rf"1 of 3 .* unreadable: 1\.{kind} \("):
        looked(folder, "0.png", path.name, "2.jpg")


def test_bytes_after_the_end_of_a_whole_image_are_no_damage(folder):
    """Cameras append them."""
    with (folder / "1.jpg").open("ab") as file:
        file.write(b"maker's notes")
    looked(folder, "0.png", "1.jpg")


def test_a_look_ends_after_its_time(folder, monkeypatch):
    (folder / "1.png").write_bytes(b"no image")
    monkeypatch.setattr(module, "_SECONDS", -1.0)
    looked(folder, "0.png", "1.png")
