"""Tests of declared numbers: Python's own types, and never more than declared."""

import math
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphead.privacy.accounting import GaussianEvent, compose_epsilon
from dphead.privacy.python_values import python_value


class _Level(IntEnum):
    THREE = 3


class _Relation(StrEnum):
    ZERO_OUT = "zero_out"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.array(1.5), 1.5),
        (np.bool_(True), True),
        (np.int8(3), 3),
        (np.str_("x"), "x"),
        (_Level.THREE, 3),
        (_Relation.ZERO_OUT, "zero_out"),
        (Decimal(0), 0),
        (Decimal("0.5"), 0.5),
        (Decimal("1E-999999999"), 0),
        (Fraction(4, 2), 2),
        (Decimal("Infinity"), math.inf),
        ([1, np.int64(2)], [1, 2]),
        ((np.float16(8),), (8.0,)),
    ],
)
def test_a_declared_value_gets_pythons_own_type(value, wanted):
    """Also for values that a grid search takes from an array."""
    found = python_value(value)
    assert found == wanted
    assert type(found) is type(wanted)
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize(
    "value", [[1, 2], (0.5, "a"), np.ones(3), Decimal("1E+999999999"), object(), {}]
)
def test_other_values_stay_the_same_object(value):
    """scikit-learn's clone compares parameters by identity."""
    assert python_value(value) is value


@given(
    st.fractions(min_value=0, max_value=10**9)
    | st.decimals(min_value=0, max_value=10**9)
)
def test_no_value_grows(value):
    """A larger epsilon than the declared one would break the promise."""
    found = python_value(value)
    assert found <= value
    assert math.nextafter(found, math.inf) > value or found == value


def test_an_event_and_delta_of_float32_cost_as_pythons_floats_do():
    """A charge is computed in double precision."""
    exact = compose_epsilon([GaussianEvent(float(np.float32(5.3)))], 2.0**-17)
    found = compose_epsilon([GaussianEvent(np.float32(5.3))], np.float32(2.0**-17))
    assert type(found) is float
    assert found == exact
