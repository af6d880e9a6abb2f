"""Estimators' docstrings: every parameter is described, every example runs."""

import doctest
from dataclasses import fields

import numpy as np
import pytest

import dphead
from dphead.estimators import DPClassifier

METHODS = [
    getattr(dphead, name)
    for name in dphead.__all__
    if name.endswith("Classifier")
    if name not in ("DPHeadClassifier", "DPMultiLabelClassifier")  # of any method
]
OTHERS = [dphead.DPMultiLabelClassifier, dphead.DPPCA, dphead.DPRegressor]
methods = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


@methods
def test_every_parameter_and_attribute_is_described(method):
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 100)
    head = method(classes=range(2), epsilon=8.0).fit(draw.normal(size=(100, 3)), y)
    attributes = [name for name in vars(head) if name.endswith("_")]
    for name in [*attributes, *(field.name for field in fields(DPClassifier))]:
        assert f"\n    {name} : " in method.__doc__, name
    for name in head.get_params():
        assert name in method.__doc__


@pytest.mark.parametrize("kind", [*METHODS, *OTHERS], ids=lambda kind: kind.__name__)
def test_the_example_runs(kind):
    (test,) = doctest.DocTestFinder(recurse=False).find(kind, globs={})
    result = doctest.DocTestRunner().run(test)
    assert result.attempted >= 6
    assert result.failed == 0
    for name in kind().get_params():
        assert name in kind.__doc__
