"""Implement DP-LS: least squares from noisy sufficient statistics."""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from dphead.privacy.contract import Released
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassGrams, ClassSums, Gram
from dphead.solvers.base import (
    PlannedRelease,
    ProblemInfo,
    Request,
    Steps,
    together,
)
from dphead.solvers.centering import Centering
from dphead.solvers.error_bars import ErrorBars
from dphead.solvers.gram_share import gram_share
from dphead.solvers.head import center_classes, head_of, prediction_clip
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.ridge import RidgeSolver, ridge_for
from dphead.solvers.rounding import check_clip
from dphead.solvers.settings import (
    FEATURE_CLIP,
    INTERCEPT,
    NOT_NEGATIVE,
    OFF,
    RIDGE,
    SHARE,
    SHRINK,
    TRIALS,
    Setting,
    check_settings,
)
from dphead.solvers.shrinkage import shrunk_weights
from dphead.solvers.stein import SpectralRidge, candidates

_RULE = "rule"
# Widest matrix to shrink: with 3,969 columns, the eigenvalues take longer than the pass
# over the data, and gain two points (results/ablation).
WIDEST_SHRUNK = 4096
# Default ridge with shrinking, as a share of the noise's spectral edge. Chosen among
# 0.2, 0.3 and 0.4 on held-out rows of CIFAR-10, CIFAR-100 and digits (results/ablation,
# "A Gram matrix's spectrum").
_SHRUNK_EDGE_SHARE = 0.3
_MOST_COLUMNS = 4096  # widest matrix with computed eigenvalues; chosen
_GRAM_SHARE = Setting(
    "Fraction of mu² for the Gram matrix; rule (dp-ls): set from the budget and the "
    "numbers of rows and classes; in Python, None: the same noise as the class sums "
    "(dp-ls), or as the gradients (dp-fc).",
    SHARE,
    "`gram_share`, a rule without data: results/ablation",
    option=True,
)
# default of gram_share if class Gram matrices are released too: trials on training
# rows, not stored
_SHARE_BESIDE_CLASS_GRAMS = 0.35
_CLASS_GRAMS = Setting(
    "Also release one Gram matrix for each class.", source=TRIALS, option=True
)
_ALPHA = Setting(
    "Weight of the shared Gram matrix relative to class Gram matrices.",
    NOT_NEGATIVE,
    option=True,
)
_ERROR_BARS = Setting(
    "Save standard errors of the weights due to noise.", source=OFF, option=True
)


@dataclass(frozen=True)
class LeastSquares:
    """Solve the normal equations of noisy Gram matrices and noisy class sums.

    Parameters
    ----------
    ridge : float, "stein" or None, default None
        λ, in units of the mean Gram matrix. None sets λ from the noise. "stein" sets λ
        by Stein's unbiased risk estimate of the released sums (`SpectralRidge`).
    gram_share : float, "rule" or None, default "rule"
        Fraction of the budget (μ²) for the Gram matrix, of the part that centering
        leaves. "rule" uses `gram_share.gram_share`, or 0.35 with `class_grams`. None
        gives the Gram matrices and the class sums the same noise.
    class_grams : bool, default False
        Also release the per-class Gram matrices Ã_j, as FC23 does. These matrices take
        a third of the budget and gain little.
    alpha : float, default 1.0
        Weight of G̃ relative to Ã_j, with `class_grams`.
    error_bars : bool, default False
        Keep the data for the head's standard errors due to the noise (`ErrorBars`).
    shrink : bool, default True
        Remove the noise's part from the eigenvalues of G̃ (`shrunk_weights`). It has no
        effect with `class_grams`, `error_bars`, "stein" or more than 4,096 columns.

    Notes
    -----
    With `class_grams`, θ_j = [Ã_j + αG̃ + λI]⁻¹ b̃_j for each class j. Otherwise,
    W = (G̃ + λI)⁻¹ S̃ with the class sums centered over the classes. `plan` refuses
    "stein" and `error_bars` with more than 4,096 columns or with `class_grams`.

    References
    ----------
    FC23, Algorithm 3.
    """

    ridge: Annotated[float | Literal["stein"] | None, RIDGE] = None
    gram_share: Annotated[float | Literal["rule"] | None, _GRAM_SHARE] = _RULE
    class_grams: Annotated[bool, _CLASS_GRAMS] = False
    alpha: Annotated[float, _ALPHA] = 1.0
    feature_clip: Annotated[float, FEATURE_CLIP] = 1.0
    intercept: Annotated[float, INTERCEPT] = 0.0
    error_bars: Annotated[bool, _ERROR_BARS] = False
    shrink: Annotated[bool, SHRINK] = True
    centering: Centering | ChannelNormalization = field(default_factory=Centering)
    name: str = "dp-ls"
    takes_jax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the centering releases, G, S, and the class Gram matrices if set.

        Raises ValueError if "stein" or `error_bars` does not apply, or if the intercept
        or the clip norm does not fit the rows.
        """
        width = facts.n_features + (1 if self.intercept else 0)
        if (self.ridge == "stein" or self.error_bars) and (
            self.class_grams or width > _MOST_COLUMNS
        ):
            raise ValueError(
                f"The ridge 'stein' and `--error-bars` need at most {_MOST_COLUMNS} "
                f"columns and no `--class-grams`, got {width} columns"
                f"{' and class_grams' * self.class_grams}. Drop 'stein' and "
                "`--error-bars`."
            )
        check_clip(facts, self.intercept, self.feature_clip, self.centering.norm)
        m, clip = facts.n_classes, self.feature_clip
        # FC23 Algorithm 3 releases three sums: G, the A_j and the b_j
        parts = 3 if self.class_grams else 2
        share = self._share(facts, parts)
        rest = (1 - share) / (parts - 1)
        plan = [
            PlannedRelease("gram", Gram(m), clip, share),
            PlannedRelease("class sums", ClassSums(m), clip, rest),
        ]
        if self.class_grams:
            plan.append(PlannedRelease("class grams", ClassGrams(m), clip, rest))
        return [*self.centering.plan(facts, 1.0), *plan]

    def _share(self, facts: ProblemInfo, parts: int) -> float:
        if self.gram_share is None:
            return 1 / parts
        if self.gram_share != _RULE:
            return self.gram_share
        return _SHARE_BESIDE_CLASS_GRAMS if self.class_grams else gram_share(facts)

    def solve(self, facts: ProblemInfo) -> Steps:
        """Release the sums, solve the normal equations, and return the head."""
        m, errors = facts.n_classes, None
        transform = yield from self.centering.solve(facts, self.intercept)
        params = Params(transform)
        asked = ("gram", Gram(m)), ("class sums", ClassSums(m))
        gram, sums = yield from together(params, *asked)
        if self.class_grams:
            class_grams = yield Request("class grams", ClassGrams(m), params)
            # independent noise of both matrices adds up in squares
            sd = np.hypot(class_grams.noise_sd, self.alpha * gram.noise_sd)
            ridge = ridge_for(facts, float(sd), self.ridge)  # type: ignore[arg-type]
            columns = []
            for j in range(m):
                total = class_grams.value[j] + self.alpha * gram.value
                columns.append(RidgeSolver(total, ridge)(sums.value[:, j]))
            xp = gram.value.__array_namespace__()
            weights = xp.stack(columns, axis=1)
        else:
            weights, errors = self._shared(facts, gram, sums)
        clip = None  # without a constant, a clip does not change the order of scores
        if self.intercept:
            norm = self.centering.norm
            clip = prediction_clip(self.feature_clip, norm, facts.mu)
        head = head_of(weights, transform, "squared", clip)
        return replace(head, error_bars=errors)

    def _shared(
        self, facts: ProblemInfo, gram: Released, sums: Released
    ) -> tuple[np.ndarray, ErrorBars | None]:
        """Return the weights from one Gram matrix, and their error bars if asked."""
        width = len(gram.value)
        if self.ridge == "stein" or self.error_bars:  # both compute with numpy only
            gram = replace(gram, value=np.asarray(gram.value))
            sums = replace(sums, value=np.asarray(sums.value))
        if self.ridge == "stein":
            spectral = SpectralRidge(gram, sums)
            ridge = spectral.best(candidates(facts.n_rows, gram.noise_sd, width))
            weights, floor = spectral.weights(ridge), spectral.floor(ridge)
        elif self.shrink and width <= WIDEST_SHRUNK and not self.error_bars:
            # No error bars: claim E covers functions of the eigenvalues alone. These
            # weights depend on the directions of the class sums too.
            share = _SHRUNK_EDGE_SHARE
            ridge = ridge_for(facts, gram.noise_sd, self.ridge, share)
            return shrunk_weights(gram, sums, ridge), None
        else:
            solver = RidgeSolver(
                gram.value, ridge_for(facts, gram.noise_sd, self.ridge)
            )
            weights = solver(center_classes(sums.value))
            ridge, floor = solver.ridge, solver.floor
        return weights, ErrorBars(gram, sums, ridge, floor) if self.error_bars else None
