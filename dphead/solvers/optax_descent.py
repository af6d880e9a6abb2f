"""Train heads on noisy clipped gradients with an optimizer of optax."""

import hashlib
import re
from dataclasses import asdict, dataclass, field, fields, replace
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
# State of optax's own clipping and noise. It needs per-example gradients, which no
# solver gets.
_PER_EXAMPLE = "DifferentiallyPrivateAggregateState"
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
# operations that call Python, whose code has no digest and may fail after the charge
_CALLBACK = re.compile(r"\b(\w*callback|debug_print)\[")


@dataclass(frozen=True)
class OptaxDescent(GradientDescent):
    """Run an optimizer of optax on full, Poisson or allocated batches.

    Parameters
    ----------
    optimizer : str or optax.GradientTransformation, default "adam"
        Name of a function of optax, which gets `learning_rate`, or a transformation.
        The transformation gets the released gradient and the weights only.
    learning_rate : float, default 0.1
        Learning rate of an optimizer by name. A transformation has its own.

    Notes
    -----
    The transformation computes in float64 with JAX. A resumed fit repeats its steps
    with the gradients that were already released, so the state is the same.
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

        Raises ValueError as `GradientDescent.plan`, and if the transformation needs
        more than gradient and weights or cannot take a step.
        """
        self.identity(facts)
        return super().plan(facts)

    def record(self) -> dict[str, Any]:
        """Return the settings that the steps use, as JSON data."""
        found, unused = asdict(self), {one.name for one in fields(self) if not one.init}
        if not isinstance(self.optimizer, str):
            found["optimizer"] = type(self.optimizer).__name__
            unused.add("learning_rate")
        return {name: one for name, one in found.items() if name not in unused}

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

    def identity(self, facts: ProblemInfo) -> str:
        """Return text that differs for solvers that take different steps.

        For a transformation, the text has its operations as traced by jax, because
        addresses of functions differ between processes. It does not cover values that
        an inner `jit` closes over.

        Raises ValueError if the optimizer needs more than gradient and weights, or if
        it cannot take a step.
        """
        import jax

        made, state, why = self._transformation(), None, ""
        shape = facts.n_features + bool(self.intercept), facts.n_classes
        digest = hashlib.sha256()

        def traced(function: Any, *given: Any) -> Any:
            found, out = jax.make_jaxpr(function, return_shape=True)(*given)
            text = found.pretty_print(use_color=False)  # same text for every terminal
            if call := _CALLBACK.search(text):
                raise ValueError(f"it has a {call[1]}, which jax cannot trace")
            digest.update(_ADDRESS.sub("", text).encode())
            for one in found.consts:
                is_key = jax.numpy.issubdtype(one.dtype, jax.dtypes.prng_key)
                array = jax.random.key_data(one) if is_key else one
                digest.update(np.asarray(array).tobytes())
            return out

        with own_settings() as jnp:
            zeros = jax.ShapeDtypeStruct(shape, jnp.float64)
            try:
                state, before = traced(made.init, zeros), None
                for _ in range(3):  # the first steps may change the type of the state
                    before = state
                    found, state = traced(made.update, zeros, state, zeros)
                if (found.shape, found.dtype) != (zeros.shape, zeros.dtype):
                    why = f"it returns {found}"
                elif jax.tree.flatten(before) != jax.tree.flatten(state):
                    why = "its state changes its shape at every step"
                else:  # take one step now: an error in it would end a charged fit
                    first = self._start(np.zeros(shape))
                    first.advance(np.zeros(shape), 0.0, self)
                    jax.block_until_ready(first.weights)
            except Exception as error:  # errors of optax or of a user's own functions
                why = " ".join(str(error).split()[:40])
        if _PER_EXAMPLE in str(jax.tree.structure(state)):
            why = "it clips gradients per example and adds noise, as dphead does"
        if why:
            named = isinstance(self.optimizer, str)
            raise ValueError(
                "optimizer must compute its update from one gradient and the weights, "
                f"got {typed(self.optimizer) if named else type(made).__name__}: "
                f"{why.rstrip('.')}. Use a different optimizer, such as lion."
            )
        if isinstance(self.optimizer, str):
            return repr(self)
        return repr(replace(self, optimizer=digest.hexdigest()))

    def _start(self, weights: np.ndarray) -> Descent:
        return _OptaxSteps.start(weights, transformation=self._transformation())


@dataclass(eq=False)
class _OptaxSteps(Descent):
    """Hold the weights, their average, and the state of an optax transformation."""

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
        """Take one step, at the learning rate of the transformation."""
        self.weights, self.state = self._moved(gradient, self.state, self.weights)
        self._average(settings)
