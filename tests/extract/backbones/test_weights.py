"""Weights files that are none, or run code, and checkpoints of trainers."""

import argparse
import random
from pathlib import PurePosixPath

import numpy as np
import pytest
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
