"""Every argument of a network's training, by `dphead finetune` and by the estimator: a
value that cannot be is refused before anything is charged.
"""

import inspect
import math

import click
import numpy as np
import pytest
from commands import HOUSE_FORM, WRONG_FOR_ALL, charges, dphead, features_file
from finetune.core import images

from dphead.cli.finetune import finetune
from dphead.finetune import DPFinetuneClassifier
from dphead.privacy.ledger import Ledger

NAMES = [o.name for o in finetune.get_params(click.Context(finetune))]
# of each option a value that cannot be
VALUES = """
out {file}
model wrn-16
preset nothing
weights {file}
layers (
norm nothing
groups 3
epsilon nan
delta inf
noise_multiplier 1e300
batch_size 0
sampling allocation (with steps that are no multiple of an epoch's)
steps 0
epochs nan
learning_rate 1e300
learning_rate_schedule nothing
base_learning_rate 0
dampening 2
beta2 1
optimizer nothing
momentum inf
clip_norm nan
weight_decay nan
average nothing
ema_decay inf
views -1
augment nothing
relation add_remove
nominal_n 100
accountant zcdp
classes a,a
bits 0
intensity 1,0
image_size 0
shape 1,2
mean nan,0,0
std 0,1,1
split nothing
layout class
columns label=nothing
encoding nothing
test {other}
test_split nothing
test_is nothing
ledger {file}
same_data_as {file}
dataset_id ../x
protect group
tuning nothing
seed 1.5
init_seed x
memory -1
device nothing
checkpoint 0
evaluate_every 5 (of a test set that is private)
config {missing}
"""
BAD = dict(line.split()[:2] for line in VALUES.strip().splitlines())
NO_VALUE = (
    "standardize decoupled normalize folder_names_are_public allow_unlabeled "
    "new_data_set allow_large_delta bf16 not_private dry_run verbose"
)
FLAGS = set(NO_VALUE.split())
FIXED = {
    "--model": "wrn-10-1",
    "--groups": 4,
    "--batch-size": 20,
    "--steps": 1,
    "--delta": 1e-3,
    "--accountant": "rdp",
    "--split": "train",
    "--classes": 3,
}
# options that say what one of these does
INSTEAD = {"epochs": "--steps", "noise_multiplier": "--steps"}


@pytest.fixture
def places(tmp_path):
    """Images with two splits, a file that is none, and features of another shape."""
    x, y = images(40)
    split = np.where(np.arange(40) < 30, "train", "test")
    path = tmp_path / "images.npz"
    np.savez(path, images=x.transpose(0, 2, 3, 1), labels=y, split=split)
    (tmp_path / "file").write_bytes(b"no ledger, no folder, no weights" * 100)
    features_file(tmp_path / "other.h5", d=13)
    return {
        "images": path,
        "file": tmp_path / "file",
        "missing": tmp_path / "missing",
        "folder": tmp_path,
        "other": tmp_path / "other.h5",
    }


def test_every_option_has_values_that_are_tried():
    """A new option needs a line above."""
    helps = {"help", "_click_default_help"}  # as versions of click call it
    assert set(NAMES) - {"images"} - helps == set(BAD) | FLAGS


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_before_the_charge(name, tmp_path, places):
    options = finetune.get_params(click.Context(finetune))
    word = next(option.opts[-1] for option in options if option.name == name)
    fixed = FIXED | {"--output": tmp_path / "run"}
    fixed.pop(INSTEAD.get(name), None)
    given = fixed | {word: BAD[name].format(**places)}
    command = [part for pair in given.items() for part in pair]
    done = dphead("finetune", places["images"], *command)
    assert done.code == 2, done
    assert "Traceback" not in done.err + done.out
    assert "Error" in done.err
    assert charges() == 0
    assert not (tmp_path / "run").exists()


# of each parameter of the estimator a value that cannot be
WRONG = {
    **WRONG_FOR_ALL,
    "preset": "fc23",
    "model": "wrn-5-1",
    "noise_multiplier": 1e300,
    "batch_size": 61,
    "sampling": "allocation",
    "steps": 2**21,
    "epochs": 0,
    "optimizer": "nothing",
    "learning_rate": math.inf,
    "learning_rate_schedule": "nothing",
    "base_learning_rate": 0,
    "momentum": 1,
    "dampening": 2,
    "beta2": 1,
    "normalize": "no",
    "decoupled": 0,
    "standardize": "no",
    "init_seed": 2**64,
    "loss": "nothing",
    "clip_norm": 0,
    "weight_decay": -1.0,
    "average": "nothing",
    "ema_decay": 1,
    "views": 2**17,
    "augment": "nothing",
    "weights": "nothing",
    "layers": ("(",),
    "norm": "nothing",
    "groups": 3,
    "mean": (0.5, math.nan, 0.5),
    "std": 0,
    "memory": 0,
    "device": "nothing",
    "bf16": "no",
}
WITH = {"nominal_n": {"relation": "add_remove"}, "epochs": {"steps": None}}


def test_every_parameter_has_values_that_are_tried():
    """A new parameter needs a line above."""
    assert set(inspect.signature(DPFinetuneClassifier).parameters) == set(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_a_parameter_that_cannot_be_is_refused_before_the_charge(name):
    x, y = images(60)
    right = {"model": "wrn-10-1", "groups": 4, "batch_size": 20, "steps": 1}
    right |= {"classes": [0, 1, 2], "delta": 1e-3, "accountant": "rdp"}
    book = Ledger()
    given = right | {"ledger": book} | WITH.get(name, {}) | {name: WRONG[name]}
    with pytest.raises(ValueError) as refusal:
        DPFinetuneClassifier(**given).fit(x.transpose(0, 2, 3, 1), y)
    assert HOUSE_FORM.fullmatch(str(refusal.value)), refusal.value
    assert book.fits() == []
