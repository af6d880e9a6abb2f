"""Two years of patients: one ledger counts each person, in a file and on a server."""

import fcntl
import hashlib
import json
import re
import shutil
import uuid
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import contents, dphead, fitted, id_of, refusal, report_of, words
from core import reserve
from dphead_extract.errors import ExtractError, FormatError
from dphead_extract.features.format import open_features
from dphead_extract.index import ImageIndex
from dphead_extract.people import People
from dphead_extract.shards import join_shards
from ledgers import Killed, add_fits, close_by_hand, died_everywhere, specs

from benchmarks.faults.servers import CLIENT
from dphead import DPLeastSquaresClassifier
from dphead.analysis.ledger_place import ledger_home
from dphead.analysis.records import read_run
from dphead.export.trained import guarantee_of
from dphead.fit import ledgers, loop, run, run_folder
from dphead.fit import people as module
from dphead.fit.ledgers import (
    RowGroups,
    charged_elsewhere,
    charging,
    counted_in,
    declared_people,
    default_ledger_path,
    fix_budget,
    image_index,
    known_images,
    move_ledger,
    open_ledger,
    people_index,
    read_known,
    read_ledger,
)
from dphead.fit.noted import note_ledger, notes_path
from dphead.privacy.ledger import Ledger, LedgerError, seals, server
from dphead.privacy.ledger.groups import Groups
from dphead.privacy.ledger.store import AWAITS, COUNTS, MOVED, PEOPLE

FIT = ("--method", "dp-ls", "--backend", "numpy", "--group-cap", 2, "--delta", 1e-3)
SCATTER = ("--backbone", "scatternet", "--scatter-j", 1, "--block-rows", 2)
OWN = "People are recognized only within this data set"
Y, Z = "e" * 32, "f" * 32  # ids of data sets without a file


@pytest.fixture(params=["file", "server"])
def store(request, monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    if request.param == "server":
        on_server(request.getfixturevalue("team"), monkeypatch)
    return request.param


def on_server(team, monkeypatch):
    """Use the server, whose key the members of all tests have."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    folder = people_index().folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key").write_bytes(b"k" * 32)
    people_index().keyed("any", 8)  # the server has the key's seal before each test


@pytest.fixture
def clinic(request):
    """A name that no other test uses: all tests share a server."""
    return "c" + hashlib.sha256(request.node.name.encode()).hexdigest()[:16]


def year(folder, name, first, n=60):
    """A table of n people with two rows each, and its command of import."""
    draw = np.random.default_rng(first)
    label = np.arange(2 * n) % 2
    x = draw.random((2 * n, 4), np.float32)
    x[:, 0] += label
    group = [f"P-{first + i // 2}" for i in range(2 * n)]
    np.savez(folder / f"{name}.npz", features=x, label=label, group=group)
    output = folder / f"{name}.h5"
    command = ("features", "import", folder / f"{name}.npz", "--classes", 2)
    return output, (*command, "-o", output)


def without_groups(command):
    """Remove the groups from the table of a command of `year`."""
    rows = dict(np.load(command[2]))
    del rows["group"]
    np.savez(command[2], **rows)
    return command


def made(folder, name, first, *options):
    output, command = year(folder, name, first)
    fitted(*command, *options)
    return output


def charged(features, **more):
    """Charge a fit of the file's data set, without a row."""
    book = open_ledger(None, id_of(features))
    reserve(specs(1, 8.0, group_cap=2, **more), book)


def fits_of(features):
    return read_ledger(None, counted_in(id_of(features))).count_fits()


def test_two_years_of_patients_share_one_budget(store, tmp_path, clinic):
    one, command = year(tmp_path, "one", 0)
    offer = "before the first fit, set a budget"
    assert offer in fitted(*command, "--people", clinic).out
    fitted("ledger", "budget", one, "--epsilon", 3, "--delta", 1e-3)
    fitted("fit", one, "-o", tmp_path / "r1", *FIT, "--epsilon", 2.5)
    two, command = year(tmp_path, "two", 0)  # the same people
    assert offer not in fitted(*command, "--people", clinic).out
    assert id_of(one) == id_of(two)
    said = refusal("fit", two, "-o", tmp_path / "r2", *FIT, "--epsilon", 2.5)
    assert "exceed the budget" in said
    done = fitted("fit", two, "-o", tmp_path / "r3", *FIT, "--epsilon", 1)
    assert fits_of(one) == 2
    report = report_of(tmp_path / "r3")
    assert report["data"]["people"] == {"system": clinic, "new": False}
    told = f"People are recognized by the id system {clinic}."
    page = words((tmp_path / "r3/report.html").read_text())
    for text in (words(done.out), report["statement"], page):
        assert told in text and OWN not in text


def test_one_known_person_is_no_new_person(store, tmp_path, clinic):
    """Refused before anything is written, and told to the data holder only."""
    made(tmp_path, "one", 0, "--people", clinic)
    _, command = year(tmp_path, "two", 59)  # P-59 is in both
    before = contents(tmp_path) | contents(ledger_home())
    done = dphead(*command, "--people", clinic, "--new-people")
    assert done.code == 2 and done.out == ""
    assert "1 of 60 people are also in data set" in done.err
    assert contents(tmp_path) | contents(ledger_home()) == before
    new, command = year(tmp_path, "new", 60)
    told = words(fitted(*command, "--people", clinic, "--new-people").out)
    assert "P-3 and p-3 are different people" in told
    assert id_of(new) != id_of(tmp_path / "one.h5")
    done = fitted("fit", new, "-o", tmp_path / "run", *FIT)
    report = report_of(tmp_path / "run")
    told = "true, those data sets add no privacy loss. Data sets outside"
    page = words((tmp_path / "run/report.html").read_text())
    for text in (words(done.out), report["statement"], page):
        assert told in text
    # nor may they come back in a data set of the shared ledger
    said = refusal(*year(tmp_path, "three", 100)[1], "--people", clinic)
    assert "20 of 60 people" in said and f"dphead ledger people {clinic} FILE" in said
    assert "no longer" not in dphead("check", tmp_path / "run").out
    fitted("ledger", "people", clinic, new)
    assert "people no longer new" in dphead("check", tmp_path / "run").out
    for text in exported(tmp_path / "run", tmp_path / "export"):
        assert f"by the id system {clinic}" in text
    fitted(*year(tmp_path, "three", 100)[1], "--people", clinic)
    assert counted_in(id_of(new)) == id_of(tmp_path / "three.h5")


def test_people_no_longer_new_keep_the_guarantee_of_their_budget(tmp_path, clinic):
    """Their fits were the only ones, so the budget applied to all from the start."""
    new = made(tmp_path, "new", 0, "--people", clinic, "--new-people")
    fitted("ledger", "budget", new, "--epsilon", 3, "--delta", 1e-3)
    fitted("fit", new, "-o", tmp_path / "run", *FIT)
    fitted("ledger", "people", clinic, new)
    said = words(dphead("check", tmp_path / "run").out)
    assert "people no longer new" in said
    assert "State the budget of all fits, epsilon 3 at delta 0.001" in said


def exported(run, folder):
    """The statement and the page in an export, after the note on standard error."""
    done = fitted("export", run, "--to", "sklearn", "-o", folder)
    assert "State the plain sum of all fits" in words(done.err)
    guarantee = json.loads((folder / "guarantee.json").read_text())
    assert guarantee["budget_of_all_fits"] is None
    found = guarantee["statement"], words((folder / "README.md").read_text())
    for text in found:
        assert "never exceeded" not in text and "No other data set" not in text
    shutil.rmtree(folder)
    return found


def test_an_export_after_a_merge_describes_the_shared_ledger(tmp_path, clinic):
    """Even of a report without a budget, which no merge makes false."""
    one, two = (made(tmp_path, name, 0) for name in ("one", "two"))
    for features in (one, two):
        fitted("fit", features, "-o", tmp_path / f"{features.stem}.run", *FIT)
    fitted("ledger", "people", clinic, one, two)
    sums = set()
    for name in ("one", "two"):
        out = tmp_path / f"{name}.export"
        fitted("export", tmp_path / f"{name}.run", "--to", "sklearn", "-o", out)
        statement = json.loads((out / "guarantee.json").read_text())["statement"]
        sums.add(re.search(r"plain sum .* so far is epsilon = ([0-9.]+)", statement)[1])
    (total,) = sums
    assert float(total) > report_of(tmp_path / "one.run")["guarantee"]["epsilon"]


def test_ledgers_that_exist_are_merged_and_count_the_sum(store, tmp_path, clinic):
    one, two = (made(tmp_path, name, 0) for name in ("one", "two"))
    for features, epsilon in ((one, 3), (two, 2)):
        fitted("ledger", "budget", features, "--epsilon", epsilon, "--delta", 1e-3)
        run = tmp_path / f"{features.stem}.run"
        done = fitted("fit", features, "-o", run, *FIT, "--epsilon", 1.8)
        assert f"! {OWN}" in words(done.out) and OWN in report_of(run)["statement"]
        assert report_of(run)["ledger"]["total_epsilon"] < 1.81
    fitted("ledger", "people", clinic, one)
    said = words(fitted("ledger", "people", clinic, two).out)
    assert "the budget is exceeded: no further fit is charged" in said
    assert "epsilon 2 at delta 0.001" in said and "spent in 2 fits" in said
    again = fitted("ledger", "people", clinic, one, two)
    assert "spent in 2 fits" in words(again.out)
    ended = (
        "This budget did not apply to all fits from the start, so it is no guarantee "
        "for their sum"
    )
    for features in (one, two):
        assert fits_of(features) == 2
        command = ("fit", features, "-o", tmp_path / "no", *FIT, "--epsilon", 0.1)
        assert "exceed the budget" in refusal(*command)
        checked = dphead("check", tmp_path / f"{features.stem}.run")
        said = words(checked.out)
        assert checked.code == 1 and "budget no longer a guarantee" in said
        assert " of 2 spent (delta 0.001) in 2 fits; ledgers were merged, so" in said
        run = tmp_path / f"{features.stem}.run"
        told = words(fitted("report", run, "-o", tmp_path / "page").err)
        assert "does not hold for all fits. State the plain sum of all fits" in told
        for text in exported(run, tmp_path / "export"):
            assert ended in text
    book = read_ledger(None, counted_in(id_of(one)))
    assert book.verify() == [] and book.is_sum()


def test_a_merged_budget_that_holds_is_no_guarantee_for_the_sum(tmp_path, clinic):
    one, two = (made(tmp_path, name, 0) for name in ("one", "two"))
    fitted("ledger", "budget", one, "--epsilon", 3, "--delta", 1e-3)
    charged(one)
    charged(two)
    fitted("ledger", "people", clinic, one, two)
    fitted("fit", two, "-o", tmp_path / "run", *FIT, "--epsilon", 0.5)
    report = report_of(tmp_path / "run")
    assert report["ledger"]["fits"] == 3 and report["ledger"]["is_sum"]
    assert report["data"]["people"] == {"system": clinic, "new": False}
    assert "it is no guarantee for their sum" in report["statement"]
    assert "fixed before the first fit" not in report["statement"]
    run, after = tmp_path / "run", "fixed before the first fit"
    for options in ((), ("--card",), ("--dpia",)):
        text = words(fitted("report", run, *options, "-o", "-").out)
        assert "no guarantee for their sum" in text and after not in text
    assert after not in words(dphead("check", run).out)
    written = guarantee_of(run, read_known(run), {"class_names": []})
    assert written["budget_of_all_fits"] is None
    again = fitted("ledger", "budget", two, "--epsilon", 3, "--delta", 1e-3).out
    assert "no guarantee for their sum" in words(again) and "never" not in again
    shown = json.loads(fitted("ledger", "show", two, "--json").out)
    assert shown["is_sum"] and shown["budget"]["epsilon"] == 3
    said = refusal("fit", two, "-o", tmp_path / "no", *FIT, "--epsilon", 2.95)
    assert "exceed the budget" in said


def refused_beside(dataset_id, *where):
    """Whether a budget elsewhere refuses a charge to a data set's ledger."""
    try:
        with charging(open_ledger(where[0] if where else None, dataset_id)):
            return False
    except LedgerError as error:
        assert "the budget epsilon=2" in str(error), error
        return True


def of_shared_images(*ids):
    """Data sets that share notably many images with each other."""
    for first, name in enumerate(ids):
        images = np.arange(40 * first, 40 * first + 100, dtype=np.uint64)
        image_index().add(name, images)


def test_a_damaged_shared_ledger_hides_no_other_ledger_of_its_data_set(
    tmp_path, clinic
):
    """The ledger that was merged into it still names it."""
    one, book = made(tmp_path, "one", 0), tmp_path / "q.sqlite"
    of_shared_images(id_of(one), Y)
    fitted("ledger", "people", clinic, one)
    fitted("ledger", "budget", book, "--epsilon", 2, "--delta", 1e-3)
    fitted("fit", one, "-o", tmp_path / "r", *FIT, "--epsilon", 1.9, "--ledger", book)
    assert refused_beside(Y)
    default_ledger_path(counted_in(id_of(one))).write_bytes(b"x" * 4096)
    assert refused_beside(Y)
    shutil.rmtree(ledger_home() / "people")  # which names it too
    with pytest.raises(FormatError, match="not recognize all known people"):
        refused_beside(Y)
    (ledger_home() / "ledgers" / "people.sizes").unlink()  # as the error says
    assert refused_beside(Y)


def unmounted(folder):
    """Leave an empty folder, as at the mount point of a volume that is away."""
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()


@pytest.mark.parametrize("new", [(), ("--new-people",)], ids=["shared", "new"])
def test_an_index_of_people_that_is_away_makes_nobody_new(tmp_path, clinic, new):
    """Its id system would else get a second ledger, without the first one's budget."""
    made(tmp_path, "one", 0, "--people", clinic)
    unmounted(ledger_home() / "people")
    two, command = year(tmp_path, "two", 30)
    said = refusal(*command, "--people", clinic, *new)
    assert "not recognize all known people" in said
    assert not two.exists()


def test_an_index_whose_ledgers_are_away_begins_none(tmp_path, clinic):
    one = made(tmp_path, "one", 0, "--people", clinic)
    fitted("ledger", "budget", one, "--epsilon", 1, "--delta", 1e-3)
    unmounted(ledger_home() / "ledgers")
    said = refusal("fit", one, "-o", tmp_path / "run", *FIT, "--epsilon", 2)
    assert "lacks the file people.sizes" in said and "would not count" in said
    assert not list((ledger_home() / "ledgers").glob("*.sqlite"))


@pytest.mark.parametrize("state", ["removed", "damaged", "away"])
def test_a_closed_ledger_that_cannot_be_read_hides_no_budget_of_the_shared_one(
    tmp_path, clinic, state
):
    """The index of people names the data set that counts it now."""
    one = made(tmp_path, "one", 0)
    own, volume = default_ledger_path(id_of(one)), tmp_path / "volume"
    of_shared_images(id_of(one), Y)
    fix_budget(open_ledger(None, id_of(one)), 2.0, 1e-3)
    charge_groups(one)
    if state == "away":
        linked(own, volume)
    fitted("ledger", "people", clinic, one)
    assert refused_beside(Y)
    if state == "away":
        volume.rename(tmp_path / "elsewhere")
    elif state == "removed":
        own.unlink()
    else:
        own.write_bytes(b"x" * 4096)
    assert refused_beside(Y)
    found = {one.path: one.fits for one in charged_elsewhere(Y)}
    counts = str(People(people_index(), clinic).shared_id)
    assert found[str(default_ledger_path(counts))] == 1


def linked(own, volume):
    """Move a ledger to a volume, with a link in its place."""
    volume.mkdir()
    shutil.move(own, volume / "s.sqlite")
    own.symlink_to(volume / "s.sqlite")


@pytest.mark.parametrize("way", ["merged", "new"])
def test_a_declaration_notes_the_ledger_behind_a_link(tmp_path, clinic, way):
    """Another ledger of the data set is mounted in its place, before any charge."""
    one, volume = made(tmp_path, "one", 0), tmp_path / "volume"
    charge_groups(one)
    counts = id_of(one)
    if way == "merged":
        counts = str(People(people_index(), clinic).shared_id)
        open_ledger(None, counts)
    own = default_ledger_path(counts)
    linked(own, volume)
    module.declare_people(one, clinic, way == "new")
    volume.rename(tmp_path / "away")
    with pytest.raises(LedgerError, match="may hold fits"):
        open_ledger(None, counts)
    with closing(Ledger(volume / "s.sqlite", counts)) as book:
        reserve(specs(1, 8.0, group_cap=2), book)
    with pytest.raises(LedgerError, match="was replaced by another one"):
        open_ledger(None, counts)


def test_a_budget_that_a_merge_sets_is_noted_with_the_ledger(tmp_path, clinic):
    """The shared ledger is a link, and its volume is away after the merge."""
    one, shared = made(tmp_path, "one", 0), made(tmp_path, "shared", 500)
    fitted("ledger", "people", clinic, shared)
    counts, volume = counted_in(id_of(shared)), tmp_path / "volume"
    linked(default_ledger_path(counts), volume)
    of_shared_images(id_of(one), Y)
    fix_budget(open_ledger(None, id_of(one)), 2.0, 1e-3)
    fitted("ledger", "people", clinic, one)
    volume.rename(tmp_path / "away")
    assert refused_beside(Y) and refused_beside(counts, tmp_path / "new.sqlite")


def test_a_budget_counts_at_the_place_that_its_ledger_was_merged_into(
    tmp_path, clinic, monkeypatch
):
    """Another home knows the ledger by a note, or has a copy of it."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    own, other = ledger_home(), tmp_path / "other"
    one = made(tmp_path, "one", 0)
    ledger = open_ledger(None, id_of(one))
    monkeypatch.setenv("DPHEAD_HOME", str(other))
    fix_budget(ledger, 2.0, 1e-3)
    monkeypatch.setenv("DPHEAD_HOME", str(own))
    charge_groups(one)
    merged, _ = module.declare_people(one, clinic, False)
    monkeypatch.setenv("DPHEAD_HOME", str(other))
    assert refused_beside(id_of(one))
    (elsewhere,) = charged_elsewhere(id_of(one))
    assert (elsewhere.path, elsewhere.fits) == (str(merged.path), 1)
    # nor can this home merge what another one has merged
    with pytest.raises(LedgerError, match=f"already moved to {merged.path}"):
        module.declare_people(one, clinic, False)
    (other / f"ledgers/{id_of(one)}.others").unlink()
    copy = other / "ledgers" / Path(merged.path).name
    copy.write_bytes(Path(merged.path).read_bytes())
    for new in (False, True):
        with pytest.raises(LedgerError, match="to an id system of another home"):
            module.declare_people(one, clinic, new)
    assert not people_index().knows(id_of(one))


def test_images_of_all_data_sets_of_a_ledger_are_looked_at(tmp_path, clinic):
    """The merged one is a small part of the ledger's data sets."""
    one, images = made(tmp_path, "one", 0), image_index()
    system = str(People(people_index(), clinic).shared_id)
    for name, first, n in (
        (id_of(one), 0, 100),
        (Y, 40, 100),
        (Z, 300, 100),
        (system, 10**4, 5000),
    ):
        images.add(name, np.arange(first, first + n, dtype=np.uint64))
    fix_budget(open_ledger(None, id_of(one)), 2.0, 1e-3)
    assert refused_beside(Y)
    module.declare_people(one, clinic, False)
    assert refused_beside(Y) and not refused_beside(Z)
    for known in map(known_images, (system, id_of(one))):
        assert np.isin(known, known_images(Y)).sum() == 60


def test_a_later_year_hides_no_budget_for_images_of_an_earlier_one(store):
    """An archive has all images of the first year."""
    images = image_index()
    for limited in (0, 1):
        system, archive = (uuid.uuid4().hex for _ in range(2))
        images.add(system, first := np.arange(4, dtype=np.uint64) + 10**6 * limited)
        images.add(archive, np.arange(100, dtype=np.uint64) + first[0])
        fix_budget(open_ledger(None, (system, archive)[limited]), 2.0, 1e-3)
        charged_next = (archive, system)[limited]
        assert refused_beside(charged_next)
        images.add(system, np.arange(200, dtype=np.uint64) + first[0] + 5000)
        assert refused_beside(charged_next)


def test_a_budget_refuses_the_ledger_that_counts_a_data_set_with_its_images(
    tmp_path, clinic, monkeypatch
):
    one, images = made(tmp_path, "one", 0), image_index()
    system = str(People(people_index(), clinic).shared_id)
    for name, first in ((id_of(one), 0), (Y, 40), (system, 10**4)):
        images.add(name, np.arange(first, first + 100, dtype=np.uint64))
    fix_budget(open_ledger(None, Y), 2.0, 1e-3)
    assert refused_beside(id_of(one)) and not refused_beside(system)
    with pytest.raises(LedgerError, match="each fit would be refused"):
        module.declare_people(one, clinic, False)
    assert not refused_beside(system)
    # as an earlier version did
    monkeypatch.setattr(module, "_check_target", lambda *_: None)
    module.declare_people(one, clinic, False)
    assert refused_beside(system)


@pytest.fixture(params=["merged", "moved and merged"])
def moved(request, monkeypatch):
    """What moves a file's ledger to a server before a merge, or does nothing."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)

    def move(features):
        if request.param != "merged":
            team = request.getfixturevalue("team")
            move_ledger(open_ledger(None, id_of(features)), team.url(CLIENT))
            on_server(team, monkeypatch)

    return move


def test_a_fit_that_was_interrupted_before_a_merge_goes_on(
    tmp_path, clinic, monkeypatch, moved
):
    one, fit = made(tmp_path, "one", 0), ("-o", tmp_path / "run", *FIT)
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "charge_ledger", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dphead("fit", one, *fit)
    charge_groups(one)
    moved(one)
    module.declare_people(one, clinic, False)
    fitted("fit", one, *fit)
    assert fits_of(one) == 2


def test_later_files_of_rows_that_were_merged_share_the_ledger(tmp_path, clinic):
    one = made(tmp_path, "one", 0, "--people", clinic, "--new-people")
    plain, command = year(tmp_path, "plain", 60)
    fitted(*command)
    for features in (one, plain):
        module.declare_people(features, clinic, False)
    module.record_joined(one)  # as of shards that were joined after the merge
    again = fitted(*year(tmp_path, "again", 0)[1], "--same-data-as", one)
    assert f"id system {clinic}: its data sets share" in words(again.out)
    assert people_of(tmp_path / "again.h5") == {"system": clinic, "new": False}
    assert f"id system {clinic}: its data sets share" in words(fitted(*command).out)


def test_a_declaration_is_not_taken_over_for_other_groups(tmp_path, clinic):
    """Files of the same rows by patient and by row have no common person."""
    for name, more in (("one", ()), ("new", ("--new-people",))):
        one = made(tmp_path, name, 60 * len(more), "--people", clinic, *more)
        again, command = year(tmp_path, f"again-{name}", 60 * len(more))
        rows = dict(np.load(command[2]))
        rows["group"] = [f"R-{name}-{i}" for i in range(len(rows["label"]))]
        np.savez(command[2], **rows)
        said = refusal(*command, "--same-data-as", one)
        assert f"type --people {' '.join((clinic, *more))}." in said
        assert not again.exists() and "The groups differ" in said
        fitted(*command, "--same-data-as", one, "--people", clinic, *more)


@pytest.mark.parametrize("new", [True, False])
def test_a_ledger_of_another_declaration_names_its_own_command(tmp_path, clinic, new):
    book = Ledger(tmp_path / "ledger.sqlite", Y)
    module._fix(book, People(people_index(), clinic, new))
    with pytest.raises(LedgerError, match="a different declaration") as refused:
        module._fix(book, People(people_index(), clinic, not new))
    option = " --new-people" if new else ""
    assert str(refused.value).endswith(f"people {clinic} FILE{option}.")


@pytest.mark.parametrize("same", [True, False])
def test_a_ledger_that_was_merged_is_not_beside_a_run_that_is_saved_later(
    tmp_path, clinic, same
):
    """Unless a ledger of another home, of the same name, was merged."""
    from dphead import DPLeastSquaresClassifier

    one, given = made(tmp_path, "one", 0), {"group_cap": 2, "delta": 1e-3}
    DPLeastSquaresClassifier(ledger=tmp_path / "q.sqlite", **given).fit(one)
    head = DPLeastSquaresClassifier(**given).fit(one)
    assert "q.sqlite holds at least 1 fit" in " ".join(head.privacy_.notes)
    (beside,) = vars(head)["_beside"]
    if not same:
        beside["identity"] = "another"
    module.declare_people(one, clinic, False)
    head.save(tmp_path / "run")
    report = report_of(tmp_path / "run")
    assert report["ledger"]["fits"] == 2
    assert (report["ledger"]["elsewhere"] == []) == same
    assert ("q.sqlite" not in json.dumps(report)) == same


@pytest.mark.parametrize("limited", ["noted", "own"])
def test_a_merge_that_would_refuse_all_fits_is_refused(tmp_path, clinic, limited):
    """The id system's fits are in another ledger than its own, one with a budget."""
    two, one = made(tmp_path, "two", 0, "--people", clinic), made(tmp_path, "one", 0)
    other = tmp_path / "other.sqlite"
    noted = Ledger(other, id_of(two))
    fix_budget(noted if limited == "noted" else open_ledger(None, id_of(one)), 3, 1e-3)
    charge_groups(two, other)
    charge_groups(one)
    with pytest.raises(LedgerError, match="each fit would be refused") as found:
        module.declare_people(one, clinic, False)
    assert str(other) in str(found.value) and not people_index().knows(id_of(one))
    charge_groups(two, other)
    charge_groups(one)


def test_data_sets_with_the_same_images_are_declared_in_one_command(tmp_path, clinic):
    """The id system has a budget, and each of the two has a fit."""
    files = [made(tmp_path, name, first) for name, first in (("one", 0), ("two", 60))]
    system = str(People(people_index(), clinic).shared_id)
    fix_budget(open_ledger(None, system), 3.0, 1e-3)
    for file in files:
        image_index().add(id_of(file), np.arange(100, dtype=np.uint64))
        charge_groups(file)
    for file in files:
        with pytest.raises(LedgerError, match=r"would be refused.* in one command"):
            module.declare_people(file, clinic, False)
        assert not people_index().knows(id_of(file))
    fitted("ledger", "people", clinic, *files)
    charge_groups(files[0])
    assert {fits_of(file) for file in files} == {3}


def test_files_of_one_data_set_with_a_ledger_each_are_declared_in_one_command(
    tmp_path, clinic
):
    one, (part, command) = made(tmp_path, "one", 0), year(tmp_path, "part", 0, n=40)
    fitted(*command, "--dataset-id", id_of(one))
    charge_groups(one)
    charge_groups(part, tmp_path / "other.sqlite")
    for file in (one, part):
        with pytest.raises(
            LedgerError, match="name both features files in one command"
        ):
            module.declare_people(file, clinic, False)
        assert not people_index().knows(id_of(one))
    fitted("ledger", "people", clinic, part, one)
    for file in (one, part):
        charge_groups(file)
    assert fits_of(one) == 4


def test_a_file_beside_others_has_groups(tmp_path, clinic):
    """Else the others would be declared, and beside it no fit charged."""
    one, (plain, command) = made(tmp_path, "one", 0), year(tmp_path, "plain", 60)
    fitted(*without_groups(command))
    said = refusal("ledger", "people", clinic, one, plain)
    assert f"{plain} has no column" in words(said)
    assert not people_index().knows(id_of(one))


def test_a_ledger_that_protects_rows_does_not_decide_for_an_id_system(tmp_path, clinic):
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 60, "--people", clinic)
    reserve(specs(1, 8.0), open_ledger(None, id_of(one)))
    with pytest.raises(LedgerError, match="no fit of the id system could protect"):
        module.declare_people(one, clinic, False)
    charge_groups(two)
    assert not people_index().knows(id_of(one))


def test_a_home_can_move_with_its_merged_ledgers(tmp_path, clinic, monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    fix_budget(open_ledger(None, id_of(one)), 2.0, 1e-3)
    charge_groups(one)
    module.declare_people(one, clinic, False)
    ledger_home().rename(tmp_path / "moved")
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "moved"))
    charge_groups(one)
    module.declare_people(one, clinic, False)
    assert fits_of(one) == 2
    assert [one.fits for one in charged_elsewhere(id_of(one))] == [2]


def test_a_home_can_move_before_the_fits_of_a_merge_are_copied(
    tmp_path, clinic, monkeypatch
):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, moved = made(tmp_path, "one", 0), tmp_path / "moved"
    for name in ("run", "run2"):
        fitted("fit", one, "-o", tmp_path / name, *FIT, "--epsilon", 1)
    own = open_ledger(None, id_of(one))
    declared = partial(module.declare_people, one, clinic, False)
    for _ in died_everywhere(monkeypatch, declared):
        if own.meta("merged"):
            break
    assert counted_in(id_of(one)) == id_of(one)  # closed, and not copied
    home = ledger_home()
    assert read_known(tmp_path / "run").ended  # its place lacks the fits
    home.rename(moved)
    home.mkdir()
    monkeypatch.setenv("DPHEAD_HOME", str(moved))
    assert read_known(tmp_path / "run").ended
    said = refusal("export", tmp_path / "run", "--to", "sklearn", "-o", tmp_path / "no")
    assert "the sum of all fits is unknown" in said
    refused = ""
    try:
        module.declare_people(one, clinic, False)
    except LedgerError as error:
        refused = str(error)
    assert not refused
    assert fits_of(one) == 2


def test_a_ledger_takes_no_other_groups_while_it_is_merged(
    tmp_path, clinic, monkeypatch
):
    """Another home shares the ledger's file, and has another key."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, own = made(tmp_path, "one", 0), ledger_home()
    study, shared = by_study(tmp_path, one), tmp_path / "shared.sqlite"
    fix_budget(Ledger(shared, id_of(one)), 2.0, 1e-3)  # also notes it

    def charged_by_study():
        monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
        try:
            charge_groups(study, shared)
        finally:
            monkeypatch.setenv("DPHEAD_HOME", str(own))

    merge, compare = module.merge, Groups.compare

    def merged(sources, target):
        with pytest.raises(LedgerError, match="A merge of this ledger into"):
            charged_by_study()
        merge(sources, target)

    def compared(self, ledger):
        compare(self, ledger)
        if ledger.path == str(shared) and not ledger.count_fits():
            monkeypatch.setattr(Groups, "compare", compare)
            charged_by_study()

    with monkeypatch.context() as patch:
        patch.setattr(Groups, "compare", compared)
        with pytest.raises(LedgerError, match="under another key of people"):
            module.declare_people(one, clinic, False)
    assert counted_in(id_of(one)) == id_of(one)
    shared.unlink()
    # else the new file is not the noted ledger
    for notes in tmp_path.rglob(notes_path(id_of(one)).name):
        notes.unlink()
    notes_path(id_of(one)).unlink()
    fix_budget(Ledger(shared, id_of(one)), 2.0, 1e-3)
    monkeypatch.setattr(module, "merge", merged)
    module.declare_people(one, clinic, False)
    assert fits_of(one) == 0


def test_a_run_knows_the_ledger_that_its_own_was_merged_into(
    tmp_path, clinic, moved, monkeypatch
):
    from dphead import DPLeastSquaresClassifier

    one, run = made(tmp_path, "one", 0), tmp_path / "run"
    head = DPLeastSquaresClassifier(epsilon=1.0, group_cap=2, delta=1e-3).fit(one)
    head.save(run)
    moved(one)
    system = str(People(people_index(), clinic).shared_id)
    fix_budget(open_ledger(None, system), 9.0, 1e-3)
    merged, _ = module.declare_people(one, clinic, False)
    charge_groups(one)
    found = read_run(run)
    assert found.merged == str(merged.path) and len(found.fits or ()) == 2
    said = words(dphead("check", run).out)
    assert "spent (delta 0.001) in 2 fits" in said
    assert "now counts this run, with 1 more fit: the ledger's plain sum is now" in said
    assert "not counted" not in said and "fits in another ledger" not in said
    if merged.url is None:
        assert read_run(run, merged.path).fits == read_run(run).fits
    head.save(tmp_path / "late")
    late = report_of(tmp_path / "late")
    assert late["ledger"]["fits"] == 2 and late["ledger"]["elsewhere"] == []
    assert f"by the id system {clinic}" in late["statement"]
    assert OWN not in json.dumps(late) and late["data"]["dataset_id"] == system
    said = words(dphead("check", tmp_path / "late").out)
    assert (
        "spent (delta 0.001) in 2 fits" in said and "fits in another ledger" not in said
    )
    if merged.url is None:
        monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "elsewhere"))
    else:  # the file names a place that cannot be read
        monkeypatch.delenv("DPHEAD_LEDGER")
    for command in ("report", run, "--card"), ("export", run, "--to", "sklearn"):
        unknown = "is not reachable, so merges and fits after this fit are unknown"
        assert unknown in words(fitted(*command).err)


def test_a_copy_of_a_run_finds_the_ledger_that_has_its_fit(tmp_path, clinic):
    """The path in its report is relative, and leads nowhere."""
    one, place = made(tmp_path, "one", 0), tmp_path / "work/p.sqlite"
    place.parent.mkdir()
    fix_budget(Ledger(place, id_of(one)), 3, 1e-3)
    fitted("fit", one, "-o", tmp_path / "run", *FIT, "--ledger", place)
    copy = shutil.copytree(tmp_path / "run", tmp_path / "for/publication")
    assert (read_known(copy).limit or {})["path"] == str(place)
    assert "fits in another ledger" not in words(dphead("check", copy).out)
    two = made(tmp_path, "two", 60, "--people", clinic)
    charge_groups(two)
    module.declare_people(one, clinic, False)
    for text in exported(copy, tmp_path / "export"):
        assert "no guarantee for their sum" in text
    assert "State the plain sum" in words(fitted("report", copy, "--card").err)
    # on another machine, which lacks the ledger that counts the fit now
    project = shutil.copytree(tmp_path / "work", tmp_path / "other/work").parent
    shutil.copytree(tmp_path / "run", project / "run")
    merged = Path(str(Ledger(place).meta(MOVED)))
    merged.rename(tmp_path / "gone.sqlite")
    for command in ("report", project / "run", "--card"), ("check", project / "run"):
        said = words("".join(dphead(*command)[1:]))
        assert f"were merged into {merged}, which cannot be read or lacks" in said
    # a merge ended the budget's guarantee, and the sum of all fits is unknown
    said = refusal("export", project / "run", "--to", "sklearn", "-o", tmp_path / "no")
    assert "the sum of all fits is unknown" in said and str(merged) in said
    assert not (tmp_path / "no").exists()
    found = words(dphead("check", project / "run").out)
    assert "so the budget is no guarantee" in found
    assert "State no sum before `dphead check` can read the merged ledger" in found


def test_a_merged_ledger_is_followed_in_a_copy_of_its_folder(
    tmp_path, clinic, monkeypatch
):
    """The place that it names can have an older copy of the ledger."""
    one, run, home = made(tmp_path, "one", 0), tmp_path / "run", ledger_home()
    fitted("fit", one, "-o", run, *FIT)
    two = made(tmp_path, "two", 60, "--people", clinic)
    charge_groups(two)
    older = shutil.copytree(home, tmp_path / "older")
    module.declare_people(one, clinic, False)
    charge_groups(one)
    newer = shutil.copytree(home, tmp_path / "newer")
    shutil.rmtree(home)
    shutil.copytree(older, home)
    own = newer / "ledgers" / default_ledger_path(id_of(one)).name
    assert "in 3 fits" in words(dphead("check", run, "--ledger", own).out)
    # of several places with all its fits, that with the most fits counts
    shutil.rmtree(home)
    shutil.copytree(newer, home)
    monkeypatch.setenv("DPHEAD_HOME", str(newer))
    charge_groups(two)
    assert "in 4 fits" in words(dphead("check", run, "--ledger", own).out)
    # and the other places are listed, also in a home that knows none of them
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "third"))
    said = words(dphead("check", run, "--ledger", own).out)
    assert "in 4 fits" in said
    assert f"count the ledger {Ledger(own).meta(MOVED)} (3 fits" in said


def test_the_ledger_to_which_a_copy_moved_is_listed(tmp_path, clinic, monkeypatch):
    """Also in a home that knows none of these ledgers."""
    one, place, run = made(tmp_path, "one", 0), tmp_path / "p.sqlite", tmp_path / "run"
    fitted("fit", one, "-o", run, *FIT, "--ledger", place)
    night = shutil.copy(place, tmp_path / "night.sqlite")
    two = made(tmp_path, "two", 60, "--people", clinic)
    charge_groups(two)
    module.declare_people(one, clinic, False)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "elsewhere"))
    merged = Ledger(place).meta(MOVED)
    said = words(dphead("check", run, "--ledger", night).out)
    assert f"does not count the ledger {merged} (2 fits" in said
    # an older copy does not stand for a named ledger whose new place is gone
    Path(str(merged)).rename(tmp_path / "gone.sqlite")
    monkeypatch.setattr(ledgers, "ledgers_holding", lambda *_: [str(night)])
    assert read_known(run, place).fits is None
    moved = Ledger(shutil.copy(night, tmp_path / "moved.sqlite"))
    with moved.transaction():
        moved.set_once(MOVED, str(tmp_path / "gone.sqlite.2"))
        seals.seal(moved)
    assert read_known(run, moved.path).fits is None


def test_a_merge_that_dies_anywhere_is_finished_by_the_same_command(
    store, tmp_path, clinic, monkeypatch
):
    """Until then, no ledger forgets a fit, and nobody becomes new."""
    one = made(tmp_path, "one", 0)
    fix_budget(open_ledger(None, id_of(one)), 2.0, 1e-3)
    charged(one)
    (fit,) = (fit["fit_id"] for fit in read_ledger(None, id_of(one)).fits())
    more = made(tmp_path, "more", 60, "--dataset-id", id_of(one))  # other people
    groups = open_features(one).group
    noted = tmp_path / "noted.sqlite"
    places = [None, noted, tmp_path / "new.sqlite"]
    with closing(Ledger(noted, id_of(one))) as book:
        note_ledger(str(noted), id_of(one), book)

    def declared():
        module.declare_people(one, clinic, False)

    points, before = 0, counted_in(id_of(one))
    for _ in died_everywhere(monkeypatch, declared):
        points += 1
        assert not any(forgets(one, fit, place) for place in places)
        if (counts := counted_in(id_of(one))) != before:
            assert read_ledger(None, counts).holds(fit)
            with pytest.raises(LedgerError, match="not recorded"):
                people_of(more)
            with pytest.raises(ExtractError, match="60 of 60"):
                People(people_index(), clinic, True).check(None, groups)
    assert points == {"file": 12, "server": 11}[store]  # a file gets an identity
    declared()
    book = read_ledger(None, counted_in(id_of(one)))
    assert [fit["fit_id"] for fit in book.fits()] == [fit]
    assert book.verify() == [] and book.meta("dataset_id") != id_of(one)
    assert (book.budget() or {})["epsilon"] == 2.0 and not book.is_sum()
    assert (people_of(one) or {})["system"] == clinic


def test_no_sum_of_the_shared_ledger_is_stated_before_a_merge_is_finished(
    store, tmp_path, clinic, monkeypatch
):
    """Nor is a fit charged to it, wherever the command dies. Nor of a data set that was
    merged before.
    """
    one, run = made(tmp_path, "one", 0, "--people", clinic), tmp_path / "run"
    fitted("fit", one, "-o", run, *FIT)
    early, merged = made(tmp_path, "early", 200), tmp_path / "merged"
    fitted("fit", early, "-o", merged, *FIT)
    module.declare_people(early, clinic, False)
    two = made(tmp_path, "two", 30)  # half of its people are in both
    charged(two)
    noted = Ledger(tmp_path / "noted.sqlite", id_of(two))
    reserve(specs(1, 8.0, group_cap=2), noted)
    note_ledger(noted.path, id_of(two), noted)
    book, unknown = read_ledger(None, id_of(one)), []

    def declared():
        module.declare_people(two, clinic, False)

    for _ in died_everywhere(monkeypatch, declared):
        if not book.joining():
            continue
        unknown.append(any(map(is_closed, ledgers.known_ledgers(id_of(two)))))
        assert book.count_fits() == 2
        assert read_known(run).ended and read_known(merged).ended
        with pytest.raises(
            LedgerError, match=r"Repeat .*command `dphead ledger people"
        ):
            charge_groups(one)
    assert unknown == [False, True, True]  # begun, closed, closed
    for found in map(read_known, (run, merged)):
        assert not found.ended and len(found.fits or ()) == 4
    charge_groups(one)


def test_a_ledger_that_will_be_merged_takes_no_fit_and_has_no_sum(
    tmp_path, clinic, monkeypatch
):
    """It is declared already, and the shared ledger does not have its fits."""
    made(tmp_path, "one", 0, "--people", clinic)
    two, run = made(tmp_path, "two", 30), tmp_path / "run"
    fitted("fit", two, "-o", run, *FIT)
    book, open_before = open_ledger(None, id_of(two)), 0

    def declared():
        module.declare_people(two, clinic, False)

    for _ in died_everywhere(monkeypatch, declared):
        if book.meta(PEOPLE) is None or book.meta(MOVED) is not None:
            continue
        open_before += 1
        assert read_known(run).ended
        with pytest.raises(LedgerError, match="A merge of this ledger into"):
            reserve(specs(1, 8.0, group_cap=2), book)
    assert open_before  # at some points, the merge was declared, and not closed yet
    assert not read_known(run).ended


def test_commands_state_no_sum_of_an_unfinished_merge(tmp_path, clinic, monkeypatch):
    one, run = made(tmp_path, "one", 0, "--people", clinic), tmp_path / "run"
    model = DPLeastSquaresClassifier(epsilon=1.0, group_cap=2, delta=1e-3).fit(one)
    model.save(run)
    two = made(tmp_path, "two", 30)
    charged(two)

    def declared():
        module.declare_people(two, clinic, False)

    closed = partial(is_closed, default_ledger_path(id_of(two)))
    assert any(closed() for _ in died_everywhere(monkeypatch, declared))
    place = default_ledger_path(id_of(one))
    told = [fact.dataset_id for fact in charged_elsewhere(id_of(one), place)]
    assert told == [id_of(two)]
    with pytest.raises(LedgerError, match="sum of all fits is unknown"):
        model.save(tmp_path / "late")
    said = words(fitted("ledger", "show", one).out)
    assert "Merge ! A merge of data set" in said and "in this ledger only" in said
    for command in ("check", run), ("report", run):
        said = words("".join(dphead(*command)[1:]))
        assert f"were merged into {place}, which cannot be read or lacks" in said
        assert f"count the ledger {place}" not in said
    said = refusal("export", run, "--to", "sklearn", "-o", tmp_path / "no")
    assert "the sum of all fits is unknown" in said


def is_closed(place):
    with closing(Ledger(place, read_only=True)) as book:
        return book.meta(MOVED) is not None


def people_of(features):
    with open_features(features) as file:
        return declared_people(RowGroups.of(file))


def forgets(features, fit, where):
    """Whether a ledger without a fit takes a charge of its data set now."""
    with suppress(LedgerError):
        book = open_ledger(where, counted_in(id_of(features)))
        with charging(book), suppress(Killed), book.transaction():
            found = not book.holds(fit)
            raise Killed  # take the charge back
        return found
    return False


def test_a_ledger_that_is_found_after_the_merge_counts(store, tmp_path, clinic):
    """A note can name another ledger of a merged data set."""
    two = made(tmp_path, "two", 60)
    # as of images, which no other data set of the same server has
    image_index().add(id_of(two), np.arange(9, dtype=np.uint64) + 10**9)
    fitted("ledger", "people", clinic, two)
    other = Ledger(tmp_path / "other.sqlite", id_of(two))
    note_ledger(other.path, id_of(two))
    other.set_budget(2.0, 1e-3)
    reserve(specs(1, 8.0, group_cap=2), other)
    book = open_ledger(None, counted_in(id_of(two)))
    told = [one.fact()["of"] for one in charged_elsewhere(book.dataset_id, book.path)]
    assert told == ["a data set of the same id system"]
    with pytest.raises(LedgerError) as found, charging(book):
        pass
    said = str(found.value)
    if book.url:  # a file with fits is refused on a server before its budget is
        assert f"would not count the ledger {other.path}" in said
        assert "Repeat the command `dphead ledger people`" in said
    else:
        assert "the budget epsilon=2" in said
        assert f"data set {id_of(two)}, which shares this data set's ledger" in said
    fitted("ledger", "people", clinic, two)
    assert fits_of(two) == 1
    with charging(book):
        assert (book.budget() or {})["epsilon"] == 2.0


def test_a_noted_path_of_another_data_set_now_is_a_missing_ledger(tmp_path, clinic):
    """Its file was removed, and the path was used again."""
    one, other = made(tmp_path, "one", 0), tmp_path / "other.sqlite"
    note_ledger(str(other), id_of(one))
    Ledger(other, Z).set_budget(2.0, 1e-3)  # in another home
    found = [
        (one.path, one.dataset_id, one.fits) for one in charged_elsewhere(id_of(one))
    ]
    assert found == [(str(other), id_of(one), None)]
    charge_groups(one)  # the budget is that of other rows
    notes = notes_path(id_of(one))
    for gone in (f"was replaced by one of data set {Z}", "is missing"):
        with pytest.raises(LedgerError, match=gone) as told:
            module.declare_people(one, clinic, False)
        assert f"remove its line from {notes}" in str(told.value)
        other.unlink(missing_ok=True)
    notes.unlink()
    module.declare_people(one, clinic, False)
    assert fits_of(one) == 1


def test_other_members_learn_which_data_sets_a_member_merged(
    tmp_path, clinic, monkeypatch, team
):
    """The server has the marks of the member who merged them."""
    on_server(team, monkeypatch)
    one, two = (made(tmp_path, str(first), first) for first in (0, 60))
    charged(two)
    fitted("ledger", "people", clinic, one, two)
    counts = counted_in(id_of(one))
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    on_server(team, monkeypatch)
    assert counted_in(id_of(two)) == counts and fits_of(two) == 1
    assert people_of(two) == {"system": clinic, "new": False}


def test_a_command_that_refuses_one_of_its_data_sets_merges_none(tmp_path, clinic):
    """Else no fit could be charged, because another ledger has people of both."""
    made(tmp_path, "system", 300, "--people", clinic)
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 100)
    new = made(tmp_path, "new", 159, "--people", clinic, "--new-people")
    charged(one)
    said = refusal("ledger", "people", clinic, one, two)
    assert "1 of 60 people are also" in said and id_of(new) in said
    assert counted_in(id_of(one)) == id_of(one)
    assert not people_index().knows(id_of(one))
    fitted("ledger", "people", clinic, one, new, two)


def test_a_command_that_refuses_the_groups_of_one_data_set_merges_none(
    tmp_path, clinic
):
    """Else no fit could be charged if the data sets share images and have a budget."""
    shared = People(people_index(), clinic).shared_id
    system = made(tmp_path, "system", 300, "--dataset-id", shared)
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 100)
    study = by_study(tmp_path, two)
    charge_groups(one)
    charge_groups(study)
    for files in ([one, two], [system, one, two]):
        said = refusal("ledger", "people", clinic, *files)
        assert "have other groups or other rows" in said
        assert counted_in(id_of(one)) == id_of(one)
        assert not any(people_index().knows(id_of(file)) for file in files)
    fitted("ledger", "people", clinic, system, one, two, study)
    assert [fits_of(file) for file in (system, one, two)] == [2, 2, 2]


@pytest.mark.parametrize("new", [False, True])
def test_a_command_that_finds_a_copy_for_one_data_set_declares_none(
    tmp_path, clinic, monkeypatch, new
):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 100)
    merged, _ = module.declare_people(two, clinic, False)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
    copy = tmp_path / "other/ledgers" / Path(merged.path).name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(Path(merged.path).read_bytes())
    with pytest.raises(LedgerError, match="to an id system of another home"):
        module.declare_people(one, clinic, new, beside=[two])
    assert not people_index().knows(id_of(one))
    assert open_ledger(None, id_of(one)).meta("people") is None


def test_new_people_of_one_command_are_in_one_data_set(tmp_path, clinic):
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 59)
    command = ("ledger", "people", clinic, one, two)
    said = words(refusal(*command, "--new-people"))
    assert f"1 people are in both {one} and {two}" in said
    assert not people_index().knows(id_of(one))
    fitted(*command)
    assert counted_in(id_of(one)) == counted_in(id_of(two))


def test_a_merge_that_is_refused_halfway_is_not_followed(tmp_path, clinic):
    """A data set's empty ledger is merged, and its other ledger, with fits, is not."""
    one = made(tmp_path, "one", 0, "--people", clinic)
    charged(one)
    two = made(tmp_path, "two", 60)
    fix_budget(Ledger(tmp_path / "other.sqlite", id_of(two)), 2.0, 1e-3)
    fit = ("fit", two, *FIT, "--epsilon", 1.9, "-o")
    own = ("--relation", "replace_one", "--ledger", tmp_path / "other.sqlite")
    fitted(*fit, tmp_path / "r1", *own)
    said = refusal("ledger", "people", clinic, two)
    assert "must have the same neighboring relation. If" in said
    assert counted_in(id_of(two)) == id_of(two)
    said = refusal(*fit, tmp_path / "r2")
    assert "the budget epsilon=2" in said and "Nothing was charged" in said


def test_a_merge_that_makes_the_total_infinite_needs_a_confirmation(tmp_path, clinic):
    one = made(tmp_path, "one", 0)
    two = made(tmp_path, "two", 60, "--people", clinic)
    charged(two)
    reserve(specs(1, 0.0, group_cap=2), open_ledger(None, id_of(one)))
    command = ("ledger", "people", clinic, one)
    assert "makes the epsilon of all data sets" in refusal(*command)
    assert fits_of(two) == 1 and fits_of(one) == 1
    fitted(*command, "--i-know-this-is-not-private")
    assert fits_of(two) == 2
    three = made(tmp_path, "three", 120)  # nor does the total of others become its own
    command = ("ledger", "people", clinic, three)
    assert "makes the epsilon of all data sets" in refusal(*command)
    assert counted_in(id_of(three)) == id_of(three)


def test_ledgers_of_another_relation_are_not_merged(tmp_path, clinic):
    one, two = (made(tmp_path, name, 0) for name in ("one", "two"))
    charged(one)
    charged(two, relation="replace_one")
    fitted("ledger", "people", clinic, one)
    said = refusal("ledger", "people", clinic, two)
    assert "must have the same neighboring relation. If" in said
    assert counted_in(id_of(two)) == id_of(two)
    assert len(people_index().images(id_of(two))) == 0  # nor was it declared
    charged(two, relation="replace_one")


@pytest.mark.parametrize("other", [{"relation": "replace_one"}, {"group_cap": None}])
def test_all_ledgers_of_a_data_set_are_of_one_kind_or_none_is_declared(
    tmp_path, clinic, other
):
    """The target is empty, so it agrees with each of them."""
    one, noted = made(tmp_path, "one", 0), str(tmp_path / "noted.sqlite")
    charged(one)
    reserve(specs(1, 8.0, **{"group_cap": 2, **other}), Ledger(noted, id_of(one)))
    note_ledger(noted, id_of(one))
    with pytest.raises(LedgerError, match="cannot be merged: all fits of a ledger"):
        module.declare_people(one, clinic, False)
    assert not people_index().knows(id_of(one))
    assert open_ledger(None, id_of(one)).meta("people") is None
    charged(one)
    module.declare_people(one, clinic, True)
    charge_groups(one)


def test_a_file_of_another_home_is_declared_again(tmp_path, clinic, monkeypatch):
    """Its ledger would not be that of the id system there."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0, "--people", clinic)
    new = made(tmp_path, "new", 500, "--people", clinic, "--new-people")
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    for features, more in ((one, ()), (new, ("--new-people",))):
        run = tmp_path / f"{features.stem}.run"
        said = refusal("fit", features, "-o", run, *FIT)
        assert "not recorded in this DPHEAD_HOME" in said
        assert " ".join(("ledger people", clinic, str(features), *more)) in said
        again = year(tmp_path, "again", 500 * len(more))[1]
        assert "not recorded in this DPHEAD_HOME" in refusal(
            *again, "--same-data-as", features
        )
        done = fitted("ledger", "people", clinic, features, *more)
        assert "does not count those fits" in words(done.out)
        done = fitted("ledger", "people", clinic, features, *more)
        assert "does not count those fits" not in words(done.out)
        fitted("fit", features, "-o", run, *FIT)
        assert report_of(run)["data"]["people"]["new"] == bool(more)
    shared = People(people_index(), clinic).shared_id
    assert counted_in(id_of(one)) == shared != counted_in(id_of(new))


def test_each_file_of_a_declared_data_set_has_its_people_recorded(tmp_path, clinic):
    """Else a person could be new in another data set, and have two ledgers."""
    one = made(tmp_path, "one", 0)
    more = made(tmp_path, "more", 60, "--dataset-id", id_of(one))  # other people
    fitted("ledger", "people", clinic, one)
    command = ("fit", more, "-o", tmp_path / "run", *FIT)
    assert f"ledger people {clinic} {more}" in refusal(*command)
    fitted("ledger", "people", clinic, more)
    _, new = year(tmp_path, "new", 60)
    assert "60 of 60" in refusal(*new, "--people", clinic, "--new-people")
    fitted(*command)
    assert fits_of(one) == 1


def test_an_import_declares_all_files_of_its_data_set(tmp_path, clinic):
    old = made(tmp_path, "old", 0)
    plain, command = year(tmp_path, "plain", 0)
    fitted(*without_groups(command), "--dataset-id", id_of(old))
    named = ("--dataset-id", id_of(old), "--people", clinic, "--new-people")
    made(tmp_path, "more", 60, *named)
    assert "has no ids of people" in words(refusal("fit", plain, "-o", tmp_path / "no"))
    command = ("fit", old, "-o", tmp_path / "run", *FIT)
    assert f"dphead ledger people NAME {old}" in words(refusal(*command))
    done = fitted("ledger", "people", clinic, old, "--new-people")
    assert "P-3 and p-3 are different people" in words(done.out)
    assert "60 of 60" in refusal(*year(tmp_path, "c", 0)[1], *named[2:])
    fitted(*command)
    assert report_of(tmp_path / "run")["data"]["people"]["new"]


def declared_half(features, clinic, monkeypatch, name="merge"):
    """Declare a file's people as not new, and die."""
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            module.declare_people(features, clinic, False)


def test_people_who_were_not_declared_new_are_not_new(tmp_path, clinic, monkeypatch):
    """A declaration that dies has recorded them for a data set with new people."""
    made(tmp_path, "s", 0, "--people", clinic)
    one = made(tmp_path, "one", 100)
    known = made(tmp_path, "known", 59, "--dataset-id", id_of(one))  # P-59 is in s
    other = made(tmp_path, "other", 300, "--dataset-id", id_of(one))
    module.declare_people(one, clinic, True)
    charge_groups(one)
    declared_half(other, clinic, monkeypatch)
    with pytest.raises(LedgerError, match="not recorded in this DPHEAD_HOME"):
        people_of(other)
    charge_groups(one)  # which has no person of another ledger
    declared_half(known, clinic, monkeypatch)
    with pytest.raises(LedgerError, match="not recorded in this DPHEAD_HOME"):
        people_of(known)
    for found in (one, other):
        with pytest.raises(ExtractError, match="1 people in files of this data set"):
            module.declare_people(found, clinic, True)
    with pytest.raises(ExtractError, match="Drop --new-people"):
        charge_groups(one)
    module.declare_people(known, clinic, False)
    charge_groups(known)
    assert people_of(one) == {"system": clinic, "new": False} and fits_of(one) == 3


def test_all_files_of_a_data_set_have_new_people_or_none(tmp_path, clinic, monkeypatch):
    """Nothing of it is declared, and a declaration dies."""
    made(tmp_path, "s", 0, "--people", clinic)
    one = made(tmp_path, "one", 100)
    known = made(tmp_path, "known", 59, "--dataset-id", id_of(one))
    declared_half(known, clinic, monkeypatch, "_fix")
    with pytest.raises(ExtractError, match="1 people in files of this data set"):
        module.declare_people(one, clinic, True)


def test_people_of_a_shard_of_another_home_are_recorded_where_it_is_joined(
    tmp_path, clinic, monkeypatch
):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)
    names = [f"P-{i}" for i in range(4)]
    np.savez(tmp_path / "i.npz", images=images, labels=[0, 1, 0, 1], group=names)
    whole, own = tmp_path / "f.h5", ledger_home()
    command = ["extract", tmp_path / "i.npz", "-o", whole, *SCATTER, "--classes", 2]
    command += ["--people", clinic, "--new-people", "--new-data-set", "--shard"]
    shards = []
    for home, shard in ((own, "0/2"), (tmp_path / "other", "1/2")):
        monkeypatch.setenv("DPHEAD_HOME", str(home))
        fitted(*command, shard)
        shards.append(tmp_path / f"f.shard-{shard.replace('/', '-of-')}.h5")
    monkeypatch.setenv("DPHEAD_HOME", str(own))
    assert (people_of(shards[0]) or {})["new"]
    with pytest.raises(LedgerError, match="not recorded in this DPHEAD_HOME"):
        people_of(shards[1])
    join_shards(shards, whole)
    with pytest.raises(LedgerError, match="not recorded in this DPHEAD_HOME"):
        people_of(whole)
    whole.unlink()
    fitted("features", "join", *shards, "-o", whole)
    assert people_of(whole) == {"system": clinic, "new": True}
    groups = open_features(shards[1]).group
    with pytest.raises(ExtractError, match="2 of 2 people"):
        People(people_index(), clinic, True).check(None, groups)


def test_a_fit_is_not_resumed_on_another_data_set_of_the_id_system(
    tmp_path, clinic, monkeypatch
):
    """They have one data set id, but a head is made of the rows of one."""
    one, two = (made(tmp_path, str(i), i, "--people", clinic) for i in (0, 1))
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "release", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dphead("fit", one, "-o", run, *FIT)
    assert "used other rows" in refusal("fit", two, "-o", run, *FIT)
    fitted("fit", one, "-o", run, *FIT)
    assert fits_of(one) == 1


def test_a_statement_names_the_ledger_that_the_data_sets_share(tmp_path, clinic):
    one = made(tmp_path, "one", 0, "--people", clinic)
    run = tmp_path / "run"
    fitted("fit", one, "-o", run, *FIT, "--ledger", tmp_path / "other.sqlite")
    assert f"share the ledger of data set {id_of(one)}" in report_of(run)["statement"]


def test_an_estimator_and_a_concatenation_know_the_declaration(tmp_path, clinic):
    from dphead import DPLeastSquaresClassifier

    one = made(tmp_path, "one", 0, "--people", clinic)
    head = DPLeastSquaresClassifier(epsilon=1.0, group_cap=2, delta=1e-3)
    assert any(clinic in note for note in head.fit(one).privacy_.notes)
    assert fits_of(one) == 1
    plain = made(tmp_path, "plain", 0)
    notes = head.fit(plain).privacy_.notes
    assert any(OWN in note for note in notes)
    # one file was written before its data set was declared
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)
    np.savez(tmp_path / "i.npz", images=images, labels=[0, 1, 0, 1], group=[*"abcd"])
    a, b, both = (tmp_path / f"{name}.h5" for name in ("a", "b", "both"))
    command = ("extract", tmp_path / "i.npz", *SCATTER, "--classes", 2)
    fitted(*command, "-o", a)
    fitted("ledger", "people", clinic, a)
    more = ("--same-data-as", a, "--people", clinic, "--scatter-l", 4)
    fitted(*command, "-o", b, *more)
    fitted("features", "concat", a, b, "-o", both)
    assert open_features(both).people == people_of(both)
    assert people_of(both) == {"system": clinic, "new": False}


def test_embeddings_and_files_of_the_same_rows_are_declared_once(tmp_path, clinic):
    one = made(tmp_path, "one", 0, "--people", clinic)
    output, command = year(tmp_path, "two", 0)
    said = refusal(*command, "--same-data-as", one, "--people", "other")
    assert "Drop --people" in said
    done = fitted(*command, "--same-data-as", one)
    assert id_of(output) == id_of(one) and clinic in done.out
    _, command = year(tmp_path, "three", 0)
    assert "declared id system" in refusal(*command, "--dataset-id", id_of(one))
    said = refusal(*command, "--dataset-id", "e" * 32, "--people", clinic)
    assert "Drop --dataset-id" in said
    ungrouped = without_groups(year(tmp_path, "four", 0)[1])
    assert "column with the id" in refusal(*ungrouped, "--people", clinic)
    assert OWN.split(" are ")[1] not in fitted(*ungrouped).out


def test_an_import_that_dies_after_its_people_are_recorded_is_resumed(
    tmp_path, clinic, monkeypatch
):
    from dphead_extract import importing

    output, command = year(tmp_path, "one", 0)
    command = (*command, "--people", clinic, "--new-people")
    with monkeypatch.context() as patch:
        patch.setattr(importing, "fill", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dphead(*command)
    fitted(*command)
    assert people_of(output) == {"system": clinic, "new": True}


def test_an_import_that_failed_is_repeated_with_the_id_that_it_recorded(
    tmp_path, clinic
):
    """Its unfinished file was removed, and its people are known."""
    output, command = year(tmp_path, "one", 0)
    rows, command = dict(np.load(command[2])), (*command, "--people", clinic)
    command = (*command, "--new-people")
    np.savez(tmp_path / "one.npz", **rows | {"features": rows["features"] * np.nan})
    told = words(refusal(*command))
    assert "not finite" in told
    np.savez(tmp_path / "one.npz", **rows)
    said = words(refusal(*command))
    named = re.search("with (--dataset-id) ([0-9a-f]{32})[.]", said)
    assert named and not output.exists(), said
    assert named.group() in words(refusal(*command[:-1]))  # nor as known people
    assert named.group() in told
    fitted(*command, *named.groups())
    assert people_of(output) == {"system": clinic, "new": True}


def test_a_plain_file_names_no_system(tmp_path):
    one = made(tmp_path, "one", 0)
    done = fitted("fit", one, "-o", tmp_path / "run", *FIT, "--epsilon", 1)
    assert report_of(tmp_path / "run")["data"]["people"] is None
    assert f"! {OWN}" in words(done.out)
    assert json.loads(dphead("check", tmp_path / "run", "--json").out)["findings"]


def test_people_in_arrays_are_recognized_within_them(tmp_path, clinic):
    """Also after the data set of their ledger was declared and merged."""
    one, two = (made(tmp_path, name, 0) for name in ("one", "two"))
    fitted("ledger", "budget", one, "--epsilon", 3, "--delta", 1e-3)
    charged(two)
    x = np.random.default_rng(0).normal(size=(40, 4))
    ledger, run = read_ledger(None, id_of(one)).path, tmp_path / "run"
    head = DPLeastSquaresClassifier(
        classes=[0, 1], epsilon=1, delta=1e-3, group_cap=2, ledger=ledger
    )
    head.fit(x, np.arange(40) % 2, groups=np.arange(40) // 2)
    told = "only within the rows of this fit"
    assert any(told in note for note in head.privacy_.notes)
    head.save(run)
    fitted("ledger", "people", clinic, one, two)
    for text in exported(run, tmp_path / "export"):
        assert told in text and clinic not in text and "features file" not in text


def test_the_server_never_has_the_key(team, tmp_path, clinic, monkeypatch):
    on_server(team, monkeypatch)
    one = made(tmp_path, "one", 0, "--people", clinic)
    index = people_index()
    key = (index.folder / "key").read_bytes()
    dump = "SELECT encode(digests, 'hex') FROM dphead.people"
    held = [text for (text,) in team.run(dump)]
    # those of this test alone, for four bytes can be in many digests by chance
    own = [text for (text,) in team.run(f"{dump} WHERE dataset_id = '{id_of(one)}'")]
    assert own and {*own} <= {*held}
    assert not [text for text in held if key.hex() in text]
    assert not [text for text in own if b"P-17".hex() in text]
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    command = year(tmp_path, "two", 0)[1]
    assert "Copy this file from a member" in refusal(*command, "--people", clinic)
    own = people_index().folder
    own.mkdir(parents=True)
    (own / "key").write_bytes(b"x" * 32)
    assert "under another key" in refusal(*command, "--people", clinic)
    (own / "key").write_bytes(key)
    fitted(*command, "--people", clinic)
    assert id_of(tmp_path / "two.h5") == id_of(one)


def test_a_server_of_an_earlier_version_gets_the_index_of_people(team):
    team.run("CREATE DATABASE earlier")
    url = team.url().replace("/postgres", "/earlier")
    store = server.init(url)
    with server.session(url) as connection:
        connection.exec_driver_sql("DROP VIEW dphead.people")
        connection.exec_driver_sql("DROP TABLE dphead_rows.people")
    assert server.init(url) == store
    with server.session(url) as connection:
        rows = connection.execute(server.PEOPLE.select()).all()
    assert rows == []


def test_a_file_keeps_the_id_system_that_it_declares(tmp_path, clinic):
    one = made(tmp_path, "one", 0, "--people", clinic)
    said = refusal("ledger", "people", "other", one)
    assert f"belongs to the id system '{clinic}'" in said


def by_study(folder, one):
    """The rows of `one` in the groups of another column."""
    rows = dict(np.load(one.with_suffix(".npz")))
    rows["group"] = [f"S-{i // 3}" for i in range(len(rows["label"]))]
    table = folder / f"study-{one.stem}.npz"
    np.savez(table, **rows)
    given = ("--classes", 2, "--dataset-id", id_of(one), "-o", table.with_suffix(".h5"))
    fitted("features", "import", table, *given)
    return table.with_suffix(".h5")


def charge_groups(features, where=None, cap=2):
    """Charge a fit of the file's groups, without a row."""
    with open_features(features) as file:
        rows = RowGroups.of(file)
    book, people = (
        open_ledger(where, counted_in(id_of(features))),
        declared_people(rows),
    )
    with charging(book, rows=rows, people=people):
        given = {"epsilon": 1.0, "delta": 1e-3, "description": "", "plan_hash": ""}
        given["groups"] = rows.compared(people, protects=True)
        book.reserve([s.row() for s in specs(1, 8.0, group_cap=cap)], **given)


def test_a_ledger_takes_fits_of_one_group_column(tmp_path, clinic, monkeypatch):
    """Fits by patient and by study would not add up for a patient."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    again = made(tmp_path, "again", 0, "--dataset-id", id_of(one))
    study = by_study(tmp_path, one)
    charge_groups(one)
    charge_groups(again, cap=3)
    with pytest.raises(LedgerError, match="have other groups or other rows"):
        charge_groups(study)
    said = refusal("fit", study, "-o", tmp_path / "no", *FIT)
    assert "have other groups or other rows" in said
    dry = fitted("fit", study, "-o", tmp_path / "no", *FIT, "--dry-run").out
    assert "would be refused: The earlier fits in the ledger" in words(dry)
    planned = ("--fits", 2, "--group-cap", 2, "--delta", 1e-3, "--method", "dp-ls")
    assert fitted("plan", again, *planned).code == 0
    done = dphead("plan", study, *planned)
    assert done.code == 1 and "have other groups or other rows" in words(done.out)
    book = open_ledger(None, id_of(one))
    shown = json.dumps(book.facts()) + json.dumps(book.fits())
    assert (
        hashlib.sha256(np.asarray(open_features(one).group).tobytes()).hexdigest()
        not in shown
    )
    # declared ids decide, but only if the earlier fits have them too
    for new in (True, False):
        with pytest.raises(LedgerError, match="have other groups"):
            module.declare_people(study, clinic, new)
    assert fits_of(one) == 2 and counted_in(id_of(one)) == id_of(one)
    assert not people_index().knows(id_of(one)) and book.meta(PEOPLE) is None
    fitted("ledger", "people", clinic, study, one, "--new-people")
    charge_groups(study)


def test_new_people_have_the_groups_of_each_ledger_of_their_data_set(tmp_path, clinic):
    """Also of one in another place, and before any file of the command is declared."""
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 100)
    study, place = by_study(tmp_path, two), tmp_path / "own.sqlite"
    charge_groups(study, place)
    for files in ([two], [one, two]):
        said = refusal("ledger", "people", clinic, *files, "--new-people")
        assert f"{place} have other groups or other rows" in said
        assert not any(people_index().knows(id_of(file)) for file in files)
    fitted("ledger", "people", clinic, one, two, study, "--new-people")
    charge_groups(two, place)


def test_groups_of_another_home_are_not_compared_and_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, ledger = made(tmp_path, "one", 0), tmp_path / "ledger.sqlite"
    charge_groups(one, ledger)
    own = ledger_home()
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    with pytest.raises(LedgerError, match="under another key of people"):
        charge_groups(one, ledger)
    (tmp_path / "home/people/key").write_bytes((own / "people/key").read_bytes())
    charge_groups(one, ledger)


def test_a_moved_ledger_compares_its_groups_by_both_keys(
    tmp_path, clinic, monkeypatch, team
):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 60)
    studies = [by_study(tmp_path, features) for features in (one, two)]
    for features in (one, two):
        charge_groups(features)
    for features in (one, two):
        move_ledger(open_ledger(None, id_of(features)), team.url(CLIENT))
    on_server(team, monkeypatch)
    with pytest.raises(LedgerError, match="have other groups"):
        charge_groups(studies[0])
    # the declaration is on the server, and the digest under the key of the home
    with pytest.raises(LedgerError, match="have other groups"):
        module.declare_people(studies[1], clinic, True)
    module.declare_people(studies[1], clinic, True, beside=[two])
    charge_groups(studies[1])
    charge_groups(one)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    on_server(team, monkeypatch)
    with pytest.raises(LedgerError, match="have other groups"):
        charge_groups(studies[0])
    charge_groups(one)


def test_a_declaration_between_the_opening_and_the_charge_is_seen(
    tmp_path, clinic, monkeypatch
):
    """As by an import of other people into the same data set."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    more, opened = year(tmp_path, "more", 60), run.check_folder

    def declared(*given):
        named = ("--dataset-id", id_of(one), "--people", clinic, "--new-people")
        fitted(*more[1], *named)
        return opened(*given)

    monkeypatch.setattr(run, "check_folder", declared)
    said = refusal("fit", one, "-o", tmp_path / "run", *FIT)
    assert "which" in said and "ledger people NAME" in said
    assert fits_of(one) == 0
    monkeypatch.setattr(run, "check_folder", opened)
    fitted("ledger", "people", clinic, one, "--new-people")
    monkeypatch.setattr(
        run,
        "check_folder",
        lambda *given: (fitted("ledger", "people", clinic, one), opened(*given)),
    )
    said = refusal("fit", one, "-o", tmp_path / "run", *FIT)
    assert "was declared while this fit was prepared" in said
    assert fits_of(one) == 0


def test_no_declaration_can_be_written_during_a_charge(tmp_path, monkeypatch):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    rows = RowGroups.of(open_features(one))
    with people_index().locked():
        pass  # makes the file
    with (
        charging(open_ledger(None, id_of(one)), rows=rows),
        open(people_index().folder / "lock") as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_ledger_of_an_id_system_takes_no_rows_that_are_not_declared_here(
    tmp_path, clinic, monkeypatch
):
    """Another home does not know the declaration, and the ledger does."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    fitted("ledger", "people", clinic, one, "--new-people")
    ledger = ledger_home() / "ledgers" / f"{id_of(one)}.sqlite"
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "home"))
    with pytest.raises(
        LedgerError, match=f"belongs to the id system {clinic}"
    ) as found:
        charge_groups(one, ledger)
    assert f"ledger people {clinic} FILE --new-people" in str(found.value)
    module.declare_people(one, clinic, True)
    charge_groups(one, ledger)


def keep_people(index, name):
    """Declare three people of a new data set, and return its id."""
    dataset_id = uuid.uuid4().hex
    People(index, name, True).keep(dataset_id, "", np.arange(3))
    return dataset_id


def test_people_are_declared_on_a_server_before_or_after_a_file_is_charged(
    team, clinic, monkeypatch
):
    """Not between the look at the files of the home and the note of the server."""
    on_server(team, monkeypatch)
    held, settle = [], ImageIndex.settle
    home_lock = ledger_home() / "ledgers/lock"
    home_lock.parent.mkdir(parents=True, exist_ok=True)

    def note_lock():
        with open(home_lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)

    def settled(index, write=False):
        if write:
            note_lock()
        settle(index, write)

    monkeypatch.setattr(ledgers, "check_store", lambda url: note_lock())
    monkeypatch.setattr(ImageIndex, "settle", settled)
    keep_people(people_index(), clinic)
    assert held == [True, True]


def test_a_file_takes_no_charge_after_people_were_declared_on_a_server(
    team, clinic, monkeypatch
):
    """The charge began before them, and waited for the lock of the home."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    book, holding = open_ledger(None, uuid.uuid4().hex), ledgers.holding

    def waited(*given):
        with monkeypatch.context() as other:
            on_server(team, other)
            keep_people(people_index(), clinic)
        return holding(*given)

    monkeypatch.setattr(ledgers, "holding", waited)
    refused = pytest.raises(FormatError, match="has id systems in another store")
    with refused, charging(book):
        reserve(specs(1, 8.0), book)
    assert book.count_fits() == 0


def test_a_home_declares_no_people_in_itself_after_a_charge_on_a_server(
    team, clinic, monkeypatch
):
    """The declaration began before the charge."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    index, dataset_id = people_index(declares=True), uuid.uuid4().hex
    with monkeypatch.context() as other:
        on_server(team, other)
        book = open_ledger(None, dataset_id)
        with charging(book):
            reserve(specs(1, 8.0), book)
    with pytest.raises(LedgerError, match="is on a server, and DPHEAD_LEDGER"):
        keep_people(index, clinic)
    assert index.settled() is None and not index._names()


def test_a_home_has_its_id_systems_in_one_store(tmp_path, clinic, monkeypatch, team):
    """A server can be set later, or unset, and would not know these people."""
    url = team.url(CLIENT)
    for first, then in ((None, url), (url, None)):
        home = tmp_path / f"home-{first is None}"
        monkeypatch.setenv("DPHEAD_HOME", str(home))
        store = {None: lambda: monkeypatch.delenv("DPHEAD_LEDGER", raising=False)}
        store[url] = lambda: on_server(team, monkeypatch)
        store[url]()  # the key
        store[first]()
        named = ("--people", clinic, "--new-people")
        one = made(tmp_path, f"one-{first is None}", 0, *named[:2])
        monkeypatch.setenv("DPHEAD_LEDGER", url)
        if then is None:
            monkeypatch.delenv("DPHEAD_LEDGER")
        before = contents(home)
        for command in (
            (*year(tmp_path, "two", 0)[1], *named),
            (*year(tmp_path, "two", 0)[1], *named[:2]),
            ("ledger", "people", clinic, one),
            ("ledger", "show", one),
            ("fit", one, "-o", tmp_path / "run", *FIT),
            ("fit", one, "-o", tmp_path / "run", "--ledger", tmp_path / "l", *FIT),
        ):
            assert "has id systems in another store" in refusal(*command)
        assert contents(home) == before and not (tmp_path / "l").exists()
        budget = ("ledger", "budget", one, "--epsilon", 1, "--delta", 1e-3)
        assert "has id systems in another store" in refusal(*budget)
        store[first]()
        charge_groups(one)


def test_a_member_who_charges_an_id_system_keeps_its_store(
    tmp_path, clinic, monkeypatch, team
):
    on_server(team, monkeypatch)
    one = made(tmp_path, "one", 0)
    fitted("ledger", "people", clinic, one)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    on_server(team, monkeypatch)
    charge_groups(one)
    monkeypatch.delenv("DPHEAD_LEDGER")
    message = "has id systems in another store"
    with pytest.raises((FormatError, LedgerError), match=message):
        charge_groups(one)


def test_the_ledger_of_an_id_system_does_not_move(
    tmp_path, clinic, monkeypatch, team, own_ledgers
):
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one, two = made(tmp_path, "one", 0), made(tmp_path, "two", 60, "--people", clinic)
    new = made(tmp_path, "new", 120, "--people", clinic, "--new-people")
    charged(one)
    charged(new)  # the ledger itself says nothing of the id system
    fitted("ledger", "people", clinic, one)
    for features in (one, two, new):
        said = refusal("ledger", "move", features, team.url(CLIENT))
        assert "belongs to an id system" in said and "Nothing was moved" in said
    # nor does any other ledger leave the store of the home
    with pytest.raises(FormatError, match="has id systems in another store"):
        move_ledger(Ledger(tmp_path / "plain.sqlite", Y), team.url(CLIENT))
    assert not Ledger(tmp_path / "plain.sqlite", read_only=True).meta("moved")
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
    for book in (own_ledgers / "ledgers").glob("*.sqlite"):
        if Ledger(book, read_only=True).meta("dataset_id") != id_of(new):
            said = refusal("ledger", "move", book, team.url(CLIENT))
            assert "belongs to an id system" in said
    charged(one)
    move_ledger(open_ledger(None, id_of(one)), team.url(CLIENT))
    monkeypatch.setenv("DPHEAD_HOME", str(own_ledgers))
    assert fits_of(one) == 1 and read_ledger(None, id_of(new)).count_fits() == 1


def test_nothing_is_declared_of_a_data_set_whose_ledger_is_on_its_way(
    tmp_path, clinic, monkeypatch, team
):
    """Else the ledger of an id system could not finish its move."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    charged(one)
    on_server(team, monkeypatch)
    for _ in died_everywhere(
        monkeypatch, lambda: fitted("ledger", "move", one, team.url(CLIENT))
    ):
        if not fits_of(one) and open_ledger(None, id_of(one)).facts().get(AWAITS):
            said = refusal("ledger", "people", clinic, one, "--new-people")
            assert "its charges are not here yet" in words(said)
            given = ("--dataset-id", id_of(one), "--people", clinic, "--new-people")
            said = refusal(*year(tmp_path, "again", 0)[1], *given)
            assert "would not count" in words(said)
            assert not people_index().knows(id_of(one))
    assert fits_of(one) == 1


def test_each_ledger_that_a_declared_fit_charges_says_so(tmp_path, clinic, monkeypatch):
    """An import alone declares the data set; another home shares the ledger."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0, "--people", clinic, "--new-people")
    shared, own = tmp_path / "shared.sqlite", ledger_home()
    charge_groups(one, shared)
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
    study = by_study(tmp_path, one)
    with pytest.raises(LedgerError, match=f"belongs to the id system {clinic}"):
        charge_groups(study, shared)
    # nor is a ledger charged whose groups cannot be compared
    late = tmp_path / "late.sqlite"
    charge_groups(study, late)
    monkeypatch.setenv("DPHEAD_HOME", str(own))
    with pytest.raises(LedgerError, match="under another key of people"):
        charge_groups(one, late)
    assert Ledger(late, read_only=True).count_fits() == 1


def test_a_ledger_whose_groups_cannot_be_compared_is_not_merged(
    tmp_path, clinic, monkeypatch
):
    """As a ledger that was copied from another home."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    charge_groups(by_study(tmp_path, one))
    name = f"ledgers/{id_of(one)}.sqlite"
    copied = (ledger_home() / name).read_bytes()
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "other"))
    (tmp_path / "other/ledgers").mkdir(parents=True)
    (tmp_path / "other" / name).write_bytes(copied)
    for new in ((), ("--new-people",)):
        said = refusal("ledger", "people", clinic, one, *new)
        assert "under another key of people" in said
        assert "DPHEAD_HOME of the earlier fits" in words(said)
        assert "ledger people" not in said  # the refused command is no remedy
        assert not people_index().knows(id_of(one))
    with pytest.raises(LedgerError, match="under another key of people"):
        charge_groups(one)
    assert fits_of(one) == 1


def test_a_fit_of_groups_needs_a_home(tmp_path, clinic, monkeypatch):
    """With a relative one, groups would not be compared."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    one = made(tmp_path, "one", 0)
    ledger = tmp_path / "ledger.sqlite"
    charge_groups(one, ledger)
    module.declare_people(one, clinic, True)
    declared = open_ledger(None, id_of(one)).path
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    command = ("fit", one, "-o", tmp_path / "run", *FIT, "--ledger")
    assert "needs DPHEAD_HOME" in refusal(*command, ledger)
    assert Ledger(ledger, read_only=True).count_fits() == 1
    rows = ("--protect", "image", "--ledger", declared)
    alone = ("fit", one, "-o", tmp_path / "run", *FIT[:4], "--delta", 1e-3, *rows)
    assert f"belongs to the id system {clinic}" in refusal(*alone)


def test_a_merge_that_died_lets_no_ledger_file_be_declared_new_on_a_server(
    team, tmp_path, clinic, monkeypatch
):
    """The server then knows the people, but not the fits of the file."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    path = made(tmp_path, "one", 0)
    charged(path)
    on_server(team, monkeypatch)

    def dies(*_):
        raise Killed

    with monkeypatch.context() as died, pytest.raises(Killed):
        died.setattr(module, "note_ledger", dies)
        module.declare_people(path, clinic, new=False)
    assert people_index().knows(id_of(path))
    said = refusal("ledger", "people", clinic, path, "--new-people")
    assert "would not count" in words(said)


def test_people_of_a_ledger_file_are_declared_on_a_server_only_after_it_moved(
    team, tmp_path, clinic, monkeypatch
):
    """Other members would set a budget that does not count its fits."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    path, command = year(tmp_path, "y", 0)
    fitted(*command)
    fit = ("fit", path, "-o", tmp_path / "run", *FIT, "--allow-large-delta")
    fitted(*fit, "--epsilon", 1)
    on_server(team, monkeypatch)
    declare = ("ledger", "people", clinic, path, "--new-people")
    assert "Type `dphead ledger move" in words(refusal(*declare))
    other = made(tmp_path, "other", 60)
    for declare_other in (
        ("ledger", "people", clinic, other),
        (*year(tmp_path, "third", 120)[1], "--people", clinic),
    ):
        assert "would not count" in words(refusal(*declare_other))
    assert not people_index().knows(id_of(path)) | people_index().knows(id_of(other))
    fitted("ledger", "move", path)
    fitted(*declare)
    fitted("ledger", "people", clinic, other)
    assert open_ledger(None, id_of(path)).count_fits() == 1


def test_a_ledger_file_of_the_shared_data_set_is_not_merged_into_itself(
    team, tmp_path, clinic, monkeypatch
):
    """A second home has images of the data set whose ledger the id system shares."""
    on_server(team, monkeypatch)
    shared = made(tmp_path, "shared", 0, "--people", clinic)
    key = (people_index().folder / "key").read_bytes()
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    monkeypatch.delenv("DPHEAD_LEDGER")
    path, command = year(tmp_path, "theirs", 60)
    fitted(*command, "--dataset-id", id_of(shared))
    charged(path)
    on_server(team, monkeypatch)
    (people_index().folder / "key").write_bytes(key)
    assert "would not count" in words(refusal("ledger", "people", clinic, path))


def test_one_command_merges_the_ledger_files_of_several_data_sets_on_a_server(
    team, tmp_path, clinic, monkeypatch
):
    """Each file alone is refused, because the server does not have the other one."""
    monkeypatch.delenv("DPHEAD_LEDGER", raising=False)
    files = [made(tmp_path, name, first) for name, first in (("a", 0), ("b", 60))]
    for path in files:
        charged(path)
    on_server(team, monkeypatch)
    assert "would not count" in words(refusal("ledger", "people", clinic, files[0]))
    fitted("ledger", "people", clinic, *files)
    assert [fits_of(path) for path in files] == [2, 2]


def test_a_server_has_one_key_of_people(team, tmp_path, monkeypatch):
    """Also while only digests of groups were made with it."""
    team.run("CREATE DATABASE keys")
    url = team.url().replace("/postgres", "/keys")
    server.init(url)
    monkeypatch.setenv("DPHEAD_LEDGER", url)
    one = made(tmp_path, "one", 0)
    charge_groups(one)
    key = (people_index().folder / "key").read_bytes()
    monkeypatch.setenv("DPHEAD_HOME", str(tmp_path / "member"))
    two = made(tmp_path, "two", 60)
    with pytest.raises(FormatError, match="is missing"):
        charge_groups(two)
    folder = people_index().folder
    folder.mkdir(parents=True)
    (folder / "key").write_bytes(b"x" * 32)
    with pytest.raises(FormatError, match="under another key"):
        charge_groups(two)
    (folder / "key").write_bytes(key)
    charge_groups(two)
    # a server of an earlier version has no seal: the entries decide
    people_index().add(Y, np.arange(9, dtype=np.uint64))
    with server.session(url) as connection:
        # its triggers allow no deletion
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        seal = "DELETE FROM dphead_rows.people WHERE dataset_id = 'aliases'"
        connection.exec_driver_sql(seal)
    (folder / "key").write_bytes(b"x" * 32)
    with pytest.raises(FormatError, match="under another key"):
        charge_groups(two)
    (folder / "key").write_bytes(key)
    charge_groups(two)


def test_a_merge_with_other_rows_of_a_fit_lowers_no_total(tmp_path, clinic):
    """A role that may charge can write all these rows, on a server too."""
    one = made(tmp_path, "one", 0)
    fitted("ledger", "budget", one, "--epsilon", 3, "--delta", 1e-3)
    fitted("fit", one, "-o", tmp_path / "r1", *FIT, "--epsilon", 2.5)
    own, false = (Ledger(default_ledger_path(id_), id_) for id_ in (id_of(one), Y))
    add_fits(own, false, 1000, **{f"{COUNTS} {id_of(one)}": "true"})
    close_by_hand(own, false, Y)
    assert counted_in(id_of(one)) == id_of(one)
    said = refusal("fit", one, "-o", tmp_path / "r2", *FIT, "--epsilon", 2.5)
    assert "Nothing was charged" in said
    done = dphead("ledger", "verify", one)
    assert done.code == 1 and f"has other entries in {false.path}" in words(done.out)
    for given in ((), ("--ledger", false.path)):
        said = refusal("check", tmp_path / "r1", *given)
        assert f"{false.path} has 4 different releases for this fit" in said
