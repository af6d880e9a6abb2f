"""Numbers that follow from a formula, against values that are known from elsewhere."""

import math

import pytest

from benchmarks import arithmetic, claims


def claim_of(paper, table, row):
    return next(
        c
        for c in claims.load(paper)
        if c.table == table and row in c.row and c.metric == "epsilon"
    )


@pytest.mark.parametrize(
    "paper, table, row, n_rows, by_paper, exact",
    [
        # values to meet, known beforehand
        ("De22", "13", "epsilon 1.0", 50_000, 0.988, 0.903),
        ("De22", "13", "epsilon 8.0", 50_000, 7.05, 6.53),
        ("De22", "14", "epsilon 6.0", 50_000, 6.023, 5.558),
        ("De22", "22", "epsilon 0.1", 1_281_167, 0.104, 0.0908),
        ("De22", "23", "noise_multiplier 1.0", 1_803_460, 8.000, 7.520),
        ("TAN23", "4", "18K", 1_281_167, 7.98, 7.486),
        ("TAN23", "5", "50K", 50_000, 6.87, 6.344),
    ],
)
def test_epsilon_of_printed_settings(paper, table, row, n_rows, by_paper, exact):
    found = arithmetic.spent(claim_of(paper, table, row), n_rows)
    # the values are rounded to the digits that stand here
    assert found["computed"] == pytest.approx(by_paper, abs=6e-3, rel=2e-3)
    assert found["exact (PLD)"] == pytest.approx(exact, abs=1e-3)


def test_tan_of_imagenet():
    found = arithmetic.spent(claim_of("TAN23", "4", "72K"), 1_281_167)
    assert found["ε_TAN"] == pytest.approx(8.215, abs=5e-4)
    eta = 1 / found["TAN Σ"]
    assert found["η_step"] * math.sqrt(72_000) == pytest.approx(eta)
    assert eta == pytest.approx(16_384 / 1_281_167 * math.sqrt(72_000 / 2) / 2.5)
    assert found["images"] == 16_384 * 72_000


@pytest.mark.parametrize(
    "claimed, computed, agrees",
    [
        ("8.0", 7.95, True),
        ("8.0", 7.94, False),
        ("8.00", 7.995, True),
        ("1", 1.4, True),
    ],
)
def test_a_number_agrees_to_its_printed_digits(claimed, computed, agrees):
    row = {"claimed": claimed, "computed": computed + 1e-9}
    assert arithmetic.agrees(row) == agrees


def test_every_claim_of_arithmetic_is_stored():
    for claim in claims.load():
        assert bool(arithmetic.of(claim)) == (claim.metric in arithmetic.METRICS), claim


def test_stored_numbers_are_what_the_formulas_give_today():
    stored = arithmetic.read(arithmetic.OUT / "claims.jsonl")
    bounds = [row for row in stored if row["metric"] == arithmetic.BOUND]
    assert len(bounds) == 8 and all(map(arithmetic.agrees, bounds))
    row = next(r for r in stored if r["table"] == "22")
    again = arithmetic.spent(claim_of("De22", "22", row["row"]), row["training rows"])
    assert row["computed"] == pytest.approx(again["computed"], rel=1e-9)
