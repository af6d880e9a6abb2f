"""Run `auto` on the best of several backbones for the same images.

Released counts decide which backbone is best. The releases follow from public sizes,
because the charge comes before the choice.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dphead.solvers.auto import Auto
from dphead.solvers.auto_rules import (
    TRIAL_COUNT_SHARE,
    TRIAL_SHARE,
    TRIALS_SHARE,
    center_share,
    is_strong,
    number_of_steps,
)
from dphead.solvers.base import PlannedRelease, ProblemInfo, Steps
from dphead.solvers.centering import Centering
from dphead.solvers.head import AccuracyEstimate, Selection


@dataclass(frozen=True)
class BackboneSelection:
    """Try a small `auto` on each backbone's features, then fit `auto` on the best.

    Each trial counts the rows that its head classifies correctly. The final fit gets
    the remaining budget.

    Parameters
    ----------
    widths : tuple of int
        Number of features of each backbone, in the order of the sources in `Request`.
    auto : Auto
        Solver of the final fit, with its counts.

    Notes
    -----
    `n_features` of the facts is the largest width. The plan is charged before the
    choice, so the final fit has one plan for every backbone. Steps and centering share
    follow the rules for the widest backbone. The scaling of features and the clip norm
    of their squares follow the rules for the narrowest backbone.
    """

    widths: tuple[int, ...]
    auto: Auto = field(default_factory=Auto)
    name: str = "auto"

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases of all trials, then the releases of the final fit.

        Raises ValueError without noise, because no charge covers a choice by exact
        counts.
        """
        if math.isinf(facts.mu):
            raise ValueError(
                "A choice among backbones needs noise, got epsilon inf. Fit each "
                "backbone separately, or use a finite epsilon."
            )
        trial, share = self._trial(), self.trial_share
        releases: list[PlannedRelease] = []
        for source, own in enumerate(self._facts(facts, share)):
            releases += _shared(trial.plan(own), share, label(source))
        rest = self._rest
        last = self._last(facts)
        fits = {tuple(last.plan(own)) for own in self._facts(facts, rest)}
        # A plan that depended on the choice could not be charged before the trials.
        (common,) = fits
        return releases + _shared(common, rest, "")

    def solve(self, facts: ProblemInfo) -> Steps:
        """Try each backbone, then fit the one with the best expected accuracy."""
        trial, trials = self._trial(), []
        for source, own in enumerate(self._facts(facts, self.trial_share)):
            head = yield from _of_source(trial.solve(own), source, label(source))
            trials.append(head.estimate)
        chosen = best(trials)
        own = self._facts(facts, self._rest)[chosen]
        head = yield from _of_source(self._last(facts).solve(own), chosen, "")
        return replace(head, selection=Selection(chosen, tuple(trials)))

    @property
    def trial_share(self) -> float:
        """Return the fraction of the budget (μ²) for the trial of one backbone."""
        return min(TRIAL_SHARE, TRIALS_SHARE / len(self.widths))

    @property
    def trials_share(self) -> float:
        """Return the fraction of the budget (μ²) for all trials."""
        return len(self.widths) * self.trial_share

    @property
    def _rest(self) -> float:
        return 1 - self.trials_share

    def _facts(self, facts: ProblemInfo, share: float) -> list[ProblemInfo]:
        """Return the `ProblemInfo` of each backbone, with this share of μ²."""
        # mu² is additive over releases, so a share of mu² is sqrt(share) of mu
        part = replace(facts, mu=facts.mu * math.sqrt(share))
        return [replace(part, n_features=width) for width in self.widths]

    def _trial(self) -> Auto:
        counts = {"estimate": True, "per_class_share": 0.0}
        return replace(self.auto, counted=TRIAL_COUNT_SHARE, **counts)

    def _last(self, facts: ProblemInfo) -> Auto:
        """Return `auto` with every setting that depends on the width fixed."""
        auto, centering = self.auto, self.auto.centering
        own = self._facts(facts, self._rest)
        narrowest = min(own, key=lambda one: one.n_features)
        widest = max(own, key=lambda one: one.n_features)
        if isinstance(centering, Centering):
            share = center_share(widest, centering.share)
            width = narrowest.n_features
            centering = replace(centering, share=share, clip_width=width)
        scale = auto.scale
        if scale == "auto":
            scale = "always" if is_strong(narrowest) else "never"
        steps = auto.steps or number_of_steps(widest)
        return replace(auto, steps=steps, scale=scale, centering=centering)


def label(source: int) -> str:
    """Return the prefix of the release labels of a backbone's trial."""
    return f"network {source + 1}: "


def best(trials: list[AccuracyEstimate]) -> int:
    """Return the first index of the highest expected accuracy."""
    return max(range(len(trials)), key=lambda source: trials[source].accuracy)


def _shared(
    releases: Iterable[PlannedRelease], share: float, prefix: str
) -> list[PlannedRelease]:
    """Return the releases with weights that sum to `share`."""
    releases = list(releases)
    unit = share / sum(one.weight for one in releases)
    return [
        replace(one, label=prefix + one.label, weight=one.weight * unit)
        for one in releases
    ]


def _of_source(steps: Steps, source: int, prefix: str) -> Steps:
    """Run a solver's requests on one source of rows, with prefixed labels."""
    try:
        ask = next(steps)
        while True:
            named = replace(ask, label=prefix + ask.label, source=source)
            ask = steps.send((yield named))
    except StopIteration as stop:
        return stop.value
