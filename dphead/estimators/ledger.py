"""Share what all estimators do with the ledger that counts their fits."""

import os
from copy import copy
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from dphead.fit.ledgers import charged_elsewhere, open_ledger
from dphead.fit.report import uncounted
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.store import IN_MEMORY


def ledger_of(given: str | Path | Ledger | None, dataset_id: str | None) -> Ledger:
    """Return the ledger given, or the data set's.

    Raises LedgerError if it belongs to another data set.
    """
    if not isinstance(given, Ledger):
        return open_ledger(given, dataset_id)
    if dataset_id is None:
        return given
    theirs = given.set_once("dataset_id", dataset_id)
    if theirs != dataset_id:
        raise LedgerError(
            f"the ledger must be this data set's, got dataset_id={theirs}. The "
            f"file says {dataset_id}."
        )
    return given


def in_other_ledgers(ledger: Ledger, dataset_id: str | None) -> str:
    """Return a warning of other ledgers with fits on the same images, or ""."""
    found = charged_elsewhere(dataset_id, ledger.path)
    return " ".join(uncounted(one.fact()) for one in found)


class LedgerMixin:
    """Serve an estimator with a `ledger` parameter that sets `_ledger` in `fit`.

    It stands before `BaseEstimator` among the bases. A `Ledger` holds an open file, so
    `clone` does not copy it and pickling leaves it out.
    """

    ledger: str | Path | Ledger | None
    _ledger: str | Ledger

    @property
    def ledger_(self) -> Ledger:
        """Return the ledger that counted this fit.

        A pickled estimator opens the file again; a ledger in memory is gone. Raises
        LedgerError if the file is gone: an empty one would count nothing.
        """
        if "_ledger" not in vars(self):
            raise AttributeError(
                "ledger_ is there after a fit, and in a copy only if the ledger is a "
                "file."
            )
        if isinstance(self._ledger, str):
            if not os.path.isfile(self._ledger):
                raise LedgerError(
                    "the ledger that counted a fit must be where it was, got no "
                    f"path={self._ledger!r}. Put it back there."
                )
            self._ledger = Ledger(self._ledger)
        return self._ledger

    def __sklearn_clone__(self) -> Any:
        """Return a clone that shares the ledger, so that it cannot start from zero."""
        bare: Any = copy(self)
        bare.ledger = None
        twin: Any = BaseEstimator.__sklearn_clone__(bare)
        twin.ledger = self.ledger
        return twin

    def __getstate__(self) -> Any:
        state: dict[str, Any] = {**super().__getstate__()}  # type: ignore[dict-item]
        ledger = state.pop("_ledger", None)
        path = getattr(ledger, "path", ledger)
        given = getattr(state["ledger"], "path", IN_MEMORY)
        if given != IN_MEMORY:  # an open file: its path replaces it
            state["ledger"] = given
        return state if path in (None, IN_MEMORY) else {**state, "_ledger": path}
