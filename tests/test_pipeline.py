"""From images to a head and its report, with the commands: scikit-learn's digits, real
8x8 images.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from commands import (
    charges,
    dphead,
    fitted,
    ledger_of,
    refusal,
    report_of,
    table,
)
from dphead_extract.features.format import open_features
from dphead_extract.sources.image import Source
from pictures import drawn, encoded, pack
from PIL import Image

from dphead.cli import missing

pytest.importorskip("torch")
TRAIN, TEST = 400, 150


@pytest.fixture(scope="module")
def made(tmp_path_factory, digits):
    """A folder with images and features.

    Normalization and size are not the defaults: predict must repeat them.
    """
    folder = tmp_path_factory.mktemp("pipeline")
    images, labels = (part[: TRAIN + TEST] for part in digits)
    split = np.repeat(["train", "test"], [TRAIN, TEST])
    np.savez(folder / "digits.npz", images=images, labels=labels, split=split)
    np.savez(folder / "new.npz", images=images[TRAIN:])
    options = (
        "--backbone scatternet --scatter-j 1 --scatter-l 4 --image-size 12 "
        "--normalize group:5 --classes 10"
    )
    done = fitted(
        "extract", folder / "digits.npz", "-o", folder / "f.h5", *options.split()
    )
    assert f"{TRAIN + TEST} rows x 180 features" in done.out  # 1 + 4 channels of 6 x 6
    return folder


def test_images_become_a_head_a_report_and_predictions(made, tmp_path):
    """At epsilon = 8 least squares gets 86 to 89 % of 150 digits right over eight
    draws; chance is 10 %.
    """
    features = made / "f.h5"
    run = tmp_path / "run"
    assert dphead("verify", features).code == 0
    options = "--method dp-ls --epsilon 8 --split train --test-split test"
    fitted("fit", features, "-o", run, *options.split(), "--test-is", "public")
    report = report_of(run)
    with open_features(features) as file:
        assert report["data"]["dataset_id"] == file.dataset_id
        truth = file.labels[file.split == file.split_names.index("test")]
    assert (report["data"]["n_rows"], report["data"]["n_features"]) == (TRAIN, 180)
    assert 7.99 < report["guarantee"]["epsilon"] <= 8
    assert report["guarantee"]["private"]
    assert report["test"]["accuracy"] > 0.75
    assert report["test"]["n"] == TEST
    assert len(ledger_of(features).fits()) == 1

    measured = json.loads(
        fitted("evaluate", run, features, "--split", "test", "--json").out
    )
    assert measured == report["test"]
    from_features = fitted("predict", run, features, "--split", "test").out
    from_images = fitted("predict", run, made / "new.npz").out
    classes = [int(row["class"]) for row in table(from_features)]
    assert np.mean(np.array(classes) == truth) == pytest.approx(measured["accuracy"])
    assert [int(row["class"]) for row in table(from_images)] == classes
    photo = tmp_path / "photo.png"
    Image.fromarray(np.load(made / "new.npz")["images"][0]).save(photo)
    (row,) = table(fitted("predict", run, photo).out)
    assert (row["image"], int(row["class"])) == ("photo.png", classes[0])
    assert charges() == 1


def test_predict_repeats_scales_and_mirror_images(made, tmp_path):
    network = "--backbone scatternet --scatter-j 1,2 --scatter-l 4 --mirror"
    features, run = tmp_path / "f.h5", tmp_path / "run"
    given = (*network.split(), "--classes", 10)
    fitted("extract", made / "digits.npz", "-o", features, *given)
    fitted("fit", features, "-o", run, "--method", "prototypes", "--split", "train")

    def predicted(*source):
        rows = table(fitted("predict", run, *source).out)
        return [float(row["probability"] or "nan") for row in rows]

    from_images = predicted(made / "new.npz")
    # batches of other sizes
    from_features = predicted(features, "--split", "test")
    np.testing.assert_allclose(from_images, from_features, rtol=1e-5)
    # The head's size and channels are declared for image files, which must have them.
    pixels = np.load(made / "new.npz")["images"][:5]
    files = {f"{i}.png": encoded(image) for i, image in enumerate(pixels)}
    files = pack(tmp_path / "files", files | {"5.png": b"no image", "notes.txt": b""})
    wanted = [*from_images[:5], np.nan]
    np.testing.assert_allclose(predicted(files), wanted, rtol=1e-5)
    said = fitted("predict", run, files).err
    assert "1 files without an image's ending (.txt)" in said
    pack(files, {"9.png": drawn(0, 9, 9)})
    said = refused_after_progress(dphead("predict", run, files))
    assert "needs images of 8 x 8" in said


def test_a_head_on_two_backbones_reads_images(made, tmp_path, monkeypatch):
    """The same probabilities from images as from the files that were concatenated.

    Each image is decoded twice: to check it, and for both backbones.
    """
    one, two, both, run = (tmp_path / name for name in ("1.h5", "2.h5", "f.h5", "run"))
    given = ("extract", made / "digits.npz", "--classes", 10)
    network = ("--backbone", "scatternet", "--scatter-l", 4, "--scatter-j")
    fitted(*given, *network, 1, "-o", one)
    fitted(*given, *network, 2, "--same-data-as", one, "-o", two)
    fitted("features", "concat", one, two, "-o", both)
    fitted("fit", both, "-o", run, "--method", "prototypes", "--split", "train")
    assert dphead("check", run).code == 0

    def predicted(*source):
        rows = table(fitted("predict", run, *source).out)
        return [float(row["probability"]) for row in rows]

    from_features = predicted(both, "--split", "test")
    np.testing.assert_allclose(predicted(made / "new.npz"), from_features, rtol=1e-5)
    pixels = np.load(made / "new.npz")["images"][:9]
    files = {f"{i}.png": encoded(image) for i, image in enumerate(pixels)}
    files = pack(tmp_path / "files", files)
    decode, decoded = Source.decode, []
    monkeypatch.setattr(Source, "decode", lambda *of: decoded.append(1) or decode(*of))
    np.testing.assert_allclose(predicted(files), from_features[:9], rtol=1e-5)
    assert len(decoded) == 2 * 9
    said = refusal("predict", run, made / "new.npz", "--weights", one)
    assert "got 1 for no backbone. Drop --weights" in said
    # the decoder of an export prepares images for one backbone
    fitted("export", run, "--to", "sklearn", "-o", tmp_path / "export")
    assert not (tmp_path / "export" / "decode.py").exists()


def test_images_are_measured_like_their_features_and_named_in_predictions(
    made, tmp_path
):
    run = tmp_path / "run"
    options = ("--method", "prototypes", "--split", "train")
    fitted("fit", made / "f.h5", "-o", run, *options)
    by_rows = fitted("evaluate", run, made / "f.h5", "--split", "test", "--json").out
    images = fitted("evaluate", run, made / "digits.npz", "--split", "test", "--json")
    theirs, ours = json.loads(by_rows), json.loads(images.out)
    for key in ("n", "accuracy", "per_class_accuracy", "top5"):
        assert ours[key] == theirs[key]
    assert "needs labels" not in images.err
    assert "labels" in refusal("evaluate", run, made / "new.npz")
    found = table(fitted("predict", run, made / "new.npz").out)
    assert [row["image"] for row in found[:2]] == ["npz:0", "npz:1"]


def test_a_source_without_declared_classes_is_refused_before_a_network_is_loaded(
    tmp_path,
):
    """In a fresh interpreter: torch takes seconds to import."""
    script = (
        "import sys\nfrom dphead.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n"
        "    assert stop.code == 2 and 'torch' not in sys.modules"
    )
    image = tmp_path / "images" / "cat" / "1.png"
    image.parent.mkdir(parents=True)
    Image.new("L", (8, 8)).save(image)
    for source, message in (("images", "--classes"), ("nothing", "does not exist")):
        out = tmp_path / "f.h5"
        command = ["extract", tmp_path / source, "-o", out, "--backbone", "scatternet"]
        done = subprocess.run(
            [sys.executable, "-c", script, *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert message in done.stderr
        assert not out.exists()


def refused_after_progress(done):
    """The error line of a command that had shown a progress bar."""
    assert done.code == 2
    return [line for line in done.err.splitlines() if line.startswith("Error: ")][-1]


def test_a_missing_module_names_its_extra():
    assert "pip install 'dphead[onnx]'" in missing("onnxruntime.capi")
    assert missing("numpy") is None
