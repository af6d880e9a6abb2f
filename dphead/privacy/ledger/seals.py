"""Chain digests over the fixed values and charges of a ledger, to detect damage.

The seals show accidental damage. They do not stop a forger, who can compute a new
chain.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import column, select

from dphead.privacy.ledger.schema import (
    FITS,
    PROGRESS,
    RELEASES,
    SEALS,
    STATES,
    LedgerError,
)
from dphead.privacy.ledger.store import AWAITS, IDENTITY, SUM, LedgerFile

# columns of a release in its fit's digest
_SEALED = ("sequence", "label", "noise_multiplier", "sampling_prob", "spec")
_Fit = tuple[Any, list[tuple[Any, ...]]]  # a row of `fits`, and its releases
# Made once: SQLAlchemy takes longer to build a statement than SQLite to run it.
# Fits in the order of their charges: `rowid` is SQLite's number of a row, and a column
# of its own on a server.
_CHARGED = select(*FITS.c).order_by(column("rowid"))
_SEALS = select(SEALS.c.fits, SEALS.c.meta, SEALS.c.digest).order_by(SEALS.c.id)
_LAST = select(SEALS.c.fits, SEALS.c.digest, SEALS.c.id).order_by(SEALS.c.id.desc())
_LAST = _LAST.limit(1)
_LOG = select(PROGRESS.c.fit_id, PROGRESS.c.sequence, PROGRESS.c.state)
_LOG = _LOG.order_by(PROGRESS.c.id)
_RELEASES = select(RELEASES.c.fit_id, *(RELEASES.c[name] for name in _SEALED))
_RELEASES = _RELEASES.order_by(RELEASES.c.fit_id, RELEASES.c.sequence)
_encode = json.JSONEncoder(default=repr).encode


class Record(NamedTuple):
    """Hold the fixed values and charges of an undamaged ledger.

    Attributes
    ----------
    facts : dict
        All fixed values (`LedgerFile.facts`).
    plans : dict
        The digest of each fit's plan, by the fit's id.
    """

    facts: dict[str, str]
    plans: dict[str, str]


class _DamagedError(Exception):
    """Raised with a description of the damage."""


def seal(file: LedgerFile) -> None:
    """Add a digest of all fixed values, and of the charges since the last seal.

    The digest also covers the last seal.
    """
    before, digest, number = file.first(_LAST) or (0, "", 0)
    # All values, but only the fits since the last seal: the chain covers earlier fits.
    # Values and fits are read back, so that the digest is of what the database kept.
    meta = json.dumps(file.facts(), sort_keys=True)
    charges, _ = _charges(file, before)
    count = before + len(charges)
    digest = _chained(digest, count, meta, charges)
    # Seals are numbered here: two charges after one seal cannot both add the next.
    new = {"id": number + 1, "fits": count, "meta": meta, "digest": digest}
    file.add(SEALS, new)


def _charges(file: LedgerFile, first: int) -> tuple[list[_Fit], bool]:
    """Return the fits from index `first`, in order of charge, with their releases.

    If `first` is 0, also return whether there are releases without a fit.
    """
    late, kept = _CHARGED, _RELEASES
    if first:
        late = _CHARGED.offset(first)
        kept = kept.where(RELEASES.c.fit_id.in_(late.with_only_columns(FITS.c.fit_id)))
    releases = defaultdict(list)
    for release in file.query(kept):
        releases[release[0]].append(release[1:])
    charges = [(tuple(fit), releases.pop(fit[0], [])) for fit in file.query(late)]
    return charges, bool(releases)


def charges_of(file: LedgerFile) -> dict[str, _Fit]:
    """Return the sealed columns of each fit and of its releases, by the fit's id."""
    return {fit[0]: (fit, releases) for fit, releases in _charges(file, 0)[0]}


def check_undamaged(file: LedgerFile) -> Record:
    """Return fixed values and plans, or raise LedgerError for damage (`damage_of`)."""
    try:
        return _read(file)
    except _DamagedError as problem:
        raise LedgerError(
            f"The ledger {file.path} is damaged: {problem}. Restore a copy that "
            "holds all its fits and releases."
        ) from None


def budgets_in(facts: Mapping[str, str]) -> list[dict[str, float]]:
    """Return a ledger's own budget, and the smaller ones that merges fixed."""
    keys = [key for key in facts if key == "budget" or key.startswith("budget ")]
    return [json.loads(facts[key]) for key in keys]


def smallest(budgets: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the budget that limits all fits."""
    return min(budgets, key=lambda one: (one["epsilon"], one["delta"]))


def damage_of(file: LedgerFile) -> list[str]:
    """Return a list with the first damage that is found, empty without damage.

    The function checks four things:

    - A ledger's file is as SQLite wrote it. An index that lacks a row of its table
      could hide a budget. Tables on a server are not checked in this way.
    - Charges and fixed values match the chain of digests.
    - Each budget was fixed before the first fit, or is the limit of a plain sum. The
      smallest one is within all others.
    - Releases were begun and committed in their order.

    The checks find accidental damage. A forger can compute the chain anew. The checks
    do not notice that the last fits and their seals, or a fit's last commit, are
    missing.
    """
    try:
        _read(file)
    except _DamagedError as problem:
        return [str(problem)]
    return []


def _read(file: LedgerFile) -> Record:
    with file.snapshot():
        try:
            return _checked(file)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, LedgerError):
                raise
            raise _DamagedError(f"an entry cannot be read ({error!r})") from error


def _checked(file: LedgerFile) -> Record:
    # A query can use an index that lacks a row, and miss a budget.
    found = file.structure()
    if found != "ok":
        raise _DamagedError(f"the file is not as SQLite wrote it ({found})")
    # One transaction reads all entries, so a charge at the same time is no damage.
    meta = file.facts()
    charges, stray = _charges(file, 0)
    done, digest, sealed = 0, "", dict[str, str]()
    for fits, fixed, kept in file.query(_SEALS):
        digest = _chained(digest, fits, fixed, charges[done:fits])
        # Any change of a sealed entry, or of the order of charges, changes the digest.
        if digest != kept:
            sealed_fits = f"fits {done + 1} to {fits}, or their seal,"
            what = sealed_fits if fits > done else "the values fixed before a fit"
            raise _DamagedError(f"{what} were changed")
        # A later seal may have further values. A sealed value never changes.
        before, sealed = sealed, json.loads(fixed)
        if any((sealed.get(k), meta.get(k)) != (v, v) for k, v in before.items()):
            raise _DamagedError(
                f"a value that was fixed before fit {done + 1} was changed"
            )
        budgets = budgets_in(sealed)
        if len(budgets) > len(budgets_in(before)):
            # A filter needs a budget that was fixed before the first release. Only a
            # merge adds a budget later, and its total is a plain sum.
            if fits and SUM not in sealed:
                raise _DamagedError(f"a budget was fixed after {fits} fits")
            # Else a later budget with a larger delta would allow further fits.
            least = smallest(budgets)
            limits = [(key, one) for one in budgets for key in ("epsilon", "delta")]
            if not all(least[key] <= one[key] for key, one in limits):  # also for NaN
                raise _DamagedError("a budget is not within all earlier ones")
        done = fits
    if done != len(charges):
        raise _DamagedError(f"no seal covers the fits after fit {done}")
    # These values may be set after the last seal, because they change no total.
    late = {"dataset_id", IDENTITY, AWAITS} - sealed.keys()
    if {k: v for k, v in meta.items() if k not in late} != sealed:
        raise _DamagedError("a value was added or changed without a seal")
    if stray:
        raise _DamagedError("there are releases without a fit")
    _check_order(file, {fit[0]: len(releases) for fit, releases in charges})
    plan_hash = list(FITS.c).index(FITS.c.plan_hash)
    return Record(meta, {fit[0]: fit[plan_hash] for fit, _ in charges})


def _check_order(file: LedgerFile, reserved: dict[str, int]) -> None:
    """Raise _DamagedError unless releases were begun and committed in their turn.

    A release may be begun again before it is committed.
    """
    done = Counter[str]()
    begun = set()
    # The states of a release: started, redrawn after each crash, committed. The next
    # release begins after the commit only.
    for fit_id, sequence, state in file.query(_LOG):
        release = (fit_id, sequence)
        known = state in STATES and sequence < reserved.get(fit_id, 0)
        first = (state == "started") != (release in begun)
        if not (known and first and sequence == done[fit_id]):
            raise _DamagedError(f"a release was {state!r} out of turn")
        begun.add(release)
        done[fit_id] += state == "committed"


def _chained(before: str, fits: int, meta: str, charges: list[_Fit]) -> str:
    # `repr`: a damaged column may hold bytes, which JSON does not take.
    charged = _encode(
        [[fit for fit, _ in charges], [releases for _, releases in charges]]
    )
    # The previous digest is part of the text: no earlier seal can be left out.
    text = json.dumps([before, fits, meta, charged])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
