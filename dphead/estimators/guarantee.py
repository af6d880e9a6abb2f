"""Report the guarantee of a fit, and its limits (`privacy_`)."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dphead.analysis.protected import stated_guarantee
from dphead.planning.plan import Plan

SEEDED = (
    "Not private, epsilon is infinite: random_state is fixed, and anyone who knows "
    "it can remove the noise. Use random_state=None for a guarantee."
)
_NO_NOISE = "Not private: epsilon = inf turns noise and clipping off."
CLASSES_SEEN = "Not private: the classes were inferred from the labels."
_ONE_FIT = (
    "Only this fit is counted, in a ledger in memory. Pass the same ledger= to all "
    "fits on the same data."
)
_OUT_OF_SIGHT = (
    "Earlier steps fitted to the same data, and settings chosen by comparing fits, "
    "are detected only in scikit-learn's Pipeline and searches. The ledger counts "
    "each fit, not the choice."
)


@dataclass(frozen=True)
class Privacy:
    """Describe the guarantee of one fit, valid only if `private` is True.

    Attributes
    ----------
    private : bool
        Whether there is a guarantee.
    epsilon : float
        Epsilon that the fit spent at delta. Infinite without noise or with a seed.
    nominal_epsilon : float
        Epsilon of the same plan without a seed.
    delta : float
        Delta at which epsilon is stated.
    mu, rho : float or None
        Parameters of Gaussian and of zero-concentrated differential privacy. None
        unless the plan is private and all its batches are full.
    neighboring_relation : str
        "zero_out", "add_remove" or "replace_one".
    protected_unit : str
        The unit of privacy, such as "one row".
    n_rows : int
        Public number of rows.
    noise_multipliers : tuple of float
        Noise multiplier of each kind of release; 0 without noise.
    releases : list of dict
        Each kind of release, with its noise, count and mu.
    notes : tuple of str
        Limits of the guarantee, as sentences.
    """

    private: bool
    epsilon: float
    nominal_epsilon: float
    delta: float
    mu: float | None
    rho: float | None
    neighboring_relation: str
    protected_unit: str
    n_rows: int
    noise_multipliers: tuple[float, ...]
    releases: list[dict[str, Any]] = field(repr=False)
    notes: tuple[str, ...]
    _plan: Plan = field(repr=False)

    @cached_property
    def profiles(self) -> dict[str, Any]:
        """Return the epsilon of the same releases by each paper's accountant.

        The result is empty for a fit without noise or with a seed.
        """
        if not self._plan.private:
            return {}
        from dphead.analysis.profiles import all_profiles

        return all_profiles(self._plan.events(), self.delta, self.neighboring_relation)


def privacy_of(
    plan: Plan,
    *,
    n_rows: int,
    seeded: bool,
    counted: bool,
    classes_seen: bool,
    warning: str,
) -> Privacy:
    """Return the guarantee of a finished plan.

    Parameters
    ----------
    plan : Plan
        The releases of the fit.
    n_rows : int
        Public number of rows.
    seeded : bool
        Whether the noise has a fixed seed.
    counted : bool
        Whether the ledger can count other fits too.
    classes_seen : bool
        Whether the classes were inferred from the labels.
    warning : str
        Further warnings as one text, or "".

    Returns
    -------
    Privacy
        The guarantee.
    """
    noisy, plan = plan.private, plan.marked(private=False) if seeded else plan
    notes = {
        _NO_NOISE: not noisy,
        CLASSES_SEEN: classes_seen,
        SEEDED: seeded and noisy,
        warning: warning,
        _ONE_FIT: not counted,
        _OUT_OF_SIGHT: True,
    }
    found = stated_guarantee(plan, "row")
    found["private"] = plan.private and not classes_seen
    del found["seeded"]
    return Privacy(
        **found,
        n_rows=n_rows,
        noise_multipliers=tuple(r["noise_multiplier"] for r in found["releases"]),
        notes=tuple(text for text, holds in notes.items() if holds),
        _plan=plan,
    )
