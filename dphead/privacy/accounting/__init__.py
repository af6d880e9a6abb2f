"""Compute the epsilon of a list of releases.

`events` describes releases. `compose` chooses the accountant: `gdp` for full batches,
and `pld` (with `losses` and `allocation`) for the rest. `rdp` serves several fits with
random batches, and `compose` also tries it where `pld` is too coarse. `pld` takes
seconds to import, and is therefore imported where it is used.
"""

from dphead.privacy.accounting.compose import ACCOUNTANTS, compose_epsilon
from dphead.privacy.accounting.events import (
    RELATIONS,
    GaussianEvent,
    check,
    event_of,
    in_one_step,
    require,
    together,
)
from dphead.privacy.accounting.gdp import epsilon_from_mu, log_delta, total_mu
from dphead.privacy.accounting.rdp import (
    RDP_ORDERS,
    epsilon_from_rdp,
    filter_order,
    rdp_curve,
    rdp_epsilon,
)

__all__ = [
    "ACCOUNTANTS",
    "RDP_ORDERS",
    "RELATIONS",
    "GaussianEvent",
    "check",
    "compose_epsilon",
    "epsilon_from_mu",
    "epsilon_from_rdp",
    "event_of",
    "filter_order",
    "in_one_step",
    "log_delta",
    "rdp_curve",
    "rdp_epsilon",
    "require",
    "together",
    "total_mu",
]
