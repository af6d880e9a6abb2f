"""A ledger that a home has noted is known by its identity, not by its path alone."""

import os
import shutil
from contextlib import closing

import numpy as np
import pytest
from commands import (
    OF_IMAGES,
    contents,
    features_file,
    fitted,
    id_of,
    refusal,
)
from core import reserve
from ledgers import Killed, specs

from benchmarks.faults.servers import CLIENT
from dphead import DPLeastSquaresClassifier
from dphead.fit import ledgers
from dphead.fit.ledgers import (
    charged_elsewhere,
    charging,
    default_ledger_path,
    fix_budget,
    image_index,
    known_ledgers,
    move_ledger,
    open_ledger,
    read_ledger,
)
from dphead.fit.noted import note_ledger, noted_ledgers, notes_path
from dphead.privacy.ledger import Ledger, LedgerError, seals

FIT = ("--method", "prototypes", "--backend", "numpy", "--epsilon", 1)
ID = "ab12"
GONE = "may hold fits. Nothing was charged, set or merged"


@pytest.fixture
def features(tmp_path):
    return features_file(tmp_path / "f.h5", **OF_IMAGES)


def charged(path, dataset_id=ID):
    """Charge a fit to a file, and return the number of its fits."""
    with closing(open_ledger(path, dataset_id)) as book:
        with charging(book):
            reserve(specs(1, 20.0), book)
        return book.count_fits()


def refused(path, dataset_id=ID):
    """The error of such a charge."""
    with pytest.raises(LedgerError, match=GONE) as told:
        charged(path, dataset_id)
    return str(told.value)


def linked(volume, dataset_id=ID):
    """Move a data set's own ledger to a volume, with a link in its place."""
    own = default_ledger_path(dataset_id)
    Ledger(own, dataset_id).close()
    volume.mkdir()
    shutil.move(own, volume / "p.sqlite")
    own.symlink_to(volume / "p.sqlite")
    return own


@pytest.mark.parametrize("empty", [False, True])
def test_a_volume_that_is_not_mounted_is_no_new_ledger(features, tmp_path, empty):
    """Its path leads to nothing, or to the empty folder below the volume."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    book = volume / "p.sqlite"
    fitted("ledger", "budget", book, "--epsilon", 1, "--delta", 1e-5)
    fitted("fit", features, "-o", tmp_path / "run", *FIT, "--ledger", book)
    volume.rename(away)
    if empty:
        volume.mkdir()
    before = contents(tmp_path)
    commands = [
        ("fit", features, "-o", tmp_path / "two", *FIT, "--ledger", book),
        ("plan", features, *FIT[:2], *FIT[4:], "--fits", 1, "--ledger", book),
        ("ledger", "budget", book, "--epsilon", 5, "--delta", 1e-5),
    ]
    for command in commands:
        said = refusal(*command)
        assert f"{book} of data set {id_of(features)} is missing" in said
        assert f"{notes_path(id_of(features))}." in said
    for X, y in ((features, None), (np.eye(9, 4), np.arange(9) % 2)):
        head = DPLeastSquaresClassifier(epsilon=1.0, ledger=book, classes=[0, 1])
        with pytest.raises(LedgerError, match=GONE):
            head.set_params(classes=None if y is None else [0, 1]).fit(X, y)
    assert contents(tmp_path) == before and volume.exists() == empty
    shutil.rmtree(volume, ignore_errors=True)
    away.rename(volume)
    assert "exceed the budget" in refusal(*commands[0])
    assert Ledger(book).count_fits() == 1


def test_a_budget_holds_while_the_volume_of_its_ledger_is_away(features, tmp_path):
    """No other ledger takes a fit."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    book = volume / "p.sqlite"
    charged = ("fit", features, "-o", tmp_path / "run", *FIT, "--ledger", book)
    fitted("ledger", "budget", book, "--epsilon", 1.2, "--delta", 1e-5)
    fitted(*charged)
    assert "exceed the budget" in refusal(*charged[:3], tmp_path / "two", *charged[4:])
    volume.rename(away)
    for options in ((), ("--ledger", tmp_path / "new.sqlite")):
        said = refusal("fit", features, "-o", tmp_path / "two", *FIT, *options)
        assert f"budget epsilon=1.2 in the ledger {book} (gone or unreadable)" in said
        assert "Mount its volume" in said and f"{notes_path(id_of(features))}." in said
    # another ledger in its place hides the budget as little
    with closing(Ledger(book, id_of(features))):
        assert "budget epsilon=1.2" in refusal(
            "fit", features, "-o", tmp_path / "two", *FIT
        )
    shutil.rmtree(volume)
    away.rename(volume)
    assert Ledger(book).count_fits() == 1


def test_a_new_ledger_at_a_noted_path_takes_no_charge_and_hides_no_fit(
    features, tmp_path
):
    """A program made it while the volume was away, or an earlier version did."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    path = volume / "p.sqlite"
    fitted("fit", features, "-o", tmp_path / "run", *FIT, "--ledger", path)
    volume.rename(away)
    books = [Ledger(path), Ledger(path)]
    for X, y in ((features, None), (np.eye(9, 4), np.arange(9) % 2)):
        head = DPLeastSquaresClassifier(epsilon=1.0, ledger=books.pop())
        with pytest.raises(LedgerError, match="was replaced by another one"):
            head.set_params(classes=None if y is None else [0, 1]).fit(X, y)
    book = Ledger(path)
    assert book.facts() == {} and not book.count_fits()
    with pytest.raises(LedgerError, match=GONE):
        fix_budget(book, 5.0, 1e-5)
    assert "! The ledger" in fitted("ledger", "show", path).out
    book.set_once("dataset_id", id_of(features))
    found = [(other.path, other.fits) for other in charged_elsewhere(id_of(features))]
    assert found == [(str(path), None)]
    said = refusal("ledger", "budget", features, "--epsilon", 5, "--delta", 1e-5)
    assert "must count every fit" in said and "gone or unreadable" in said
    # the open file is not the ledger, even if the path leads to the ledger again
    shutil.rmtree(volume)
    away.rename(volume)
    with pytest.raises(LedgerError, match=GONE), charging(book):
        pass
    assert charged(path, id_of(features)) == 2


@pytest.mark.parametrize("way", ["link", "rename"])
def test_two_ledgers_under_one_path_are_not_one(tmp_path, way):
    """Two projects are mounted at one path in two containers that share a home."""
    place = tmp_path / "project"
    projects = [tmp_path / "one", tmp_path / "two"]

    def mount(project):
        if way == "link":
            place.unlink(missing_ok=True)
            place.symlink_to(project)
        else:
            project.rename(place)

    def unmount(project):
        if way == "rename":
            place.rename(project)

    if way == "link":  # the folder was there when its ledger was noted
        place.mkdir()
        assert charged(place / "p.sqlite") == 1
        place.rename(projects[0])
    else:
        projects[0].mkdir()
        mount(projects[0])
        assert charged(place / "p.sqlite") == 1
        unmount(projects[0])
    projects[1].mkdir()
    mount(projects[1])
    assert "is missing" in refused(place / "p.sqlite")
    assert not any(projects[1].glob("*")) or way == "rename"
    # the second project has a ledger of its own, from another home
    book = Ledger(place / "p.sqlite", ID)
    book.set_budget(1.0, 1e-5)
    reserve(specs(1, 20.0), book)
    assert "was replaced by another one" in refused(place / "p.sqlite")
    assert book.count_fits() == 1
    # neither its budget nor the fits of the first are forgotten elsewhere
    (other,) = charged_elsewhere(ID)
    assert other.fits is None and other.budget == book.budget()
    with pytest.raises(LedgerError, match="the budget epsilon=1"):
        charged(None)
    unmount(projects[1])
    mount(projects[0])
    assert charged(place / "p.sqlite") == 2


def test_a_path_leads_to_one_ledger_of_the_home(tmp_path):
    """The next project, or another one's volume, has the path of a charged ledger."""
    place, other = tmp_path / "p.sqlite", "cd34"
    assert charged(place) == 1
    place.rename(tmp_path / "archive")
    assert f"of data set {ID} is missing" in refused(place, other)
    assert not place.exists()
    with closing(Ledger(place, other)) as book:  # charged in another home
        reserve(specs(1, 20.0), book)
        for dataset_id in (ID, other, None):
            with pytest.raises(LedgerError, match=f"one of data set {other}, and may"):
                open_ledger(place, dataset_id)
        with pytest.raises(LedgerError, match=GONE), charging(book):
            pass
        assert book.count_fits() == 1 and noted_ledgers(other) == []
    (tmp_path / "archive").rename(place)
    with closing(open_ledger(place)) as book, charging(book):
        assert book.count_fits() == 1
    assert charged(place) == 2


def test_a_budget_holds_while_the_target_of_a_linked_ledger_is_away(tmp_path):
    volume = tmp_path / "volume"
    linked(volume)
    with closing(open_ledger(None, ID)) as book:
        fix_budget(book, 1.2, 1e-5)
    assert charged(None) == 1
    # a budget that is refused is not noted
    with pytest.raises(LedgerError), closing(open_ledger(None, ID)) as book:
        fix_budget(book, 5.0, 1e-5)
    volume.rename(tmp_path / "away")
    with pytest.raises(LedgerError, match=r"the budget epsilon=1\.2 in"):
        charged(tmp_path / "new.sqlite")


def test_a_note_without_an_identity_locks_no_linked_ledger_out(tmp_path):
    """An earlier version noted the folder that is a link to the new volume now."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    note_ledger(str(old / "p.sqlite"), ID)
    reserve(specs(1, 20.0), Ledger(old / "p.sqlite", ID))
    old.rename(new)
    old.symlink_to(new)
    assert [charged(old / "p.sqlite") for _ in range(2)] == [2, 3]


def test_a_note_of_an_earlier_version_gets_the_identity_of_a_charged_ledger(tmp_path):
    place = tmp_path / "p.sqlite"
    note_ledger(str(place), ID)
    assert notes_path(ID).read_text() == f'"{place}"\n'
    book = Ledger(place, ID)
    assert "was replaced by another one" in refused(place)
    reserve(specs(1, 20.0), book)
    assert charged(place) == 2 and book.verify() == []
    assert noted_ledgers(ID) == [str(place)]
    place.unlink()
    book = Ledger(place, ID)
    reserve(specs(1, 20.0), book)
    assert "was replaced by another one" in refused(place)


@pytest.mark.parametrize("at", ["identity", "note", "charge"])
def test_a_fit_that_dies_or_is_refused_before_its_charge_locks_nobody_out(
    tmp_path, monkeypatch, at
):
    """The new ledger is the noted one, at whatever step the fit ended."""
    place = tmp_path / "p.sqlite"

    def dies(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if at == "identity":
            patch.setattr(ledgers, "note_ledger", dies)
        if at == "note":
            patch.setattr(os, "write", dies)
        with charging(open_ledger(place, ID)):
            raise Killed
    (identity,) = [Ledger(place).meta("identity")]
    assert (identity is None) == (at == "identity")
    assert noted_ledgers(ID) == ([str(place)] if at == "charge" else [])
    assert charged(place) == 1
    assert identity in (None, Ledger(place).meta("identity"))


def test_a_ledger_keeps_its_identity_when_it_is_moved_copied_or_restored(tmp_path):
    one, two = tmp_path / "one.sqlite", tmp_path / "two.sqlite"
    charged(one)
    backup = shutil.copy(one, tmp_path / "backup")
    one.unlink()
    assert "restore a copy that holds all its fits and releases" in refused(one)
    shutil.copy(backup, one)
    assert charged(one) == 2
    # under a new path it is charged, and the old one is missing
    one.rename(two)
    assert charged(two) == 3
    assert [(found.path, found.fits) for found in charged_elsewhere(ID, two)] == [
        (str(one), None)
    ]
    # a copy has the fits up to then, and both are listed
    shutil.copy(two, one)
    assert charged(one) == 4
    assert [found.fits for found in charged_elsewhere(ID)] == [4, 3]
    # a ledger at the path of another one is not that one
    three = tmp_path / "three.sqlite"
    charged(three)
    three.replace(two)
    assert "was replaced by another one" in refused(two)
    assert seals.damage_of(Ledger(one)) == []


def test_a_default_ledger_that_is_a_link_is_noted_as_the_file_it_leads_to(tmp_path):
    volume, away = tmp_path / "volume", tmp_path / "away"
    default = linked(volume)
    assert charged(None) == 1
    assert noted_ledgers(ID) == [str(volume / "p.sqlite")]
    assert known_ledgers(ID) == [str(default)]
    volume.rename(away)
    assert "is missing" in refused(None)
    with pytest.raises(LedgerError, match=GONE):
        read_ledger(None, ID)
    assert not volume.exists()
    default.unlink()  # and then the home makes no ledger that hides the noted one
    assert charged(None) == 1
    assert [found.fits for found in charged_elsewhere(ID, default)] == [None]


def test_a_replaced_ledger_is_neither_merged_nor_moved(tmp_path, monkeypatch, team):
    """Its fits would be left behind, and its data set would seem to have none."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    rows = {"features": np.eye(8, 4), "label": np.arange(8) % 2}
    file, first = tmp_path / "years.h5", tmp_path / "first.h5"
    for start, output in enumerate((file, first)):
        path = output.with_suffix(".npz")
        np.savez(path, **rows, group=[f"P-{start}{i // 2}" for i in range(8)])
        fitted("features", "import", path, "--classes", 2, "-o", output)
    place, dataset_id = tmp_path / "p.sqlite", id_of(file)
    charged(place, dataset_id)
    place.rename(tmp_path / "away.sqlite")
    book, url = Ledger(place, dataset_id), team.url(CLIENT)
    with pytest.raises(LedgerError, match=GONE):
        move_ledger(book, url)
    other = open_ledger(None, "cd34" * 8)
    with charging(other):
        reserve(specs(1, 20.0), other)
    # it could not follow the ledger that moves first
    with pytest.raises(LedgerError, match="takes only one ledger"):
        move_ledger(other, url)
    fitted("ledger", "people", "clinic", first)
    assert GONE in refusal("ledger", "people", "clinic", file)
    assert book.facts() == {"dataset_id": dataset_id}


@pytest.mark.parametrize("link", ["ledger", "folder", "home"])
def test_a_link_to_nothing_begins_no_new_ledger(features, tmp_path, monkeypatch, link):
    """The owner moved it to a volume, which is away before dphead has seen the link."""
    own, volume = default_ledger_path(id_of(features)), tmp_path / "volume"
    fitted("ledger", "budget", features, "--epsilon", 1.2, "--delta", 1e-5)
    fitted("fit", features, "-o", tmp_path / "run", *FIT)
    place = {"ledger": own, "folder": own.parent, "home": own.parent.parent}[link]
    volume.mkdir()
    shutil.move(place, volume / "moved")
    place.symlink_to(volume / "moved")
    (volume / "moved").rename(tmp_path / "away")
    if link == "home":  # a part of the home is made again in no place
        volume.rmdir()
    before = contents(tmp_path)
    for command in (
        ("fit", features, "-o", tmp_path / "two", *FIT),
        ("fit", features, "-o", tmp_path / "two", *FIT, "--ledger", own),
        ("plan", features, *FIT[:2], *FIT[4:], "--fits", 1),
        ("ledger", "budget", features, "--epsilon", 5, "--delta", 1e-5),
        ("ledger", "show", features),
        ("ledger", "verify", features),
        ("ledger", "people", "clinic", features),
    ):
        said = refusal(*command)
        assert "leads to nothing" in said or command[1] == "people", said
    X, y = np.eye(9, 4), np.arange(9) % 2
    with pytest.raises(LedgerError, match="leads to nothing"):
        head = DPLeastSquaresClassifier(epsilon=1.0, ledger=own, classes=[0, 1])
        head.fit(X, y)
    if link == "ledger":
        (found,) = charged_elsewhere(id_of(features), "other.sqlite")
        assert (found.path, found.fits) == (str(own), None)
    assert contents(tmp_path) == before
    volume.mkdir(exist_ok=True)
    (tmp_path / "away").rename(volume / "moved")
    said = refusal("fit", features, "-o", tmp_path / "two", *FIT)
    assert "exceed the budget" in said and Ledger(own).count_fits() == 1


@pytest.mark.parametrize(
    "first", ["show", "a fit of another data set", "a note without an identity"]
)
def test_a_linked_ledger_is_noted_when_it_is_first_read(features, tmp_path, first):
    """Another ledger of its data set is mounted in its place before its next charge."""
    name, volume = id_of(features), tmp_path / "volume"
    fitted("fit", features, "-o", tmp_path / "run", *FIT)
    own = linked(volume, name)
    assert noted_ledgers(name) == []
    if first == "a note without an identity":
        note_ledger(str(volume / "p.sqlite"), name)
    if first != "a fit of another data set":
        fitted("ledger", "show", features)
    else:
        for dataset_id in (name, "e" * 32):
            image_index().add(dataset_id, np.arange(50, dtype=np.uint64))
        charged(None, "e" * 32)
    assert noted_ledgers(name) == [str(volume / "p.sqlite")]
    volume.rename(tmp_path / "away")
    with closing(Ledger(volume / "p.sqlite", name)) as book:
        reserve(specs(1, 20.0), book)
    assert "was replaced by another one" in refused(None, name)
    found = {one.path: one.fits for one in charged_elsewhere(name, "other.sqlite")}
    assert found[str(own)] is None


@pytest.mark.parametrize("empty", [False, True])
def test_a_ledger_of_arrays_is_known_by_its_path(tmp_path, empty):
    """Its volume is not mounted, or another ledger is in its place."""
    volume, X, y = tmp_path / "volume", np.eye(9, 4), np.arange(9) % 2
    volume.mkdir()
    book = volume / "a.sqlite"

    def fit():
        DPLeastSquaresClassifier(epsilon=1.0, ledger=book, classes=[0, 1]).fit(X, y)

    fit()
    volume.rename(tmp_path / "away")
    volume.mkdir()
    if not empty:
        Ledger(book).set_budget(9.0, 1e-5)
    before = contents(tmp_path)
    with pytest.raises(LedgerError, match=GONE) as told:
        fit()
    assert f"{book} is missing" in str(told.value) or not empty
    with pytest.raises(LedgerError, match=GONE):
        read_ledger(book, None)
    assert contents(tmp_path) == before and noted_ledgers(ID) == []
    shutil.rmtree(volume)
    (tmp_path / "away").rename(volume)
    fit()
    assert Ledger(book).count_fits() == 2


def test_a_new_ledger_with_a_budget_is_known_before_its_first_fit(features, tmp_path):
    """Its first fit decides which data set it counts."""
    volume = tmp_path / "volume"
    volume.mkdir()
    budget = ("--epsilon", 1.2, "--delta", 1e-5)
    fitted("ledger", "budget", volume / "p.sqlite", *budget)
    volume.rename(tmp_path / "away")
    given = ("-o", tmp_path / "run", *FIT, "--ledger", volume / "p.sqlite")
    assert GONE in refusal("fit", features, *given)
    (tmp_path / "away").rename(volume)
    fitted("fit", features, *given)
    assert noted_ledgers(id_of(features)) == [str(volume / "p.sqlite")]


def test_a_linked_ledger_without_a_charge_is_not_locked_out(features, tmp_path):
    """A fit was refused before its charge, and its owner moved the new file."""
    own = linked(tmp_path / "volume", id_of(features))
    fitted("ledger", "show", features)
    assert noted_ledgers(id_of(features)) == []
    fitted("fit", features, "-o", tmp_path / "run", *FIT)
    assert noted_ledgers(id_of(features)) == [os.path.realpath(own)]


def test_a_path_that_leaves_a_link_on_a_volume_begins_no_new_ledger(tmp_path):
    """Without the link, `current/..` is another folder."""
    (tmp_path / "volume/2026/x").mkdir(parents=True)
    (tmp_path / "volume/current").symlink_to("2026/x")
    typed = tmp_path / "volume/current/../p.sqlite"
    assert charged(typed, None) == 1
    (tmp_path / "volume").rename(tmp_path / "away")
    (tmp_path / "volume").mkdir()
    assert "2026/p.sqlite, is missing" in refused(typed, None)
    assert not any((tmp_path / "volume").iterdir())


@pytest.mark.parametrize("link", ["folder", "file"])
@pytest.mark.parametrize("dataset_id", [ID, None])
@pytest.mark.parametrize("outside", [False, True])
def test_a_link_on_the_volume_of_a_ledger_begins_no_new_one(
    tmp_path, link, dataset_id, outside
):
    """The link is away with the volume, so the typed path is a name of no ledger."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    (volume / "2026").mkdir(parents=True)
    typed = volume / "current"
    typed.symlink_to({"folder": "2026", "file": "2026/p.sqlite"}[link])
    if link == "folder":
        typed /= "p.sqlite"
    else:
        Ledger(volume / "2026/p.sqlite", dataset_id).close()
    through = tmp_path / "data"
    through.symlink_to(volume)
    first = through / typed.relative_to(volume) if outside else typed
    assert [charged(first, dataset_id) for _ in range(2)] == [1, 2]
    notes = notes_path(dataset_id).read_text()
    volume.rename(away)
    volume.mkdir()
    for place in (typed, first):
        said = refused(place, dataset_id)
        assert f"which was {volume}/2026/p.sqlite, is missing" in said
    typed.parent.mkdir(exist_ok=True)
    Ledger(typed, dataset_id).close()  # another volume has a ledger of that name
    for place in (typed, first):
        assert "was replaced by another one" in refused(place, dataset_id)
    shutil.rmtree(volume)
    away.rename(volume)
    assert charged(volume / "2026/p.sqlite", dataset_id) == 3
    assert [charged(first, dataset_id) for _ in range(2)] == [4, 5]
    # each name is noted once
    assert notes_path(dataset_id).read_text() == notes
    assert len(noted_ledgers(ID)) == (dataset_id is not None)


def test_a_link_to_another_ledger_is_not_the_noted_one(tmp_path):
    """The other ledger is charged under a path without the link."""
    current = tmp_path / "current"
    for year in ("2026", "2027"):
        (tmp_path / year).mkdir()
        current.unlink(missing_ok=True)
        current.symlink_to(year)
        if year == "2026":
            assert charged(current / "p.sqlite", None) == 1
    assert "2026/p.sqlite, is missing" in refused(current / "p.sqlite", None)
    assert charged(tmp_path / "2027/p.sqlite", None) == 1
    assert "was replaced by" in refused(current / "p.sqlite", None)
    assert charged(tmp_path / "2026/p.sqlite", None) == 2
    # the first ledger was moved, and the link leads to it again
    (tmp_path / "2026").rename(tmp_path / "2028")
    current.unlink()
    current.symlink_to("2028")
    assert charged(current / "p.sqlite", None) == 3
