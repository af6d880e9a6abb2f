"""`DPFinetuneClassifier` behaves like a classifier and spends what it says."""

import json

import numpy as np
import pytest
from commands import dphead
from exports import documented
from finetune.core import images
from sklearn.base import clone
from torch import nn

from dphead import DPAutoClassifier
from dphead.estimators import inputs
from dphead.finetune import estimator, gradients
from dphead.finetune.estimator import DPFinetuneClassifier
from dphead.planning.presets import load
from dphead.privacy.ledger import Ledger

NAMES = np.array(["bird", "cat", "dog"])


def data(n=60):
    x, y = images(n)
    return x.transpose(0, 2, 3, 1), NAMES[y]


def classifier(**more):
    fixed = {
        "model": "wrn-10-1",
        "groups": 4,
        "classes": NAMES,
        "delta": 1e-3,
        "accountant": "rdp",
    }
    return DPFinetuneClassifier(
        **(fixed | {"batch_size": 30, "steps": 8, "learning_rate": 1.0} | more)
    )


def test_it_learns_without_noise_and_says_that_it_is_not_private():
    x, y = data()
    model = classifier(epsilon=np.inf, batch_size=60, steps=10).fit(x, y)
    assert model.score(x, y) > 0.8
    assert not model.privacy_.private
    proba = model.predict_proba(x)
    assert proba.shape == (60, 3)
    assert np.allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(NAMES[proba.argmax(axis=1)], model.predict(x))


class Reached(Exception):
    """The labels have been read."""


def positions_of(y, classes, monkeypatch):
    """Class positions that each of the two estimators would train on."""

    def rows(images, labels, *_):
        found.append(labels.tolist())
        raise Reached

    found = []
    monkeypatch.setattr(estimator, "ImageRows", rows)
    with pytest.raises(Reached):
        DPFinetuneClassifier(classes=classes).fit(np.zeros((len(y), 4, 4), np.uint8), y)
    head = DPAutoClassifier(classes=classes)
    read = inputs.from_arrays(head, np.zeros((len(y), 2)), y, None, classes).rows()
    return found[0], read._y.tolist()


HOSTILE = [
    "x",
    None,
    2.5,
    float("nan"),
    b"x",
    1j,
    2**64,
    [1],
    (0, 1),
    np.array([1]),
    np.array(1),
    {},
    object(),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "classes", [[0, 1], ["a", "b"], [2**53, 2**53 + 1], [False, True]], ids=str
)
def test_one_label_of_a_list_moves_no_other_rows_label(hostile, classes, monkeypatch):
    """A list that becomes one array has the dtype of all labels: one text, and no
    number is a class.
    """
    labels = [classes[1], classes[0], classes[1], hostile]
    for found in positions_of(labels, classes, monkeypatch):
        assert found == [1, 0, 1, -1]


@pytest.mark.parametrize("n", [0, 1])
def test_a_private_number_of_rows_may_be_any(n):
    x, y = data(20)
    given = {"relation": "add_remove", "nominal_n": 60, "epsilon": 8.0, "steps": 1}
    model = classifier(**given, noise_multiplier=2.5).fit(x[:n], y[:n])
    assert model.privacy_.private
    assert model.predict(x).shape == (20,)


@pytest.mark.parametrize(
    "given", [{"batch_size": 25}, {"batch_size": None, "noise_multiplier": 2.5}]
)
def test_under_add_remove_the_public_number_of_rows_stands_for_the_private_one(
    given, monkeypatch
):
    """Everything but the noise and the weights is the same with three rows fewer."""
    found = []
    batches = []
    real = estimator.TorchSums

    def sums(*args, batch, **more):
        batches.append(batch)
        return real(*args, batch=batch, **more)

    monkeypatch.setattr(estimator, "TorchSums", sums)
    for n in (60, 57):
        ledger = Ledger()
        settings = {
            "epsilon": 8.0,
            "steps": 1,
            "relation": "add_remove",
            "nominal_n": 50,
            "ledger": ledger,
        }
        settings |= {"average": "last"}
        model = classifier(**(settings | given)).fit(*(part[:n] for part in data()))
        p, (fit,) = model.privacy_, ledger.fits()
        assert p.n_rows == 50
        assert {r["n_rows"] for r in p.releases} == {50}
        assert p.neighboring_relation == fit["relation"] == "add_remove"
        assert [r["sampling_prob"] for r in p.releases] == [25 / 50] or not given[
            "batch_size"
        ]
        found.append(
            (
                p.epsilon,
                p.notes,
                p.releases,
                fit["releases"],
                fit["plan_hash"],
                fit["description"],
            )
        )
    assert found[0] == found[1]
    assert len(set(batches)) == 1 and 1 <= batches[0] <= 50


def test_groups_are_not_protected_and_that_must_be_said():
    x, y = data()
    ledger = Ledger()
    people = np.arange(60) // 2
    model = classifier(epsilon=3.0, steps=1, noise_multiplier=4.0, ledger=ledger)
    with pytest.raises(ValueError, match="protect='image'"):
        model.fit(x, y, groups=people)
    assert not ledger.fits()
    model.set_params(protect="image")
    assert any(
        "people with several images" in n
        for n in model.fit(x, y, groups=people).privacy_.notes
    )
    assert not any("people" in n for n in model.fit(x, y).privacy_.notes)


def test_a_clone_has_its_settings_and_a_seed_repeats_a_fit():
    x, y = data()
    given = {"epsilon": 3.0, "noise_multiplier": 4.0, "steps": 2}
    model = classifier(random_state=np.int64(0), **given)
    again = clone(model).set_params(random_state=0)
    np.testing.assert_array_equal(model.fit(x, y).weights_, again.fit(x, y).weights_)
    assert not model.privacy_.private
    assert "not private" in model.ledger_.fits()[0]["description"]


def test_a_model_without_gradients_a_row_is_refused_with_nothing_charged(monkeypatch):
    def refuse(*_):
        raise RuntimeError("an operation without a batching rule")

    monkeypatch.setattr(gradients.PerExample, "parts", refuse)
    x, y = data()
    ledger = Ledger()
    with pytest.raises(ValueError, match="cannot compute per-example gradients"):
        classifier(epsilon=3.0, ledger=ledger).fit(x, y)
    assert ledger.fits() == []


def module(*more, outputs=3):
    """A network of one's own for 8 x 8 images."""
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.Tanh(), *more, nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(72, outputs))


def test_a_module_of_ones_own_is_copied_and_trained_with_ones_own_loss():
    x, y = data()
    own = module()
    before = own[0].weight.detach().clone()
    given = {"epsilon": np.inf, "batch_size": 60, "random_state": 0}
    model = classifier(model=own, **given).fit(x, y)
    assert (own[0].weight == before).all()
    assert model.score(x, y) > 0.6
    assert "Sequential" in model.network_.statistic.model
    smooth = nn.CrossEntropyLoss(label_smoothing=0.3)
    other = classifier(model=own, loss=smooth, **given).fit(x, y)
    assert not np.allclose(other.weights_, model.weights_)
    assert "loss=" in other.network_.statistic.model


def test_the_script_in_the_docs_trains_saves_predicts_and_exports_ones_own_module(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    exec(documented("module", "networks.md"), {})
    epsilon, same, files = capsys.readouterr().out.split(" ", 2)
    assert 3.9 < float(epsilon) <= 4
    assert same == "True"
    assert "head.py" in files
    assert "Data set" in dphead("check", "run").out


@pytest.mark.parametrize(
    "own, message",
    [
        (module(nn.BatchNorm2d(8)), r"layer 2 \(BatchNorm2d\)"),
        (module(nn.RReLU()), "layer 2 .*is random"),
        (module(outputs=4), "must return 3 scores for an image"),
    ],
)
def test_a_module_that_cannot_be_trained_privately_is_refused_by_its_layer(
    own, message
):
    ledger = Ledger()
    with pytest.raises(ValueError, match=message):
        classifier(model=own, epsilon=3.0, ledger=ledger).fit(*data())
    assert ledger.fits() == []


def test_check_knows_that_the_classes_were_declared(tmp_path):
    classifier(epsilon=3.0, steps=2).fit(*data()).save(tmp_path / "run")
    assert "inferred classes" not in dphead("check", tmp_path / "run").out


@pytest.mark.parametrize("preset", [None, "tan23-5"])
def test_the_report_names_the_source_of_the_settings(preset, tmp_path):
    own = classifier(preset=preset, epsilon=8.0, steps=1).fit(*data())
    own.save(tmp_path / "run")
    method = json.loads((tmp_path / "run" / "report.json").read_text())["method"]
    expected = "dphead's defaults" if preset is None else load("tan23-5")["source"]
    assert method["source"] == expected


def test_images_that_are_not_uint8_are_refused():
    x, y = data()
    with pytest.raises(ValueError, match="uint8"):
        classifier().fit(x.astype(float), y)
    for given in ({"mean": 0.0}, {"std": 9.0}):
        with pytest.raises(ValueError, match="`mean` and `std` are for images"):
            classifier(model=module(), **given).fit(x.astype(float), y)


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("more", [{"group_cap": 4}, {"sampling": "allocation"}])
def test_rows_that_change_during_a_fit_stay_in_their_slots(more, in_file, tmp_path):
    """A row would be in two batches of an epoch, or in the groups of two persons."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)).astype(np.float32)
    found = []
    for shuffled in (False, True):
        np.save(tmp_path / "x.npy", rows)
        x = np.load(tmp_path / "x.npy", mmap_mode="r+" if in_file else None)

        def rate(step, steps, x=x, shuffled=shuffled):
            if shuffled:  # dphead calls the schedule between steps
                np.random.default_rng(5).shuffle(x)
            return 0.5

        given = {"classes": [0, 1], "epsilon": 50.0, "delta": 1e-3, "steps": 2}
        given |= {"batch_size": 5 if "group_cap" in more else 20, "random_state": 1}
        fit = DPFinetuneClassifier(
            model=nn.Sequential(nn.Linear(6, 2, bias=False)),
            noise_multiplier=1.0,
            learning_rate_schedule=rate,
            **(given | more),
        )
        for parameter in fit.model.parameters():
            nn.init.zeros_(parameter)
        groups = np.arange(40) // 4 if "group_cap" in more else None
        found.append(fit.fit(x, np.arange(40) % 2, groups).weights_)
        assert (np.asarray(x) == rows).all() == (not shuffled)
    assert (found[0] == found[1]).all()
