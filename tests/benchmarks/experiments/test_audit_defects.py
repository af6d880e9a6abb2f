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
}


# found without noise, or in each release
CERTAIN = {
    "no clip": "movement by the canary",
    "each row counted twice": "movement by the canary",
    "all rows of a group count": "movement by the canary",
    "accountant takes 0.8 mu": "recomputed epsilon",
    "accountant counts half of the steps": "recomputed epsilon",
    "accountant takes a group for a row": "recomputed epsilon",
    "noise in multiples of 64 units": "low bits of the noise",
    "the last bit of each number is the parity of the sum": "whole units",
    "the row in slot 0 counts twice": "movement by the canary",
    "a class beyond the last one counts": "rows without effect",
    "rows that are not finite count": "rows without effect",
    "the cap applies to one group": "movement by the canary",
    "a row that follows a row of its class counts twice": "movement by the canary",
    "rows with an entry above 1e20 count twice": "movement by the canary",
}


@pytest.mark.parametrize("name", [*FEW, *CERTAIN])
def test_a_mechanism_without_privacy_fails(name):
    found = audit_defects.audited(name, 60 if name in FEW else 4)
    assert not found["passed"]
    failed = {test["name"] for test in found["laws"]["failed"]}
    assert (FEW | CERTAIN)[name] in failed


def test_hidden_defects_were_caught_in_19_of_20_audits_and_no_correct_method():
    """The rows of results/audit/repeats.jsonl."""
    rows = {r["audited"]: r for r in read(audit_defects.REPEATED_OUT)}
    assert set(rows) == {*audit_defects.HIDDEN, "no defect"}
    assert all(row["audits"] == 20 for row in rows.values())
    sound = rows.pop("no defect")
    assert sound["failed"] == 0 and sound["smallest_p"] > 1e-3
    for name, row in rows.items():
        assert row["failed"] >= 19, name
        assert row["fits"] == audit_defects.FITS_NEEDED[name]


def test_every_defect_is_stored_and_few_are_missed():
    rows = {r["defect"]: r for r in read(audit_defects.OUT)}
    assert set(rows) == set(audit_defects.DEFECTS)
    assert all(row["fits"] == audit_defects.FITS for row in rows.values())
    missed = {name for name, row in rows.items() if not row["caught"]}
    # the page says what these have in common
    assert missed == {
        "noise from a seed of 32 bits",
        "sampling rate 1.01 q",
        "each third sign of the noise is the product of two others",
        "one key for the sample and the noise",
        "no noise if a row begins with exactly 0.5",
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
