"""Forecast the accuracy at each budget, before any budget is spent.

The forecast fits heads at several epsilons on public rows that resemble the private
ones. Private rows must not be used here, because the accuracies are exact and nothing
is charged.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphead.analysis.metrics import accuracy, predicted_classes
from dphead.analysis.protected import name_unit, protected_unit
from dphead.analysis.tradeoff import PLACES, comparisons, detection_limits
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features, split_slots
from dphead.fit.files import extraction_of
from dphead.fit.fit import fit_rows
from dphead.fit.ledgers import Elsewhere, charged_elsewhere, counted_in
from dphead.fit.memory import DEFAULT_BYTES
from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.planning.plan import FitPlan, Plan, check_facts, make_plan
from dphead.planning.stand_in import on_fewer_rows
from dphead.privacy.noise import NoiseSource
from dphead.privacy.sampling import NO_GROUP
from dphead.solvers.base import ProblemInfo
from dphead.sums.cpu import CpuSums
from dphead.sums.verified import VerifiedSum

_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # as in benchmarks/results; chosen
_DRAWS = 3  # number of splits and noise draws; chosen
# One public row in _HELD_OUT_SHARE is held out to measure the accuracy, but at most
# _MOST_HELD_OUT rows; chosen.
_HELD_OUT_SHARE = 5
_MOST_HELD_OUT = 10_000
# Added to the seed of the splits. Many files were shuffled with a plain seed such as 0,
# and splitting with the same seed would undo that shuffle and sort rows by class.
_SPLITS = 0x53504C
_NEAR = 0.01  # an accuracy this close to the best counts as enough; chosen

_Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LookAlike:
    """Hold public rows that resemble the private ones.

    Attributes
    ----------
    x : (n, n_features) float
        Features.
    y : (n,) int
        Class indices. Rows with -1 (no class) are not used.
    n_classes : int
        Number of classes.
    groups : (n,) int or None
        Group ids of a features file, with -1 for a row without a group.
    are_public : bool
        Declares the rows public. Must be True.
    thing : str
        Name of a row in messages.

    Raises
    ------
    ValueError
        If the rows are not declared public.
    """

    x: np.ndarray
    y: np.ndarray
    n_classes: int
    groups: np.ndarray | None = None
    are_public: bool = False
    thing: str = "row"

    def __post_init__(self) -> None:
        _require_public(self.are_public)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Describe the private fits to forecast.

    Attributes
    ----------
    n_rows : int
        Number of private rows, or the nominal number under add_remove.
    epsilons : sequence of float
        Budgets, positive and finite.
    delta : float or None
        None uses the preset's, else 1e-5.
    relation : str
        The neighboring relation.
    group_cap : int or None
        Largest number of rows used per protected group (patient). None protects
        each row.
    method, preset : str and str or None
        The method and its preset.
    settings : dict
        The method's settings by name.
    draws : int
        Number of draws of the split and the noise, for each epsilon.
    seed : int
        Seed of the first draw.

    Raises
    ------
    ValueError
        If an epsilon is not positive and finite, if there is no epsilon or draw, or if
        the preset is unknown.
    """

    n_rows: int
    epsilons: Sequence[float] = _EPSILONS
    delta: float | None = None
    relation: str = "zero_out"
    group_cap: int | None = None
    method: str = "auto"
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    draws: int = _DRAWS
    seed: int = 0

    def __post_init__(self) -> None:
        found = presets.delta_of(self.preset, self.delta)
        object.__setattr__(self, "delta", found)  # the class is frozen
        found = presets.method_of(self.preset, self.method)
        object.__setattr__(self, "method", found)
        known = all(0 < epsilon < math.inf for epsilon in self.epsilons)
        if not known or not self.epsilons:
            raise ValueError(
                "epsilons must be positive and finite, got "
                f"{', '.join(map(str, self.epsilons)) or 'none'}. Give at least one, "
                "such as 0.5, and omit inf: the forecast always includes the accuracy "
                "without noise."
            )
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}. Use 3.")


@dataclass(frozen=True)
class _Point:
    """Hold the forecast accuracy and the attack bound of one budget.

    Attributes
    ----------
    epsilon : float
        The budget, which is infinite without noise.
    accuracies : tuple of float
        Accuracy on held-out rows, one for each draw.
    detected : dict
        Bounds on membership inference (`tradeoff.detection_limits`).
    """

    epsilon: float
    accuracies: tuple[float, ...]
    detected: dict[bool, float]

    @property
    def accuracy(self) -> float:
        """Return the mean accuracy over draws."""
        return float(np.mean(self.accuracies))

    @property
    def sd(self) -> float | None:
        """Return the standard deviation over draws; None for a single draw."""
        several = len(self.accuracies) > 1
        return float(np.std(self.accuracies, ddof=1)) if several else None

    def as_data(self) -> dict[str, Any]:
        """Return the fields by name, and the accuracy's mean and standard deviation."""
        return asdict(self) | {
            "accuracy": self.accuracy,
            "sd": self.sd,
            "detected": {PLACES[key]: limit for key, limit in self.detected.items()},
        }


@dataclass(frozen=True)
class Forecast:
    """Hold the result of a forecast.

    Attributes
    ----------
    question : Question
        The private fits that were forecast.
    source : str
        Source of the method's settings.
    unit : str
        The unit of privacy, such as "one image".
    n_train, n_held_out : int
        Public rows that each draw trains and measures on. With groups, the numbers
        are for the last draw.
    points : tuple of _Point
        One for each epsilon, in increasing order.
    ceiling : _Point
        The result without noise.
    """

    question: Question
    source: str
    unit: str
    n_train: int
    n_held_out: int
    points: tuple[_Point, ...]
    ceiling: _Point

    @property
    def best(self) -> _Point:
        """Return the point with the highest mean accuracy, the first one if tied."""
        return max(self.points, key=lambda point: point.accuracy)

    @property
    def enough(self) -> _Point:
        """Return the first point with a mean accuracy within 0.01 of the best."""
        goal = self.best.accuracy - _NEAR
        return next(point for point in self.points if point.accuracy >= goal)

    def as_data(self) -> dict[str, Any]:
        """Return the forecast as a dict, with the question's fields included."""
        own = {
            name: getattr(self, name)
            for name in ("source", "unit", "n_train", "n_held_out")
        }
        return {
            **asdict(self.question),
            **own,
            "points": [point.as_data() for point in self.points],
            "ceiling": self.ceiling.as_data(),
            "enough": self.enough.epsilon,
        }


def _require_public(declared: bool) -> None:
    """Raise ValueError unless the rows of a forecast were declared public."""
    if not declared:
        raise ValueError(
            "the rows of a forecast are not declared public. A forecast prints exact "
            "accuracies and charges nothing. Extract similar public images with the "
            "same backbone, and add --public-rows (are_public=True)."
        )


def open_look_alike(
    path: Path, split: str | None, are_public: bool
) -> tuple[LookAlike, list[Elsewhere]]:
    """Read public rows from a features file, and find ledgers on the same images.

    Fits in a ledger suggest that the images are private.

    Parameters
    ----------
    path : Path
        The features file.
    split : str or None
        The split to read.
    are_public : bool
        Whether the rows are declared public.

    Returns
    -------
    LookAlike
        The rows.
    list of Elsewhere
        Ledgers that hold, or may hold, fits on the same images.

    Raises
    ------
    ValueError
        If the rows are not declared public, before anything is read.
    """
    _require_public(are_public)
    rows, file = load_features(path, split, memory=0)
    with file:
        y = rows.labels()
        # the rows are public, so their labels may set the number of classes
        n_classes = len(file.class_names or []) or int(y.max(initial=-1)) + 1
        group = None if file.group is None else file.group[split_slots(file, split)]
        thing = name_unit(extraction_of(file))
        found = LookAlike(rows.features(), y, n_classes, group, are_public, thing)
        return found, charged_elsewhere(counted_in(file.dataset_id))


def forecast(
    look_alike: LookAlike, question: Question, progress: _Progress | None = None
) -> Forecast:
    """Forecast the accuracy on new rows of a private fit, at each epsilon.

    Parameters
    ----------
    look_alike : LookAlike
        Public rows.
    question : Question
        The private fits to forecast.
    progress : callable, optional
        Called with (fits made, fits in all, label) after each fit.

    Returns
    -------
    Forecast
        Accuracies and attack bounds for each epsilon, and without noise.

    Raises
    ------
    ValueError
        If no plan can be made for the private fit, or if there are too few rows.

    Notes
    -----
    Each draw holds out a fifth of the labeled public rows, at most 10,000. If rows have
    groups, it can be more (`split_rows`). The draw trains on question.n_rows of the
    other rows, or on all other rows if there are fewer. Then `planning/stand_in.py`
    reduces the noise in proportion. Relative to the sums, the noise is the same as in
    the private fit. A head that is trained on fewer rows generalizes worse. Therefore
    the forecast is too low if the noise is low (docs/plan.md). All epsilons share the
    splits and the noise seeds.
    """
    facts = ProblemInfo(question.n_rows, look_alike.x.shape[1], look_alike.n_classes)
    check_facts(facts)
    method = make_method(question.method, facts, question.settings, question.preset)
    epsilons = [*sorted(set(question.epsilons)), math.inf]
    plans = [
        make_plan(
            method.solver,
            facts,
            epsilon=epsilon,
            delta=presets.delta_of(question.preset, question.delta),
            relation=question.relation,
            accountant=method.accountant,
            group_cap=question.group_cap,
        )
        for epsilon in epsilons
    ]
    verified = VerifiedSum(CpuSums(), memory=DEFAULT_BYTES)
    found: list[list[float]] = [[] for _ in plans]
    sizes = 0, 0
    for i in range(question.draws):
        draw = _drawn(look_alike, question, question.seed + i)
        sizes = draw.train.n_rows, len(draw.y)
        for plan, accuracies in zip(plans, found, strict=True):
            accuracies.append(_measured(plan, draw, verified))
            if progress is not None:
                made, wanted = sum(map(len, found)), len(plans) * question.draws
                progress(made, wanted, "fits on public rows")
    points = [
        _Point(plan.epsilon, tuple(accuracies), _detected(plan))
        for plan, accuracies in zip(plans, found, strict=True)
    ]
    return Forecast(
        question,
        method.source,
        protected_unit(plans[0].group_cap, look_alike.thing),
        *sizes,
        tuple(points[:-1]),
        points[-1],
    )


class _Draw(NamedTuple):
    """Hold rows to train on, held-out rows x with labels y, and a seed of the noise."""

    train: ArrayRows
    x: np.ndarray
    y: np.ndarray
    seed: int


def split_rows(
    groups: np.ndarray, n_rows: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split row indices at random into rows to train on and held-out rows.

    No group has rows in both parts, so more than a fifth of the rows can be held out.

    Parameters
    ----------
    groups : (n,) int
        Group ids, with -1 for a row without a group.
    n_rows : int
        Largest number of rows to train on.
    seed : int
        Seed of the split.

    Returns
    -------
    (m,) int
        Indices of the rows to train on, sorted.
    (k,) int
        Indices of the held-out rows, sorted.

    Raises
    ------
    ValueError
        If no row is left to train on or to hold out.
    """
    n = len(groups)
    alone = groups.min(initial=0) - n + np.arange(n)  # unique ids below all others
    own = groups == NO_GROUP
    names, group = np.unique(np.where(own, alone, groups), return_inverse=True)
    place = np.random.default_rng((_SPLITS, seed)).permutation(len(names))[group]
    order = np.argsort(place, kind="stable")
    wanted = min(n // _HELD_OUT_SHARE, _MOST_HELD_OUT)
    ends = np.searchsorted(place[order], place[order[:wanted]], side="right")
    end = int(ends.max(initial=0))
    if not 0 < end < n:
        raise ValueError(
            f"a forecast needs at least {_HELD_OUT_SHARE} labeled public rows. If rows "
            "have groups, it needs several groups of similar size. Got "
            f"{n} labeled rows in {len(names)} groups. Use a file with more "
            "labeled rows or with more groups."
        )
    return np.sort(order[end:][:n_rows]), np.sort(order[:end])


def _drawn(look_alike: LookAlike, question: Question, seed: int) -> _Draw:
    """Draw the labeled rows for one fit at each epsilon."""
    x, y = look_alike.x, look_alike.y
    labeled = np.flatnonzero((y >= 0) & (y < look_alike.n_classes))
    groups = np.full(len(labeled), -1)
    if look_alike.groups is not None:
        groups = look_alike.groups[labeled]
    train, held_out = split_rows(groups, question.n_rows, seed)
    rows = ArrayRows(
        x[labeled[train]],
        y[labeled[train]],
        groups=groups[train],
        group_cap=question.group_cap,
    )
    return _Draw(rows, x[labeled[held_out]], y[labeled[held_out]], seed)


def _measured(plan: FitPlan, draw: _Draw, verified: VerifiedSum) -> float:
    """Return the accuracy on held-out public rows, by the plan of a private fit."""
    small = on_fewer_rows(plan, draw.train.n_rows)
    noise = NoiseSource(draw.seed)
    head = fit_rows(small, draw.train, noise=noise, summer=verified).trained
    return accuracy(draw.y, predicted_classes(head.scores(draw.x)))[0]


def _detected(plan: Plan) -> dict[bool, float]:
    """Return a plan's bounds on membership inference, which are 1 without noise."""
    if not plan.private:
        return dict.fromkeys(comparisons(plan.relation), 1.0)
    return detection_limits(plan.events(), plan.relation)
