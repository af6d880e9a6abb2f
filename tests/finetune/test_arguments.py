"""Every argument of a network's training, by `dphead finetune` and by the estimator: a
value that cannot be is refused before anything is charged.
"""

import inspect

import click
import numpy as np
import pytest
from commands import charges, dphead, features_file
from finetune.core import images
from wrong import (
    BELOW_ONE,
    CLASSED,
    CLASSES,
    FLAG,
    HOUSE_FORM,
    HUGE,
    NAME,
    NAN,
    NO_NUMBER,
    NOT_NEGATIVE,
    POSITIVE,
    WHOLE,
)

from dphead.cli.finetune import finetune
from dphead.finetune import DPFinetuneClassifier
from dphead.privacy.ledger import Ledger

NAMES = [o.name for o in finetune.get_params(click.Context(finetune))]
# of each option values that cannot be
BAD = {
    "out": ("{file}",),
    "model": ("nothing", "wrn-16", "resnet18"),
    "preset": ("nothing", ""),
    "weights": ("{file}", ""),
    "layers": ("nothing", "("),
    "norm": ("nothing",),
    "groups": ("3", "x"),
    "epsilon": ("nan", "x"),
    "delta": ("nan", "inf"),
    "noise_multiplier": ("nan", "1e300"),
    "batch_size": ("0", "9" * 400),
    # with steps that are no multiple of an epoch's
    "sampling": ("nothing", "allocation"),
    "steps": ("0", "9" * 400),
    "epochs": ("nan", "1e300"),
    "learning_rate": ("nan", "1e300"),
    "optimizer": ("nothing",),
    "momentum": ("nan", "inf"),
    "clip_norm": ("nan", "1e300"),
    "weight_decay": ("nan", "1e300"),
    "average": ("nothing",),
    "ema_decay": ("nan", "inf"),
    "views": ("-1", "9" * 400),
    "augment": ("nothing",),
    "relation": ("nothing", "add_remove"),
    "nominal_n": ("100", "x"),
    "accountant": ("nothing", "zcdp"),
    "classes": ("a,a", "@{missing}"),
    "bits": ("0", "x"),
    "intensity": ("1,0", "x"),
    "image_size": ("0", "9" * 400),
    "shape": ("1,2", "x"),
    "mean": ("nan", "nan,0,0"),
    "std": ("nan", "0,1,1"),
    "split": ("nothing", ""),
    "layout": ("nothing", "class"),
    "test": ("{missing}", "{other}"),
    "test_split": ("nothing",),
    "test_is": ("nothing",),
    "vote": ("2", "-1"),
    "ledger": ("{file}", "{folder}"),
    "same_data_as": ("{file}", "{missing}"),
    "dataset_id": ("nothing", "../x"),
    "protect": ("group",),
    "tuning": ("nothing",),
    "seed": ("x", "1.5"),
    "init_seed": ("x", "9" * 400),
    "memory": ("-1", ""),
    "device": ("nothing", ""),
    "checkpoint": ("0", "x"),
    "config": ("{file}", "{missing}"),
}
FLAGS = {
    *("standardise", "decoupled", "folder_names_are_public", "allow_unlabelled"),
    *("new_data_set", "allow_large_delta", "bf16", "not_private", "dry_run", "verbose"),
}
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
    for value in BAD[name]:
        given = fixed | {word: value.format(**places)}
        command = [part for pair in given.items() for part in pair]
        done = dphead("finetune", places["images"], *command)
        assert done.code == 2, (value, done)
        assert "Traceback" not in done.err + done.out
        assert "Error" in done.err
        assert charges() == 0
        assert not (tmp_path / "run").exists()


SCALE = ("0.5", True, {}, NAN, HUGE, 1e300)
SCALE = (*SCALE, (0.5, 0.5), (0.5, NAN, 0.5))
# of each parameter of the estimator values that cannot be
WRONG = CLASSED | {
    "classes": (*CLASSES, None),
    "model": (*NAME, "wrn-16", "wrn-5-1", "tb21-x", "resnet18"),
    "preset": (*NAME, "fc23"),
    "noise_multiplier": POSITIVE,
    "batch_size": (*WHOLE, 61),
    "sampling": (*NAME, "allocation"),
    "steps": (*WHOLE, 2**21),
    "epochs": POSITIVE,
    "optimizer": NAME,
    "learning_rate": POSITIVE,
    "momentum": BELOW_ONE,
    "clip_norm": POSITIVE,
    "weight_decay": NOT_NEGATIVE,
    "average": NAME,
    "ema_decay": BELOW_ONE,
    "views": (*NO_NUMBER, 1.5, -1, 2**17),
    "augment": NAME,
    "weights": NAME,
    "layers": ("head", 1, True, ("nothing",), ("(",), (1,), {}),
    "norm": NAME,
    "groups": (*NO_NUMBER, None, 1.5, -1, 3, 32),
    "mean": SCALE,
    "std": (*SCALE, 0, -1.0, 1e-300),
    "memory": (*WHOLE, None),
    "device": ("nothing", "", 1, True, None),
    "bf16": (*FLAG, None),
}
WITH = {
    "nominal_n": {"relation": "add_remove"},
    "epochs": {"steps": None},
}


def test_every_parameter_has_values_that_are_tried():
    """A new parameter needs a line above."""
    assert set(inspect.signature(DPFinetuneClassifier).parameters) == set(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_a_parameter_that_cannot_be_is_refused_before_the_charge(name):
    x, y = images(60)
    right = {"model": "wrn-10-1", "groups": 4, "batch_size": 20, "steps": 1}
    right |= {"classes": [0, 1, 2], "delta": 1e-3, "accountant": "rdp"}
    for wrong in WRONG[name]:
        book = Ledger()
        given = right | {"ledger": book} | WITH.get(name, {}) | {name: wrong}
        with pytest.raises(ValueError) as refusal:
            DPFinetuneClassifier(**given).fit(x.transpose(0, 2, 3, 1), y)
        assert HOUSE_FORM.fullmatch(str(refusal.value)), (wrong, refusal.value)
        assert book.fits() == []
