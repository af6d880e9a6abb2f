"""Estimators' docstrings: every parameter is described, every example runs."""

import doctest

import pytest
from estimators.methods import METHODS
from sklearn.base import is_classifier

import dphead
from dphead.planning.methods import settable

OTHERS = [dphead.DPMultiLabelClassifier, dphead.DPPCA, dphead.DPRegressor]


@pytest.mark.parametrize("kind", [*METHODS, *OTHERS], ids=lambda kind: kind.__name__)
def test_the_example_runs(kind):
    (test,) = doctest.DocTestFinder(recurse=False).find(kind, globs={})
    result = doctest.DocTestRunner().run(test)
    assert result.attempted >= 6
    assert result.failed == 0


@pytest.mark.parametrize("name", [n for n in dir(dphead) if n.startswith("DP")])
def test_help_describes_every_parameter_once(name):
    if name == "DPFinetuneClassifier":
        pytest.importorskip("torch")
    kind = getattr(dphead, name)
    for parameter in kind().get_params():
        assert kind.__doc__.count(f"\n{parameter} : ") == 1
    for attribute in ("classes_", "privacy_", "ledger_"):
        described = f"\n{attribute} : " in kind.__doc__
        assert described == (attribute != "classes_" or is_classifier(kind()))


def test_a_setting_has_the_default_of_its_own_method():
    own = {"steps": "Default: 30 ", "learning_rate": "Default: 0.1 "}
    for name, default in own.items():
        _, _, text = dphead.DPAdamClassifier.__doc__.partition(f"\n{name} : ")
        assert default in text.split("\n")[1]


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_every_setting_of_a_method_is_a_parameter_of_its_estimator(kind):
    parameters = set(kind().get_params())
    assert set(settable(kind.method)) <= parameters
