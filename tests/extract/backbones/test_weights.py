"""Weights files that are none, or run code, and checkpoints of trainers."""

import argparse
import random
import re
from pathlib import PurePosixPath

import numpy as np
import pytest
import timm
import torch
from dphead_extract.backbones.weights import load_weights, read_state
from dphead_extract.errors import ExtractError
from hostile_files import TOUCHED, WEIGHTS

from dphead.finetune import models


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("write", sorted(set(WEIGHTS), key=repr))
def test_hostile_weights_are_refused_and_not_run(write, seed, tmp_path):
    path = write(tmp_path, random.Random(seed))
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ExtractError, match=r"--weights"):
        load_weights(model, path)
    with pytest.raises(ValueError, match="weights must"):
        models.load_public_weights(
            torch.nn.Sequential(model, torch.nn.Linear(2, 2)), str(path)
        )
    assert not (tmp_path / TOUCHED).exists()


def test_a_trainers_checkpoint_is_read_without_building_its_options(tmp_path):
    state = {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}
    beside = {"args": argparse.Namespace(out=PurePosixPath("out")), "epoch": 3}
    beside |= {"metric": np.float64(0.9)}
    torch.save({"state_dict": state} | beside, tmp_path / "c.pth")
    assert read_state(tmp_path / "c.pth").keys() == state.keys()
    old = {"_use_new_zipfile_serialization": False}
    torch.save({"state_dict": state} | beside, tmp_path / "old.pth", **old)
    with pytest.raises(ExtractError, match=r"Namespace\. .*save_file"):
        read_state(tmp_path / "old.pth")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_wrappers_names_are_removed_in_both_formats(prefix, name, tmp_path):
    from safetensors.torch import save_file

    save = save_file if name.endswith("tensors") else torch.save
    save({f"{prefix}module1.weight": torch.ones(2)}, tmp_path / name)
    assert list(read_state(tmp_path / name)) == ["module1.weight"]


def built(name="test_resnet", **arguments):
    return timm.create_model(name, **arguments)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"]
)
@pytest.mark.parametrize("theirs, ours", [(7, 1000), (1001, 1000), (0, 5), (5, 0)])
def test_weights_of_other_classes_say_the_argument_that_loads_them(
    name, theirs, ours, tmp_path
):
    path = tmp_path / "w.pth"
    state = dict(built(name, num_classes=theirs).state_dict())
    # files of old batch norms, and of other software, lack these
    torch.save({k: v for k, v in state.items() if "num_batches" not in k}, path)
    with pytest.raises(ExtractError) as refused:
        load_weights(built(name, num_classes=ours), path)
    text = str(refused.value)
    assert f"has {theirs} classes, and the model has {ours}." in text
    typed = re.findall(r"Add --model-arg num_classes=(\d+)\.$", text)
    load_weights(built(name, num_classes=int(*typed)), path)


@pytest.mark.parametrize(
    "file, model, advice",
    [
        ({"in_chans": 1, "num_classes": 7}, {}, "num_classes=7 and the other arg"),
        ({"in_chans": 1}, {}, "Type the --backbone and all --model-arg"),
        ({"num_classes": 0, "in_chans": 1}, {}, "Type the --backbone"),
    ],
)
def test_weights_with_other_layers_name_the_first_and_what_to_type(
    file, model, advice, tmp_path
):
    torch.save(built(**file).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ExtractError, match=rf"(mismatch|Missing).*\. .*{advice}"):
        load_weights(built(**model), tmp_path / "w.pth")


def test_a_model_without_a_known_classifier_names_the_first_tensor(tmp_path):
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ExtractError, match=r"for weight: .* Type the --backbone"):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "w.pth")
