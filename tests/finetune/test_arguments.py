"""Every argument of `dphead finetune`: a value that cannot be is refused before the
charge. Those of the estimator are in tests/estimators/test_arguments.py.
"""

import click
import pytest
from commands import charges, dphead, features_file
from finetune.core import images_file

from dphead.cli.finetune import finetune
from dphead.finetune.settings import Settings
from dphead.solvers.settings import settings_of

NAMES = [o.name for o in finetune.get_params(click.Context(finetune))]
# of each option a value that cannot be
VALUES = """
out {file}
model wrn-16
preset nothing
weights {file}
vocabulary 1
adapter nothing
rank 0
layers (
norm nothing
batch_norm freeze (of a timm model without weights)
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
names a,a
bits 0
intensity 1,0
image_size 0
shape 1,0
mean nan,0,0
std 0,1,1
split nothing
layout class
columns label=nothing
test {other}
test_split nothing
test_is nothing
ledger {file}
same_data_as {file}
dataset_id ../x
people Clinic
settings nothing=1
group_cap 0
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
    "standardize decoupled normalize folder_names_public allow_unlabeled "
    "new_data_set new_people allow_large_delta bf16 not_private dry_run "
    "verbose yes"
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
    (tmp_path / "file").write_bytes(b"no ledger, no folder, no weights" * 100)
    features_file(tmp_path / "other.h5", d=13)
    return {
        "images": images_file(tmp_path / "images.npz", 40, test=10),
        "file": tmp_path / "file",
        "missing": tmp_path / "missing",
        "folder": tmp_path,
        "other": tmp_path / "other.h5",
    }


def test_every_option_has_values_that_are_tried():
    """A new option needs a line above."""
    helps = {"help", "_click_default_help"}  # as versions of click call it
    settings = {
        name for name, d in settings_of(Settings).items() if dict not in d.types
    }
    assert set(NAMES) | settings == set(BAD) | FLAGS | {"features"} | helps & set(NAMES)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_before_the_charge(name, tmp_path, places):
    options = finetune.get_params(click.Context(finetune))
    value = BAD[name].format(**places)
    if name in NAMES:
        word = next(option.opts[-1] for option in options if option.name == name)
    else:
        word, value = "--set", f"{name}={value}"
    fixed = FIXED | {"--output": tmp_path / "run"}
    fixed.pop(INSTEAD.get(name), None)
    if name == "batch_norm":
        fixed["--model"] = "test_resnet"
    given = fixed | {word: value}
    command = [part for pair in given.items() for part in pair]
    done = dphead("finetune", places["images"], *command)
    assert done.code == 2, done
    assert "Traceback" not in done.err + done.out
    assert "Error" in done.err
    assert charges() == 0
    assert not (tmp_path / "run").exists()
