"""Every parameter of every estimator: a value that cannot be is refused before anything
is charged or a row is read, in one line that says what must hold.
"""

import inspect
import math

import numpy as np
import pytest

import dphead
from dphead.estimators import inputs
from dphead.privacy.ledger import Ledger

ONE_LINE = r"\A[^\n]+\.\Z"
# of each parameter a value that cannot be; `check_settings` has tests of its own
WRONG = {
    "epsilon": 0.0,
    "delta": 1.0,
    "relation": "nothing",
    "nominal_n": 0,
    "ledger": "",
    "allow_large_delta": "no",
    "random_state": 1.5,
    "classes": [[0], [1, 2]],
    "protect": "group",
    "accountant": "nothing",
    "preset": "nothing",
    "group_cap": 0,
    "group_mean": 1,
    "backend": "reference",
    "split": "",
    "unit_norm": 1,
    "center_share": 1.0,
    "normalization": {1: 1},
    "axes_from": "nothing",
    "axes_count": 0,
    "method": "nothing",
    "settings": {"nothing": 1},
    "estimate": 1,
    "per_class_share": 1.0,
    "prior": np.full((6, 3), math.nan),
    "balanced": 1,
    "ridge": 0.0,
    "gram_share": 0.0,
    "class_grams": 1,
    "shrink": 1,
    "alpha": -1.0,
    "feature_clip": 0.0,
    "intercept": -1.0,
    "error_bars": 1,
    "steps": 2**21,
    "learning_rate": 10**400,
    "loss": "nothing",
    "clip_norm": math.inf,
    "gram_intercept": 1,
    "initial_bias": math.nan,
    "hessian_share": 1.0,
    "momentum": 1.0,
    "beta2": -0.1,
    "sampling_prob": 1.1,
    "epoch_steps": 0,
    "normalize": 1,
    "average": "nothing",
    "ema_decay": 1.0,
    "weight_decay": "0",
    "rule": "nothing",
    "n_components": 7,
    "row_norm": 0.0,
    "mean_share": 1.0,
    "bounds": (-1.7e308, 1.7e308),
    "target_weight": 0.0,
    # of networks
    "model": "wrn-5-1",
    "noise_multiplier": 1e300,
    "batch_size": 61,
    "sampling": "allocation",
    "epochs": 0,
    "optimizer": "nothing",
    "learning_rate_schedule": "nothing",
    "base_learning_rate": 0,
    "dampening": 2,
    "decoupled": 0,
    "standardize": "no",
    "init_seed": 2**64,
    "vocabulary": 1,
    "adapter": "nothing",
    "rank": 0,
    "views": 2**17,
    "augment": "nothing",
    "weights": "nothing",
    "layers": ("(",),
    "norm": "nothing",
    "batch_norm": "nothing",
    "groups": 3,
    "mean": (0.5, math.nan, 0.5),
    "std": 0,
    "memory": 0,
    "device": "nothing",
    "bf16": "no",
}
# what else must be given for a parameter to be used
WITH = {
    "nominal_n": {"relation": "add_remove"},
    "normalization": {"unit_norm": None},
    "epochs": {"steps": None},
}
NETWORK = "DPFinetuneClassifier"
SMALL = {"model": "wrn-10-1", "groups": 4, "batch_size": 20, "steps": 1}
ESTIMATORS = [*(name for name in dphead.__all__ if name.startswith("DP")), NETWORK]


class Read(Exception):
    """A row was read."""


@pytest.fixture(autouse=True)
def unreadable(monkeypatch, tmp_path):
    """Rows that must not be read, because nothing is charged."""

    def rows(*_, **__):
        raise Read

    monkeypatch.setattr(inputs, "ArrayRows", rows)


def parameters():
    """(estimator, parameter) of all that are public."""
    for name in ESTIMATORS:
        for parameter in inspect.signature(getattr(dphead, name)).parameters:
            yield name, parameter


def fitted(estimator, book, **given):
    """A fit whose parameters are right but for those given."""
    rng = np.random.default_rng(0)
    x = rng.random((60, 6))
    y = np.arange(60) % 3
    right = {"ledger": book, "delta": 1e-3}
    if estimator == "DPRegressor":
        y = y.astype(float)
        right["bounds"] = (0.0, 2.0)
    elif estimator != "DPPCA":
        right["classes"] = [0, 1, 2]
    if estimator == "DPMultiLabelClassifier":
        y = np.eye(3, dtype=int)[y]
    if estimator == NETWORK:
        x = np.zeros((60, 8, 8, 3), np.uint8)
        right |= SMALL | {"accountant": "rdp"}
    groups = np.arange(60) // 2 if "group_cap" in given else None
    return getattr(dphead, estimator)(**(right | given)).fit(x, y, groups=groups)


def test_every_parameter_has_values_that_are_tried():
    every = {parameter for _, parameter in parameters()}
    assert every == set(WRONG), f"lines of WRONG: {sorted(every ^ set(WRONG))}"


@pytest.mark.parametrize("estimator", ESTIMATORS[:-1])
def test_what_is_right_would_be_charged(estimator):
    """So that a refusal below is for the wrong value."""
    book = Ledger()
    with pytest.raises(Read):
        fitted(estimator, book)
    assert len(book.fits()) == 1


@pytest.mark.parametrize(
    "estimator, parameter", [pair for pair in parameters() if pair[1] in WRONG]
)
def test_what_cannot_be_is_refused_before_the_charge(estimator, parameter):
    book, wrong = Ledger(), WRONG[parameter]
    given = WITH.get(parameter, {}) | {parameter: wrong}
    with pytest.raises(ValueError, match=ONE_LINE):
        fitted(estimator, book, **({"ledger": book} | given))
    assert book.fits() == []


GROUPS = [5, "text", {}, [1, 2], [True] * 60, np.zeros((60, 2), int)]


@pytest.mark.parametrize("groups", GROUPS, ids=range(len(GROUPS)))
def test_groups_that_cannot_be_are_refused_before_the_charge(groups):
    book = Ledger()
    given = {"ledger": book, "group_cap": 2, "delta": 1e-3}
    for model in (
        dphead.DPAutoClassifier(classes=[0, 1], **given),
        dphead.DPPCA(**given),
    ):
        with pytest.raises(ValueError, match=ONE_LINE):
            model.fit(np.zeros((60, 6)), np.arange(60) % 2, groups=groups)
    assert book.fits() == []


CLASSES = [None, 5, "012", [0, 0], range(10**400)]


@pytest.mark.parametrize("classes", CLASSES, ids=range(len(CLASSES)))
def test_classes_that_cannot_be_are_refused(classes):
    with pytest.raises(ValueError, match=ONE_LINE):
        fitted("DPAutoClassifier", Ledger(), classes=classes)
