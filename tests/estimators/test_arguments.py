"""Every parameter of every estimator: a value that cannot be is refused before anything
is charged or a row is read, in one line that says what must hold.
"""

import inspect
import math

import numpy as np
import pytest
from wrong import (
    BELOW_ONE,
    CLASSED,
    FINITE,
    FLAG,
    HOUSE_FORM,
    HUGE,
    NAME,
    NAN,
    NO_NUMBER,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SQUARE,
    WHOLE,
)

import dphead
from dphead.estimators import inputs
from dphead.privacy.ledger import Ledger
from dphead.solvers.normalization import ChannelNormalization

CHANNELS = {"n_channels": 4, "mean_clip": 1.0, "square_clip": 1.0}

# of each parameter, values that cannot be
WRONG = CLASSED | {
    "group_cap": WHOLE,
    "split": NAME,
    "unit_norm": FLAG,
    "center_share": BELOW_ONE,
    "normalization": (
        *("text", 1, True, [], {}, {"nothing": 1}, {1: 1}, CHANNELS),
        *(CHANNELS | {"n_channels": wrong} for wrong in WHOLE),
        *(CHANNELS | {"mean_clip": wrong} for wrong in POSITIVE),
    ),
    "method": (*NAME, None),
    "settings": (
        *("steps", 1, True, NAN, ["steps"]),
        *({"nothing": 1}, {1: 1, "a": 1}),
    ),
    "estimate": FLAG,
    "per_class_share": BELOW_ONE,
    "prior": (
        *("nothing.npy", "", b"x", 1, 1j, NAN, HUGE, object()),
        *([], {}, [["a"]], np.ones(6), np.ones((6, 4))),
        *(np.full((6, 3), NAN), np.full((6, 3), math.inf)),
    ),
    "ridge": POSITIVE,
    "gram_share": SHARE,
    "class_grams": FLAG,
    "shrink": FLAG,
    "alpha": NOT_NEGATIVE,
    "feature_clip": POSITIVE,
    "intercept": NOT_NEGATIVE,
    "error_bars": FLAG,
    "steps": (*WHOLE, 2**21),
    "learning_rate": POSITIVE,
    "loss": NAME,
    "clip_norm": POSITIVE,
    "gram_intercept": FLAG,
    "initial_bias": FINITE,
    "hessian_share": SHARE,
    "momentum": BELOW_ONE,
    "beta2": BELOW_ONE,
    "sampling_prob": (*NO_NUMBER, 0, -0.1, 1.1, math.inf),
    "normalize": FLAG,
    "average": NAME,
    "ema_decay": BELOW_ONE,
    "weight_decay": NOT_NEGATIVE,
    "rule": NAME,
    "n_components": (*WHOLE, None, 7),
    "row_norm": (*POSITIVE, None),
    "mean_share": (*BELOW_ONE, None),
    "bounds": (
        *(1.0, "01", {}, True, NAN, SQUARE),
        *((1.0,), (0, 1, 2), (1.0, 0.0), (0.0, 0.0)),
        *((0, NAN), (0, math.inf), (0, HUGE)),
        *(("0", "1"), (False, True), (-1.7e308, 1.7e308)),
    ),
    "target_weight": (*POSITIVE, None),
}
# what else must be given for a parameter to be used
WITH = {
    "nominal_n": {"relation": "add_remove"},
    "normalization": {"unit_norm": None},
}
ESTIMATORS = [name for name in dphead.__all__ if name.startswith("DP")]


class Read(Exception):
    """A row was read."""


@pytest.fixture(autouse=True)
def unreadable(monkeypatch, tmp_path):
    """Rows that may not be read, since nothing may be charged."""

    def rows(*_, **__):
        raise Read

    monkeypatch.setattr(inputs, "ArrayRows", rows)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))


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
    groups = np.arange(60) // 2 if "group_cap" in given else None
    return getattr(dphead, estimator)(**(right | given)).fit(x, y, groups=groups)


def test_every_parameter_has_values_that_are_tried():
    """A new parameter needs a line above."""
    assert {parameter for _, parameter in parameters()} == set(WRONG)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_is_right_would_be_charged(estimator):
    """So that a refusal below is for the wrong value."""
    book = Ledger()
    with pytest.raises(Read):
        fitted(estimator, book)
    assert len(book.fits()) == 1


@pytest.mark.parametrize(("estimator", "parameter"), list(parameters()))
def test_what_cannot_be_is_refused_before_the_charge(estimator, parameter):
    for wrong in WRONG[parameter]:
        book = Ledger()
        given = WITH.get(parameter, {}) | {parameter: wrong}
        with pytest.raises(ValueError) as refusal:
            fitted(estimator, book, **given)
        assert HOUSE_FORM.fullmatch(str(refusal.value)), (wrong, refusal.value)
        assert len(str(refusal.value)) < 1000
        assert book.fits() == []


GROUPS = [5, "text", True, {}, [1, 2], [True] * 60, [[]] * 60]


@pytest.mark.parametrize("groups", [*GROUPS, np.zeros((60, 2), int)])
def test_groups_that_cannot_be_are_refused_before_the_charge(groups):
    rows = np.zeros((60, 6))
    for estimator in (dphead.DPAutoClassifier, dphead.DPPCA):
        book = Ledger()
        given = {"classes": [0, 1]} if estimator is dphead.DPAutoClassifier else {}
        model = estimator(ledger=book, group_cap=2, delta=1e-3, **given)
        with pytest.raises(ValueError) as refusal:
            model.fit(rows, np.arange(60) % 2, groups=groups)
        assert HOUSE_FORM.fullmatch(str(refusal.value)), refusal.value
        assert book.fits() == []


def test_what_a_table_may_hold_is_what_the_solver_declares():
    """The names that the message of a wrong table gives."""
    wanted = set(inspect.signature(ChannelNormalization).parameters)
    with pytest.raises(ValueError) as refusal:
        fitted("DPSGDClassifier", Ledger(), normalization={})
    assert all(name in str(refusal.value) for name in wanted)
