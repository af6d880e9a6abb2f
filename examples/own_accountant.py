"""Compare an accountant of one's own with dphead's, for Poisson batches."""

import math

from dphead.planning.calibration import calibrate, epsilon_by
from dphead.privacy.accounting import GaussianEvent, epsilon_from_mu, total_mu

releases = [
    GaussianEvent(noise_multiplier=20.0),  # the mean of all rows
    GaussianEvent(noise_multiplier=2.0, sampling_prob=0.01, count=1000),
]


def clt_epsilon(events, delta):
    """Return epsilon by a central limit theorem (Bu, Dong, Long, Su 2020).

    The theorem is an approximation, so this is no guarantee.
    """
    squares = total_mu([e for e in events if e.is_full]) ** 2
    for e in events:
        if not e.is_full:
            growth = math.expm1(1 / e.noise_multiplier**2)
            squares += e.count * e.sampling_prob**2 * growth
    return epsilon_from_mu(math.sqrt(squares), delta)


print(f"my own  {clt_epsilon(releases, 1e-5):.4f}")
for name in ("pld", "rdp", "rdp-classic"):
    print(f"{name:7} {epsilon_by(name, releases, 1e-5, 'add_remove'):.4f}")
factor = calibrate(releases, 1.0, 1e-5, "add_remove", fixed=[0])
print(f"epsilon 1 needs a noise multiplier of {2 * factor:.3f} for the batches")
