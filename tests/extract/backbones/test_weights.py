"""Weights files that are none, or run code."""

import random

import pytest
import torch
from dphead_extract.backbones.weights import load_weights
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
