"""Definitions of losses; tests/privacy/test_statistics.py holds the sums to them."""

import numpy as np
import pytest
from definitions import predictions


def test_a_loss_that_is_not_defined_predicts_nothing():
    with pytest.raises(ValueError, match="no definition of loss='new'"):
        predictions(np.zeros(3), "new")  # type: ignore[arg-type]
