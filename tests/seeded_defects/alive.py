"""What a defective copy must still do for a kill to count: import, and fit a head.

Run before the mutant's tests.
"""

from pathlib import Path

import numpy as np
import pytest

from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy import release
from dphead.solvers import GradientDescent, LeastSquares, ProblemInfo


@pytest.mark.parametrize(
    "solver, epsilon",
    [(LeastSquares(), 5.0), (GradientDescent(steps=2, sampling_prob=0.5), np.inf)],
    ids=["ls", "sgd"],
)
def test_the_copy_fits(solver, epsilon):
    # the copy and not the original
    assert Path(release.__file__).is_relative_to(Path(__file__).parents[3])
    rng = np.random.default_rng(0)
    rows = ArrayRows(
        rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    )
    facts = ProblemInfo(40, 4, 3)
    plan = make_plan(solver, facts, epsilon=epsilon, delta=1e-5)
    head = fit_rows(plan, rows).trained
    assert np.isfinite(head.weights).all()
