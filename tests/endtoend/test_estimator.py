"""`DPFinetuneClassifier` behaves like a classifier and spends what it says."""

import numpy as np
import pytest
from endtoend.core import images
from sklearn.base import clone

from dphead.endtoend.estimator import DPFinetuneClassifier
from dphead.privacy.ledger import Ledger

NAMES = np.array(["bird", "cat", "dog"])


def data(n=60):
    x, y = images(n)
    return x.transpose(0, 2, 3, 1), NAMES[y]


def classifier(**more):
    fixed = {"model": "wrn-10-1", "groups": 4, "classes": NAMES, "delta": 1e-3, "accountant": "rdp"}
    return DPFinetuneClassifier(**(fixed | {"batch_size": 30, "steps": 8, "learning_rate": 1.0} | more))


def test_it_learns_without_noise_and_says_that_it_is_not_private():
    x, y = data()
    model = classifier(epsilon=np.inf, batch_size=60, steps=15).fit(x, y)
    assert model.score(x, y) > 0.8
    assert not model.privacy_.private
    proba = model.predict_proba(x)
    assert proba.shape == (60, 3) and np.allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(NAMES[proba.argmax(axis=1)], model.predict(x))


def test_it_charges_a_ledger_within_the_budget():
    x, y = data()
    ledger = Ledger()
    model = classifier(epsilon=3.0, ledger=ledger).fit(x, y)
    assert model.privacy_.private and model.privacy_.epsilon <= 3.0
    assert [r["state"] for r in ledger.fits()[0]["releases"]] == ["committed"] * 8


def test_a_clone_has_its_settings_and_a_seed_repeats_a_fit():
    x, y = data()
    model = classifier(epsilon=3.0, random_state=1, steps=2, engine="vmap")
    again = clone(model)
    np.testing.assert_array_equal(model.fit(x, y).weights_, again.fit(x, y).weights_)
    assert not model.privacy_.private


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": None}, "classes must be declared"),
        ({"delta": 0.1}, "below 1/n"),
        ({"steps": None}, "two of"),
        ({"model": "resnet18"}, "layer=bn1"),
    ],
)
def test_what_cannot_be_used_is_refused(change, message):
    x, y = data()
    with pytest.raises(ValueError, match=message):
        classifier(**({"batch_size": None} if "steps" in change else {}) | change).fit(x, y)
    with pytest.raises(ValueError, match="uint8"):
        classifier().fit(x.astype(float), y)
