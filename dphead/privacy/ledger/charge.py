"""Hand out the reserved releases of one fit: in order, each committed at most once.

Committed values are kept for a resume. A release that was returned is never drawn
again, unless ledger and run folder are both restored from older copies (`begin`). In a
fit with noise, this module gets neither keys nor sums without noise. An allocation of
rows stays in memory.
"""

import hashlib
import time
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from dphead.privacy.atomic_write import (
    lock_file,
    own_folder,
    write_atomically,
    write_text,
)
from dphead.privacy.ledger.schema import (
    PROGRESS,
    RELEASES,
    STATES,
    LedgerError,
    canonical,
    whole_hour,
)
from dphead.privacy.ledger.store import LedgerFile
from dphead.privacy.sampling import Allocation

# File with the number of returned releases and their fit's id. A ledger that has fewer
# of them was restored from an older copy.
RETURNED = "returned"
_Book = TypeVar("_Book", bound=LedgerFile, covariant=True)


class Charge(Generic[_Book]):
    """Hold the reserved releases of one fit, in order.

    Parameters
    ----------
    ledger : Ledger
        The ledger. Only its methods `reserve` and `resume` make a `Charge`.
    fit_id : str
        The fit.
    store : Path or None
        Folder where committed values are kept for a resume. A lock on it is held while
        this object exists, at most until `leave`.

    Attributes
    ----------
    allocation : Allocation
        Which step of an epoch uses which rows. It is in memory only: a resumed fit
        starts with an empty one.

    Raises
    ------
    LedgerError
        If another process holds `store`, if `store` is not a folder or cannot be
        created, or if its file system has no locks.
    """

    def __init__(self, ledger: _Book, fit_id: str, store: Path | None) -> None:
        self.ledger, self.fit_id, self.store, self._next = ledger, fit_id, store, 0
        self.allocation, self._returned = Allocation(), 0
        if store is not None:
            # Noisy values of an unfinished fit are for the data holder alone.
            try:
                own_folder(store)
                lock = lock_file(store / "lock")
            except OSError as error:
                raise LedgerError(str(error)) from error
            if lock is None:
                raise LedgerError(
                    f"Another process runs the fit in {store}. Wait until that process "
                    "ends, or use another folder."
                )
            self._lock = lock  # held while this object exists
            self._returned = self._noted_returned(store / RETURNED)

    def _noted_returned(self, file: Path) -> int:
        """Return how many releases a file notes as returned for this fit."""
        number, *fit = file.read_text().split() if file.exists() else ["0"]
        # the file may be of another fit; a file of an earlier version has no fit id
        return int(number) if fit in ([], [self.fit_id]) else 0

    def leave(self) -> None:
        """Unlock `store`, and remove it if empty. Call it before a value is stored."""
        if self.store is not None:
            (self.store / "lock").unlink()
            self._lock.close()
            with suppress(OSError):  # another program's files are there
                self.store.rmdir()

    def begin(self, spec: dict[str, Any]) -> tuple[int, np.ndarray | None]:
        """Begin the next release, and return its number and any committed value.

        Parameters
        ----------
        spec : dict
            `ReleaseSpec.row()` of the release.

        Returns
        -------
        sequence : int
            Number of the release in its fit.
        value : ndarray or None
            The value that an earlier run committed, if any.

        Raises
        ------
        LedgerError
            If the release is not the next reserved one, or an earlier one is not
            committed. If the ledger takes no charges, cannot be written, has an unknown
            state for the release, or lacks the commit of a value that was returned. If
            a committed value is missing or was changed.
        OSError
            If a file in `store` cannot be written or deleted.

        Guarantee
        ---------
        LedgerError is raised before the release reads a row. A release that was begun
        and not committed before a crash was never observed: it is drawn again, and
        logged as "redrawn". A release that was returned is never redrawn, unless ledger
        and `store` were both restored from copies that lack it.
        """
        # Releases come in the order of the plan, one after another.
        sequence = self._next
        # Compare texts, so that every field of the spec must agree.
        if self._specs[sequence : sequence + 1] != [canonical(spec)]:
            raise LedgerError(
                f"Internal error: release {sequence} with label {spec['label']!r} is "
                "not the next one in the charged plan. This release read no row. "
                "Please report it."
            )
        # The transaction keeps others from a commit between the query and the removal.
        with self.ledger.transaction():
            states = self._states(sequence)
            # A damaged state may stand for "committed". A new draw would then give a
            # second value for one charge.
            if set(states) - set(STATES):
                raise LedgerError(
                    f"The ledger is damaged: release {sequence} of fit {self.fit_id} "
                    f"has the states {', '.join(sorted(states))}. It was not drawn "
                    "again. Restore a copy that holds all its fits and releases."
                )
            before = self._committed(sequence)
            if before != sequence:
                raise LedgerError(
                    f"Release {sequence} (counted from 0) cannot begin, because "
                    f"release {before} failed. Run the same command again to resume "
                    "the fit."
                )
            # Log before a row is read. If a crash left files, delete them: the release
            # is drawn again.
            if "committed" not in states:
                self._check_not_returned(sequence)
                self._log(sequence, "redrawn" if states else "started")
                self._remove(sequence)
        # Count in memory too, so that a failed release does not begin a second time.
        self._next += 1
        if "committed" in states:
            value = self._load(sequence, states["committed"])
            self._note_returned(sequence)  # the process may have died before this
            return sequence, value
        return sequence, None

    def step_of(self, sequence: int, epoch_steps: int) -> int:
        """Return the step of a release in its epoch, from 0.

        An epoch begins at the first of equal releases in a row, or where the previous
        one ends.
        """
        # Consecutive equal releases may be several epochs.
        before = reversed(self._specs[:sequence])
        equal = takewhile(self._specs[sequence].__eq__, before)
        return len([*equal]) % epoch_steps

    @cached_property
    def _specs(self) -> list[str]:
        """Return the reserved specs as texts. They never change, so read them once."""
        # a fit of many steps asks for its plan at every release
        spec = select(RELEASES.c.spec).where(RELEASES.c.fit_id == self.fit_id)
        rows = self.ledger.query(spec.order_by(RELEASES.c.sequence))
        return [text for (text,) in rows]

    def commit(self, sequence: int, value: np.ndarray) -> None:
        """Log the digest of a release's value, and store the value, in one transaction.

        Only then may the value be observed. Without `store`, only the digest is kept.

        Parameters
        ----------
        sequence : int
            Number of the release in its fit.
        value : ndarray
            The value, with its noise if the fit has noise.

        Raises
        ------
        LedgerError
            If the release is committed already, or if the ledger takes no charges or
            cannot be written.
        OSError
            If the value cannot be stored. If it is committed, but the note that it will
            be returned cannot be written.

        Guarantee
        ---------
        If another process has committed this release, LedgerError is raised before a
        byte of the value is written. The value is neither observed nor kept, and the
        other process's file, which may have the same name, is not touched. The log
        shows "committed" only once the value is on the disk, if values are stored.
        """
        # A fit without noise has no store, but its log has the digests of exact values.
        digest = _digest(value)
        try:
            with self.ledger.transaction(
                kept=lambda: self._states(sequence).get("committed") == digest
            ):
                # Write the log first: its unique index refuses a second value before
                # the file is written. The transaction ends, and shows the commit, only
                # after the file is on disk.
                self._log(sequence, "committed", digest)
                if self.store is not None:
                    write_atomically(
                        self._file(sequence),
                        lambda file: np.save(file, value, allow_pickle=False),
                    )
        except IntegrityError as error:
            raise LedgerError(
                f"Another process has committed release {sequence} of fit "
                f"{self.fit_id}. The value of this process is discarded. Let one "
                "process run the fit."
            ) from error

        # From here on, a ledger without this commit is an older copy.
        self._note_returned(sequence)

    def _note_returned(self, sequence: int) -> None:
        """Note durably, in `store` if there is one, that a release will be returned."""
        if sequence < self._returned:
            return
        self._returned = sequence + 1
        if self.store is not None:
            write_text(self.store / RETURNED, f"{self._returned} {self.fit_id}")

    def _check_not_returned(self, sequence: int) -> None:
        """Raise LedgerError if a file in `store` shows that a release was returned.

        Only a ledger that was restored from an older copy, or a server whose standby
        took over, can lack its commit.
        """
        if sequence < self._returned:
            raise LedgerError(
                f"The ledger {self.ledger.path} lacks release {sequence} of fit "
                f"{self.fit_id}, which was already returned. The ledger was restored "
                "from an older state. Restore a copy that holds all its fits and "
                "releases, or use a new run folder. The new fit is charged too."
            )

    def forget(self, count: int) -> None:
        """Delete the stored values of the first `count` releases, and skip them.

        The caller must copy the values that it needs.

        Guarantee
        ---------
        Raises LedgerError unless all of them are committed. So no release is lost or
        made twice.
        """
        # A checkpoint may only skip what was released and charged.
        done = self._committed(count)
        if done != count:
            self._check_not_returned(done)
            raise LedgerError(
                f"Internal error: {done} of the first {count} releases are committed, "
                "so they cannot be forgotten. Please report it."
            )
        # A checkpoint holds what was computed from these values.
        for file in self.store.glob("*.npy") if self.store is not None else ():
            if int(file.stem) < count:
                file.unlink()
        # Never count backwards: that would return a release a second time.
        self._next = max(self._next, count)

    def _committed(self, stop: int) -> int:
        """Return how many of the fit's releases before `stop` are committed."""
        committed = select(func.count()).where(
            PROGRESS.c.fit_id == self.fit_id,
            PROGRESS.c.sequence < stop,
            PROGRESS.c.state == "committed",
        )
        return self.ledger.first(committed)[0]

    def _states(self, sequence: int) -> dict[str, Any]:
        """Return the states that a release has had, each with its value's digest."""
        # Read all states, because a damaged log may have several.
        states = select(PROGRESS.c.state, PROGRESS.c.digest).where(
            PROGRESS.c.fit_id == self.fit_id, PROGRESS.c.sequence == sequence
        )
        return dict(map(tuple, self.ledger.query(states)))

    def _load(self, sequence: int, digest: str) -> np.ndarray:
        """Return the committed value, or raise LedgerError.

        A stored value with a different digest is deleted before the error. Either it is
        damaged, or a run in a copied folder stored it and died before its commit.
        """
        value = None
        if self.store is not None and self._file(sequence).exists():
            # a file that numpy cannot read is handled as a missing value
            with suppress(Exception):
                value = np.load(self._file(sequence), allow_pickle=False)
        # Nobody may see a different value: it would be a second answer to one charge.
        if value is None or _digest(value) != digest:
            self._remove(sequence)
            raise LedgerError(
                f"The stored value of release {sequence} of fit {self.fit_id} is "
                "missing or was changed. A released value is never drawn again. Use a "
                "new run folder. The new fit is charged too."
            )
        return value

    def _file(self, sequence: int) -> Path:
        assert self.store is not None
        return self.store / f"{sequence:06d}.npy"

    def _remove(self, sequence: int) -> None:
        """Delete the files of a release in `store`, including partial files."""
        if self.store is not None:
            self._file(sequence).with_suffix(".npy.part").unlink(missing_ok=True)
            self._file(sequence).unlink(missing_ok=True)

    def _log(self, sequence: int, state: str, digest: str | None = None) -> None:
        log = {
            "fit_id": self.fit_id,
            "sequence": sequence,
            "state": state,
            "at": whole_hour(time.time()),
            "digest": digest,
        }
        self.ledger.add(PROGRESS, log)


def _digest(value: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).hexdigest()
