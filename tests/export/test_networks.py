"""Whole classifiers in timm's and ONNX's formats, on real images: the scores that
extraction and head give.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pictures as kinds
import pytest
import torch
from commands import features_file, fitted, refusal, rows
from dphead_extract import images
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.images import PixelRange
from dphead_extract.normalization import RowNorm
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.sources.classes import Classes, class_names
from exports import documented, holds, resnet, without_dphead
from features import edited
from numpy.testing import assert_allclose
from PIL import Image

from dphead.analysis.metrics import predicted_classes, probabilities
from dphead.export import sklearn_head, torch_head
from dphead.export.exporting import export
from dphead.export.pictures import prepare, transformed
from dphead.fit.files import open_matching
from dphead.fit.head_file import open_head
from dphead.privacy.noise import NoiseSource
from dphead.solvers import auto

CLASSES = ["zero", "one", "two"]
LS = ("--method", "dp-ls", "--epsilon", 8, "--delta", 1e-3)
SMALL = {"name": "test_resnet", "image_size": 32, "crop_pct": 0.8}


@pytest.fixture(autouse=True)
def known_noise(monkeypatch):
    """Classes of nearly equal scores, which are computed in two ways, are equal in each
    run of the tests, or in none.
    """
    known = NoiseSource(0).generator
    monkeypatch.setattr(NoiseSource, "generator", lambda _, *of: known(*of))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of scikit-learn's digits of three classes, as colored PNG files."""
    from sklearn.datasets import load_digits

    data = load_digits(n_class=3)
    files = {}
    for i in range(120):
        gray = Image.fromarray((data.images[i] * 15.9).astype(np.uint8))
        name = f"{CLASSES[data.target[i]]}/{i:03}.png"
        files[name] = kinds.encoded(gray.resize((40, 48)).convert("RGB"))
    return kinds.pack(tmp_path_factory.mktemp("pictures"), files)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small timm network with random weights and statistics."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(resnet(num_classes=7).state_dict(), path)
    return path


def fitted_on(folder, source, options, *settings, norm=None, classes=CLASSES):
    """(run folder, features file) of a head on pictures."""
    features = folder / "features.h5"
    declared = Classes(class_names(",".join(classes)), False, False)
    norm = norm or RowNorm()
    extract(
        ExtractOptions(
            source, features, options, declared, normalize=norm, device="cpu"
        )
    )
    ledger = ("--ledger", folder / "ledger.sqlite")
    fitted("fit", features, "-o", folder / "run", *LS, *settings, *ledger)
    return folder / "run", features


def small(weights, **changes):
    arguments = {"num_classes": 7}
    return BackboneOptions(
        **SMALL | {"weights": weights, "model_args": arguments} | changes
    )


def public_copy(features):
    """The rows of a features file in reverse, as those of another data set."""
    public = features.with_name("public.h5")
    shutil.copyfile(features, public)

    def reverse(file):
        file.attrs["dataset_id"] = "0" * 32
        file["features"][:] = file["features"][:][::-1]

    edited(public, reverse)
    return public


def scores_of(run, features):
    """dphead's own scores of the extracted rows, which are sorted by path."""
    head, _, x, *_ = open_matching(run, features, None)
    return head.scores(x)


def paths(source):
    return sorted(source.rglob("*.png"))


def check_timm(out, run, features, source):
    model, transform, classes = torch_head.load_model(out)
    given = torch.stack([transform(path) for path in paths(source)])
    with torch.inference_mode():
        found = model(given).numpy()
    expected = scores_of(run, features)
    assert_allclose(found, expected, atol=1e-4)
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    return model, classes


def check_onnx(out, run, features, source):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(out / "model.onnx")
    given = np.stack([prepare(path, out) for path in paths(source)])
    found, p, best = session.run(None, {"images": given})
    assert np.array_equal(best, found.argmax(axis=1))
    expected = scores_of(run, features)
    # as `export` compares: float32 errors grow with the scores, and each fit's noise
    # gives other scores
    size = max(1.0, np.abs(expected).max())
    assert_allclose(found / size, expected / size, atol=1e-4)
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    return session


def test_timm_loads_a_head_without_unit_norm_by_itself(pictures, weights, tmp_path):
    import timm
    from safetensors.torch import load_file, save_file

    run, features = fitted_on(tmp_path, pictures, small(weights), "--no-unit-norm")
    export(run, "timm", tmp_path / "out", weights)
    ours, _ = check_timm(tmp_path / "out", run, features, pictures)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert type(theirs.get_classifier()) is torch.nn.Linear
    assert theirs.pretrained_cfg["label_names"] == CLASSES
    config = timm.data.resolve_model_data_config(theirs)
    assert (list(config["input_size"]), config["crop_pct"]) == ([3, 32, 32], 0.8)
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(x), ours(x))
    # on public axes: in a head with a unit norm, and inside of timm's own classifier
    public = public_copy(features)
    for more in ((), ("--no-unit-norm",)):
        run, out = (tmp_path / f"{name} {len(more)}" for name in ("run", "timm"))
        given = ("--axes-from", public, "--axes-count", 3, *more)
        fitted("fit", features, "-o", run, *LS, *given)
        assert open_head(run)[0].axes.count == 3
        export(run, "timm", out, weights)
        check_timm(out, run, features, pictures)
    state = load_file(weights)
    next(iter(state.values())).add_(1)
    save_file(state, tmp_path / "other.safetensors")
    for to in ("timm", "onnx"):
        with pytest.raises(ValueError, match="did not make the head's"):
            export(run, to, tmp_path / "none", tmp_path / "other.safetensors")
    assert not (tmp_path / "none").exists()


def test_onnx_takes_images_of_any_number(pictures, weights, tmp_path):
    """With what timm's format cannot hold: class axes, mirror images and normalized
    rows.
    """
    options = small(weights, mirror=True, axes=5)
    run, features = fitted_on(tmp_path, pictures, options, norm=RowNorm("unit"))
    export(run, "onnx", tmp_path / "out", weights)
    session = check_onnx(tmp_path / "out", run, features, pictures)
    about = session.get_modelmeta().custom_metadata_map
    assert float(about["dphead.epsilon"]) == pytest.approx(8)
    assert json.loads(about["class_names"]) == CLASSES
    with pytest.raises(
        ValueError, match=r"unit.*--mirror True, --axes 5\. Use --to onnx"
    ):
        export(run, "timm", tmp_path / "timm", weights)
    assert not (tmp_path / "timm").exists()


def test_onnx_of_other_features_is_the_head_alone(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    features = features_file(tmp_path / "f.h5")
    public = features_file(tmp_path / "public.h5", seed=1)
    given = ("--axes-from", public, "--axes-count", 8)
    fitted("fit", features, "-o", tmp_path / "run", *LS, *given)
    done = export(tmp_path / "run", "onnx", tmp_path / "out")
    assert done.takes == "12 features per row (backbone: arrays)"
    assert holds(tmp_path / "out") == []
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
    x = rows(50, seed=3)[0]
    x[0] = 0
    x[1, 1], x[2, 1] = np.nan, np.inf
    for row, scale in enumerate((1e-18, 1e-30, 1e-42, 1e18, 1e30), 3):
        x[row] *= scale
    scores, probabilities, classes = session.run(None, {"features": x})
    expected = open_head(tmp_path / "run")[0].scores(x)
    assert_allclose(scores, expected, atol=1e-4)
    assert np.array_equal(classes, predicted_classes(expected))
    assert np.flatnonzero(classes < 0).tolist() == [1, 2]
    assert np.isnan(probabilities[[1, 2]]).all()


EXPORTED = """
import json, sys
from pathlib import Path

import onnxruntime
import torch

folders = ["torch", "timm", "onnx"]
sys.path[:0] = folders
from head import load_head, load_model
from prepare import prepare as prepare_for_onnx

head, _ = load_head("torch")
model, prepare, _ = load_model("timm")
session = onnxruntime.InferenceSession("onnx/model.onnx")
found = {folder: [] for folder in folders}
for path in sorted(Path("files").rglob("*.*")):
    image = prepare(path)[None]
    with torch.inference_mode():
        # the features of the torch head are the user's to make
        rows = model.forward_head(model.forward_features(image), pre_logits=True)
        found["torch"] += head.probabilities(head(rows)).tolist()
        found["timm"] += head.probabilities(model(image)).tolist()
    images = prepare_for_onnx(path, "onnx")[None]
    found["onnx"] += session.run(["probabilities"], {"images": images})[0].tolist()
print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_prepare_resizes_as_timm_for_every_crop(mode):
    """The same pixels, for sizes, shares and interpolations that models have."""
    from timm import data

    draw = np.random.default_rng(0)
    for size, share, how, channels in (
        ((32, 32), 0.9, "bilinear", 3),
        ((32, 48), 0.875, "bicubic", 3),
        ((30, 17), 1.0, "nearest", 1),
        ((32, 32), 1.1, "bicubic", 1),  # beyond the image: padded
    ):
        own = {"input_size": (channels, *size), "crop_mode": mode, "crop_pct": share}
        own |= dict.fromkeys(("mean", "std"), (0.4, 0.5, 0.6)[:channels])
        own |= {"interpolation": how}
        made: Any = data.create_transform(**own, is_training=False, normalize=False)
        for shape in ((50, 70), (71, 33), (32, 32), (10, 200)):
            pixels = draw.integers(0, 256, (*shape, 3)[: 2 + channels // 3])
            picture = images.with_channels(pixels.astype(np.uint8), channels)
            found, expected = transformed(picture, own), picture
            for step in made.transforms[:-1]:
                expected = step(expected)
            assert np.array_equal(found, expected)


def test_an_export_prepares_images_by_the_models_own_crop(
    pictures, weights, tmp_path, monkeypatch
):
    """The crop that has most to do; the test above has each of them."""
    import timm

    resolve = timm.data.resolve_model_data_config
    own = {"crop_mode": "border", "interpolation": "bilinear"}
    monkeypatch.setattr(
        timm.data, "resolve_model_data_config", lambda *args: resolve(*args) | own
    )
    run, features = fitted_on(tmp_path, pictures, small(weights))
    export(run, "onnx", tmp_path / "out", weights)
    check_onnx(tmp_path / "out", run, features, pictures)


def test_the_place_of_weights_is_known_to_this_machine_only(
    pictures, weights, tmp_path, monkeypatch
):
    """A head of a folder's weights predicts without the path, and publishes none."""
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    folder, run, features = (tmp_path / n for n in ("secret", "run", "f.h5"))
    folder.mkdir()
    shutil.copy(weights, folder / "model.safetensors")
    own = {"mean": [0.11, 0.2, 0.3], "std": [0.9] * 3, "crop_mode": "squash"}
    own |= {"input_size": [3, 32, 32], "interpolation": "bilinear"}
    config = {"architecture": "test_resnet", "num_classes": 7, "pretrained_cfg": own}
    (folder / "config.json").write_text(json.dumps(config))
    backbone = ("--backbone", f"local-dir:{folder}", "--classes", ",".join(CLASSES))
    said = fitted("extract", pictures, "-o", features, *backbone).out
    assert "32 x 32 pixels, bilinear, crop squash" in said and "config.json" in said
    fitted("fit", features, "-o", run, *LS)
    for file in run.rglob("*"):
        assert file.is_dir() or b"secret" not in file.read_bytes()
    card = (run / "report.html").read_text()
    assert "mean 0.11 0.2 0.3, std 0.9 0.9 0.9" in card
    fitted("predict", run, pictures, "-o", tmp_path / "p.csv")
    monkeypatch.setattr("socket.create_connection", pytest.fail)  # no hub is tried
    folder.rename(tmp_path / "moved")
    said = refusal("predict", run, pictures, "-o", tmp_path / "q.csv")
    assert "--weights is required for test_resnet" in said
    moved = ("--weights", tmp_path / "moved")
    fitted("predict", run, pictures, "-o", tmp_path / "q.csv", *moved)
    assert (tmp_path / "q.csv").read_text() == (tmp_path / "p.csv").read_text()


def twelve_bits():
    """{name: bytes of a file} of one picture, whose range must be declared."""
    values = kinds.WIDE >> 4
    signed = (values.astype(int) - 2048).astype(np.int16)
    return {
        "16.png": kinds.png(values.astype(">u2"), 0),
        "signed.tiff": kinds.tiff(signed, kind=2),
        "32.tiff": kinds.tiff(values.astype(np.uint32)),
        "8.png": kinds.encoded(kinds.GRAY),
    }


def test_exports_see_of_image_files_what_predict_sees(
    pictures, weights, tmp_path, monkeypatch
):
    """Orientation, a declared range, transparency, palettes, CMYK, animations. The head
    has public axes and a temperature, of which scikit-learn's format takes the rows.
    """
    pytest.importorskip("onnxruntime")
    options = small(weights, pixels=PixelRange(12))
    _, features = fitted_on(tmp_path, pictures, options)
    monkeypatch.setattr(auto, "temperature", lambda *of_fit: 1.5)
    run, of_auto = tmp_path / "auto", ("--method", "auto", "--delta", 1e-3)
    axes = ("--axes-from", public_copy(features), "--axes-count", 3)
    fitted("fit", features, "-o", run, *of_auto, *axes)
    head, _, x, *_ = open_matching(run, features, None)
    assert head.axes is not None and head.axes.count == 3
    cooled = probabilities(head.scores(x))
    assert np.abs(cooled - probabilities(1.5 * head.scores(x))).max() > 0.01
    export(run, "sklearn", tmp_path / "sklearn")
    found = sklearn_head.load_head(tmp_path / "sklearn").predict_proba(x)
    assert_allclose(found, cooled, atol=1e-4)
    for to in ("torch", "timm", "onnx"):
        export(run, to, tmp_path / to, weights)
        copied = (tmp_path / to / "decode.py").read_bytes()
        assert copied == Path(images.__file__).read_bytes()
    deep = ("12 bits", "16 bits", "tiff turned")
    meant = {name: data for name, (data, _) in kinds.meant().items()}
    one = twelve_bits()
    files = one | {k: v for k, v in meant.items() if not any(d in k for d in deep)}
    (tmp_path / "files").mkdir()
    for name, data in files.items():
        # the decoder asks the bytes, not the ending
        (tmp_path / "files" / f"{name.replace(',', '')}.png").write_bytes(data)
    command = (run, tmp_path / "files", "--weights", weights, "--device", "cpu")
    fitted("predict", *command, "-o", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    ranked = [
        {row[f"class{place}"]: row[f"probability{place}"] for place in ("", "_2", "_3")}
        for row in rows
    ]
    expected = [[row[name] for name in CLASSES] for row in ranked]
    assert len(expected) == len(files)
    # the documented example, on one picture
    assert not (tmp_path / "timm/config.json").exists()
    shutil.copytree(tmp_path / "timm", tmp_path / "run-timm")
    shutil.copyfile(tmp_path / "files/8.png.png", tmp_path / "picture.png")
    said = without_dphead(tmp_path, EXPORTED + documented("timm")).splitlines()
    found = json.loads(said[0])
    for to in ("torch", "timm", "onnx"):
        # four digits are printed
        assert_allclose(found[to], expected, atol=1.5e-4, err_msg=to)
    # one picture, however it is stored
    names = [Path(row["image"]).stem for row in rows]
    assert said[1:] == [rows[names.index("8.png")]["class"]]
    seen = [each for name, each in zip(names, expected, strict=True) if name in one]
    assert len(seen) == len(one) and seen == [seen[0]] * len(one)
