"""A setting that a solver cannot have is refused where the solver is made."""

import numpy as np
import pytest

from dphead.privacy.loss import LOSSES
from dphead.solvers import DPFC, Auto, GradientDescent, LeastSquares, Prototypes
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization


@pytest.mark.parametrize(
    "kind, settings, message",
    [
        (GradientDescent, {"momentum": 1.5}, r"momentum must be in \[0, 1\), got "),
        (
            GradientDescent,
            {"steps": 2.5},
            "steps must be a whole number from 1 to 1048576",
        ),
        (GradientDescent, {"sampling_prob": 0.0}, r"must be in \(0, 1\], got"),
        (GradientDescent, {"loss": "new"}, f"one of {', '.join(LOSSES)}, got"),
        (GradientDescent, {"normalize": "yes"}, "normalize must be true or false"),
        (DPFC, {"ridge": "stein"}, "ridge must be positive, at most 1e.15, got"),
        (LeastSquares, {"ridge": "oracle"}, "positive, at most 1e.15, or one of stein"),
        (LeastSquares, {"gram_share": 1.0}, r"gram_share must be in \(0, 1\)"),
        (Prototypes, {"rule": None}, "rule must be one of cosine, nearest"),
        (Auto, {"prior": np.zeros((2, 2))}, "prior must be PublicPrior"),
        (Centering, {"share": 1.0}, "share must be"),
        (ChannelNormalization, {"n_channels": 0}, "n_channels must be"),
    ],
)
def test_what_no_solver_can_have_is_refused_where_it_is_made(kind, settings, message):
    needed = {"n_channels": 1, "mean_clip": 1.0, "square_clip": 1.0}
    more = needed if kind is ChannelNormalization else {}
    with pytest.raises(ValueError, match=message):
        kind(**more | settings)
