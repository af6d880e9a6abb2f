"""Chain digests over what a ledger fixed and charged, and detect damage with them.

This finds accidents to a file. It does not find a forger, who can compute the chain
anew.
"""

import hashlib
import json
from collections import Counter

from dphead.privacy.ledger.schema import FIT, STATES, LedgerError
from dphead.privacy.ledger.store import LedgerFile


def seal(file: LedgerFile) -> None:
    """Add a digest of all that was fixed and charged since the last seal.

    The digest also covers the last seal.
    """
    last = file.first("SELECT fits, digest FROM seals ORDER BY id DESC")
    before, digest = last or (0, "")
    count = file.first("SELECT COUNT(*) FROM fits")[0]
    # All facts, but only the fits since the last seal: the chain covers the others.
    meta = json.dumps(file.facts(), sort_keys=True)
    digest = _chained(digest, count, meta, _charged(file, before, count))
    file.execute(
        "INSERT INTO seals (fits, meta, digest) VALUES (?, ?, ?)",
        (count, meta, digest),
    )


def _charged(file: LedgerFile, first: int, stop: int) -> str:
    """Return fits first to stop - 1 with their releases, in the order of charges."""
    fits = file.query(
        f"SELECT {', '.join(FIT)} FROM fits ORDER BY rowid LIMIT ? OFFSET ?",
        stop - first,
        first,
    )
    releases = [
        file.query(
            "SELECT sequence, label, noise_multiplier, sampling_prob, spec "
            "FROM releases WHERE fit_id = ? ORDER BY sequence",
            fit[0],
        )
        for fit in fits
    ]
    # `repr`: a damaged column may hold bytes, which JSON does not take.
    return json.dumps([fits, releases], default=repr)


def check_undamaged(file: LedgerFile) -> None:
    """Raise LedgerError for a ledger that is seen to be damaged (`damage_of`)."""
    for problem in damage_of(file):
        raise LedgerError(
            f"a ledger must be undamaged to be used, got {problem} in "
            f"path={file.path}. Put back a copy that holds all its fits."
        )


def damage_of(file: LedgerFile) -> list[str]:
    """Return what is damaged, in words; [] if nothing is.

    It checks three things:

    - The file is as SQLite wrote it. An index without its table's rows would hide a
      budget.
    - Charges and fixed facts match the chain of digests.
    - Releases were begun and committed in their order.

    This finds damage. It finds no forger, who can compute the chain anew. Nor does it
    find a file that lacks its last fits with their seals, or a fit's last commit.
    """
    with file.snapshot():
        try:
            return _damage(file)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, LedgerError):
                raise
            return [f"text that cannot be read ({error!r})"]


def _damage(file: LedgerFile) -> list[str]:
    # SQLite compares each index with its table.
    (found,) = file.first("PRAGMA integrity_check(1)")
    if found != "ok":
        return [f"a file that is not as SQLite wrote it ({found})"]
    meta = file.facts()
    done, digest = 0, ""
    for fits, fixed, kept in file.query(
        "SELECT fits, meta, digest FROM seals ORDER BY id"
    ):
        digest = _chained(digest, fits, fixed, _charged(file, done, fits))
        if digest != kept:
            return [f"a change in fits {done + 1} to {fits}, or in their seal"]
        # Facts may be added after a seal. A sealed fact never changes.
        if any(meta.get(k) != v for k, v in json.loads(fixed).items()):
            return [f"a change in what was fixed before fit {fits + 1}"]
        done = fits
    if done != file.first("SELECT COUNT(*) FROM fits")[0]:
        return [f"fits after {done} that no seal covers"]
    return _disorder(file)


def _disorder(file: LedgerFile) -> list[str]:
    """Return the first release that was not begun and committed in its turn.

    A release may be begun again before it is committed.
    """
    counts = file.query("SELECT fit_id, COUNT(*) FROM releases GROUP BY fit_id")
    reserved = dict(counts)
    done = Counter[str]()
    begun = set()
    # The order of a release: started, redrawn after each crash, committed. The next one
    # begins after the commit only.
    for fit_id, sequence, state in file.query(
        "SELECT fit_id, sequence, state FROM progress ORDER BY id"
    ):
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


def _chained(before: str, fits: int, meta: str, charged: str) -> str:
    text = json.dumps([before, fits, meta, charged])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
