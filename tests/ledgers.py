"""Helpers of the ledger's tests: a small release, and ledgers that hold fits."""

import json
import sqlite3
from contextlib import contextmanager

from core import KnownNoise, M, reserve, spec_of, toy, verified
from dphead_extract.index import ImageIndex

from dphead.data.arrays import ArrayRows
from dphead.fit.team_images import TeamImages
from dphead.privacy.ledger import Ledger, seals
from dphead.privacy.ledger.schema import FITS, PROGRESS, RELEASES
from dphead.privacy.ledger.store import MERGED, MOVED, LedgerFile
from dphead.privacy.release import release
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import ClassSums

STATISTIC = ClassSums(M)
X, Y = toy(40)
DELTA = 1e-5


def specs(count=1, sigma=1.0, **more):
    return [spec_of(STATISTIC, 40, sigma=sigma, **more)] * count


def stored(folder, *given, **more):
    """A fit of such releases, with its ledger and its values in a folder."""
    return reserve(specs(*given, **more), Ledger(folder / "l.sqlite"), folder / "run")


def resumed(fit, folder):
    """The same fit, continued with the values in a folder."""
    return fit.ledger.resume("hash", fit.fit_id, folder)


def run_release(fit, seed=None, spec=None, rows=None):
    spec = spec or specs()[0]
    return release(
        STATISTIC,
        Params(),
        rows or ArrayRows(X, Y),
        spec,
        ledger=fit,
        noise=KnownNoise(seed),
        summer=verified(),
    ).value


def damaged(path, statement, *values):
    """A ledger after a change that its triggers would refuse."""
    with sqlite3.connect(path) as db:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement, values)
    return Ledger(path)


def weakened(row, times):
    """A row of a fit or of a release, with more noise than it had."""
    if "spec" not in row:
        return row
    spec = json.loads(row["spec"])
    spec["noise_multiplier"] *= times
    return row | {
        "noise_multiplier": spec["noise_multiplier"],
        "spec": json.dumps(spec, sort_keys=True),
    }


def add_fits(source, target, times=1, **facts):
    """Write the fits of a ledger, and its fixed values, to another one, with seals.

    A role that may charge can write these rows (docs/team-ledger.md).
    """
    with target.transaction():
        kept = {k: v for k, v in source.facts().items() if k != "dataset_id"}
        for key, value in (kept | facts).items():
            target.set_once(key, value)
        seals.seal(target)
    with target.transaction():
        for table in (FITS, RELEASES, PROGRESS):
            target.add(table, *(weakened(row, times) for row in source.rows(table)))
        seals.seal(target)


def close_by_hand(source, target, name):
    """Write that a ledger was merged into the ledger of the data set `name`."""
    with source.transaction():
        source.set_once(MOVED, target.path)
        source.set_once(MERGED, name)
        seals.seal(source)


def filled(path):
    """Three fits within a budget."""
    ledger = Ledger(path, "data")
    ledger.set_budget(3.0, DELTA)
    for sigma in (20.0, 30.0, 40.0):
        reserve(specs(2, sigma), ledger)
    assert ledger.verify() == []
    ledger.close()


class Killed(BaseException):
    """Raised where a process dies."""


def died_everywhere(monkeypatch, function):
    """Repeat a function that dies after its first durable change, and yield each time.

    So each state that a death can leave is seen, and the next call goes on from it.
    """
    begun = LedgerFile._begun

    @contextmanager
    def transaction(self, kind):
        def state():
            return (self.facts(), self.count_fits()) if kind == "write" else None

        with begun(self, kind):
            before = state()
            yield
        if state() != before:
            raise Killed

    def entry(keep):
        def kept(self, name, data):
            keep(self, name, data)
            raise Killed

        return kept

    for _ in range(50):
        with monkeypatch.context() as patch:
            patch.setattr(LedgerFile, "_begun", transaction)
            for index in (ImageIndex, TeamImages):
                patch.setattr(index, "_keep", entry(index._keep))
            try:
                function()
                return
            except Killed:
                pass
        yield
