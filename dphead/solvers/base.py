"""The protocol between a solver and the one loop in `dphead.runs.loop`: plan, ask, be
told, return a head.
"""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dphead.privacy.statistics import ChannelMoment, Params, Query
from dphead.privacy.transform import RowTransform, aim, clipped_bound, clipped_step

if TYPE_CHECKING:
    from dphead.solvers.error_bars import ErrorBars


@dataclass(frozen=True)
class PublicFacts:
    """What a solver knows before anything is released.

    n_rows: public n, or nominal_n under add/remove.

    mu: a row's share of one full-batch sum over the noise, if that sum took the whole
    budget (`Plan.budgeted` sets it); inf without privacy.
    """

    n_rows: int
    n_features: int
    n_classes: int
    mu: float = float("inf")


@dataclass(frozen=True)
class PlannedRelease:
    """One release that a solver will ask for.

    weight: its share of the budget: noise_multiplier is proportional to 1/sqrt(weight),
    so that mu² is split by weight when every batch is full. noise_multiplier: given
    instead of a weight, it is fixed and not calibrated.
    """

    label: str
    query: Query
    clip_norm: float
    weight: float = 1.0
    sampling_prob: float = 1.0
    noise_multiplier: float | None = None


@dataclass(frozen=True, eq=False)
class Ask:
    """The next planned release, and what its statistic depends on."""

    label: str
    query: Query
    params: Params


@dataclass(frozen=True, eq=False)
class Answer:
    """What was released.

    value: float64; noise_sd: standard deviation of each entry's noise (0 without
    privacy).
    """

    value: np.ndarray
    noise_sd: float


@dataclass(frozen=True)
class AccuracyEstimate:
    """The accuracy expected on new data of the same kind, with a 90 % interval, from
    private releases alone.
    """

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class LinearHead:
    """scores = transform(x) @ weights + intercept.

    weights: (n_features, n_classes); intercept: (n_classes,).

    loss: how scores become probabilities ("softmax", "sigmoid", or "squared", whose
    scores are not calibrated).
    estimate: what the solver expects of the head, or None if it did not ask.
    error_bars: how far the noise moves it, or None.
    """

    weights: np.ndarray
    intercept: np.ndarray
    transform: RowTransform = field(default_factory=RowTransform)
    loss: str = "softmax"
    estimate: AccuracyEstimate | None = None
    error_bars: "ErrorBars | None" = None

    def scores(self, x: np.ndarray, block: int = 4096) -> np.ndarray:
        """Scores (n, n_classes) float32 of rows x (n, n_features).

        A row that is not finite scores the intercept.
        """
        out = np.empty((len(x), self.weights.shape[1]), np.float32)
        weights, intercept = (
            self.weights.astype(np.float32),
            self.intercept.astype(np.float32),
        )
        for i in range(0, len(x), block):
            out[i : i + block] = (
                self._transformed(x[i : i + block]) @ weights + intercept
            )
        return out

    def scores_std(
        self, x: np.ndarray, classes: np.ndarray | None = None, block: int = 4096
    ) -> np.ndarray:
        """Standard errors (n, c) of scores @ classes due to the privacy noise.

        classes: (n_classes, c), None for each.

        Raises ValueError for a head without `error_bars`, as all do that did not ask
        for them.
        """
        errors, append = self._asked_for(), self.transform.append
        out = np.empty(
            (len(x), self.weights.shape[1] if classes is None else classes.shape[1])
        )
        for i in range(0, len(x), block):
            phi = self._transformed(x[i : i + block]).astype(np.float64)
            phi = (
                np.pad(phi, ((0, 0), (0, 1)), constant_values=append) if append else phi
            )
            out[i : i + block] = errors.std(phi, classes)
        return out

    def weights_std(
        self, classes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Standard errors of (weights @ classes, intercept @ classes): (n_features, c)
        and (c,). As `scores_std`.
        """
        append = self.transform.append
        return split_intercept(
            self._asked_for().std(np.eye(len(self.weights) + bool(append)), classes),
            abs(append),
        )

    def _asked_for(self) -> "ErrorBars":
        if self.error_bars is None:
            raise ValueError(
                "standard errors need a fit with error_bars, got none. Fit dp-ls with "
                "error_bars=True."
            )
        return self.error_bars

    def _transformed(self, x: np.ndarray) -> np.ndarray:
        """(k, n_features) float32, zero where a row is not finite."""
        phi, squared = float_rows(self.transform, np.asarray(x, np.float32))
        return np.where(np.isfinite(squared)[:, None], phi, np.float32(0))


Steps = Generator[Ask, Answer, LinearHead]
# float32 cannot divide by a smaller squared norm well: such a row counts as zero
SMALLEST = 1e-30


def float_rows(transform: RowTransform, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows x (k, n_features) float32 transformed, without the constant, and their
    squared norms (k,), in float32.

    For prediction: what a head is trained on are the integers of
    `dphead.privacy.transform`. The squared norm of a row that is not finite is not
    either.
    """

    def inverse(squared: np.ndarray) -> np.ndarray:
        """Of norms; zero for rows too small to divide by."""
        return np.where(squared > SMALLEST, 1 / np.sqrt(squared), np.float32(0))

    with np.errstate(all="ignore"):
        squared = np.einsum("ij,ij->i", x, x)
        bad = squared - squared  # nan where not finite, 0 elsewhere
        if transform.unit_norm:
            x = x * inverse(squared)[:, None]
        if transform.center is not None:
            x = x - transform.center.astype(np.float32)
        if transform.scale is not None:
            x = x * transform.scale.astype(np.float32)
        squared = np.einsum("ij,ij->i", x, x)
        if transform.unit_norm and transform.center is not None:
            bad = bad + (squared - squared)
            x = x * inverse(squared)[:, None]
            squared = np.where(squared > SMALLEST, np.float32(1), np.float32(0))
        return x, squared + bad


class Solver(Protocol):
    """plan: every release, before any data.

    solve: a generator that yields each `Ask` in that order.
    """

    @property
    def name(self) -> str:
        """What the ledger and the report call it."""
        ...

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The releases, in order."""
        ...

    def solve(self, facts: PublicFacts) -> Steps:
        """Ask for each planned release, and return the head."""
        ...


def check_intercept(facts: PublicFacts, intercept: float, norm: float | None) -> None:
    """ValueError, before any data, for an appended constant beside which no row would
    count.

    norm: the length that rows have or are clipped to, None where no public number says
    it. A row and its constant share one grid: beside a constant of 500 norms for 1,000
    features (3,000 for 8, 160 for 10,000) nothing of a row is left once it is rounded.
    Well below that rows count, with fewer bits; nothing is said then.
    """
    RowTransform(append=intercept)  # refuses what is out of range
    if not intercept or norm is None or not 0 < norm < np.inf or np.isinf(facts.mu):
        return
    bound, _ = clipped_bound(norm, intercept)
    if aim(bound, facts.n_features) == 0:
        raise ValueError(
            "an intercept's constant must leave room for the rows beside it, got "
            f"{intercept=} for rows of norm {norm:g} and "
            f"n_features={facts.n_features}: all would be rounded to zero. Use a "
            "smaller intercept."
        )


def check_clip(
    facts: PublicFacts, intercept: float, clip: float, norm: float | None
) -> None:
    """`check_intercept` of clipped rows; ValueError, too, for a clip far above rows.

    norm: the length that rows have, None where no public number says it. They lie on a
    grid of about clip / 4095: a row shorter than half a step is rounded to zero.
    """
    check_intercept(facts, intercept, clip)
    if norm is None or np.isinf(facts.mu):
        return
    if norm < clipped_step(clip, intercept) / 2:
        raise ValueError(
            "feature_clip and intercept must not be thousands of times the rows' norm, "
            f"got feature_clip={clip:g}, {intercept=} for rows of norm {norm:g}: all "
            "would be rounded to zero. Use a clip near the norm."
        )


# mean of squares over square of the mean: 1 if all features have one size, 70 for
# ScatterNet as it is
EVEN = 2.0


@dataclass(frozen=True)
class Centering:
    """How rows are brought to the unit sphere: unit norm, and a noisy mean of unit rows
    subtracted.

    share: the mean's share of mu²; 0 for no centre. unit_norm: False leaves rows as
    they are (a clip norm must then fit the features' scale). scale_share: share of the
    noisy mean squares of centred rows, each of which is divided by the mean squares'
    power 1/4 (half of a standardisation) and brought to the sphere again, unless they
    turn out to be nearly even (EVEN); 0 for no scale.
    """

    share: float = 0.02
    unit_norm: bool = True
    scale_share: float = 0.0

    @property
    def norm(self) -> float | None:
        """The length of a row afterwards, None if it is the row's own."""
        return 1.0 if self.unit_norm else None

    def plan(self, facts: PublicFacts, rest: float) -> list[PlannedRelease]:
        """The mean's release, if any; `rest` is the total weight of the other
        releases.
        """
        if not self.unit_norm or self.share <= 0:
            return []
        whole = rest / (1 - self.share - self.scale_share)
        plan = [
            PlannedRelease(
                "feature mean",
                ChannelMoment(facts.n_classes),
                1.0,
                weight=whole * self.share,
            )
        ]
        if self.scale_share > 0:
            squares, clip = ChannelMoment(facts.n_classes, 2), square_clip(facts)
            plan.append(
                PlannedRelease(
                    "feature squares", squares, clip, weight=whole * self.scale_share
                )
            )
        return plan

    def solve(
        self, facts: PublicFacts, append: float
    ) -> Generator[Ask, Answer, RowTransform]:
        """The transform of every later release."""
        if not self.unit_norm or self.share <= 0:
            return RowTransform(self.unit_norm, append=append)
        unit = RowTransform(unit_norm=True)
        answer = yield Ask("feature mean", ChannelMoment(facts.n_classes), Params(unit))
        center = _shrunk(answer.value[:, 0], answer.noise_sd) / facts.n_rows
        # a mean of unit rows lies in the unit ball
        center /= max(1.0, float(np.linalg.norm(center)))
        centered = RowTransform(True, center.astype(np.float32), None, append)
        if self.scale_share <= 0:
            return centered
        answer = yield Ask(
            "feature squares",
            ChannelMoment(facts.n_classes, 2),
            Params(replace(centered, append=0.0)),
        )
        relative, noise = (
            facts.n_features / facts.n_rows * v
            for v in (answer.value[:, 0], answer.noise_sd)
        )
        if (
            float(np.mean(relative**2)) - noise**2
            < EVEN * float(np.mean(relative)) ** 2
        ):
            return centered
        relative = np.maximum(relative, 0.0) + max(0.01, noise)
        return replace(centered, scale=(relative**-0.25).astype(np.float32))


def square_clip(facts: PublicFacts) -> float:
    """Twice the norm that the squares of a unit row have if its features are Gaussian,
    sqrt(3/d).
    """
    return min(1.0, 2 * float(np.sqrt(3 / facts.n_features)))


def _shrunk(mean: np.ndarray, noise_sd: float) -> np.ndarray:
    """Positive-part James-Stein: a mean that is mostly noise is not subtracted."""
    return mean * max(
        0.0, 1 - len(mean) * noise_sd**2 / max(float(mean @ mean), 1e-300)
    )


def split_intercept(
    weights: np.ndarray, append: float
) -> tuple[np.ndarray, np.ndarray]:
    """(weights, intercept) of a (width, n_classes) solution whose last row multiplies
    the appended constant.
    """
    if append:
        return weights[:-1], weights[-1] * append
    return weights, np.zeros(weights.shape[1])


def join_intercept(head: LinearHead) -> np.ndarray:
    """(width, n_classes): the inverse of `split_intercept`, for a query that scores
    rows.
    """
    append = head.transform.append
    return (
        np.vstack([head.weights, head.intercept / append]) if append else head.weights
    )


def center_classes(value: np.ndarray) -> np.ndarray:
    """Project class scores on I - 11ᵀ/m: only differences between classes reach the
    argmax.
    """
    return value - value.mean(axis=-1, keepdims=True)
