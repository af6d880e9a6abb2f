"""FC23's search runs over the paper's square, in our settings' units."""

from benchmarks.experiments.tuning import square


def test_a_ridge_beside_sums_is_searched_in_units_of_the_mean():
    """FC23 Algorithms 2 and 3 add λ to sums over rows, Algorithm 4 to a mean."""
    ends = (1e-8, 1e8)
    mean = (1e-12, 1e4)
    assert square("dp-fc", 10_000) == {"learning_rate": ends, "ridge": ends}
    assert square("dp-ls", 10_000) == {"alpha": ends, "ridge": mean}
    assert square("dp-newton", 10_000) == {"learning_rate": ends, "ridge": mean}
