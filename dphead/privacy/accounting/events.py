"""Describe releases of a Gaussian mechanism for the accountants."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dphead.privacy.python_values import python_value

RELATIONS = ("zero_out", "add_remove", "replace_one")


@dataclass(frozen=True)
class GaussianEvent:
    """Describe `count` releases of a Gaussian mechanism for the accountants.

    Parameters
    ----------
    noise_multiplier : float
        Noise standard deviation over sensitivity; 0 is not private. Full batches use
        the relation's own sensitivity, so one event holds under every relation. Poisson
        batches use the zero-out sensitivity (the clip norm C), even under replace-one.
        Allocated rows use C.
    sampling_prob : float, default 1.0
        Sampling rate in (0, 1]; below 1 for Poisson batches.
    count : int, default 1
        Number of releases.
    rows_per_unit : int, default 1
        Largest number of rows used per unit of privacy.
    epoch_steps : int, default 1
        Number of releases in an epoch of random allocation, with each row in one of
        them at random (proofs/allocation.md). 1 means no allocation. Above 1, units of
        privacy must be rows.

    Raises
    ------
    ValueError
        If a value is out of range, or if rows are allocated and also sampled or
        grouped.
    """

    noise_multiplier: float
    sampling_prob: float = 1.0
    count: int = 1
    rows_per_unit: int = 1
    epoch_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "sampling_prob", "count"):
            value = python_value(getattr(self, name))
            object.__setattr__(self, name, value)  # The class is frozen.
        sd, q, count = self.noise_multiplier, self.sampling_prob, self.count
        known, none = "noise_multiplier must be at least 0", "Use 0 for no noise."
        require(sd >= 0, known, "noise_multiplier", sd, none)
        known, full = "sampling_prob must lie in (0, 1]", "Use 1 for full batches."
        require(0 < q <= 1, known, "sampling_prob", q, full)
        # NaN and infinity fail the first comparison.
        whole = 0 <= count < math.inf and count == int(count)
        known = "count must be a whole number of at least 0"
        require(whole, known, "count", count, "Use 1 for one release.")
        for name in ("rows_per_unit", "epoch_steps"):
            value = getattr(self, name)
            # Accept only `int`: NumPy integers wrap around, and True is an int too.
            some = type(value) is int and 1 <= value < 2**31
            known = f"{name} must be a Python int of at least 1 and below 2**31"
            require(some, known, name, value, "Convert other numbers with int().")
        # Proved only for single rows without Poisson batches (proofs/allocation.md).
        alone = self.epoch_steps == 1 or (q == 1 and self.rows_per_unit == 1)
        only = "epoch_steps above 1 needs sampling_prob and rows_per_unit of 1"
        given = (q, self.rows_per_unit)
        require(alone, only, "rows_per_unit", given, "Set both to 1, or epoch_steps=1.")

    @property
    def is_full(self) -> bool:
        """Return whether every row is in each of these releases."""
        # Only such releases have a closed form, and need no secret sample.
        return self.sampling_prob == 1 and self.epoch_steps == 1

    @property
    def epochs(self) -> int:
        """Return the number of epochs that these releases begin.

        An epoch counts from its first release.
        """
        # Round up: the first release of an epoch may already use a row.
        return -(-int(self.count) // self.epoch_steps)


def event_of(release: Mapping[str, Any]) -> GaussianEvent:
    """Return the accountants' event of one release.

    Parameters
    ----------
    release : mapping
        `ReleaseSpec.row()`, or the same from a ledger. An `epoch_steps` of 1 and a
        `private` of True may be omitted.

    Returns
    -------
    GaussianEvent
        A release with `private` False counts as one without noise.

    Guarantee
    ---------
    Plans, the ledger and `ReleaseSpec` all use this function. So the charge and the
    report of a release use the same event.
    """
    cap = release["group_cap"]  # None if the unit of privacy is a row
    # A seed makes the noise known, so the accountants assume no noise.
    private = release.get("private", True)
    return GaussianEvent(
        release["noise_multiplier"] if private else 0.0,
        release["sampling_prob"],
        rows_per_unit=1 if cap is None else cap,
        epoch_steps=release.get("epoch_steps", 1),
    )


def together(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """Merge equal releases into one event each, in order of appearance."""
    # Releases are compared without their `count`.
    counts: Counter[GaussianEvent] = Counter()
    for event in events:
        one = event if event.count == 1 else replace(event, count=1)
        counts[one] += event.count
    return [replace(event, count=count) for event, count in counts.items()]


def in_one_step(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """Replace each epoch of random allocation by one full-batch release.

    The result's epsilon is an upper bound, because the pair of one full batch dominates
    the pair of an epoch (proofs/allocation.md).
    """
    found = []
    for event in events:
        # An epoch that was begun counts as a whole one.
        if event.epoch_steps > 1:
            event = replace(event, count=event.epochs, epoch_steps=1)
        found.append(event)
    return found


def require(ok: bool, what: str, name: str, value: object, hint: str = "") -> None:
    """Raise ValueError unless `ok`.

    `what` is the condition in words. The message adds `name` if `what` lacks it.
    """
    if not ok:
        given = repr(value) if name in what else f"{name}={value!r}"
        raise ValueError(f"{what}, got {given}. {hint}".rstrip())


def check(delta: float = 0.5, relation: str = "zero_out") -> None:
    """Raise ValueError if `delta` or `relation` is invalid."""
    hint = "Use a positive number below 1 / (number of rows)."
    require(0 < delta < 1, "delta must lie in (0, 1)", "delta", delta, hint)
    known = f"relation must be one of {', '.join(RELATIONS)}"
    require(relation in RELATIONS, known, "relation", relation, "Use zero_out.")


def check_pair(events: Iterable[GaussianEvent], relation: str) -> None:
    """Raise ValueError if no dominating pair of the events is known.

    proofs/groups.md and proofs/allocation.md have the pairs that are known.
    """
    # Groups have the pair of proofs/groups.md under zero_out and add_remove only.
    single = all(e.is_full or e.rows_per_unit == e.epoch_steps == 1 for e in events)
    known = (
        "Allocated rows, and Poisson batches with `--group-cap` (`group_cap`), need "
        "the neighboring relation zero_out or add_remove"
    )
    hint = "Use one of these relations, or full batches."
    require(single or relation != "replace_one", known, "relation", relation, hint)
