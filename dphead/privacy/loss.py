"""Define the training losses of a linear head, each as one Python class.

A loss is a function p of the scores, with the residual p - y. Each class defines p, the
bound on the residual, and four properties for solvers, predictions and exports. Other
modules find a loss by its name in `LOSSES`. A new loss needs its class, its bound in
proofs/sensitivity.md, and a slow definition in `tests/definitions.py`. The tests derive
their cases from `LOSSES`.

The residual p - y admits losses whose slopes for y = 1 and y = 0 differ by -1 at every
score. For a loss h of the margin, h'(u) + h'(-u) = -1 must hold. The logistic loss and
the huberized hinge of width 2 satisfy this equation. Hinges of other widths do not.

All backends must compute the same integers. `predictions` therefore uses only the
operations in proofs/exactness.md. Do not add a float to a product: a compiler may fuse
both operations, and round once. Round first, and add a whole number.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np

from dphead.privacy.predictions import POWER_SCALE, PROBABILITY_SCALE, Array, power

# How scores become probabilities: the softmax of the scores, or each class's sigmoid
# divided by the sum of all classes' sigmoids.
_Link = Literal["softmax", "sigmoid"]
_MAX_SQUARED_RESIDUAL = 2**24  # largest prediction: 256 * PROBABILITY_SCALE


class Loss(ABC):
    """Define a training loss: predictions p of scores, with residuals r = p - y.

    Attributes
    ----------
    name : str
        Name that solvers, options and files use.
    takes_sets : bool
        Whether a row may have several labels. The loss must then predict each class on
        its own.
    monotone_step : float
        A step length of DP-FC at which no step increases the loss, without noise and
        clipping. The Hessian is at most the Gram matrix divided by this length.
    link : {"softmax", "sigmoid"}
        How scores become probabilities that add to 1, in predictions and exports:
        "sigmoid" for losses with `takes_sets`, "softmax" for all other losses.
    calibrated : bool
        Whether p are the link's own values: the softmax of the scores, or each score's
        sigmoid. If False, only the order of the probabilities is right.
    """

    name: ClassVar[str]
    takes_sets: ClassVar[bool] = False
    monotone_step: ClassVar[float]
    link: ClassVar[_Link] = "softmax"
    calibrated: ClassVar[bool] = True

    @abstractmethod
    def predictions(self, xp: Any, z: Array, rate: Array) -> Array:
        """Return predictions (k, m) as int64, in units of 1 / PROBABILITY_SCALE.

        Parameters
        ----------
        xp : module
            numpy or jax.numpy.
        z : array of shape (k, m)
            Scores, as whole numbers.
        rate : array of shape (k, 1)
            Real value of one unit of a score.
        """

    @abstractmethod
    def longest_residual(self, n_classes: int, score_norm: float = np.inf) -> float:
        """Return an upper bound on the norm of a residual.

        Parameters
        ----------
        n_classes : int
            Number of classes.
        score_norm : float, default inf
            Upper bound on the norm of a row's scores.

        Returns
        -------
        float
            The bound; inf if residuals of such scores are unbounded.
        """


class Softmax(Loss):
    """Define the cross-entropy of a softmax over all classes."""

    name = "softmax"
    monotone_step = 2.0  # [Böhning 1992]

    def predictions(self, xp: Any, z: Array, rate: Array) -> Array:
        """Return the softmax of each row's scores."""
        # exp of differences from the largest score, so nothing overflows.
        distance = z.max(axis=1, keepdims=True) - z
        e = power(xp, distance, rate)
        total = e.sum(axis=1, keepdims=True)
        one = float(PROBABILITY_SCALE) / total.astype(xp.float64)
        share = e.astype(xp.float64) * one
        return xp.rint(share).astype(xp.int64)

    def longest_residual(self, n_classes: int, score_norm: float = np.inf) -> float:
        """Return sqrt(2): all probability on one wrong class."""
        return float(np.sqrt(2.0))


class Sigmoid(Loss):
    """Define the sum of one-vs-rest logistic losses over the classes."""

    name = "sigmoid"
    takes_sets = True
    monotone_step = 4.0  # the slope of a sigmoid is at most 1/4
    link = "sigmoid"

    def predictions(self, xp: Any, z: Array, rate: Array) -> Array:
        """Return the sigmoid of each score."""
        # sigmoid(z) = 1 / (1 + exp(-z)), by symmetry for z < 0.
        e = power(xp, xp.abs(z), rate)
        larger = POWER_SCALE * PROBABILITY_SCALE // (POWER_SCALE + e)
        return xp.where(z >= 0, larger, PROBABILITY_SCALE - larger)

    def longest_residual(self, n_classes: int, score_norm: float = np.inf) -> float:
        """Return sqrt(n_classes): every class is wrong by 1."""
        return float(np.sqrt(n_classes))


class Squared(Loss):
    """Define half the squared distance of the scores from the one-hot label."""

    name = "squared"
    calibrated = False
    monotone_step = 1.0  # the Hessian is the Gram matrix

    def predictions(self, xp: Any, z: Array, rate: Array) -> Array:
        """Return the scores, clipped so that the squares of residuals fit int64."""
        # The square of an unbounded prediction could overflow int64.
        most = float(_MAX_SQUARED_RESIDUAL)
        value = xp.clip(z * (rate * float(PROBABILITY_SCALE)), -most, most)
        return xp.rint(value).astype(xp.int64)

    def longest_residual(self, n_classes: int, score_norm: float = np.inf) -> float:
        """Return the norm of the scores plus 1, the norm of a label."""
        return score_norm + 1.0


LOSSES: dict[str, Loss] = {
    loss.name: loss for loss in (Softmax(), Sigmoid(), Squared())
}


def loss_named(name: str) -> Loss:
    """Return the loss of this name. Raises ValueError for an unknown name."""
    if name not in LOSSES:
        *most, last = LOSSES
        raise ValueError(
            f"loss must be {', '.join(most)} or {last}, got {name!r}. Use softmax for "
            "one class per row."
        )
    return LOSSES[name]
