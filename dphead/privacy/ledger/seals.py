"""Chain digests over what a ledger fixed and charged, and detect damage with them.

The seals show accidental damage to a file. They do not stop a forger, who can compute
the chain anew.
"""

import hashlib
import json
from collections import Counter, defaultdict
from typing import Any

from sqlalchemy import func, select

from dphead.privacy.ledger.schema import (
    CHARGED,
    FITS,
    PROGRESS,
    RELEASES,
    SEALS,
    STATES,
    LedgerError,
)
from dphead.privacy.ledger.store import LedgerFile

# columns of a release in its fit's digest
_SEALED = ("sequence", "label", "noise_multiplier", "sampling_prob", "spec")


def seal(file: LedgerFile) -> None:
    """Add a digest of all that was fixed and charged since the last seal.

    The digest also covers the last seal.
    """
    last = select(SEALS.c.fits, SEALS.c.digest, SEALS.c.id).order_by(SEALS.c.id.desc())
    before, digest, number = file.first(last.limit(1)) or (0, "", 0)
    count = file.count_fits()
    # All facts, but only the fits since the last seal: the chain covers the others.
    meta = json.dumps(file.facts(), sort_keys=True)
    digest = _chained(digest, count, meta, _charges(file, before))
    # Seals are numbered here: two charges after one seal cannot both add the next.
    new = {"id": number + 1, "fits": count, "meta": meta, "digest": digest}
    file.add(SEALS, new)


def _charges(file: LedgerFile, first: int) -> list[tuple[Any, Any]]:
    """Return the fits from `first` on, each with its releases, in order of charges."""
    late = CHARGED.offset(first)
    kept = select(RELEASES.c.fit_id, *(RELEASES.c[name] for name in _SEALED))
    kept = kept.where(RELEASES.c.fit_id.in_(late.with_only_columns(FITS.c.fit_id)))
    releases = defaultdict(list)
    kept = kept.order_by(RELEASES.c.fit_id, RELEASES.c.sequence)
    for release in file.query(kept):
        releases[release[0]].append(release[1:])
    return [(tuple(fit), releases[fit[0]]) for fit in file.query(late)]


def check_undamaged(file: LedgerFile) -> None:
    """Raise LedgerError for a ledger that is seen to be damaged (`damage_of`)."""
    for problem in damage_of(file):
        raise LedgerError(
            f"a ledger must be undamaged to be used, got {problem} in "
            f"path={file.path}. Put back a copy that holds all its fits."
        )


def damage_of(file: LedgerFile) -> list[str]:
    """Return what is damaged, in words; [] if nothing is.

    The function checks three things:

    - The file is as SQLite wrote it. An index without its table's rows would hide a
      budget.
    - Charges and fixed facts match the chain of digests, which covers every entry.
    - The budget was fixed before the first fit.
    - Releases were begun and committed in their order.

    The checks find damage. They find no forger, who can compute the chain anew. They
    also do not find a file that lacks its last fits with their seals, or a fit's last
    commit.
    """
    with file.snapshot():
        try:
            return _damage(file)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, LedgerError):
                raise
            return [f"text that cannot be read ({error!r})"]


def _damage(file: LedgerFile) -> list[str]:
    found = file.structure()
    if found != "ok":
        return [f"a file that is not as SQLite wrote it ({found})"]
    meta = file.facts()
    done, digest, sealed, charges = 0, "", dict[str, str](), _charges(file, 0)
    seals = select(SEALS.c.fits, SEALS.c.meta, SEALS.c.digest).order_by(SEALS.c.id)
    for fits, fixed, kept in file.query(seals):
        digest = _chained(digest, fits, fixed, charges[done:fits])
        if digest != kept:
            return [f"a change in fits {done + 1} to {fits}, or in their seal"]
        # A later seal may hold further facts. A sealed fact never changes.
        before, sealed = sealed, json.loads(fixed)
        if any((sealed.get(k), meta.get(k)) != (v, v) for k, v in before.items()):
            return [f"a change in what was fixed before fit {done + 1}"]
        if "budget" in sealed.keys() - before.keys() and fits:
            return [f"a budget that was fixed after {fits} fits"]
        done = fits
    if done != len(charges):
        return [f"fits after {done} that no seal covers"]
    # A data set's id may be fixed after the last seal. It changes no total.
    if {k: v for k, v in meta.items() if k in sealed or k != "dataset_id"} != sealed:
        return ["a fact that no seal covers, or a change in one"]
    stray = ~RELEASES.c.fit_id.in_(select(FITS.c.fit_id))
    if file.first(select(RELEASES.c.fit_id).where(stray)):
        return ["releases without a fit, which no seal covers"]
    return _disorder(file)


def _disorder(file: LedgerFile) -> list[str]:
    """Return the first release that was not begun and committed in its turn.

    A release may be begun again before it is committed.
    """
    counts = select(RELEASES.c.fit_id, func.count()).group_by(RELEASES.c.fit_id)
    reserved = dict(map(tuple, file.query(counts)))
    done = Counter[str]()
    begun = set()
    # The order of a release: started, redrawn after each crash, committed. The next one
    # begins after the commit only.
    log = select(PROGRESS.c.fit_id, PROGRESS.c.sequence, PROGRESS.c.state)
    for fit_id, sequence, state in file.query(log.order_by(PROGRESS.c.id)):
        release = (fit_id, sequence)
        known = state in STATES and sequence < reserved.get(fit_id, 0)
        if (
            not known
            or sequence != done[fit_id]
            or (state == "started") == (release in begun)
        ):
            return [f"a release that was {state!r} out of turn"]
        begun.add(release)
        done[fit_id] += state == "committed"
    return []


def _chained(before: str, fits: int, meta: str, charges: list[tuple[Any, Any]]) -> str:
    # `repr`: a damaged column may hold bytes, which JSON does not take.
    charged = json.dumps(
        [[fit for fit, _ in charges], [releases for _, releases in charges]],
        default=repr,
    )
    text = json.dumps([before, fits, meta, charged])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
