"""From images to a head and its report, with the commands: scikit-learn's digits, real
8x8 images.
"""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from commands import charges, dphead, fitted, ledger_of, refused, report_of
from dphead_extract.features.format import open_features
from PIL import Image

from dphead.cli import missing

pytest.importorskip("torch")
TRAIN, TEST = 400, 150


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with images and features.

    Normalization and size are not the defaults: predict must repeat them.
    """
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("pipeline")
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[
        : TRAIN + TEST
    ]
    labels = labels[: TRAIN + TEST]
    split = np.repeat(["train", "test"], [TRAIN, TEST])
    np.savez(folder / "digits.npz", images=images, labels=labels, split=split)
    np.savez(folder / "new.npz", images=images[TRAIN:])
    options = (
        "--backbone scatternet --scatter-j 1 --scatter-l 4 --image-size 12 "
        "--normalize group --groups 5 --classes 10"
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
    classes = [int(row["class"]) for row in csv.DictReader(io.StringIO(from_features))]
    assert np.mean(np.array(classes) == truth) == pytest.approx(measured["accuracy"])
    assert [
        int(row["class"]) for row in csv.DictReader(io.StringIO(from_images))
    ] == classes
    photo = tmp_path / "photo.png"
    Image.fromarray(np.load(made / "new.npz")["images"][0]).save(photo)
    (row,) = csv.DictReader(io.StringIO(fitted("predict", run, photo).out))
    assert (row["image"], int(row["class"])) == ("photo.png", classes[0])
    assert charges() == 1


def test_predict_repeats_scales_and_mirror_images(made, tmp_path):
    network = "--backbone scatternet --scatter-j 1,2 --scatter-l 4 --mirror"
    features, run = tmp_path / "f.h5", tmp_path / "run"
    fitted(
        "extract",
        made / "digits.npz",
        "-o",
        features,
        *network.split(),
        "--classes",
        10,
    )
    fitted("fit", features, "-o", run, "--method", "prototypes", "--split", "train")
    both = (
        fitted("predict", run, features, "--split", "test"),
        fitted("predict", run, made / "new.npz"),
    )
    rows = [list(csv.DictReader(io.StringIO(found.out))) for found in both]
    from_features, from_images = (
        [float(row["probability"]) for row in part] for part in rows
    )
    # batches of other sizes
    np.testing.assert_allclose(from_images, from_features, rtol=1e-5)
    # The head's size and channels are declared for image files, which must have them.
    (tmp_path / "files").mkdir()
    for i, image in enumerate(np.load(made / "new.npz")["images"][:5]):
        Image.fromarray(image).save(tmp_path / "files" / f"{i}.png")
    of_files = csv.DictReader(
        io.StringIO(fitted("predict", run, tmp_path / "files").out)
    )
    np.testing.assert_allclose(
        [float(row["probability"]) for row in of_files], from_images[:5], rtol=1e-5
    )
    (tmp_path / "files" / "5.png").write_bytes(b"no image")
    rows = [
        *csv.DictReader(io.StringIO(fitted("predict", run, tmp_path / "files").out))
    ]
    assert [bool(row["class"]) for row in rows] == [True] * 5 + [False]
    (tmp_path / "files" / "notes.txt").touch()
    said = fitted("predict", run, tmp_path / "files").err
    assert "1 files without an image's ending (.txt)" in said
    Image.new("L", (9, 9)).save(tmp_path / "files" / "9.png")
    assert "needs images of 8 x 8" in refused_after_progress(
        dphead("predict", run, tmp_path / "files")
    )


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
    assert "labels" in refused(dphead("evaluate", run, made / "new.npz"))
    found = list(
        csv.DictReader(io.StringIO(fitted("predict", run, made / "new.npz").out))
    )
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


def test_without_torch_extract_says_what_to_install(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("dphead_extract.")]:
        monkeypatch.delitem(sys.modules, name)
    command = ("extract", made / "digits.npz", "-o", tmp_path / "f.h5")
    network = ("--backbone", "scatternet", "--classes", 10)
    assert "pip install 'dphead[extract]'" in refused(dphead(*command, *network))
    assert not (tmp_path / "f.h5").exists()


def refused_after_progress(done):
    """The error line of a command that had shown a progress bar."""
    assert done.code == 2
    return [line for line in done.err.splitlines() if line.startswith("Error: ")][-1]


def test_a_missing_module_names_its_extra():
    assert "pip install 'dphead[onnx]'" in missing("onnxruntime.capi")
    assert missing("numpy") is None
