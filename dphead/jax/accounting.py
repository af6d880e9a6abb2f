"""Convert between epsilon, delta and mu, and bound attacks, without jax arrays."""

from dphead.analysis.tradeoff import (
    delta_from_mu,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
)
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import (
    GaussianEvent,
    compose_epsilon,
    epsilon_from_mu,
    total_mu,
)

__all__ = [
    "GaussianEvent",
    "compose_epsilon",
    "delta_from_mu",
    "epsilon_delta_tradeoff",
    "epsilon_from_mu",
    "gaussian_tradeoff",
    "mu_from_epsilon",
    "total_mu",
]
