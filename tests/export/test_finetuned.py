"""Networks of `dphead finetune` in other software's formats: the classes that `dphead
predict` gives.
"""

import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from commands import dphead, fitted, table
from dphead_extract.compiler import import_timm
from dphead_extract.features.format import write_features
from dphead_extract.sources.classes import Classes
from exports import holds, without_dphead
from finetune.core import CLIPS, OWN, images, images_file
from PIL import Image
from safetensors.torch import save_file

from dphead.export.exporting import export
from dphead.export.torch_head import load_network
from dphead.finetune.options import FinetuneOptions
from dphead.finetune.run import finetune
from dphead.finetune.saved import read_network
from dphead.finetune.settings import Settings

timm = import_timm()  # without torch's compiler: 2 s less
NAMES = ["bird", "cat", "dog"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function of a model's name that gives its run folder."""
    folder = tmp_path_factory.mktemp("finetuned")
    images_file(folder / "images.npz", names=NAMES, test=0)
    y = images(60)[1]
    maps = np.random.default_rng(0).random((60, 81 * 49), np.float32)
    write_features(folder / "maps.h5", maps, y, class_names=NAMES)

    @cache
    def train(model):
        settings = Settings(model, groups=4, batch_size=60, steps=3, learning_rate=0.1)
        options = FinetuneOptions(
            features=folder / "images.npz",
            out=folder / model.replace(":", "-"),
            epsilon=np.inf,
            not_private=True,
            classes=Classes(NAMES),
            image_size=32 if model.startswith("test") else 8,
            settings=settings,
        )
        if model == "tb21-sn-mnist":
            settings = replace(settings, normalization=CLIPS)
            maps = {"features": folder / "maps.h5", "shape": (81, 7, 7)}
            options = replace(options, settings=settings, image_size=None, **maps)
        finetune(options)
        return options.out

    return train


def test_the_examples_of_exports_give_the_classes_of_predict(trained, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    pixels = images(3, size=20, seed=5)[0][1].transpose(1, 2, 0)
    Image.fromarray(pixels).save(photos / "picture.png")
    shutil.copyfile(photos / "picture.png", tmp_path / "picture.png")
    code, wanted = [], []
    for model, to in (
        ("wrn-10-1", "onnx"),
        ("test_vit", "torch"),
        ("test_vit", "timm"),
    ):
        done = export(trained(model), to, tmp_path / to)
        assert "images of" in done.takes
        assert (tmp_path / to / "README.md").read_text().startswith("# A classifier")
        code.append(done.example)
        (row,) = table(fitted("predict", trained(model), photos).out)
        wanted.append(row["class"])
    said = without_dphead(tmp_path, "\n".join(code)).splitlines()
    assert all(name in line for name, line in zip(wanted, said, strict=True))


def test_a_network_of_maps_takes_the_rows_of_a_features_file(trained, tmp_path):
    """Their released normalization is in the export, which was compared with it."""
    run = trained("tb21-sn-mnist")
    done = [export(run, to, tmp_path / to) for to in ("torch", "onnx")]
    assert {one.takes[:21] for one in done} == {"3969 features per row"}
    said = without_dphead(tmp_path, "\n".join(one.example for one in done))
    assert said.count(",") == 4


@pytest.mark.parametrize("how", ["freeze", "group"])
def test_a_network_with_batch_norms_is_trained_and_rebuilt(how, tmp_path):
    """The export compares its scores with those of the run folder."""
    source = images_file(tmp_path / "images.npz", names=NAMES, test=0)
    model = timm.create_model("test_efficientnet", num_classes=5)
    for name, value in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            value.uniform_(0.5, 1)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    command = ["finetune", source, "-o", tmp_path / "run", "--classes", ",".join(NAMES)]
    command += ["--model", "test_efficientnet", "--batch-norm", how]
    command += ["--layers", "^blocks[.]3,^conv_head,^classifier", "--image-size", 32]
    command += ["--weights", tmp_path / "weights.safetensors", "--steps", 2]
    command += ["--batch-size", 60, "--epsilon", "inf", "--learning-rate", 0.1]
    fitted(*command, "--i-know-this-is-not-private")
    network, state, _ = read_network(tmp_path / "run")
    kept = network.model.get_parameter("conv_stem.weight")
    assert torch.equal(kept, model.conv_stem.weight)
    if how == "freeze":
        kept = network.model.bn1.running_var
        assert torch.equal(kept, model.bn1.running_var)
        export(tmp_path / "run", "timm", tmp_path / "timm")
    else:
        with pytest.raises(ValueError, match="in place of batch norms"):
            export(tmp_path / "run", "timm", tmp_path / "timm")
    assert "Data set" in dphead("check", tmp_path / "run").out
    assert len(table(fitted("predict", tmp_path / "run", source).out)) == 60
    done = export(tmp_path / "run", "torch", tmp_path / "torch")
    x = np.random.default_rng(0).random((4, 3, 32, 32), np.float32)
    loaded, _ = load_network(tmp_path / "torch")
    with torch.inference_mode():
        scores = loaded(torch.from_numpy(x)).numpy()
    # float32 sums of up to some thousand terms
    mine = network.scores(state.average, 255 * x)
    np.testing.assert_allclose(scores, mine, rtol=1e-3, atol=1e-4)
    assert "images of" in done.takes


def test_a_network_of_ones_own_needs_its_code(trained, tmp_path, monkeypatch):
    (tmp_path / "ones_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    run = trained("ones_own:network")
    with pytest.raises(ValueError, match="Pass --model ones_own:network"):
        export(run, "torch", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = export(run, "torch", tmp_path / "t1", model="ones_own:network")
    pixels = images(1, size=8)[0][0].transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    said = without_dphead(tmp_path, done.example)
    assert any(name in said for name in NAMES)
    export(run, "onnx", tmp_path / "t2", model="ones_own:network")
    for name in ("t1", "t2"):
        assert holds(tmp_path / name, "ward 7") == []


def test_a_format_that_cannot_hold_the_network_is_refused(trained, tmp_path):
    for to, message in (
        ("sklearn", "cannot export a network. Use --to torch, timm or onnx"),
        ("timm", "which is not a timm model"),
    ):
        with pytest.raises(ValueError, match=message):
            export(trained("wrn-10-1"), to, tmp_path / "out")
    assert not (tmp_path / "out").exists()
