"""Estimators' docstrings: every parameter is described, every example runs."""

import doctest

import pytest

import dphead
from dphead.planning.methods import settable

METHODS = [
    getattr(dphead, name)
    for name in dphead.__all__
    if name.endswith("Classifier")
    if name not in ("DPHeadClassifier", "DPMultiLabelClassifier")  # of any method
]
OTHERS = [dphead.DPMultiLabelClassifier, dphead.DPPCA, dphead.DPRegressor]


@pytest.mark.parametrize("kind", [*METHODS, *OTHERS], ids=lambda kind: kind.__name__)
def test_the_example_runs(kind):
    (test,) = doctest.DocTestFinder(recurse=False).find(kind, globs={})
    result = doctest.DocTestRunner().run(test)
    assert result.attempted >= 6
    assert result.failed == 0
    for name in kind().get_params():
        assert name in kind.__doc__


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_every_setting_of_a_method_is_a_parameter_of_its_estimator(kind):
    parameters = set(kind().get_params())
    assert set(settable(kind.method)) <= parameters
