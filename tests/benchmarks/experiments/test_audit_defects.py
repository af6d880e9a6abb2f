"""Audit mechanisms without privacy by few fits, and check the stored audits."""

import pytest

from benchmarks.experiments import audit_defects
from benchmarks.store import read

# as few fits as show each of these with odds of 1 - 1e-6
FEW = {
    "one public draw for every release": "repeated noise",
    "one noise column for all classes": "correlation of the noise",
    "noise off the diagonal halved": "deviation of the noise",
    "no noise above the diagonal": "deviation of the noise",
    "noise of a step used again at the next": "correlation of the noise",
    "noise in proportion to the sum": "deviation of the noise",
    "the first release has no noise": "deviation of the noise",
    "no clip": "movement by the canary",
    "each row counted twice": "movement by the canary",
    "all rows of a group count": "movement by the canary",
    "accountant takes 0.8 mu": "recomputed epsilon",
    "accountant counts half of the steps": "recomputed epsilon",
    "accountant takes a group for a row": "recomputed epsilon",
}


@pytest.mark.parametrize("name", FEW)
def test_a_mechanism_without_privacy_fails(name):
    found = audit_defects.audited(name, 60)
    assert not found["passed"]
    assert FEW[name] in {test["name"] for test in found["laws"]["failed"]}


def test_every_defect_is_stored_and_few_are_missed():
    rows = {r["defect"]: r for r in read(audit_defects.OUT)}
    assert set(rows) == set(audit_defects.DEFECTS)
    assert all(row["fits"] == audit_defects.FITS for row in rows.values())
    missed = {name for name, row in rows.items() if not row["caught"]}
    # each is a small one, and the page names it
    assert missed <= {
        "noise from a seed of 32 bits",
        "Gaussian noise cut at 4 deviations, right variance",
        "entries of one release correlated by 0.02",
        "noise of 0.99 deviations",
        "sampling rate 1.01 q",
    }


def test_correct_methods_are_seldom_flagged():
    """Stored counts: above five expected alarms of the level no more than three times
    as many, which has odds below 1e-3.
    """
    rows = read(audit_defects.SOUND_OUT)
    assert {tuple(r["audited"]) for r in rows} == set(audit_defects.SOUND)
    audits = sum(r["audits"] for r in rows)
    for level in audit_defects.LEVELS:
        alarms = sum(r["alarms"][str(level)] for r in rows)
        assert alarms <= max(5, 3 * level * audits)
    assert not any(r["failed"] for r in rows)
