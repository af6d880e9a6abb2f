"""The simulated defect is the one described, and says that it is not private."""

import numpy as np

from benchmarks.experiments import shared_noise as s


def draws(noise, shape, sequence=0):
    return (
        s.noise_source(noise, 0, 10).generator(sequence, "noise").standard_normal(shape)
    )


def test_classes_share_a_vector_only_where_the_defect_is_simulated():
    assert np.ptp(draws(s.CLASSES, (7, 10)), axis=1).max() == 0
    assert np.ptp(draws(s.HONEST, (7, 10)), axis=1).min() > 0
    grams = draws(s.CLASSES, (10, 7, 7))
    assert (grams == grams[0]).all()
    assert len(np.unique(grams[0])) == 49
    # one Gram matrix for all classes is not shared
    assert len(np.unique(draws(s.CLASSES, (7, 7)))) == 49


def test_steps_share_it_only_where_that_is_simulated():
    shape = (7, 10)
    assert (draws(s.STEPS, shape, 1) == draws(s.STEPS, shape, 2)).all()
    assert (draws(s.CLASSES, shape, 1) != draws(s.CLASSES, shape, 2)).all()


def test_a_shared_column_cannot_be_seen_by_an_argmax_of_a_common_matrix():
    rng = np.random.default_rng(0)
    sums = rng.normal(size=(7, 10))
    inverse = rng.normal(size=(7, 7))
    x = rng.normal(size=(50, 7))
    noisy = sums + 1e3 * draws(s.CLASSES, (7, 10))
    assert (
        np.argmax(
            x @ inverse @ noisy,
            1,
        )
        == np.argmax(x @ inverse @ sums, 1)
    ).all()


def test_the_table_has_a_line_for_each_noise():
    rows = [
        {"name": "dp-fc", "noise": noise, "epsilon": 1.0, "accuracy": 0.8 + 0.01 * k}
        for noise in (s.HONEST, s.STEPS)
        for k in range(2)
    ]
    text = s.table(rows)
    assert "| dp-fc | fresh | 80.50 ± 0.71 (2 draws) |" in text
    assert len(text.splitlines()) == 4
