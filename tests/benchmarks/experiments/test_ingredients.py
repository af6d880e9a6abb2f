"""The small De22 Table 2: which run comes next, and what is said of three pairs."""

import numpy as np
import pytest

from benchmarks.experiments import ingredients
from benchmarks.experiments.ingredients import (
    LINES,
    PILOT,
    SEEDS,
    next_run,
    rates,
    table,
    verdict,
)

BEST = {
    "baseline": 0.25,
    "+ group norm": 0.5,
    "+ large batch": 4.0,
    "+ weight standardisation": 2.0,
}


@pytest.fixture
def made(monkeypatch):
    """Runs so far; a pilot's accuracy falls with the distance from BEST, a run's is set
    by its line and seed.
    """
    done = {}

    def key(run):
        return run.variant, run.settings.learning_rate, run.seed

    def make(run):
        name = run.variant.removesuffix(", 16 pixels")
        rate = run.settings.learning_rate
        place = [line.name for line in LINES].index(name)
        far = abs(np.log2(rate / BEST[name])) if run.seed == PILOT else 0.0
        found = 0.3 + 0.05 * place - 0.01 * far + 0.001 * run.seed
        done[key(run)] = {
            "accuracy": found,
            "test_last": found,
            "test_average": found - 0.02,
        }

    monkeypatch.setattr(ingredients, "stored", lambda run: done.get(key(run)))
    return done, make


def test_rates_are_searched_first_then_every_line_at_each_seed(made):
    done, make = made
    seeds = []
    while (run := next_run()) is not None:
        make(run)
        seeds.append(run.seed)
    found, pilot = rates()
    assert pilot is None
    assert {line.name: rate for line, rate in found.items() if not line.views} == BEST
    # the line with views takes the rate of the one before
    assert found[LINES[-1]] == BEST[LINES[-2].name]
    pilots = seeds.count(PILOT)
    assert seeds == [PILOT] * pilots + [seed for seed in SEEDS for _ in LINES]
    assert pilots < 20
    for name, best in BEST.items():
        assert {
            (f"{name}, 16 pixels", rate, PILOT) for rate in (best / 2, best, best * 2)
        } <= set(done)


def test_the_table_pairs_seeds_and_says_what_is_resolved(made):
    _, make = made
    while (run := next_run()) is not None:
        make(run)
    rows = table().splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [
        *(line.name for line in LINES),
        "+ averaging",
    ]
    assert "+5.00 (+5.00, +5.00, +5.00) | +" in rows[1]
    assert "-2.00" in rows[-1]
    assert rows[-1].endswith("| - |")


def test_runs_of_a_seed_spend_the_budget_and_take_equal_rows():
    for line in LINES:
        run = line.run(1.0, 0)
        assert run.epsilon == 8.0
        assert run.test
        assert not line.run(1.0, PILOT).test
        assert run.settings.batch_size * run.settings.steps == ingredients.ROWS


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((1.0, 1.1, 0.9), "+"),
        ((-1.0, -1.1, -0.9), "-"),
        ((1.0, 2.0, -0.5), "not resolved"),
    ],
)
def test_a_sign_needs_three_pairs_that_agree(differences, said):
    assert verdict(np.array(differences)) == said
