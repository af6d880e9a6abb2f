"""The protocol between a solver and the one loop in `dphead.fit`: plan, ask, be told, return a head."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dphead.privacy.queries import ChannelMoment, Params, Query, RowTransform


@dataclass(frozen=True)
class PublicFacts:
    """What a solver knows before anything is released. n_rows: public n, or nominal_n under add/remove."""

    n_rows: int
    n_features: int
    n_classes: int


@dataclass(frozen=True)
class PlannedRelease:
    """One release that a solver will ask for.

    weight: its share of the budget: noise_multiplier is proportional to 1/sqrt(weight), so that mu² is split by weight
    when every batch is full. noise_multiplier: given instead of a weight, it is fixed and not calibrated.
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
    """What was released. value: float64; noise_sd: standard deviation of each entry's noise (0 without privacy)."""

    value: np.ndarray
    noise_sd: float


@dataclass(frozen=True, eq=False)
class LinearHead:
    """scores = transform(x) @ weights + intercept. weights: (n_features, n_classes); intercept: (n_classes,).

    loss: how scores become probabilities ("softmax", "sigmoid", or "squared", whose scores are not calibrated).
    """

    weights: np.ndarray
    intercept: np.ndarray
    transform: RowTransform = field(default_factory=RowTransform)
    loss: str = "softmax"

    def scores(self, x: np.ndarray, block: int = 4096) -> np.ndarray:
        """Scores (n, n_classes) float32 of rows x (n, n_features). A row that is not finite scores the intercept."""
        out = np.empty((len(x), self.weights.shape[1]), np.float32)
        weights = self.weights.astype(np.float32)
        bare = RowTransform(self.transform.unit_norm, self.transform.center, self.transform.scale)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for i in range(0, len(x), block):
                phi, squared = bare.apply(np, np.asarray(x[i : i + block], np.float32))
                phi = np.where(np.isfinite(squared)[:, None], phi, np.float32(0))
                out[i : i + block] = phi @ weights + self.intercept.astype(np.float32)
        return out


Steps = Generator[Ask, Answer, LinearHead]


class Solver(Protocol):
    """plan: every release, before any data. solve: a generator that yields each `Ask` in that order."""

    name: str

    def plan(self, facts: PublicFacts) -> list[PlannedRelease]:
        """The releases, in order."""
        ...

    def solve(self, facts: PublicFacts) -> Steps:
        """Ask for each planned release, and return the head."""
        ...


@dataclass(frozen=True)
class Centering:
    """How rows are brought to the unit sphere: unit norm, and a noisy mean of unit rows subtracted [ALGORITHMS.md §3].

    share: the mean's share of mu²; 0 for no centre. unit_norm: False leaves rows as they are (a clip norm must then fit
    the features' scale).
    """

    share: float = 0.02
    unit_norm: bool = True

    def plan(self, facts: PublicFacts, rest: float) -> list[PlannedRelease]:
        """The mean's release, if any; `rest` is the total weight of the other releases."""
        if not self.unit_norm or self.share <= 0:
            return []
        query = ChannelMoment(facts.n_classes)
        return [PlannedRelease("feature mean", query, 1.0, weight=rest * self.share / (1 - self.share))]

    def solve(self, facts: PublicFacts, append: float) -> Generator[Ask, Answer, RowTransform]:
        """The transform of every later release."""
        if not self.unit_norm or self.share <= 0:
            return RowTransform(self.unit_norm, append=append)
        unit = RowTransform(unit_norm=True)
        answer = yield Ask("feature mean", ChannelMoment(facts.n_classes), Params(unit))
        center = _shrunk(answer.value[:, 0], answer.noise_sd) / facts.n_rows
        center /= max(1.0, float(np.linalg.norm(center)))  # a mean of unit rows lies in the unit ball
        return RowTransform(True, center.astype(np.float32), None, append)


def _shrunk(mean: np.ndarray, noise_sd: float) -> np.ndarray:
    """Positive-part James-Stein: a mean that is mostly noise is not subtracted."""
    return mean * max(0.0, 1 - len(mean) * noise_sd**2 / max(float(mean @ mean), 1e-300))


def split_intercept(weights: np.ndarray, append: float) -> tuple[np.ndarray, np.ndarray]:
    """(weights, intercept) of a (width, n_classes) solution whose last row multiplies the appended constant."""
    if append:
        return weights[:-1], weights[-1] * append
    return weights, np.zeros(weights.shape[1])


def center_classes(value: np.ndarray) -> np.ndarray:
    """Project class scores on I - 11ᵀ/m: only differences between classes reach the argmax."""
    return value - value.mean(axis=-1, keepdims=True)
