"""Train heads by any transformation of optax, on noisy clipped gradients."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from dphead.solvers.base import PlannedRelease, ProblemInfo
from dphead.solvers.descent import Descent
from dphead.solvers.gradient import GradientDescent
from dphead.solvers.on_device import own_settings
from dphead.solvers.settings import LEARNING_RATE, Range, Setting, typed

_KNOWN = Range(
    "name of an optax optimizer or GradientTransformation",
    lambda v: isinstance(v, str) or hasattr(v, "update"),
)
_OPTIMIZER = Setting("Optimizer of optax.", _KNOWN)
# optax's own clipping and noise for gradients per example, which no solver gets
_PER_EXAMPLE = "DifferentiallyPrivateAggregateState"


@dataclass(frozen=True)
class OptaxDescent(GradientDescent):
    """Run an optimizer of optax on full or Poisson batches.

    Parameters
    ----------
    optimizer : str or optax.GradientTransformation, default "adam"
        Name of a function of optax, which gets `learning_rate`, or a transformation.
        The transformation gets the released gradient and the weights only.
    learning_rate : float, default 0.1
        Learning rate of an optimizer by name. A transformation has its own.

    Notes
    -----
    The transformation computes in float64 with JAX. A resumed fit gives it the released
    gradients of its charge again, so its state is the same.
    """

    optimizer: Annotated[str | tuple, _OPTIMIZER] = "adam"  # type: ignore[assignment]
    learning_rate: Annotated[float, LEARNING_RATE] = 0.1
    momentum: float = field(default=0.0, init=False)
    beta2: float = field(default=0.0, init=False)
    weight_decay: float = field(default=0.0, init=False)
    needs_jax: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return "dp-optax"."""
        return "dp-optax"

    def plan(self, facts: ProblemInfo) -> list[PlannedRelease]:
        """Return the releases of `GradientDescent`.

        Raises ValueError if the transformation needs more than gradient and weights.
        """
        self._check(facts.n_features + bool(self.intercept), facts.n_classes)
        return super().plan(facts)

    def _transformation(self) -> Any:
        """Return the transformation, made by optax for an optimizer's name."""
        if not isinstance(self.optimizer, str):
            return self.optimizer
        import optax

        try:
            made = getattr(optax, self.optimizer)(learning_rate=self.learning_rate)
        except (AttributeError, TypeError):
            made = None
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(
                "optimizer must be the name of an optimizer of optax, got "
                f"{typed(self.optimizer)}. Use a name such as lion, adamw or sgd."
            )
        return made

    def _check(self, *shape: int) -> None:
        """Trace an update, without computing it, to see what the optimizer needs."""
        import jax

        made = self._transformation()
        with own_settings() as jnp:
            zeros = jax.ShapeDtypeStruct(shape, jnp.float64)
            try:
                state = jax.eval_shape(made.init, zeros)
                for _ in range(2):  # the first step may change the type of the state
                    found, state = jax.eval_shape(made.update, zeros, state, zeros)
                why = "" if found == zeros else f"it returns {found}"
            except Exception as error:  # errors of optax or of a user's own functions
                state, why = None, " ".join(str(error).split()[:40])
        if _PER_EXAMPLE in str(jax.tree.structure(state)):
            why = "it clips gradients per example and adds noise, as dphead does"
        if why:
            named = isinstance(self.optimizer, str)
            raise ValueError(
                "optimizer must compute its update from one gradient and the weights, "
                f"got {typed(self.optimizer) if named else type(made).__name__}: "
                f"{why.rstrip('.')}. Use another one, such as lion."
            )

    def _start(self, weights: np.ndarray) -> Descent:
        return _OptaxSteps.start(weights, transformation=self._transformation())


@dataclass(eq=False)
class _OptaxSteps(Descent):
    """Hold the state of a transformation beside the weights and their average."""

    transformation: Any
    state: Any = None

    def __post_init__(self) -> None:
        import jax

        self.weights: Any = jax.numpy.asarray(self.weights)
        self.state = self.transformation.init(self.weights)

        def moved(gradient: Any, state: Any, weights: Any) -> tuple[Any, Any]:
            updates, state = self.transformation.update(gradient, state, weights)
            return weights + updates, state

        self._moved = jax.jit(moved)

    def advance(self, gradient: Any, rate: float, settings: Any) -> None:  # type: ignore[override]
        """Take one step. The transformation has its own rate."""
        self.weights, self.state = self._moved(gradient, self.state, self.weights)
        self._average(settings)
