"""People of a declared id system: one ledger counts each of them."""

import multiprocessing
import time

import numpy as np
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import group_ids
from dphead_extract.index import ImageIndex
from dphead_extract.items import UNGROUPED, text_group
from dphead_extract.people import People

A, B, SALT = ("a" * 32, "b" * 32, "5" * 32)


@pytest.fixture
def index(tmp_path):
    return ImageIndex(tmp_path / "people")


def ids(*names):
    return np.array([text_group(name) for name in names], np.int64)


def shared(people):
    """The data set whose ledger the id system shares."""
    assert people.shared_id is not None
    return people.shared_id


def kept(people, dataset_id, *names, salt=SALT, joining=()):
    with people.held():
        people.keep(dataset_id, salt, ids(*names), joining)


def test_an_id_system_has_one_random_ledger_in_a_home(index, tmp_path):
    clinic = People(index, "clinic").shared_id
    assert clinic == People(ImageIndex(index.folder), "clinic").shared_id
    elsewhere = People(ImageIndex(tmp_path / "other"), "clinic").shared_id
    assert len({clinic, People(index, "mrn").shared_id, elsewhere}) == 3
    assert People(index, "clinic", new=True).shared_id is None


def test_a_shared_ledger_is_no_ledger_of_another_data_set(index):
    with pytest.raises(ExtractError, match=r"--ledger names the data set b+\. Drop"):
        People(index, "clinic").data_set(B)


@pytest.mark.parametrize("name", ["Clinic", "", "a b", "-a", "x" * 65, "a\n"])
def test_two_spellings_of_a_name_are_no_two_systems(index, name):
    with pytest.raises(ExtractError, match="--people must have"):
        People(index, name)


def test_declarations_need_a_name_and_a_home(index):
    with pytest.raises(ExtractError, match="--new-people needs --people"):
        People(index, None, new=True)
    with pytest.raises(ExtractError, match="needs DPHEAD_HOME"):
        People(None, "clinic")


@pytest.mark.parametrize(
    "known", [7, 7.0, "7", " 7 ", "7.0"], ids=["int", "float", "text", "space", "point"]
)
def test_one_known_person_is_refused_whatever_the_type_of_the_id(index, known):
    clinic = People(index, "clinic")
    kept(clinic, shared(clinic), "7", "8")
    new = People(index, "clinic", new=True)
    groups = group_ids([known, 100], 2)
    with pytest.raises(ExtractError, match=r"1 of 2 people .*Drop --new-people"):
        new.check(None, groups)
    new.check(None, ids("007", "100"))  # another text is another person
    People(index, "mrn", new=True).check(None, groups)  # another system's ids


def test_new_people_are_checked_against_those_declared_new_before(index):
    new = People(index, "clinic", new=True)
    kept(new, A, "1", "2")
    kept(new, A, "1", "2")  # the same data set again
    for people, own in ((new, B), (People(index, "clinic"), None)):
        own = own or shared(people)
        with pytest.raises(ExtractError, match=f"1 of 2 people .*{A}.*ledger people"):
            kept(people, own, "2", "3")
        kept(people, own, str(own), "4" + own)
    # two people, the system, the rows and their groups
    assert len(index.images(B)) == 5


def test_people_of_a_shared_ledger_may_be_in_many_of_its_data_sets(index):
    clinic = People(index, "clinic")
    kept(clinic, shared(clinic), "1", "2")
    kept(clinic, shared(clinic), "2", "3", salt="6" * 32)
    assert clinic.recorded(shared(clinic), "6" * 32, ids("3", "2"))
    assert not clinic.recorded(shared(clinic), "7" * 32, ids("2", "3"))


def test_a_file_of_the_same_rows_with_other_groups_is_not_recorded(index):
    """It has the salt of the first file."""
    clinic = People(index, "clinic")
    kept(clinic, shared(clinic), "study-1", "study-2")
    assert not clinic.recorded(shared(clinic), SALT, ids("P-1", "P-2"))
    kept(clinic, shared(clinic), "P-1", "P-2")
    for groups in (ids("P-1", "P-2"), ids("study-1", "study-2")):
        assert clinic.recorded(shared(clinic), SALT, groups)


def test_a_data_set_with_a_ledger_of_its_own_is_merged_first(index):
    clinic, new = People(index, "clinic"), People(index, "clinic", new=True)
    with pytest.raises(ExtractError, match="dphead ledger people clinic FILE"):
        clinic.check(A, ids("1"))
    with pytest.raises(ExtractError, match="Drop --new-people"):
        new.check(shared(clinic), ids("1"))
    kept(clinic, A, "1", joining=(A, shared(clinic)))
    with pytest.raises(ExtractError, match=A):  # not merged yet
        kept(clinic, shared(clinic), "1")
    with clinic.held():
        clinic.join(A)
    kept(clinic, shared(clinic), "1")
    kept(clinic, A, "2")
    with pytest.raises(ExtractError, match="1 of 1 people"):
        new.check(B, ids("2"))
    assert clinic.recorded(A, SALT, ids("2"))
    assert not new.recorded(A, SALT, ids("2"))


def test_a_data_set_of_an_id_system_is_declared_each_time(index):
    kept(People(index, "clinic", new=True), A, "1")
    with pytest.raises(ExtractError, match="belongs to a declared id system"):
        People(index).check(A, ids("1"))
    with pytest.raises(ExtractError, match="an id system other than"):
        People(index, "mrn", new=True).check(A, ids("1"))
    People(index).check(B, ids("1"))


def test_new_people_need_an_id_each_and_groups(index):
    new = People(index, "clinic", new=True)
    with pytest.raises(ExtractError, match="1 of 2 rows have no id"):
        new.check(None, np.array([UNGROUPED, *ids("1")]))
    with pytest.raises(ExtractError, match="column with the id"):
        new.check(None, None)
    clinic = People(index, "clinic")
    clinic.check(shared(clinic), np.array([UNGROUPED]))


def test_no_digest_tells_an_id_without_the_key(index, tmp_path):
    """Neither the plain digest of an id, nor the one under another key, is stored."""
    clinic = People(index, "clinic")
    kept(clinic, shared(clinic), "P-17")
    other = People(ImageIndex(tmp_path / "other"), "clinic")
    kept(other, shared(other), "P-17")
    stores = (index, ImageIndex(tmp_path / "other"))
    own = stores[0].images(shared(clinic))
    theirs = stores[1].images(shared(other))
    assert len(own) == 4 and not {*own.tolist()} & {*theirs.tolist()}
    assert ids("P-17")[0] not in own.astype(np.int64)
    stored = b"".join(p.read_bytes() for p in index.folder.iterdir())
    assert b"P-17" not in stored and b"clinic" not in stored


def test_two_extractions_at_once_cannot_both_have_a_new_person(index):
    """The lock is held from the check to the record."""
    forks = multiprocessing.get_context("fork")
    found = forks.Queue()

    def declare(number):
        people = People(ImageIndex(index.folder), "clinic", new=True)
        try:
            with people.held():
                people.check(None, ids("1"))
                time.sleep(0.05)
                people.keep(f"{number}" * 32, SALT, ids("1"))
            found.put("kept")
        except ExtractError:
            found.put("refused")

    started = [forks.Process(target=declare, args=(number,)) for number in range(3)]
    for process in started:
        process.start()
    said = [found.get(timeout=60) for _ in started]
    for process in started:
        process.join()
    assert sorted(said) == ["kept", "refused", "refused"]


def test_people_who_are_recorded_at_once_without_the_lock_are_not_fitted(index):
    """A server can lose the lock, for a time that no process chooses."""
    people = People(index, "clinic", new=True)
    other, extend = People(ImageIndex(index.folder), "clinic", new=True), index.extend

    def late(dataset_id, found):
        index.extend = extend
        other.keep(B, SALT, ids("1"))
        extend(dataset_id, found)

    index.extend = late
    with pytest.raises(ExtractError, match="1 of 1 people"):
        people.keep(A, SALT, ids("1"))
    assert not people.recorded(A, SALT, ids("1"))
    assert people.recorded(B, SALT, ids("1"))
