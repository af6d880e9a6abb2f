"""A team's ledger on PostgreSQL: charged once whatever breaks, within its budget.

Every fault is a real one: a server that is stopped, a connection that is cut, a client
that is killed.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
import uuid
from pathlib import Path

import numpy as np
import psycopg
import pytest
import sqlalchemy
from core import reserve
from ledgers import DELTA, X, Y, run_release, specs

from benchmarks.faults.servers import CLIENT, OWNER, Cutter, free_port
from dphead.data.arrays import ArrayRows
from dphead.fit.ledgers import charging, open_ledger
from dphead.planning.calibration import mu_from_epsilon
from dphead.privacy.accounting import epsilon_from_mu
from dphead.privacy.ledger import Ledger, LedgerError, new_fit_id
from dphead.privacy.ledger import server as module
from dphead.privacy.ledger.schema import FITS, HeldLedger, LostAnswer

FORKS = multiprocessing.get_context("fork")


@pytest.fixture
def dataset_id():
    return uuid.uuid4().hex


@pytest.fixture
def ledger(team, dataset_id):
    ledger = Ledger(team.url(CLIENT), dataset_id)
    yield ledger
    ledger.close()


def charge(ledger, fit_id=None, sigma=10.0, store=None):
    return ledger.reserve(
        [s.row() for s in specs(1, sigma)],
        epsilon=1.0,
        delta=DELTA,
        description="test",
        plan_hash="hash",
        fit_id=fit_id,
        store=store,
    )


def each_in_a_process(function, *arguments):
    """Exit codes of a process for each of the arguments, all at once."""
    started = [FORKS.Process(target=_ended, args=(function, a)) for a in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    return [process.exitcode for process in started]


def _ended(function, argument):
    try:
        function(argument)
        os._exit(0)
    except LedgerError:
        os._exit(2)
    except BaseException:
        os._exit(1)


def test_a_server_says_of_a_fit_what_a_file_says(team, dataset_id, tmp_path):
    """Charges, states, facts, seals, what was spent, and what is refused."""
    told = []
    for where in (tmp_path / "l.sqlite", team.url(CLIENT)):
        ledger = Ledger(where, dataset_id)
        ledger.set_budget(3.0, DELTA)
        first = charge(ledger, "first", store=tmp_path / f"run{len(told)}")
        value = run_release(first, seed=1, spec=specs(1, 10.0)[0])
        with pytest.raises(LedgerError, match="would exceed the budget"):
            charge(ledger, sigma=0.1)
        with pytest.raises(LedgerError, match="already charged"):
            charge(ledger, "first")
        with pytest.raises(LedgerError, match="budget cannot change"):
            ledger.set_budget(4.0, DELTA)
        charge(ledger, "second", sigma=1e300)  # which leaves nothing of the last bit
        first._lock.close()
        again = ledger.resume("hash", "first", tmp_path / f"run{len(told)}")
        assert np.array_equal(run_release(again, spec=specs(1, 10.0)[0]), value)
        assert ledger.verify() == []
        seals = (
            ledger.query("SELECT id, fits, digest FROM dphead.seals ORDER BY id")
            if told
            else ledger.query("SELECT id, fits, digest FROM seals ORDER BY id")
        )
        plans = [
            ([spec.row() for spec in specs(1, sigma)], DELTA) for sigma in (1e3, 1)
        ]
        with pytest.raises(LedgerError, match="as its first fit does"):
            reserve(specs(1, 1e3, group_cap=2), ledger)
        told.append((ledger.fits(), ledger.facts(), ledger.spent(0.5), seals))
        told[-1] += (ledger.try_fits(plans),)
        ledger.close()
    assert told[0] == told[1]


def test_a_server_counts_fits_of_several_caps_as_a_file_does(
    team, dataset_id, tmp_path
):
    """The budget: mu = 1, that is mu squared of 0.36 and of 0.64."""
    told = []
    for where in (tmp_path / "l.sqlite", team.url(CLIENT)):
        ledger = Ledger(where, dataset_id)
        ledger.set_budget(epsilon_from_mu(1.0, DELTA), DELTA)
        reserve(specs(1, 5.0, group_cap=3), ledger)
        for cap, sigma in ((4, 4.99), (None, 1e9)):
            with pytest.raises(LedgerError, match=r"exceed the budget|its first fit"):
                reserve(specs(1, sigma, group_cap=cap), ledger)
        reserve(specs(1, 5.0, group_cap=4), ledger)
        assert ledger.verify() == [] and len(ledger.fits()) == 2
        told.append((ledger.facts(), ledger.spent(DELTA)))
        ledger.close()
    assert told[0] == told[1]


def test_processes_at_once_keep_to_a_budget(team, dataset_id):
    """Sixteen, on a budget for five, of whichever comes first."""
    five = 5**0.5 / mu_from_epsilon(1.0, DELTA)
    book = Ledger(team.url(CLIENT), dataset_id)
    book.set_budget(1.0, DELTA)

    def one(_):
        charge(Ledger(team.url(CLIENT), dataset_id), sigma=five)

    codes = each_in_a_process(one, *range(16))
    assert sorted(codes) == [0] * 5 + [2] * 11
    assert len(book.fits()) == 5 and book.verify() == []
    assert book.spent(DELTA).epsilon <= 1.0 + 1e-9


def test_a_charge_sees_all_before_it_whatever_snapshot_a_role_prefers(team, dataset_id):
    """In a snapshot that is older than the lock, a budget would be spent twice."""
    team.run(
        f"ALTER ROLE {CLIENT} SET default_transaction_isolation = 'repeatable read'"
    )
    try:
        book = Ledger(team.url(CLIENT), dataset_id)
        book.set_budget(1.0, DELTA)
        half = 2**0.5 / mu_from_epsilon(1.0, DELTA)

        def one(_):
            charge(Ledger(team.url(CLIENT), dataset_id), sigma=half)

        charge(book, sigma=half)
        with psycopg.connect(team.url()) as holder:
            lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
            holder.execute(lock, [f"dphead:{dataset_id}"])
            waiting = [FORKS.Process(target=_ended, args=(one, k)) for k in range(2)]
            for process in waiting:
                process.start()
            while waiters(team) < 2:  # each has begun its transaction
                assert all(process.is_alive() for process in waiting)
                time.sleep(0.05)
        for process in waiting:
            process.join(60)
        assert sorted(process.exitcode for process in waiting) == [0, 2]
    finally:
        team.run(f"ALTER ROLE {CLIENT} RESET default_transaction_isolation")


def waiters(team):
    """Number of transactions that wait for a lock of a ledger."""
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return team.run(waits)[0][0]


def test_two_charges_without_a_lock_cannot_both_follow_one_seal(
    team, dataset_id, monkeypatch
):
    """As behind a pooler that ends a transaction after each statement."""
    monkeypatch.setattr(module, "LOCK_STATEMENTS", "SELECT :lock")
    first, second = (Ledger(team.url(CLIENT), dataset_id) for _ in range(2))
    charge(first)
    with pytest.raises(LedgerError, match="at the same moment"):
        with second.transaction():
            second.count_fits()
        meanwhile(second, lambda: charge(first))
        charge(second)
    assert first.verify() == [] and len(first.fits()) == 2


def meanwhile(ledger, what):
    """Do something once, just before the ledger adds its next seal."""
    add = ledger.add

    def late(table, *rows):
        if table.name == "seals":
            ledger.add = add
            what()
        add(table, *rows)

    ledger.add = late


def test_two_clients_with_one_fit_id_charge_once(team, dataset_id, ledger):
    fit_id = new_fit_id()
    codes = each_in_a_process(
        lambda _: charge(Ledger(team.url(CLIENT), dataset_id), fit_id), *range(4)
    )
    assert sorted(codes) == [0, 2, 2, 2]
    assert [fit["fit_id"] for fit in ledger.fits()] == [fit_id]


@pytest.mark.parametrize("after", [False, True])
def test_a_client_that_is_killed_around_its_commit_has_charged_or_not(
    team, dataset_id, ledger, after
):
    """Never in part; the same id then tells, and is charged once."""

    def killed(_):
        from sqlalchemy.engine.base import RootTransaction

        commit = RootTransaction.commit

        def dying(self):
            if after:
                commit(self)
            os.kill(os.getpid(), signal.SIGKILL)

        mine = Ledger(team.url(CLIENT), dataset_id)
        RootTransaction.commit = dying
        mine.reserve(
            [s.row() for s in specs(3)],
            epsilon=1.0,
            delta=DELTA,
            description="test",
            plan_hash="hash",
            fit_id="mine",
        )

    assert each_in_a_process(killed, 0) == [-signal.SIGKILL]
    assert ledger.holds("mine") == after
    assert ledger.verify() == []
    if after:
        with pytest.raises(LedgerError, match="already charged"):
            charge(ledger, "mine")
    else:
        charge(ledger, "mine")
    assert ledger.count_fits() == 1


@pytest.fixture(params=[False, True], ids=["COMMIT is lost", "its answer is lost"])
def cutter(request, team):
    cutter = Cutter(team.port, answered=request.param)
    yield cutter
    cutter.close()


def test_a_charge_whose_answer_is_lost_is_settled_by_its_id(
    team, dataset_id, ledger, cutter
):
    mine = Ledger(team.url(CLIENT, cutter.port), dataset_id)
    cutter.armed = True
    if cutter._answered:
        fit = charge(mine, "mine")  # which is what it would have been told
        run_release(fit, spec=specs(1, 10.0)[0])
    else:
        with pytest.raises(
            LedgerError, match=r"(?s)connection .* lost.*Nothing was charg"
        ):
            charge(mine, "mine")
        charge(mine, "mine")
    assert [fit["fit_id"] for fit in ledger.fits()] == ["mine"]
    assert ledger.verify() == []


@pytest.mark.parametrize("code", ["40001", "40003"])
def test_a_commit_of_unknown_result_is_settled_by_the_fits_id(
    ledger, monkeypatch, code
):
    """A server that reports 40003 can have committed. After 40001 it has not."""
    driver, armed = psycopg.Connection, [True]
    commit, rollback = driver.commit, driver.rollback

    def failing(connection):
        if not armed:
            return commit(connection)
        armed.clear()
        (commit if code == "40003" else rollback)(connection)
        raise psycopg.errors.lookup(code)("COMMIT")

    monkeypatch.setattr(driver, "commit", failing)
    said = ""
    try:
        charge(ledger, "mine")
    except LedgerError as error:
        said = str(error)
    assert not armed
    assert ("(SQLSTATE 40001)" in said, not said) == (code == "40001", code == "40003")
    assert ledger.holds("mine") == (code == "40003")
    assert ledger.verify() == []
    armed.append(True)
    with pytest.raises(LedgerError) as failed:
        ledger.set_once("fact", "value")  # without a way to look for it
    lost = isinstance(failed.value, LostAnswer)
    assert (lost, "server did not confirm COMMIT" in str(failed.value)) == (
        (True, True) if code == "40003" else (False, False)
    )


def test_a_charge_that_cannot_be_settled_says_so(team, dataset_id, ledger, cutter):
    """Not "nothing was charged": the id is asked for by the next run."""
    mine = Ledger(team.url(CLIENT, cutter.port), dataset_id)
    cutter.armed = True
    cutter.close()  # no connection after the one that is cut
    with pytest.raises(LedgerError) as error:
        charge(mine, "mine")
    assert isinstance(error.value, LostAnswer)
    assert "charged at most once" in str(error.value)
    assert ledger.holds("mine") == cutter._answered


def test_a_value_whose_commit_is_not_answered_is_returned_once_or_drawn_again(
    team, dataset_id, ledger, cutter, tmp_path
):
    mine = Ledger(team.url(CLIENT, cutter.port), dataset_id)
    fit = charge(mine, "mine", store=tmp_path / "run")

    class Late(ArrayRows):
        def blocks(self, indices=None, known=None):
            yield from super().blocks(indices, known)
            cutter.armed = True

    spec, rows = specs(1, 10.0)[0], Late(X, Y)
    if cutter._answered:
        value = run_release(fit, spec=spec, rows=rows)
    else:
        with pytest.raises(LedgerError, match="team ledger was lost"):
            run_release(fit, spec=spec, rows=rows)
    fit._lock.close()
    again = ledger.resume("hash", "mine", tmp_path / "run")
    found = run_release(again, spec=spec)
    assert not cutter._answered or np.array_equal(found, value)
    (release,) = ledger.fits()[0]["releases"]
    assert release["state"] == "committed" and ledger.verify() == []


def test_a_connection_that_the_server_ends_in_a_transaction_charges_nothing(
    team, dataset_id, ledger
):
    meanwhile(ledger, team.end_clients)
    with pytest.raises(LedgerError, match="Nothing was charged"):
        charge(ledger, "mine")
    assert ledger.fits() == []  # on a new connection
    charge(ledger, "mine")
    assert ledger.verify() == []


def test_a_server_that_is_away_is_one_error_and_no_row_is_read(
    team, dataset_id, ledger, tmp_path
):
    """And the ledger goes on when it is there again."""
    reads = []

    class Watched(ArrayRows):
        def blocks(self, indices=None, known=None):
            reads.append(indices)
            return super().blocks(indices, known)

    fit = charge(ledger, "mine", store=tmp_path / "run")
    team.stop(signal.SIGQUIT)
    try:
        uses = (
            lambda: charge(ledger),
            lambda: Ledger(team.url(CLIENT), dataset_id),
            lambda: run_release(fit, spec=specs(1, 10.0)[0], rows=Watched(X, Y)),
            ledger.verify,
        )
        for use in uses:
            with pytest.raises(LedgerError, match="does not answer") as error:
                use()
            assert names_in(error.value) == []
    finally:
        team.start()
    assert reads == []
    assert [one["fit_id"] for one in ledger.fits()] == ["mine"]
    fit._lock.close()
    run_release(ledger.resume("hash", "mine", tmp_path / "run"), spec=specs(1, 10.0)[0])
    assert ledger.verify() == []


def names_in(error):
    """What an error, and what it came from, says of the server and its users."""
    said = ""
    while error is not None:
        said += f"{error} {error.__notes__ if hasattr(error, '__notes__') else ''}"
        error = error.__cause__ or (
            None if error.__suppress_context__ else error.__context__
        )
    return [n for n in ("127.0.0.1", "secret", CLIENT, OWNER, "localhost") if n in said]


def test_no_error_names_the_server_or_its_users(team, dataset_id):
    wrong = team.url(CLIENT).replace("/postgres", "/nowhere")
    urls = (
        wrong,
        team.url("nobody"),
        team.url(CLIENT, free_port()),
        "postgresql://claire:secret@127.0.0.1:port/x",
        team.url(CLIENT) + "?sslmode=verify-full",
    )
    for url in urls:
        with pytest.raises(LedgerError) as error:
            Ledger(url, dataset_id)
        assert names_in(error.value) == []
    path = Ledger(team.url(CLIENT), dataset_id).path
    assert path.startswith("postgresql:") and path.endswith(dataset_id)
    assert CLIENT not in path and "127.0" not in path


def test_what_keeps_a_client_from_the_server_has_a_sentence_each(team, dataset_id):
    """A wrong password, a closed port, an unknown host, no SSL, and no database."""
    rules = team.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {CLIENT} 127.0.0.1/32 scram-sha-256\n{before}")
    team.reload()
    url = team.url(CLIENT)
    said = {
        "user and password": url.replace("secret", "wrong"),
        "does not answer at its host and port": team.url(CLIENT, free_port()),
        "host of the team ledger's server is unknown": url.replace(
            "127.0.0.1", "x.invalid"
        ),
        "do not agree on SSL": f"{url}?sslmode=require",
        "this machine or this database": url.replace("/postgres", "/ssl"),
    }
    try:
        for words, wrong in said.items():
            error = refused(wrong, dataset_id)
            assert isinstance(error, HeldLedger) and words in str(error)
        assert refused(url, dataset_id) is None
    finally:
        rules.write_text(before)
        team.reload()


def refused(url, dataset_id):
    """The error that opens a ledger, or None."""
    try:
        Ledger(url, dataset_id).close()
    except LedgerError as error:
        return error


def test_a_connection_that_is_lost_before_a_ledgers_mark_is_read_is_one_error(
    team, dataset_id, ledger, monkeypatch
):
    """A mark that cannot be read is not taken for none."""
    charge(ledger, "first")
    read = Ledger.check_open

    def lost(self, but):
        team.end_clients()
        read(self, but)

    monkeypatch.setattr(Ledger, "check_open", lost)
    with pytest.raises((HeldLedger, sqlalchemy.exc.SQLAlchemyError)) as error:
        charge(ledger, "second")
    assert isinstance(error.value, HeldLedger)
    assert "Nothing was charged" in str(error.value)
    monkeypatch.undo()
    assert [fit["fit_id"] for fit in ledger.fits()] == ["first"]


def test_a_lock_whose_connection_broke_is_left_without_an_error(team):
    """An error after a charge would be told as one of the charge."""
    with module.held(team.url(CLIENT)):
        team.end_clients()


def test_a_role_that_may_charge_can_change_and_delete_nothing(team, dataset_id, ledger):
    run_release(charge(ledger, sigma=10.0), spec=specs(1, 10.0)[0])
    tables = ("meta", "fits", "releases", "progress", "seals")
    for table in tables:
        for schema in ("dphead", "dphead_rows"):
            for statement in ("DELETE FROM {}", "TRUNCATE {}", "DROP TABLE {} CASCADE"):
                with pytest.raises(LedgerError):
                    ledger.query(sqlalchemy.text(statement.format(f"{schema}.{table}")))
        with pytest.raises(LedgerError, match="lacks a right"):
            ledger.query(f"SELECT * FROM dphead_rows.{table}")
    with pytest.raises(LedgerError, match="lacks a right"):
        ledger.query("UPDATE dphead.fits SET epsilon = '0.1'")
    with pytest.raises(LedgerError, match="lacks a right"):
        ledger.query("UPDATE dphead_rows.store SET id = ''")
    owner = Ledger(team.url(OWNER), dataset_id)  # accidents of whom owns them
    for table in tables:
        for statement in (
            "DELETE FROM {}",
            "TRUNCATE {}",
            "UPDATE {0} SET dataset_id = ''",
        ):
            with pytest.raises(LedgerError, match="P0001"):
                owner.query(statement.format(f"dphead_rows.{table}"))
    assert ledger.verify() == []


def test_a_reader_sees_one_state_while_others_charge(team, dataset_id, ledger):
    charge(ledger)
    with ledger.snapshot():
        before = ledger.fits()
        other = Ledger(team.url(CLIENT), dataset_id)
        charge(other)
        assert ledger.fits() == before and len(other.fits()) == 2
    assert len(ledger.fits()) == 2


def test_a_ledger_that_another_client_holds_is_called_that(
    team, dataset_id, ledger, monkeypatch
):
    monkeypatch.setattr(module, "WAIT", 0.05)
    other, elsewhere = (
        Ledger(team.url(CLIENT), name) for name in (dataset_id, f"{dataset_id}2")
    )
    with other.transaction():
        with pytest.raises(HeldLedger, match="Another process holds"):
            charge(ledger)
        charge(elsewhere)  # of another data set: it waits for nobody
    charge(ledger)


def test_data_sets_of_a_server_do_not_see_each_other(team, dataset_id, ledger):
    charge(ledger, "mine")
    other = Ledger(team.url(CLIENT), f"{dataset_id}2")
    assert other.fits() == [] and other.facts() == {"dataset_id": f"{dataset_id}2"}
    charge(other, "mine")  # an id of its own
    assert len(ledger.fits()) == len(other.fits()) == 1
    for book in (ledger, other):
        assert book.verify() == []


def test_a_data_set_has_no_ledger_under_another_name(
    team, dataset_id, ledger, monkeypatch
):
    """Other members look for the ledger of their images under its id alone."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    name = ledger.path.replace(dataset_id, "trial")
    with pytest.raises(LedgerError, match="is not that of the features' data set"):
        Ledger(name, dataset_id)
    other = Ledger(name, None)
    with pytest.raises(LedgerError, match="is not that of the features' data set"):
        other.set_once("dataset_id", dataset_id)  # as a fit of an estimator does
    assert other.facts() == {}
    assert Ledger(ledger.path, dataset_id).path == ledger.path


def test_fits_are_in_the_order_of_their_charges_whatever_a_clients_clock_says(
    ledger, monkeypatch
):
    now = time.time()
    for fit_id, hours in (("first", 0), ("second", -48), ("third", 48)):
        monkeypatch.setattr("time.time", lambda h=hours: now + 3600 * h)
        charge(ledger, fit_id)
    assert [fit["fit_id"] for fit in ledger.fits()] == ["first", "second", "third"]
    assert ledger.verify() == []


def test_a_change_by_the_owner_is_found_as_in_a_file(team, dataset_id, ledger):
    """An accident with triggers off; a restored backup is one that nobody can see."""
    charge(ledger)
    team.run(
        "SET session_replication_role = replica; UPDATE dphead_rows.releases "
        f"SET noise_multiplier = 1e6 WHERE dataset_id = '{dataset_id}'"
    )
    assert ledger.verify() != []
    with pytest.raises(LedgerError, match="is damaged: "):
        charge(ledger)


def test_a_fork_cannot_use_a_connection_of_its_parent(ledger):
    assert each_in_a_process(lambda _: charge(ledger), 0) == [2]
    assert each_in_a_process(lambda _: ledger.count_fits(), 0) == [2]
    charge(ledger)
    assert ledger.count_fits() == 1


def test_a_fork_that_closes_its_copy_ends_no_charge_of_its_parent(ledger):
    def closed(_):
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):  # its copy leads nowhere
            ledger._connection.close()

    def in_a_fork():
        assert each_in_a_process(closed, 0) == [0]

    in_a_fork()
    meanwhile(ledger, in_a_fork)
    charge(ledger)
    assert ledger.count_fits() == 1 and ledger.verify() == []


def test_a_server_without_tables_or_flushes_is_refused(team, dataset_id):
    team.run("CREATE DATABASE empty")
    empty = team.url(OWNER).replace("/postgres", "/empty")
    with pytest.raises(LedgerError, match="dphead ledger init"):
        Ledger(empty, dataset_id)
    team.run("ALTER SYSTEM SET fsync = off")
    team.reload()
    try:
        with pytest.raises(LedgerError, match="fsync = off"):
            Ledger(team.url(CLIENT), dataset_id)
    finally:
        team.run("ALTER SYSTEM RESET fsync")
        team.reload()
    with pytest.raises(LedgerError, match="has a ledger for each data set"):
        Ledger(team.url(CLIENT))


def test_tables_are_made_once(team):
    assert module.init(team.url()) == module.init(team.url())
    with pytest.raises(LedgerError, match="lacks a right"):
        module.init(team.url(CLIENT).replace("/postgres", "/template1"))


def test_a_row_that_arrives_twice_is_refused_by_the_server(ledger):
    """As a proxy that sends a statement twice."""
    charge(ledger, "mine")
    fit = ledger.query("SELECT * FROM dphead.fits")[0]
    row = {column.name: fit._mapping[column.name] for column in FITS.c}
    with pytest.raises(sqlalchemy.exc.IntegrityError), ledger.transaction():
        ledger.add(FITS, row)
    assert ledger.verify() == []


def as_client(team, dataset_id, statement, *values):
    """A statement of a role that has SELECT and INSERT on the views alone."""
    with psycopg.connect(team.url(CLIENT)) as db:
        db.execute("SELECT set_config('dphead.dataset_id', %s, true)", (dataset_id,))
        db.execute(statement, values)


_FACT = "INSERT INTO dphead.meta (key, value) VALUES (%s, %s)"
_RELEASE = "INSERT INTO dphead.releases VALUES ('x', 0, 'x', 1e9, 1, %s)"


@pytest.mark.parametrize(
    "statement, values",
    [
        (_FACT, ("budget", '{"epsilon": 1000.0, "delta": 0.9, "order": 2.0}')),
        (_FACT, ("moved", "elsewhere")),
        (_RELEASE, ('{"noise_multiplier": 1e9}',)),
        ("INSERT INTO dphead.progress VALUES (%s, 0, 'committed', 0, '')", ("x",)),
    ],
)
def test_a_row_that_no_seal_holds_is_damage(team, dataset_id, statement, values):
    """A role that may charge can add it. It must not lower what others read."""
    ledger = Ledger(team.url(CLIENT), dataset_id)
    charge(ledger, sigma=1.0)
    if "progress" in statement:
        statement = statement.replace(
            "progress", "progress (fit_id, sequence, state, at, digest)"
        )
    as_client(team, dataset_id, statement, *values)
    assert ledger.verify() != []
    with pytest.raises(LedgerError, match=r"is damaged: |was moved"):
        charge(ledger)


def test_a_lock_is_the_servers_own_whatever_functions_a_role_makes(team, dataset_id):
    """Older servers let every role make functions in the schema `public`."""
    team.run(
        "CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint "
        "LANGUAGE sql AS 'SELECT (random() * 1e15)::bigint'"
    )
    try:
        first, second = (Ledger(team.url(CLIENT), dataset_id) for _ in range(2))
        with first.transaction():
            locks = team.run(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            )
        with second.transaction():
            assert locks == team.run(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            )
    finally:
        team.run("DROP FUNCTION public.hashtextextended(text, integer)")


@pytest.mark.parametrize(
    "setting, value",
    [
        ("extra_float_digits", "0"),
        ("search_path", "public, pg_catalog"),
        ("idle_in_transaction_session_timeout", "'900ms'"),
        ("synchronous_commit", "local"),
        ("statement_timeout", "'900ms'"),
    ],
)
def test_a_setting_of_a_role_changes_no_charge(team, dataset_id, setting, value):
    team.run(f"ALTER ROLE {CLIENT} SET {setting} = {value}")
    try:
        ledger = Ledger(team.url(CLIENT), dataset_id)
        if setting.startswith("idle"):
            meanwhile(ledger, lambda: time.sleep(1))
        charge(ledger, sigma=1 / 3 + 1e-16)
        with ledger.transaction():
            kept = ledger.first(
                "SELECT current_setting('synchronous_commit'), "
                "current_setting('statement_timeout')"
            )
        assert tuple(kept) == ("on", "0")
    finally:
        team.run(f"ALTER ROLE {CLIENT} RESET {setting}")
    assert Ledger(team.url(OWNER), dataset_id).verify() == []


def test_texts_are_in_an_order_that_no_system_changes(team):
    """An index in a locale's order misses rows under the locale's next version."""
    found = team.run(
        "SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class "
        "ON pg_class.oid = attrelid WHERE relnamespace = 'dphead_rows'::regnamespace "
        "AND relkind = 'r' AND relname <> 'store' AND atttypid = 'text'::regtype "
        "AND attcollation <> (SELECT oid FROM pg_collation WHERE collname = 'C')"
    )
    assert found == []


def test_tables_that_another_role_made_are_refused(team):
    """It could drop their triggers, and then rows."""
    team.run("CREATE ROLE mallory LOGIN SUPERUSER")
    team.run("CREATE DATABASE squatted")
    try:
        url = team.url("mallory").replace("/postgres", "/squatted")
        module.init(url)
        with pytest.raises(LedgerError, match="functions of another role"):
            module.init(team.url().replace("/postgres", "/squatted"))
    finally:
        team.run("DROP DATABASE squatted")
        team.run("DROP ROLE mallory")


def test_a_lock_that_is_lost_charges_nothing_or_is_not_told_after_a_charge(
    team, dataset_id, monkeypatch, tmp_path
):
    """Told after it, the run folder would take the charge for none and charge again."""
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path))
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    ledger = Ledger(team.url(CLIENT), dataset_id)
    locks = "query LIKE '%pg_advisory_xact_lock%' AND state = 'idle in transaction'"
    with pytest.raises(LedgerError, match="Nothing was charged"), charging(ledger):
        team.end_clients(locks)
        charge(ledger)
    assert ledger.count_fits() == 0
    with charging(ledger):
        charge(ledger)
        team.end_clients(locks)
    assert ledger.count_fits() == 1 and ledger.verify() == []


@pytest.mark.parametrize(
    "text",
    [
        "POSTGRESQL://ann:hunter2@db/x",
        "Postgres://ann:hunter2@db/x",
        " postgresql://ann:hunter2@db/x",
        "postgres+psycopg://ann:hunter2@db/x",
        "pgsql://ann:hunter2@db/x",
        "postgresql:hunter2",
        "ann:hunter2@db/x",
        "host=db password=hunter2",
        "postgresql://ann:hunter2@[::1/x",
        "postgresql://ann:hunter2@h:99999999/x",
        "postgresql://ann:hunter2@h\udcff/x",
        "postgresql://ann:hunter2@127.0.0.1/x?row_factory=x",
        Path("postgresql://ann:hunter2@db/x"),
    ],
)
def test_a_text_that_is_no_url_and_no_path_is_refused_without_showing_it(
    text, tmp_path, monkeypatch
):
    """A file of that name would count nothing, and its name has the password."""
    monkeypatch.chdir(tmp_path)
    for use in (lambda: Ledger(text, "d"), lambda: open_ledger(text, "d")):
        with pytest.raises(LedgerError) as error:
            use()
        assert "hunter2" not in "".join(traceback.format_exception(error.value))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_lost_the_commit_of_a_returned_release_answers_it_no_more(
    team, dataset_id, ledger, tmp_path
):
    """As a standby that took over without it: the value may be published."""
    fit = charge(ledger, store=tmp_path / "run")
    run_release(fit, spec=specs(1, 10.0)[0])
    fit._lock.close()
    team.run(
        "SET session_replication_role = replica; DELETE FROM dphead_rows.progress "
        f"WHERE state = 'committed' AND dataset_id = '{dataset_id}'"
    )
    again = ledger.resume("hash", fit.fit_id, tmp_path / "run")
    with pytest.raises(LedgerError, match="which was already returned"):
        run_release(again, spec=specs(1, 10.0)[0])
    assert (tmp_path / "run" / "000000.npy").exists()


def test_a_lock_of_all_ledgers_and_a_write_need_the_primary(team, dataset_id, ledger):
    """A standby has locks of its own, and may lack the last charges."""
    begin = module.beginning("write", dataset_id)[0].text
    assert begin == "SET TRANSACTION READ WRITE"
    team.run(f"ALTER ROLE {CLIENT} SET default_transaction_read_only = on")
    try:
        charge(Ledger(team.url(CLIENT), dataset_id))  # of the primary: it may be asked
    finally:
        team.run(f"ALTER ROLE {CLIENT} RESET default_transaction_read_only")
    assert ledger.count_fits() == 1
