"""The index of images on a team's server: two machines know the same images."""

import fcntl
import json
import multiprocessing
import os
import re
import shutil
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import LS, dphead, fitted, id_of, ledger_of, refusal, words
from core import reserve
from dphead_extract.errors import FormatError
from dphead_extract.features.format import open_features
from dphead_extract.index import ImageIndex
from dphead_extract.shards import shards_path
from ledgers import Killed, died_everywhere, specs

from benchmarks.faults.servers import CLIENT, OWNER
from dphead.analysis.ledger_place import ledger_home
from dphead.fit import ledgers
from dphead.fit.ledgers import (
    charging,
    check_alone,
    default_ledger_path,
    fix_budget,
    image_index,
    known_images,
    move_ledger,
    open_ledger,
    people_index,
)
from dphead.fit.noted import note_ledger, noted_ledgers
from dphead.fit.team_images import TeamImages
from dphead.privacy.ledger import Ledger, LedgerError, seals, server
from dphead.privacy.ledger.moving import move
from dphead.privacy.ledger.store import MOVED


@pytest.fixture
def machines(team, monkeypatch, tmp_path):
    """What two machines with a home each use, once they have a team's server."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    return [image_index(), TeamImages(team.url(CLIENT))]


def images():
    """Digests of 100 images that no other test has."""
    return np.frombuffer(os.urandom(800), np.uint64)


def test_two_machines_know_the_same_images(machines):
    one, other = machines
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert one.digest(pixels) == other.digest(pixels)  # under one key
    seen = images()
    dataset_id, known = one.claim(seen)
    assert not known and other.claim(seen) == (dataset_id, True)
    other.add(dataset_id, images())
    assert len(one.images(dataset_id)) == 200
    (overlap,) = one.overlaps(seen)
    assert (overlap.dataset_id, overlap.shared, overlap.theirs) == (
        dataset_id,
        100,
        200,
    )


def test_two_machines_that_begin_together_get_one_id(team, machines):
    seen = images()
    forks = multiprocessing.get_context("fork")
    found = forks.Queue()
    own, _ = team.url(CLIENT).split("?")  # a fork cannot use the pool

    def claim():
        found.put(TeamImages(own).claim(seen)[0])
        found.close()
        found.join_thread()
        os._exit(0)

    started = [forks.Process(target=claim) for _ in range(4)]
    for process in started:
        process.start()
    assert len({found.get(timeout=60) for _ in started}) == 1
    for process in started:
        process.join()


def test_a_budget_of_one_machine_counts_for_the_images_on_another(team, machines):
    """Under other ids: the second is refused, and pointed to the first."""
    seen = images()
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    for dataset_id in (first, second):
        machines[0].add(dataset_id, seen)
    Ledger(team.url(CLIENT), first).set_budget(1.0, 1e-5)
    other = Ledger(team.url(CLIENT), second)
    with pytest.raises(LedgerError, match=f"with --dataset-id {first}"):
        check_alone(second, other.path, None)
    check_alone(first, Ledger(team.url(CLIENT), first).path, {"epsilon": 1.0})


def test_a_home_that_uses_a_server_knows_the_images_that_it_knew(team, monkeypatch):
    """The server's index has none of them."""
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    for dataset_id in (first, second):
        image_index().add(dataset_id, images()[:50])
    image_index().add(second, image_index().images(first)[:20])
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    assert len(image_index().images(first)) == 0
    Ledger(team.url(CLIENT), first).set_budget(1.0, 1e-5)
    with pytest.raises(LedgerError, match="20 of these images are also in"):
        check_alone(second, Ledger(team.url(CLIENT), second).path, None)


def test_images_are_known_only_if_the_home_compares_them_with_its_own(
    team, monkeypatch, tmp_path
):
    """A member's file can have images that the home read before it used the server."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    path, command = extracting(tmp_path, "of_a_member.h5")
    fitted(*command)
    with open_features(path) as file:
        entry = ledgers.images_known_in(file)
        assert entry and ledgers.is_current(entry)
        monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "empty"))
        assert ledgers.images_known_in(file) == entry  # a home without images
        monkeypatch.delenv("DPHEAD_LEDGER")
        fitted(*extracting(tmp_path, "own.h5")[1])  # the same images, under another id
        monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
        assert ledgers.images_known_in(file) is None and not ledgers.is_current(entry)
        # some of the images, such as one shard of the file
        home = ImageIndex(ledger_home() / "images")
        home.add(id_of(path), home.images(id_of(tmp_path / "own.h5"))[:1])
        assert ledgers.images_known_in(file) is None and not ledgers.is_current(entry)


def test_a_charge_on_a_server_needs_a_home(team, machines, monkeypatch, tmp_path):
    """Without one, no budget of other data sets with the same images would count."""
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    book = Ledger(team.url(CLIENT), uuid.uuid4().hex)
    other = Ledger(tmp_path / "other.sqlite", book.meta("dataset_id"))
    for one in (book, other):
        with pytest.raises(LedgerError, match="is a relative path"), charging(one):
            pass


def test_a_charge_on_another_server_than_the_teams_is_refused(team, monkeypatch):
    """Budgets of the same images, and the images, are looked for on one server."""
    team.run("CREATE DATABASE second")
    second = team.url(OWNER).replace("/postgres", "/second")
    server.init(second)
    dataset_id = uuid.uuid4().hex
    book = Ledger(second, dataset_id)
    for url, found in ((None, "is not set"), (team.url(CLIENT), "leads to another")):
        monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
        if url is not None:
            monkeypatch.setenv("DPHEAD_LEDGER", url)
        with pytest.raises(LedgerError, match=f"DPHEAD_LEDGER {found}"), charging(book):
            pass
        with pytest.raises(LedgerError, match="Set DPHEAD_LEDGER to the address"):
            fix_budget(book, 1.0, 1e-5)
    assert book.budget() is None
    fix_budget(Ledger(team.url(OWNER), dataset_id), 1.0, 1e-5)  # by another role


def extracting(folder, name, *more):
    """A command that extracts the same 20 images again, and its file."""
    source = folder / "x.npz"
    if not source.exists():
        pixels = np.random.default_rng(uuid.uuid4().int).integers(0, 255, (20, 8, 8))
        np.savez(source, images=pixels.astype(np.uint8), label=np.arange(20) % 2)
    out = ("-o", folder / name, "--classes", 2, "--backbone", "scatternet")
    return folder / name, ("extract", source, *out, "--scatter-j", 1, *more)


def killed(*_, **__):
    raise Killed


def test_images_that_a_server_recognized_are_charged_there_alone(
    team, monkeypatch, tmp_path
):
    """Their id came from the server, which may have a budget. The extraction died."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    fitted(*extracting(tmp_path, "of_another_home.h5")[1])
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    path, command = extracting(tmp_path, "x.h5")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("dphead_extract.run.Loop.run", killed)
        dphead(*command)
    monkeypatch.delenv("DPHEAD_LEDGER")
    assert "Set DPHEAD_LEDGER to the address" in words(refusal(*command))
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    fitted(*command)
    assert id_of(path) == id_of(tmp_path / "of_another_home.h5")
    monkeypatch.delenv("DPHEAD_LEDGER")
    fit = ("fit", path, "-o", tmp_path / "run", *LS, "--allow-large-delta")
    said = words(refusal(*fit))
    assert "Set DPHEAD_LEDGER to the address" in said
    assert f"{id_of(path)}.others. Set" in said  # if the server is gone
    assert not ledger_of(path).count_fits()


def test_charges_in_a_file_are_moved_before_a_team_knows_the_images(
    team, monkeypatch, tmp_path
):
    """Other members count no file, and could set a budget beside its fits."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    path, command = extracting(tmp_path, "x.h5")
    file = tmp_path / "p.sqlite"
    fitted(*command)
    fit = ("fit", path, "-o", tmp_path / "run", *LS, "--allow-large-delta")
    fitted(*fit, "--ledger", file)
    url = team.url(CLIENT)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    fit = ("fit", path, "-o", tmp_path / "run2", *LS, "--allow-large-delta")
    for refused in (command, fit, ("ledger", "move", path)):
        said = words(refusal(*refused))
        assert f"would not count the ledger {file} (1 fit " in said
        assert f"Type `dphead ledger move {file}` first" in said
    assert not len(TeamImages(url).images(id_of(path)))
    assert noted_ledgers(id_of(path)) == [str(file)]
    fitted("ledger", "move", file)
    fitted(*command)
    assert Ledger(url, id_of(path)).count_fits() == 1
    fitted(*fit)


def test_all_charged_files_of_a_home_move_before_it_uses_a_server(team, monkeypatch):
    """Also those of other data sets, which may have the same images under another id.

    A home that was full when it should have noted a ledger does not know all overlaps.
    """
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    first, second, empty, copy = (uuid.uuid4().hex for _ in range(4))
    for dataset_id in (first, second):
        charged_in_home(dataset_id)
    open_ledger(None, empty)
    shutil.copy(default_ledger_path(first), default_ledger_path(copy))  # by hand
    url, other = team.url(CLIENT), uuid.uuid4().hex
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    left = [first, second]
    while left:
        uses = (
            lambda: image_index().claim(images()),
            lambda: image_index().add(other, images()),
            lambda: charged_in_home(other),
            lambda: fix_budget(open_ledger(None, other), 1.0, 1e-5),
            declares_people,
        )
        for use in uses:
            with pytest.raises(LedgerError, match="would not count the ledger") as said:
                use()
            assert "and 1 more" in str(said.value) or len(left) == 1
        moved = Path(*re.findall("move (\\S+)`", str(said.value)))
        move_ledger(Ledger(moved), url)
        left.remove(moved.stem)
    assert not len(TeamImages(url).images(other))
    assert Ledger(url, other).count_fits() == 0 and Ledger(url, other).budget() is None
    charged_in_home(other)
    assert Ledger(url, first).count_fits() == Ledger(url, other).count_fits() == 1


def declares_people():
    with people_index().declaring():
        pass


def charged_in_home(dataset_id):
    book = open_ledger(None, dataset_id)
    with charging(book):
        reserve(specs(1, 20.0), book)


def test_a_home_that_has_used_one_server_uses_no_other_store(
    team, monkeypatch, tmp_path
):
    """The team's server would get images whose fits are on the first one."""
    team.run("CREATE DATABASE trial")
    trial = team.url(OWNER).replace("/postgres", "/trial")
    server.init(trial)
    monkeypatch.setenv("DPHEAD_LEDGER", trial)
    dataset_id, other = uuid.uuid4().hex, uuid.uuid4().hex
    charged_in_home(dataset_id)
    file = Ledger(tmp_path / "own.sqlite", other)
    reserve(specs(1, 20.0), file)
    for url in (None, team.url(CLIENT)):
        monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
        if url is not None:
            monkeypatch.setenv("DPHEAD_LEDGER", url)
        uses = [
            lambda: charged_in_home(other),
            lambda: people_index(declares=True),
        ]
        if url is not None:
            uses += [
                lambda: image_index().claim(images()),
                lambda url=url: move_ledger(file, url),
                declares_people,
            ]
        for use in uses:
            with pytest.raises(LedgerError, match="its line from") as said:
                use()
            assert f"/{dataset_id} is on a server, and DPHEAD_LEDGER" in str(said.value)
    monkeypatch.setenv("DPHEAD_LEDGER", trial)
    move_ledger(file, trial)
    charged_in_home(dataset_id)


def test_a_server_gets_the_images_that_another_data_set_of_the_home_shares(
    team, monkeypatch, tmp_path
):
    """Else other members would set a budget beside the fits of that data set."""
    pixels = np.random.default_rng(uuid.uuid4().int).integers(0, 256, (90, 9), np.uint8)

    def decoded(part):
        index = image_index()
        return index, np.array(
            [index.digests([one]) for one in pixels[part]], np.uint64
        )

    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    index, seen = decoded(slice(40))
    first, _ = index.claim(seen)
    charged_in_home(first)
    url, second = team.url(CLIENT), uuid.uuid4().hex
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    move_ledger(ledger_in_home(first), url)
    index, seen = decoded(slice(30, 90))
    index.add(second, seen)
    assert len(TeamImages(url).images(first)) == 10
    assert len(TeamImages(url).images(second)) == 60
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    with pytest.raises(LedgerError, match=r"\(1 fit .*\) of data set .* holds 10 of"):
        fix_budget(Ledger(url, second), 3.0, 1e-5)


def test_images_that_two_data_sets_share_are_not_all_images_of_one(team, monkeypatch):
    """The server has no other images of it: nothing is said of those, or decided."""
    pixels = np.random.default_rng(uuid.uuid4().int).integers(0, 256, (60, 9), np.uint8)

    def grow(dataset_id, *part):
        index = image_index()
        seen = [index.digests([one]) for one in pixels[slice(*part)]]
        index.add(dataset_id, np.array(seen, np.uint64))
        return np.array(seen, np.uint64)

    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    grow(first, 20)
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    shared = grow(second, 10, 60)[:10]
    index = TeamImages(team.url(CLIENT))
    assert index.is_partial(first) and not index.is_partial(second)
    (found,) = [one for one in index.overlaps(shared) if one.dataset_id == first]
    assert found.notable and not found.same
    grow(first, 20)
    assert not index.is_partial(first)
    (found,) = [one for one in index.overlaps(shared) if one.dataset_id == first]
    assert found.partial is False


def test_a_ledger_file_that_another_home_has_moved_refuses_charges_elsewhere(
    team, monkeypatch, tmp_path
):
    """Its budget on the server is unknown here."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id, url = uuid.uuid4().hex, team.url(CLIENT)
    book = open_ledger(tmp_path / "p.sqlite", dataset_id)
    with charging(book):
        reserve(specs(1, 20.0), book)
    with monkeypatch.context() as member:
        member.setenv("DPHEAD_HOME", str(tmp_path / "home"))
        move_ledger(Ledger(tmp_path / "p.sqlite"), url)
    with pytest.raises(LedgerError, match="is on a server, and DPHEAD_LEDGER is not"):
        charged_in_home(dataset_id)


def test_a_home_that_dies_in_a_move_has_noted_the_server(team, monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id, url = uuid.uuid4().hex, team.url(CLIENT)
    charged_in_home(dataset_id)
    monkeypatch.setattr(ledgers, "move", killed)
    with pytest.raises(Killed):
        move_ledger(ledger_in_home(dataset_id), url)
    assert noted_ledgers(dataset_id) == [Ledger(url, dataset_id).path]


def test_a_move_that_is_refused_leaves_the_home_its_files(team, monkeypatch):
    """Also the move of another ledger, after which this one could not follow."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    first, second = sorted(uuid.uuid4().hex for _ in range(2))
    for dataset_id in (first, second):
        charged_in_home(dataset_id)
    url = team.url(CLIENT)
    reserve(specs(1, 20.0), Ledger(url, first))  # by another member
    for dataset_id, found in ((first, "already has fits"), (second, "takes only one")):
        with pytest.raises(LedgerError, match=found):
            move_ledger(ledger_in_home(dataset_id), url)
        assert noted_ledgers(dataset_id) == []
        charged_in_home(dataset_id)


def test_no_ledger_moves_from_a_home_where_another_cannot(team, monkeypatch, tmp_path):
    """The home could charge nothing any more: neither there nor here."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    for dataset_id in (first, second):
        charged_in_home(dataset_id)
    book = open_ledger(tmp_path / "p.sqlite", second)
    with charging(book):
        reserve(specs(1, 20.0), book)
    with pytest.raises(LedgerError, match="takes only one ledger"):
        move_ledger(ledger_in_home(first), team.url(CLIENT))
    charged_in_home(first)


def test_a_server_learns_the_overlaps_that_a_home_has_marked(team, monkeypatch):
    """The two data sets grew, and then the shared images are less than a twentieth."""
    pixels = np.random.default_rng(uuid.uuid4().int)
    pixels = pixels.integers(0, 256, (216, 9), np.uint8)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex

    def grow(dataset_id, *part, index=None):
        index = index or image_index()
        seen = [index.digests([one]) for one in pixels[slice(*part)]]
        index.add(dataset_id, np.array(seen, np.uint64))

    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    grow(first, 100)
    grow(second, 96, 116)
    grow(second, 96, 216)
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    index = TeamImages(team.url(CLIENT))
    grow(first, 100, index=index)  # by another member
    grow(second, 96, 216)
    assert not any(one.notable for one in index.overlaps(index.images(second), second))
    for one, other in ((first, second), (second, first)):
        assert [found.dataset_id for found in index.sharing(one)] == [other]


def test_a_file_is_charged_before_or_after_a_home_begins_to_use_a_server(
    team, monkeypatch
):
    """Not between the look at the files of the home and the note of the server."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    index, lock, held = image_index(), ledger_home() / "ledgers/lock", []
    lock.parent.mkdir(parents=True, exist_ok=True)

    def looked(_):
        with open(lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(lock)

    monkeypatch.setattr(ledgers, "check_store", looked)
    index.claim(images())
    assert held == [lock]


def test_only_one_ledger_of_a_data_set_moves_to_a_server(team, monkeypatch, tmp_path):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id = uuid.uuid4().hex
    for path in (None, tmp_path / "p.sqlite"):
        book = open_ledger(path, dataset_id)
        with charging(book):
            reserve(specs(1), book)
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    for charged in (open_ledger(tmp_path / "p.sqlite"), ledger_in_home(dataset_id)):
        with pytest.raises(LedgerError, match="Unset DPHEAD_LEDGER"):
            move_ledger(charged, team.url(CLIENT))
    (tmp_path / "p.sqlite").unlink()
    with pytest.raises(LedgerError, match=f"its line from .*{dataset_id}.others"):
        move_ledger(ledger_in_home(dataset_id), team.url(CLIENT))


def test_a_move_that_dies_anywhere_is_finished_and_no_member_comes_between(
    team, monkeypatch, tmp_path
):
    """A budget beside the charges on their way, or a fit, would end the move."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id, same_images = uuid.uuid4().hex, uuid.uuid4().hex
    book = open_ledger(None, dataset_id)
    fix_budget(book, 3.0, 1e-5)
    with charging(book):
        fit = reserve(specs(1, 20.0), book).fit_id
    url = team.url(CLIENT)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    seen, theirs = images(), Ledger(url, dataset_id)
    for name in (dataset_id, same_images):  # as of another member
        TeamImages(url).add(name, seen)
    copy = Ledger(tmp_path / "copy.sqlite", dataset_id)
    reserve(specs(1, 20.0), copy)

    def moved():
        move_ledger(ledger_in_home(dataset_id), url)

    points = 0
    for _ in died_everywhere(monkeypatch, moved):
        points += 1
        if theirs.count_fits():
            continue
        with monkeypatch.context() as member:
            member.setenv("DPHEAD_HOME", str(tmp_path / "home"))
            for use in (
                lambda: fix_budget(theirs, 3.0, 1e-5),
                lambda: charged(theirs),
                lambda: move(copy, theirs),
            ):
                refused = pytest.raises(
                    LedgerError, match=r"moves a ledger here|earlier move"
                )
                with refused:
                    use()
            with pytest.raises(LedgerError, match="must count every fit"):
                fix_budget(Ledger(url, same_images), 3.0, 1e-5)
        said = words(fitted("ledger", "show", theirs.path).out)
        assert "repeat the interrupted command `dphead ledger move`" in said
    assert points == 3 and copy.meta(MOVED) is None
    moved()
    assert theirs.holds(fit) and theirs.count_fits() == 1 and theirs.verify() == []
    assert theirs.budget() == book.budget()
    charged(theirs)
    assert theirs.count_fits() == 2 and theirs.verify() == []


def charged(book):
    with charging(book):
        reserve(specs(1, 20.0), book)


def test_a_move_that_an_earlier_version_began_is_finished(team, monkeypatch):
    """It closed the source, and wrote nothing to the target."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id = uuid.uuid4().hex
    book, url = open_ledger(None, dataset_id), team.url(CLIENT)
    charged(book)
    target = Ledger(url, dataset_id)
    with book.transaction():
        book.set_once(MOVED, target.path)
        seals.seal(book)
    for _ in range(2):
        move_ledger(book, url)
    assert target.fits() == book.fits() and target.verify() == []


def test_a_move_holds_the_locks_of_charges(team, monkeypatch):
    """A budget that was checked before the move must not be set after it."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    dataset_id, url = uuid.uuid4().hex, team.url(CLIENT)
    charged(open_ledger(None, dataset_id))
    monkeypatch.setattr(server, "WAIT", 0.1)

    def looked(source, target):
        refused = pytest.raises(LedgerError, match="Another process holds")
        with refused, server.held(url):
            pass
        with pytest.raises(BlockingIOError), open(ledger_home() / "ledgers/lock") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        move(source, target)

    monkeypatch.setattr(ledgers, "move", looked)
    move_ledger(ledger_in_home(dataset_id), url)
    assert Ledger(url, dataset_id).count_fits() == 1


def ledger_in_home(dataset_id):
    return Ledger(default_ledger_path(dataset_id))


def test_a_home_with_ledgers_on_a_server_declares_no_people_without_it(
    team, monkeypatch, tmp_path
):
    """It could charge none of these ledgers any more: an id system has one store."""
    name = Ledger(team.url(CLIENT), uuid.uuid4().hex).path
    note_ledger(name, name.rpartition("/")[2])
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    people = ("--people", "clinic", "--new-people")
    said = words(refusal(*extracting(tmp_path, "x.h5", *people)[1]))
    assert f"The ledger {name} is on a server, and DPHEAD_LEDGER is not set" in said
    assert people_index().settled() is None


def test_a_shard_has_the_id_of_a_server_only_after_the_home_has_noted_it(
    team, monkeypatch, tmp_path
):
    """All shards take the id from one file, also after one of them died."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    fitted(*extracting(tmp_path, "of_another_home.h5")[1])
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    shard = ("--block-rows", 8, "--shard", "1/2")
    path, command = extracting(tmp_path, "x.h5", *shard)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("dphead_extract.run.FeaturesWriter", killed)
        dphead(*command)
    dataset_id = json.loads(shards_path(path).read_text())["dataset_id"]
    assert dataset_id == id_of(tmp_path / "of_another_home.h5")
    assert noted_ledgers(dataset_id) == [Ledger(team.url(CLIENT), dataset_id).path]


def test_a_home_knows_images_only_after_it_has_noted_their_server(
    machines, monkeypatch
):
    index, pixels = machines[0], np.random.default_rng(uuid.uuid4().int)
    forms = [index.digests([pixels.integers(0, 256, (9, 9))]) for _ in range(20)]
    monkeypatch.setattr(ImageIndex, "_grow", killed)
    noted = []
    monkeypatch.setattr(
        "dphead.fit.ledgers.note_ledger", lambda *one: noted.append(one)
    )
    with pytest.raises(Killed):
        index.claim(np.array(forms, np.uint64))
    url = os.environ["DPHEAD_LEDGER"]
    assert [place for place, _ in noted] == [Ledger(url, one).path for _, one in noted]
    assert len(noted) == 1


def test_a_budget_in_a_file_is_moved_to_the_server(team, monkeypatch):
    dataset_id = uuid.uuid4().hex
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    fix_budget(open_ledger(None, dataset_id), 1.0, 1e-5)
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    with pytest.raises(LedgerError, match="Type `dphead ledger move"):
        fix_budget(open_ledger(None, dataset_id), 1.0, 1e-5)


def test_images_that_were_changed_on_the_server_are_refused(team, machines):
    dataset_id, _ = machines[0].claim(images())
    team.run(
        "SET session_replication_role = replica; UPDATE dphead_rows.images SET digests "
        f"= digests || '\\x0000000000000000' WHERE dataset_id = '{dataset_id}'"
    )
    with pytest.raises(FormatError, match="damaged"):
        machines[1].images(dataset_id)
    team.run(
        "SET session_replication_role = replica; DELETE FROM dphead_rows.images "
        f"WHERE dataset_id = '{dataset_id}'"
    )


def test_a_server_that_is_away_is_one_error(team):
    away = TeamImages(team.url(CLIENT, 1))
    for use in (away._names, lambda: away.claim(images()), away._key):
        with pytest.raises(LedgerError, match="does not answer"):
            use()


def test_without_a_server_the_index_is_the_homes(monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    index = image_index()
    assert index.folder == ledger_home() / "images"
    assert not isinstance(index, TeamImages)


def test_images_of_all_rows_count_whoever_adds_one(team, machines):
    """A role that may charge has the key: an empty row must not hide the others."""
    seen = images()
    dataset_id, _ = machines[0].claim(seen)
    machines[0]._keep(dataset_id, machines[0]._seal(b""))
    assert [one.dataset_id for one in machines[1].overlaps(seen)] == [dataset_id]


def test_a_servers_earlier_rows_forget_no_image(team, machines):
    """They hold gray images by their three equal channels."""
    one, other = machines
    gray = np.random.default_rng().integers(0, 256, (40, 6, 6), np.uint8)
    colored = np.repeat(gray[..., None], 3, axis=-1)
    forms = [one.digests(both) for both in zip(gray, colored, strict=True)]
    earlier, later = uuid.uuid4().hex, uuid.uuid4().hex
    stored = np.array([one.digest(image) for image in colored], "<u8").tobytes()
    one._keep(earlier, one._seal(stored) + stored)
    seen = np.array(forms, np.uint64)
    other.add(later, np.concatenate([seen[:10], one_form(images())]))
    # without the images, as in a fit
    (found,) = one.overlaps(one.images(later), but=later)
    assert (found.dataset_id, found.shared, found.theirs) == (earlier, 10, 40)
    assert one.claim(seen) == (earlier, True)
    assert len(one.images(earlier)) == len(other.images(earlier)) == 40
    assert "aliases" not in one._names()


@pytest.mark.parametrize("deep_first", [True, False])
def test_a_server_knows_copies_in_colors_by_their_upper_bytes(machines, deep_first):
    one, other = machines
    gray = np.random.default_rng().integers(0, 2**16, (40, 6, 6)).astype(np.float64)
    upper = (gray // 256).astype(np.uint8)
    forms = (
        [[a, a, a, a, b] for a, b in zip(gray, upper, strict=True)],
        [[b] for b in upper],
    )
    first, last = forms if deep_first else forms[::-1]
    dataset_id, _ = one.claim(np.array([*map(one.digests, first)], np.uint64))
    seen = np.array([*map(other.digests, last)], np.uint64)
    assert other.claim(seen) == (dataset_id, True)


def test_a_server_gets_the_copies_of_images_that_a_home_knows(team, monkeypatch):
    """A home read gray images before it used the server, and then copies in colors."""
    gray = np.random.default_rng().integers(0, 2**16, (40, 6, 6)).astype(float)
    upper = (gray // 256).astype(np.uint8)
    before, later = uuid.uuid4().hex, uuid.uuid4().hex
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    own = image_index()
    deep = [own.digests([a, a, a, a, b]) for a, b in zip(gray, upper, strict=True)]
    own.add(before, np.array(deep, np.uint64))
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    used = image_index()
    copies = [used.digests([b]) for b in upper[:20]]
    used.add(later, np.array(copies, np.uint64))
    assert len(used.images(before)) == 20


def test_images_that_only_a_homes_index_has_are_known_with_a_server(team, monkeypatch):
    """A network's test images are compared under the home's key too."""
    pixels = np.random.default_rng().integers(0, 256, (20, 6, 6, 3), np.uint8)
    before = uuid.uuid4().hex
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    own = image_index()
    own.add(before, np.array([own.digests([one]) for one in pixels], np.uint64))
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    used = image_index()
    read = np.array([used.digests([one]) for one in pixels], np.uint64)
    known = known_images(before, every_form=True)
    assert np.isin(used.under_each_key(read), known).any(axis=1).all()


def test_a_server_stores_each_pair_of_digests_once(machines):
    """Its rows stay for ever: a row with all earlier pairs would double them."""
    one = machines[0]
    before = len(one._aliases())
    for _ in range(4):
        deep = np.random.default_rng().integers(0, 2**16, (10, 6, 6)).astype(float)
        forms = [[a, a, a, a, (a // 256).astype(np.uint8)] for a in deep]
        one.claim(np.array([*map(one.digests, forms)], np.uint64))
    assert len(one._aliases()) == before + 40


def test_a_notable_overlap_stays_notable_on_a_server(machines):
    one, other = machines
    seen, (own, *others) = images(), (uuid.uuid4().hex for _ in range(3))
    for first, name in zip((0, 3), others, strict=True):
        one.add(name, np.append(seen[first : first + 3], images()[:97]))
    one.extend(own, seen)  # as an earlier version did
    other.add(own, images())
    assert not any(found.notable for found in one.overlaps(one.images(own), but=own))
    known = one.sharing(own) + [one.sharing(name)[0] for name in others]
    assert [found.dataset_id for found in known] == [*sorted(others), own, own]


def one_form(digests):
    """Images whose forms have one digest, as colors have."""
    return np.repeat(digests[:, None], 5, axis=1)


@pytest.mark.parametrize("first_on_server", [False, True])
def test_images_are_known_before_and_after_a_home_uses_a_server(
    team, monkeypatch, first_on_server
):
    """Each index has a key of its own, so images are added to both, and looked up."""
    pixels = np.random.default_rng(uuid.uuid4().int).integers(0, 256, (40, 9), np.uint8)

    def decoded(on_server):
        if on_server:
            monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
        else:
            monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
        index = image_index()
        return index, np.array([index.digests([one]) for one in pixels], np.uint64)

    index, seen = decoded(first_on_server)
    dataset_id, known = index.claim(seen)
    assert not known
    index, seen = decoded(not first_on_server)
    found = [(one.dataset_id, one.shared, one.own) for one in index.overlaps(seen)]
    assert found == [(dataset_id, 40, 40)]
    if first_on_server:  # the other members would not know further images
        for add in (index.claim, partial(index.add, dataset_id)):
            with pytest.raises(LedgerError, match="DPHEAD_LEDGER is not set"):
                add(seen)
        return
    assert index.claim(seen) == (dataset_id, True)
    assert len(image_index().images(dataset_id)) == 40
