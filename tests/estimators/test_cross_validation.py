"""All folds are charged or none, and no row decides the fold of another one."""

from typing import Any

import numpy as np
import pytest
from core import toy

from dphead import (
    DPLeastSquaresClassifier,
    DPMultiLabelClassifier,
    DPSGDClassifier,
    cross_validate,
)
from dphead.estimators import cross_validation
from dphead.privacy.ledger import Ledger, LedgerError

X, Y = toy(150)
GIVEN = {"classes": [0, 1, 2], "delta": 1e-3}


def limited(epsilon):
    ledger = Ledger()
    ledger.set_budget(epsilon, 1e-3)
    return ledger


def test_a_budget_that_ends_between_two_folds_is_not_charged_at_all():
    """Three fits of epsilon 1 add up to less than 2, four to more."""
    ledger = limited(2.0)
    model = DPLeastSquaresClassifier(epsilon=1.0, ledger=ledger, **GIVEN)
    with pytest.raises(LedgerError, match="budget"):
        cross_validate(model, X, Y, folds=5)
    assert ledger.count_fits() == 0
    found = cross_validate(model, X, Y, folds=2)
    assert ledger.count_fits() == 1
    assert 1.0 < found.epsilon <= 2.0
    assert found.epsilon == pytest.approx(ledger.spent(1e-3).epsilon, rel=1e-9)


def test_folds_with_a_ledger_in_memory_share_it():
    model = DPLeastSquaresClassifier(epsilon=1.0, ledger=":memory:", **GIVEN)
    found = cross_validate(model, X, Y, folds=2)
    first, second = (one.ledger_ for one in found.estimators)
    assert first is second and first.count_fits() == 1


def test_a_fold_has_the_seeds_epsilon_and_no_run_of_its_own(tmp_path):
    """Its report would list some releases of the charge of all folds."""
    model = DPLeastSquaresClassifier(random_state=0, **GIVEN)
    found = cross_validate(model, X, Y, folds=2)
    assert found.epsilon == found.estimators[0].ledger_.spent(1e-3).epsilon == np.inf
    with pytest.raises(ValueError, match="no run of its own"):
        found.estimators[1].save(tmp_path / "run")
    found.estimators[1].fit(X, Y).save(tmp_path / "run")


def test_a_multi_label_classifier_is_refused_before_the_charge():
    ledger = Ledger()
    model = DPMultiLabelClassifier(classes=["a", "b"], delta=1e-3, ledger=ledger)
    with pytest.raises(ValueError, match="needs one label per row"):
        cross_validate(model, X, np.eye(2)[Y % 2])
    assert ledger.count_fits() == 0


def test_the_charge_is_the_sum_of_the_folds_fits():
    one, apart = Ledger(), Ledger()
    model = DPSGDClassifier(epsilon=2.0, steps=3, sampling_prob=0.2, **GIVEN)
    found = cross_validate(model.set_params(ledger=one), X, Y, folds=3)
    model.set_params(ledger=apart)
    for _ in range(3):
        model.fit(X, Y)
    assert one.events() == apart.events()
    assert one.verify() == []
    assert len(found.estimators) == 3
    # each fold has its own noise
    assert not np.array_equal(found.estimators[0].coef_, found.estimators[1].coef_)


def test_a_fold_is_fitted_without_its_rows_and_measured_on_them():
    model = DPLeastSquaresClassifier(epsilon=1e6, **GIVEN, allow_large_delta=True)
    fold = cross_validation.folds_of_rows(model, len(Y), None, 3)
    assert sorted(np.bincount(fold)) == [50, 50, 50]
    wrong = Y.copy()
    wrong[fold == 0] = (Y[fold == 0] + 1) % 3
    right, found = (cross_validate(model, X, y, folds=3) for y in (Y, wrong))
    # the first fit does not see the changed labels, and is measured on them
    assert right.scores[0] > 0.8
    assert found.scores[0] < 0.2


def test_no_row_decides_the_fold_of_another_one():
    groups = np.array([f"patient {i // 3}" for i in range(150)], object)
    groups[7] = None
    model = DPLeastSquaresClassifier(
        relation="add_remove", nominal_n=150, group_cap=3, **GIVEN
    )
    fold = cross_validation.folds_of_rows(model, 150, groups, 4)
    less = np.delete(np.arange(150), [30, 31, 32])
    assert np.array_equal(
        cross_validation.folds_of_rows(model, 147, groups[less], 4), fold[less]
    )
    assert fold[7] == -1  # always trained on
    assert all(len({*fold[i : i + 3]}) == 1 for i in range(9, 150, 3))
    assert np.isfinite(cross_validate(model, X, Y, groups, folds=2).scores).all()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"relation": "add_remove", "nominal_n": 150}, "needs `groups`"),
        ({"epsilon": np.inf}, "needs a finite epsilon"),
        ({"classes": ["a", "b"]}, "must have the same type"),
        ({"classes": None}, "`classes` must be declared"),
    ],
)
def test_what_a_cross_validation_cannot_hold_is_refused_before_the_charge(change, said):
    ledger = Ledger()
    model = DPLeastSquaresClassifier(**GIVEN | change, ledger=ledger)
    with pytest.raises(ValueError, match=said):
        cross_validate(model, X, Y)
    assert ledger.count_fits() == 0
    wrong: list[Any] = [1, True, 2.0]
    for folds in wrong:
        with pytest.raises(ValueError, match="`folds` must be a whole number"):
            cross_validate(DPLeastSquaresClassifier(**GIVEN), X, Y, folds=folds)
    with pytest.raises(ValueError, match="needs a classifier of dphead and an array"):
        cross_validate(DPLeastSquaresClassifier(**GIVEN), "f.h5", None)


def test_folds_with_a_part_of_an_epoch_are_refused():
    """Charged together, their releases are whole epochs, but no fold has one."""
    ledger, steps = Ledger(), {"steps": 3, "epoch_steps": 4, "center_share": 0.0}
    model = DPSGDClassifier(ledger=ledger, **steps, **GIVEN)
    with pytest.raises(LedgerError, match="got 3 steps for epochs of 4"):
        cross_validate(model, X, Y, folds=4)
    assert ledger.count_fits() == 0
