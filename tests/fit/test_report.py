"""report.json, against its documentation, and the paragraph that states the
guarantee.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import features_file, fitted, report_of
from core import toy

from dphead.data.arrays import ArrayRows
from dphead.fit import report
from dphead.fit.fit import fit_rows
from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.plan import make_plan
from dphead.privacy import accounting
from dphead.privacy.ledger import Ledger
from dphead.privacy.noise import NoiseSource
from dphead.solvers import DPFC, LeastSquares, ProblemInfo

FACTS = ProblemInfo(400, 6, 3)
X, Y = toy(400, 6, 3)
IMAGES = {"transform": {"mean": [0.0]}}  # as an extraction records


def built(
    solver=None,
    *,
    ledger=None,
    seed=None,
    test=None,
    test_is=None,
    tuning="none",
    extraction=IMAGES,
    known=True,
    **plan,
):
    solver = solver or LeastSquares()
    made = make_plan(solver, FACTS, **{"epsilon": 1.0, "delta": 1e-5} | plan)
    result = fit_rows(
        made,
        ArrayRows(X, Y),
        ledger=ledger,
        noise=NoiseSource(seed),
    )
    return report.build_report(
        result,
        method={"name": "dp-ls"},
        data={
            "n_rows": 400,
            "extraction": extraction,
            "dataset_id": "d" * 32,
            "image_index": "0a" if known else None,
        },
        tuning=tuning,
        warnings=[],
        tested=report.Tested(test, test_is, None),
    )


# --- the documented keys --------------------------------------------------------------


def documented():
    """Keys of docs/report.md's table: {"": top level, "guarantee": ..., ...}."""
    text = (Path(report.__file__).parents[2] / "docs" / "report.md").read_text()
    keys: dict[str, set[str]] = {"": set(), "guarantee": set(), "provenance": set()}
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        left, right = (cell.strip() for cell in line.strip("|").split("|", 1))
        for name in re.findall(r"`([^`]+)`", left):
            name = "guarantee" + name if name.startswith(".") else name
            top, _, inner = name.partition(".")
            keys[""].add(top)
            if inner:
                keys[top].add(inner.removesuffix("[]"))
        inside = left.strip("`").removesuffix("[]")
        if inside in ("method", "data", "ledger", "guarantee.releases"):
            keys[inside] = set(re.findall(r"`([^`]+)`", right))
    return keys


@pytest.mark.parametrize(
    "options",
    [
        "--method dp-fc --steps 3 --epsilon inf --i-know-this-is-not-private",
        "--test-is public",
    ],
)
def test_report_json_has_exactly_the_documented_keys(tmp_path, options):
    features, test = (features_file(tmp_path / name) for name in ("f.h5", "test.h5"))
    fitted("fit", features, "-o", tmp_path / "run", "--test", test, *options.split())
    found = report_of(tmp_path / "run")
    keys = documented()
    assert set(found) == keys[""]
    for part in ("guarantee", "method", "data", "ledger", "provenance"):
        assert set(found[part]) == keys[part], part
    for row in found["guarantee"]["releases"]:
        left_out = {"epoch_steps", "private"}
        assert set(row) | left_out == keys["guarantee.releases"]
    assert found["schema"] == report.SCHEMA == 1
    assert (
        re.search(
            r"`schema` is (\d+)",
            (Path(report.__file__).parents[2] / "docs/report.md").read_text(),
        )[1]
        == "1"
    )


# --- the numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("relation", accounting.RELATIONS)
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_the_guarantee_is_the_plans_and_not_above_what_was_asked_for(
    relation, epsilon, monkeypatch
):
    # half a second each
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})
    g = built(DPFC(steps=3), relation=relation, epsilon=epsilon)["guarantee"]
    assert epsilon * (1 - 1e-6) <= g["epsilon"] <= epsilon == g["target_epsilon"]
    assert g["mu"] == pytest.approx(mu_from_epsilon(g["epsilon"], 1e-5), rel=1e-6)
    assert g["rho"] == pytest.approx(g["mu"] ** 2 / 2)
    assert g["mu"] ** 2 == pytest.approx(
        sum(r["count"] * r["mu"] ** 2 for r in g["releases"])
    )
    assert g["neighboring_relation"] == relation
    assert g["private"]


def test_a_papers_accountant_sets_the_noise_and_the_epsilon_is_still_the_exact_one():
    g = built(accountant="zcdp")["guarantee"]
    assert g["profiles"]["zcdp"] == pytest.approx(1.0, rel=1e-6)
    assert g["calibrated_with"] == "zcdp"
    assert g["epsilon"] == g["profiles"]["exact"] < 0.8


@pytest.mark.parametrize("epsilon, seed", [(1.0, 0), (float("inf"), None)])
def test_what_is_not_private_says_so(epsilon, seed):
    found = built(epsilon=epsilon, seed=seed)
    assert not found["guarantee"]["private"]
    assert "not private" in found["statement"].lower()
    assert "differentially private" not in found["statement"]
    assert "Do not publish" in found["statement"]
    g = found["guarantee"]
    assert g["epsilon"] == found["ledger"]["total_epsilon"] == np.inf
    assert g["mu"] is g["rho"] is None and g["profiles"] == {}
    assert all(release["mu"] is None for release in g["releases"])
    assert g["nominal_epsilon"] == pytest.approx(epsilon, rel=1e-6)


# --- the paragraph --------------------------------------------------------------------


DIFFERENCES = {
    "zero_out": ": its contribution is set to zero, and the number of images is public",
    "add_remove": ": it is added or removed, and the number of images is private",
    "replace_one": ": it is replaced by any other, and the number of images is public",
}


@pytest.mark.parametrize("relation", accounting.RELATIONS)
def test_the_statement_says_who_is_protected_and_how(relation, tmp_path):
    text = built(relation=relation, ledger=Ledger(tmp_path / "book.sqlite"))[
        "statement"
    ]
    for part in (
        "(1, 1e-05)-differentially private",
        f"one image{DIFFERENCES[relation]}",
        "one row (image)",
        "several images",
        "any other knowledge",
        "are not protected",
        "may be published",
        "book.sqlite",
        "plain sum of the fits in this ledger so far is epsilon = 1 at",
    ):
        assert part in text, part
    assert ("400" in text) == (relation != "add_remove")


def test_the_statement_says_which_number_holds_for_all_fits_together(tmp_path):
    """A filter's budget is a guarantee for fits chosen after seeing others; no running
    total is one."""
    free = Ledger(tmp_path / "free.sqlite")
    kept = Ledger(tmp_path / "kept.sqlite")
    kept.set_budget(3.0, 1e-6)
    text = {
        name: built(ledger=book)["statement"]
        for name, book in (("free", free), ("kept", kept))
    }
    assert "all fits in this ledger is epsilon = 3 at delta = 1e-06." in text["kept"]
    assert "The sum itself is no guarantee" in text["kept"]
    assert "guarantee only if" not in text["kept"]
    assert "No budget was fixed" in text["free"]
    assert "only if no fit's settings were chosen" in text["free"]
    assert all("plain sum of" in t and "total" not in t for t in text.values())
    assert built(ledger=kept)["ledger"]["total_is"] == "plain sum"


def test_the_statement_says_that_fits_on_copies_of_the_rows_may_be_uncounted(tmp_path):
    book = Ledger(tmp_path / "book.sqlite")
    book.set_budget(3.0, 1e-6)
    for known in (True, False):
        text = built(ledger=book, known=known, epsilon=0.5)["statement"]
        counted = ("Other fits from the same data are counted", "only if it read all")
        limited = ("to recognize fits on the same images", "sqlite are counted.")
        assert [part in text for part in counted] == [known] * 2
        assert [part in text for part in limited] == [not known] * 2


def test_the_total_and_the_number_of_fits_are_of_one_moment(tmp_path, monkeypatch):
    """Another process may charge while the total is computed."""
    book = Ledger(tmp_path / "l.sqlite")
    made = make_plan(LeastSquares(), FACTS, epsilon=1.0, delta=1e-5)

    def charge() -> None:
        fit_rows(made, ArrayRows(X, Y), ledger=book)

    def late(*given):
        charge()
        return total(*given)

    charge()
    total = report.spent
    before = report.ledger_totals(book, made.events(), 1e-5)
    monkeypatch.setattr(report, "spent", late)
    found = report.ledger_totals(book, made.events(), 1e-5)
    assert len(book.fits()) == 2
    both = ("fits", "total_epsilon")
    assert [found[key] for key in both] == [before[key] for key in both]
