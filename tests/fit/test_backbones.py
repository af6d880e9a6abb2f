"""A fit that chooses among several networks' features of the same images."""

import numpy as np
import pytest
from commands import (
    OF_IMAGES,
    charges,
    dphead,
    features_file,
    fitted,
    ledger_of,
    refusal,
    refused,
    report_of,
    rows,
)
from dphead_extract.features.format import open_features
from features import edited

from dphead.analysis.check import check
from dphead.analysis.records import read_run
from dphead.fit.head_file import open_head
from dphead.privacy.ledger.charge import Charge

SPLIT = np.repeat([0, 1], [180, 60]).astype(np.uint8)
GROUP = np.arange(240) // 2
DATA = OF_IMAGES | {"split": SPLIT, "split_names": ("train", "test"), "group": GROUP}
NUMPY = ("--backend", "numpy", "--split", "train")
IMAGES = ("--protect", "image")


def same_images(path, first, **more):
    """Features of 20 numbers by resnet34 with another file's data set and digests, as
    `extract --same-data-as` leaves them.
    """
    features_file(path, **({"d": 20} | DATA | {"backbone": "resnet34"} | more))
    with open_features(first) as file:
        digests, dataset_id = file.row_digest, file.dataset_id

    def change(file):
        file["row_digest"][:] = digests
        file.attrs["dataset_id"] = dataset_id

    return edited(path, change)


@pytest.fixture
def files(tmp_path):
    """Features of 240 images by two networks: the second's 20 tell the classes, and the
    first's 12 do so no more.
    """
    x, _ = rows()
    first = tmp_path / "a.h5"
    shuffled = np.random.default_rng(5).permutation(len(x))
    features_file(first, **DATA)
    edited(first, lambda file: file["features"].write_direct(x[shuffled]))
    return first, same_images(tmp_path / "b.h5", first)


def both(files):
    return ("--backbones", ",".join(map(str, files)))


def test_the_better_network_is_chosen_under_one_charge(files, tmp_path):
    run = tmp_path / "run"
    given = (*both(files), *NUMPY, *IMAGES, "--epsilon", 8)
    fitted("fit", *given, "--test-split", "test", "-o", run)
    report = report_of(run)
    selection = report["selection"]
    assert selection["chosen"] == 1
    assert [one["n_features"] for one in selection["networks"]] == [12, 20]
    assert report["data"]["n_features"] == 20
    with open_features(files[1]) as file:
        assert report["data"]["feature_space"] == file.feature_space
    # one fit in the ledger, whose releases are the report's and spend what was asked
    assert len(ledger_of(files[0]).fits()) == 1
    assert report["guarantee"]["epsilon"] == pytest.approx(8, rel=1e-6)
    found = {one.name for one in check(read_run(run))}
    assert found == {"people with several images"}
    head, _ = open_head(run)
    assert head.weights.shape == (20, 3)
    fitted("evaluate", run, files[1], "--split", "test")
    refusal("evaluate", run, files[0], "--split", "test")
    assert "Backbones tried" in (run / "report.html").read_text()
    repeated = ("--config", run / "run.toml", "-o", tmp_path / "again", "--dry-run")
    assert "network 2" in fitted("fit", *repeated).out


@pytest.mark.parametrize(
    "more",
    [
        ("--group-cap", 2),
        (*IMAGES, "--relation", "add_remove", "--nominal-n", 180, "--memory", "9GB"),
    ],
)
def test_groups_and_a_private_n_are_charged_whole(files, tmp_path, more):
    run = tmp_path / "run"
    fitted("fit", files[0], "--backbones", files[1], *NUMPY, *more, "-o", run)
    guarantee = report_of(run)["guarantee"]
    assert guarantee["epsilon"] == pytest.approx(1, rel=1e-6)
    assert read_run(run).plan.private
    assert charges() == 1


def test_a_run_that_died_goes_on_under_its_charge(files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    given = ("fit", *both(files), *NUMPY, *IMAGES, "-o", run)
    commit = Charge.commit

    def dying(self, sequence, value):
        if sequence == 50:
            raise KeyboardInterrupt
        commit(self, sequence, value)

    with monkeypatch.context() as patched:
        patched.setattr(Charge, "commit", dying)
        assert dphead(*given).code != 0
    assert charges() == 1
    other = ("fit", *both(files[::-1]), *NUMPY, *IMAGES, "-o", run)
    assert "widths must be [12, 20], as in the interr" in refusal(*other)
    fitted(*given)
    assert charges() == 1


def swapped(name):
    """Two rows' entries of a column exchanged."""

    def change(file):
        values = file[name][:]
        differs = (values != values[0]).reshape(len(values), -1)
        other = int(np.argmax(differs.any(axis=1)))
        values[[0, other]] = values[[other, 0]]
        file[name][:] = values

    return change


@pytest.mark.parametrize("name", ["row_digest", "labels", "split", "group"])
def test_files_of_other_rows_are_refused_before_the_charge(files, tmp_path, name):
    """An image that is another slot there would count twice."""
    edited(files[1], swapped(name))
    done = dphead("fit", *both(files), *NUMPY, *IMAGES, "-o", tmp_path / "run")
    assert "needs the same images in the same order" in refused(done)
    assert charges() == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "other, message",
    [
        ({"classes": ["dog", "cat", "owl"]}, "other classes"),
        ({"split_names": ("train", "valid")}, "other splits"),
        ({"backbone": "resnet18"}, "needs different backbones"),
        ({}, "another data set's id"),
    ],
)
def test_files_that_are_no_choice_are_refused(files, tmp_path, other, message):
    files[1].unlink()
    same_images(files[1], files[0], **other)
    if not other:
        edited(files[1], lambda file: file.attrs.modify("dataset_id", "0" * 32))
    done = dphead("fit", *both(files), *NUMPY, *IMAGES, "-o", tmp_path / "run")
    assert message in refused(done)
    assert charges() == 0


@pytest.mark.parametrize(
    "given, message",
    [
        ("--backbones a.h5,b.h5 --method dp-ls", "needs --method auto"),
        ("--backbones a.h5,b.h5 --test b.h5", "cannot be combined with --test"),
        ("--backbones a.h5", "needs at least two files"),
        ("", "Missing argument 'FEATURES'"),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_is_no_choice_of_files_is_refused(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    said = refusal("fit", *given.split(), *NUMPY, *IMAGES, "-o", "run")
    assert message in said
    assert charges() == 0
