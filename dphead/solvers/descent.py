"""Take the steps of SGD and Adam on released gradients, for heads and for networks.

The arrays are numpy arrays, or jax arrays if the gradients are jax arrays.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

# Added to the root of the second moment. Kingma, Ba 2015 use 1e-8; noisy gradients need
# no damping, and 1e-8 would change steps on tiny gradients. Chosen, not measured.
_ADAM_EPSILON = 1e-12


@dataclass(eq=False)
class Descent:
    """Hold the state of a gradient descent after `step` steps.

    Attributes
    ----------
    step : int
        Number of steps done.
    weights, average : ndarray of float64
        The last iterate, and the average that the settings choose.
    first, second : ndarray of float64
        The optimizer's moments.
    """

    step: int
    weights: np.ndarray
    average: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @classmethod
    def start(cls, weights: np.ndarray, **more: Any) -> Self:
        """Return the state before the first step. `more` has a subclass's fields."""
        zero = np.zeros_like(weights)
        return cls(0, weights, weights, zero, zero, **more)

    def advance(
        self,
        gradient: np.ndarray,
        rate: float,
        settings: Any,
        dampening: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        """Take one step.

        Parameters
        ----------
        gradient : ndarray
            The scaled noisy gradient.
        rate : float
            The learning rate of this step.
        settings : GradientDescent or Step
            Optimizer, momentum, weight decay and average.
        dampening : float, default 0.0
            Dampening of momentum, as in `torch.optim.SGD`: with momentum, the gradient
            is multiplied by 1 - dampening from the second step on.
        decoupled : bool, default False
            Whether weight decay is added to the direction instead of the gradient.
        """
        # weight decay needs no release: it reads only the iterate
        decay = settings.weight_decay * self.weights
        raw = gradient if decoupled else gradient + decay
        if self.step and settings.momentum:
            raw = (1 - dampening) * raw
        direction = self._direction(raw, settings)
        if decoupled:
            direction = direction + decay
        self.weights = self.weights - rate * direction
        self._average(settings)

    def _average(self, settings: Any) -> None:
        """Update the average, and count the step."""
        kept = self._decay(settings)
        # a product of 0 with an average that overflowed would be NaN
        old = kept * self.average if kept else 0.0
        self.average = old + (1 - kept) * self.weights
        self.step += 1

    def _direction(self, gradient: np.ndarray, settings: Any) -> np.ndarray:
        """Update the moments with a gradient, and return the direction."""
        beta1, beta2 = settings.momentum, settings.beta2
        if settings.optimizer == "sgd":  # heavy ball, without Nesterov's look-ahead
            self.first = beta1 * self.first + gradient
            return self.first
        self.first = beta1 * self.first + (1 - beta1) * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient**2
        # the moments start at zero, so their means are too short [Kingma, Ba 2015, §3]
        first = self.first / (1 - beta1 ** (self.step + 1))
        second = self.second / (1 - beta2 ** (self.step + 1))
        xp = second.__array_namespace__()
        return first / (xp.sqrt(second) + _ADAM_EPSILON)

    def _decay(self, settings: Any) -> float:
        """Return the decay of the average at this step.

        "ema" has De22's warm-up, "mean" weights all iterates equally, and "last" keeps
        the last iterate.
        """
        if settings.average == "last":
            return 0.0
        if settings.average == "mean":
            return self.step / (self.step + 1)
        return min(settings.ema_decay, (1 + self.step) / (10 + self.step))
