"""What the noise of a fit is worth in rows, from public numbers."""

import math

import pytest

from benchmarks.store import RESULTS, read
from dphead.planning.plan import Target
from dphead.planning.worth import about_noise, is_too_little, rows_of_noise
from dphead.solvers.base import ProblemInfo

FACTS = ProblemInfo(442, 1280, 2)


def test_the_noise_grows_as_the_root_of_the_columns_and_as_the_group_cap():
    one = Target(1.0, 1e-5)
    base = rows_of_noise(one, FACTS)
    assert rows_of_noise(one, ProblemInfo(9, 320, 5)) == pytest.approx(base / 2)
    assert rows_of_noise(Target(1.0, 1e-5, group_cap=4), FACTS) == pytest.approx(
        4 * base
    )
    replaced = Target(1.0, 1e-5, "replace_one")
    assert rows_of_noise(replaced, FACTS) == pytest.approx(2 * base)
    assert rows_of_noise(Target(math.inf, 1e-5), FACTS) == 0


def test_the_epsilon_that_is_advised_is_enough_and_a_smaller_one_is_not():
    target = Target(1.0, 1e-5, group_cap=4)
    told = list(about_noise(target, FACTS, "image"))
    assert "428 images of each class; you have at most 442 in all, 221" in told[0]
    (advice,) = (line for line in told if "a larger epsilon" in line)
    epsilon = float(advice.split(": ")[1].split()[0])
    assert not is_too_little(Target(epsilon, 1e-5, group_cap=4), FACTS)
    assert is_too_little(Target(epsilon - 0.2, 1e-5, group_cap=4), FACTS)
    assert any("--group-mean" in line for line in told)


def test_rows_of_people_are_an_upper_bound_that_is_never_called_enough():
    """600 rows can be those of six people, whose number is private."""
    facts = ProblemInfo(600, 16, 2)
    for mean, unit in ((False, "row"), (True, "mean")):
        target = Target(8.0, 1e-5, group_cap=1, group_mean=mean)
        worth, doubt = about_noise(target, facts, "row")
        assert f" {unit}s of each class; you have at most 600 in all" in worth
        assert doubt.startswith(f"! At most 1 {unit} of each person counts.")
    _, doubt = about_noise(Target(8.0, 1e-5, group_cap=3), facts, "row")
    assert doubt.startswith("! At most 3 rows of each person count.")


def test_enough_rows_get_one_line_and_hopeless_ones_no_epsilon():
    assert len(list(about_noise(Target(1.0, 1e-5), FACTS, "row"))) == 1
    few = ProblemInfo(10, 1280, 2)
    assert not any("epsilon" in t for t in about_noise(Target(1.0, 1e-5), few, "row"))


def test_what_is_said_of_too_few_rows_is_what_stored_fits_show():
    """Fits of heads that gain at least 15 points over guessing without privacy."""
    few, lost, missed = [], [], []
    for row in read(RESULTS / "worth" / "rows.jsonl"):
        facts = ProblemInfo(row["n_rows"], row["n_features"], row["n_classes"])
        chance, best = 1 / row["n_classes"], row["inf"]["balanced"]
        if best < chance + 0.15:
            continue
        for epsilon in ("0.3", "1", "3", "8"):
            found = row[epsilon]
            few.append(is_too_little(Target(float(epsilon), 1e-5), facts))
            kept = (found["balanced"] - chance) / (best - chance)
            lost.append(kept < 0.7)
            missed.append(found["worst"] < row["inf"]["worst"] / 2)
    right = sum(f == bad for f, bad in zip(few, lost, strict=True)) / len(few)
    assert right >= 0.9
    of_few = [(a, b) for f, a, b in zip(few, lost, missed, strict=True) if f]
    assert sum(a for a, _ in of_few) >= 0.8 * len(of_few)
    assert sum(b for _, b in of_few) >= 0.5 * len(of_few)
