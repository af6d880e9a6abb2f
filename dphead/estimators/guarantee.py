"""Report the guarantee of a fit, and its limits (`privacy_`)."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dphead.analysis.protected import protected_unit
from dphead.planning.plan import Plan
from dphead.privacy import accounting

SEEDED = (
    "Not private, epsilon is infinite: random_state is fixed, and anyone who knows "
    "it can remove the noise. Use random_state=None for a guarantee."
)
NO_NOISE = "Not private: epsilon = inf turns noise and clipping off."
CLASSES_SEEN = "Not private: the classes were inferred from the labels."
ONE_FIT = (
    "Only this fit is counted: arrays carry no data set id. Give ledger= to count all "
    "fits on the same data."
)
OUT_OF_SIGHT = (
    "Earlier steps fitted to the same data, and settings chosen by comparing fits, "
    "are detected only in scikit-learn's Pipeline and searches. The ledger counts "
    "each fit, not the choice."
)


@dataclass(frozen=True)
class Privacy:
    """Hold the guarantee of one fit, which is valid only if `private` is true.

    Attributes
    ----------
    private : bool
        Whether there is a guarantee.
    epsilon : float
        The epsilon spent; infinite with a seed.
    nominal_epsilon : float
        Epsilon of the same plan without a seed.
    delta : float
        The delta.
    mu, rho : float or None
        None unless every release is a full-batch Gaussian.
    neighboring_relation : str
        "zero_out", "add_remove" or "replace_one".
    protected_unit : str
        The unit of privacy.
    n_rows : int
        Public number of rows.
    releases : list of dict
        One entry for each kind of release.
    notes : tuple of str
        Further notes for the reader.
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
    releases: list[dict[str, Any]] = field(repr=False)
    notes: tuple[str, ...]
    _plan: Plan = field(repr=False)

    @cached_property
    def profiles(self) -> dict[str, Any]:
        """Return the epsilon of the same releases by the papers' accountants.

        Computed on first use; empty without noise.
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
        The plan.
    n_rows : int
        Public number of rows.
    seeded : bool
        Whether the noise has a fixed seed.
    counted : bool
        Whether a ledger counts other fits too.
    classes_seen : bool
        Whether the classes were inferred from the labels.
    warning : str
        About delta and groups, or "".
    """
    from dphead.analysis.profiles import total_rho

    nominal = plan.epsilon_spent()
    noisy, plan = plan.private, plan.marked(private=False) if seeded else plan
    events = plan.events()
    notes = [
        *([NO_NOISE] if not noisy else []),
        *([CLASSES_SEEN] if classes_seen else []),
        *([SEEDED] if seeded and noisy else []),
        *([warning] if warning else []),
        *([ONE_FIT] if not counted else []),
        OUT_OF_SIGHT,
    ]
    return Privacy(
        private=plan.private and not classes_seen,
        epsilon=plan.epsilon_spent(),
        nominal_epsilon=nominal,
        delta=plan.delta,
        mu=accounting.total_mu(events) if plan.private else None,
        rho=total_rho(events) if plan.private else None,
        neighboring_relation=plan.relation,
        protected_unit=protected_unit(plan.group_cap, "row", plan.group_mean),
        n_rows=n_rows,
        releases=plan.summary(),
        notes=tuple(notes),
        _plan=plan,
    )
