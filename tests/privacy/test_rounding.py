"""Tests of printed numbers: each is rounded in the safe direction only."""

import math
from decimal import ROUND_FLOOR, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphead.privacy.rounding import (
    as_declared,
    declared_at,
    percent_up,
    rounded_down,
    rounded_up,
    spent_at,
)

_POSITIVE = st.floats(min_value=1e-300, max_value=1e15)


@given(_POSITIVE, st.integers(2, 6))
def test_spent_is_never_printed_too_small_nor_a_remainder_too_large(value, digits):
    """And by less than one unit of the last digit."""
    up, down = (float(f(value, digits)) for f in (rounded_up, rounded_down))
    assert down <= value <= up
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    assert up - down <= unit * (1 + 1e-9)  # of the subtraction


@given(st.floats(min_value=0, max_value=1))
def test_a_bound_on_a_share_is_never_printed_too_small(share):
    shown = float(percent_up(share).removesuffix(" %"))
    assert shown / 100 >= share * (1 - 1e-15)  # of the division
    assert shown <= 100 * share * 1.01 + 1e-300


@given(_POSITIVE)
def test_a_declared_number_keeps_all_its_digits(value):
    assert float(as_declared(value)) == value


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0, "0", "0"),
        (0.1, "0.1", "0.1"),  # not 0.1001: the shortest digits count
        (0.3, "0.3", "0.3"),
        (1.0, "1", "1"),
        (1.00001, "1.001", "1"),
        (0.99999, "1", "0.9999"),
        (math.inf, "inf", "inf"),
    ],
)
def test_numbers_of_few_digits_stay_as_they_are(value, up, down):
    assert (rounded_up(value), rounded_down(value)) == (up, down)


def test_an_epsilon_and_its_delta_are_in_one_form():
    assert spent_at(1.23411, 1e-5) == "epsilon 1.235 at delta 1e-05"
    assert declared_at(1.234567891, 1.5e-5) == "epsilon 1.234567891 at delta 1.5e-05"


def test_the_callers_decimal_context_moves_no_printed_number():
    """A program that counts money sets one."""
    numbers = (1.00149, 8.4444, 2.756, 0.92344)
    shown = [(rounded_up(x, 5), rounded_down(x, 3), percent_up(x)) for x in numbers]
    with localcontext(prec=2, rounding=ROUND_FLOOR):
        assert shown == [
            (rounded_up(x, 5), rounded_down(x, 3), percent_up(x)) for x in numbers
        ]
