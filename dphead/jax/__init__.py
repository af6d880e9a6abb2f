"""Fit private heads on jax arrays, and use them under jit, vmap, grad and sharding.

`fit` checks, charges and sums as `dphead.DPHeadClassifier` does. It returns a `Head`,
which is a pytree. `scores`, `probabilities` and `predict` are pure functions. Noise and
samples come from ChaCha20, never from `jax.random`. Without a seed, the keys are the
operating system's.
"""

from dphead.jax import accounting
from dphead.jax.fitting import fit, load, optax_method
from dphead.jax.head import Head, predict, probabilities, scores

__all__ = [
    "Head",
    "accounting",
    "fit",
    "load",
    "optax_method",
    "predict",
    "probabilities",
    "scores",
]
