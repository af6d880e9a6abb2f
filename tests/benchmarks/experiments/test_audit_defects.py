"""Mechanisms without privacy, audited with few fits: those that few fits show."""

import pytest

from benchmarks.experiments import audit_defects
from benchmarks.store import read

NAMES = [d.name for d in audit_defects.DEFECTS]
# as few fits as show each of these with odds of 1 - 1e-6
FEW = {
    "one public draw for every release": "repeated noise",
    "one noise column for all classes": "entries of one release",
    "noise off the diagonal halved": "diagonal of the noise",
    "noise too small by the root of 2": "deviation of the noise",
    "noise and its stated deviation 0.8 of the plan's": "deviation that a release",
    "noise of a step used again at the next": "releases with and without the canary",
    "noise in proportion to the sum": "deviation of each entry",
    "the first release has no noise": "deviation of each entry",
    "no clip": "distance that the canary moves a sum",
    "each row counted twice": "distance that the canary moves a sum",
    "all rows of a group count": "distance that the canary moves a sum",
    "accountant takes 0.8 mu": "epsilon computed again",
    "accountant counts half of the steps": "epsilon computed again",
    "accountant takes a group for a row": "epsilon computed again",
}


@pytest.mark.parametrize("name", FEW)
def test_a_mechanism_without_privacy_fails(name):
    defect = audit_defects.DEFECTS[NAMES.index(name)]
    found = audit_defects.audited(defect, 60)
    assert not found["passed"]
    assert any(law["name"].startswith(FEW[name]) for law in found["laws"]["failed"])


def test_every_stored_defect_is_caught_or_named():
    rows = {r["defect"]: r for r in read(audit_defects.OUT)}
    assert set(rows) == set(NAMES)
    for defect in audit_defects.DEFECTS:
        if defect.name not in rows:  # not measured yet
            continue
        row = rows[defect.name]
        assert row["fits"] == audit_defects.FITS
        assert row["caught"] or row["needs"] > row["fits"], defect.name
    assert sum(r["caught"] for r in rows.values()) >= 25


def test_sound_methods_are_seldom_flagged():
    """Stored counts: above five expected alarms of the level no more than three times
    as many, which has odds below 1e-3.
    """
    rows = read(audit_defects.SOUND_OUT)
    assert {r["name"] for r in rows} <= set(audit_defects.SOUND)
    audits = sum(r["audits"] for r in rows)
    for level in audit_defects.LEVELS:
        alarms = sum(r["alarms"][str(level)] for r in rows)
        assert alarms <= max(5, 3 * level * audits)
    assert not any(r["failed"] for r in rows)
