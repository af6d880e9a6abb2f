"""`dphead finetune` from files to files, interrupted and resumed, and on several
processes.
"""

import json
import math
import re
import uuid
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from commands import (
    Fork,
    dphead,
    fitted,
    refusal,
    refused,
    report_of,
)
from core import reserve
from dphead_extract.errors import ExtractError
from dphead_extract.features.format import FeaturesWriter, Header, write_features
from dphead_extract.people import People
from dphead_extract.sources.classes import Classes
from exports import holds
from finetune.core import CLIPS, OWN, images, images_file
from ledgers import specs
from PIL import Image
from safetensors.torch import save_file
from together import LOOPBACK

from benchmarks.faults.servers import CLIENT
from dphead.analysis.card.page import model_card
from dphead.analysis.ledger_place import named
from dphead.cli.summary import _next_commands
from dphead.finetune.models import build_network, trained
from dphead.finetune.options import FinetuneOptions
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import finetune
from dphead.finetune.saved import read_network
from dphead.finetune.settings import ModelSpec, Settings
from dphead.finetune.sources import identified, load_data
from dphead.fit import run_folder
from dphead.fit.fit import About
from dphead.fit.ledgers import (
    PEOPLE,
    fix_budget,
    image_index,
    open_ledger,
    people_index,
)
from dphead.fit.run_folder import beside_others
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger import Ledger, LedgerError, seals

# The noise is given: solving for it takes seconds, and `test_the_command_trains` does
# it.
SETTINGS = Settings(
    "wrn-10-1",
    noise_multiplier=1.5,
    batch_size=20,
    steps=5,
    learning_rate=0.5,
    augment="crop",
    views=2,
    groups=4,
)


@pytest.fixture(autouse=True)
def quick_profiles(monkeypatch):
    """The papers' accountants beside each other take seconds, and are tested
    elsewhere.
    """
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})


def source(folder, **columns):
    """An npz of images with two splits. columns: others that it has besides."""
    return images_file(folder / "images.npz", names=["a", "b", "c"], **columns)


def options(folder, out, **fit):
    more = {
        "epsilon": 4.0,
        "delta": 1e-3,
        "split": "train",
        "test_split": "test",
        "test_is": "public",
        "accountant": "rdp",
    }
    more |= {"ledger": folder / "ledger.sqlite", "seed": 3, "not_private": True} | fit
    path = folder / "images.npz"
    return FinetuneOptions(
        **more,
        features=path,
        out=folder / out,
        settings=SETTINGS,
        classes=Classes(["a", "b", "c"]),
        checkpoint=2,
    )


class Crash(Exception):
    pass


def crash(*_, **__):
    raise Crash


def crash_at(step):
    def progress(done, total, label):
        if done == step:
            raise Crash

    return progress


def test_a_run_leaves_a_network_a_report_and_a_ledger(tmp_path):
    source(tmp_path)
    said = []
    result = finetune(options(tmp_path, "run"), begin=said.append)
    assert len(said) == 3 and "before the charge" in said[1]
    report = report_of(tmp_path / "run")
    files = "ledger.json model.json model.safetensors report.html report.json"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == files.split()
    assert report["guarantee"]["releases"][0]["count"] == 5
    assert report["data"]["n_rows"] == 40
    # seeded: another paragraph
    assert (report["test_rows"], report["test"]["n"]) == ("another split", 20)
    assert "The network" not in report["statement"]
    network, state, facts = read_network(tmp_path / "run")
    x, y = images(60)
    assert facts["class_names"] == ["a", "b", "c"]
    accuracy = (network.scores(state.average, x[40:]).argmax(axis=1) == y[40:]).mean()
    assert accuracy == pytest.approx(result["test"]["accuracy"])
    assert len(Ledger(tmp_path / "ledger.sqlite").fits()) == 1


def test_the_name_of_a_servers_ledger_names_the_data_set_of_images(
    team, tmp_path, monkeypatch
):
    """Else they would be a new data set, and the ledger would be refused then."""
    monkeypatch.setenv("DPHEAD_LEDGER", team.url(CLIENT))
    source(tmp_path)
    name, index = uuid.uuid4().hex, image_index()
    place = Ledger(team.url(CLIENT), name).path

    def found(ledger):
        given = options(tmp_path, "run", ledger=ledger)
        data = load_data(given, given.features, given.split, index, None)
        return identified(given, data, index)

    with pytest.raises(LedgerError, match="on another server"):
        found(f"postgresql:{uuid.uuid4()}/{name}")
    assert not index.knows(name)
    assert found(place).source.dataset_id == name and index.knows(name)


def test_an_interrupted_run_continues_under_its_charge(tmp_path):
    source(tmp_path)
    finetune(options(tmp_path, "whole", ledger=tmp_path / "other.sqlite"))
    for step in (2, 5):
        with pytest.raises(Crash):
            finetune(options(tmp_path, "run"), progress=crash_at(step))
        # those after the last checkpoint
        stored = list((tmp_path / "run" / "releases").glob("*.npy"))
        assert len(stored) == step - 2 * ((step - 1) // 2)
    finetune(options(tmp_path, "run"))
    (charged,) = Ledger(tmp_path / "ledger.sqlite").fits()
    assert [r["state"] for r in charged["releases"]] == ["committed"] * 5
    a, b = (read_network(tmp_path / name)[1].average for name in ("whole", "run"))
    np.testing.assert_array_equal(a, b)


def test_an_interrupted_run_of_a_new_data_set_keeps_it(tmp_path):
    """The images are in another data set too, which has a fit of its own."""
    source(tmp_path)
    finetune(options(tmp_path, "one", ledger=None))
    given = replace(options(tmp_path, "two", ledger=None), new_data_set=True)
    with pytest.raises(Crash):
        finetune(given, progress=crash_at(2))
    folder = image_index().folder
    begun = {path: path.read_bytes() for path in folder.glob("*.digests")}
    assert len(begun) == 2
    more = images_file(tmp_path / "more.npz", names=["a", "b", "c"], test=10)
    with pytest.raises((LedgerError, ValueError), match="the interrupted"):
        finetune(replace(given, features=more))
    # the other images are not added to the data set of the interrupted run
    assert all(path.read_bytes() == held for path, held in begun.items())
    report = finetune(given)["report"]
    assert report["ledger"]["fits"] == 1
    assert folder / f"{report['data']['dataset_id']}.digests" in begun


def test_an_uncharged_run_of_a_new_data_set_keeps_it(tmp_path, monkeypatch):
    source(tmp_path)
    given = replace(options(tmp_path, "run", ledger=None), new_data_set=True)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(run_folder, "charge_ledger", crash)
        finetune(given)
    assert (tmp_path / "run" / "fit.json").exists()
    try:
        report = finetune(given)["report"]
    except LedgerError as error:
        raise AssertionError("the run began another data set") from error
    assert report["ledger"]["fits"] == 1
    assert len([*image_index().folder.glob("*.digests")]) == 1


def test_public_test_rows_are_measured_during_the_training(tmp_path):
    source(tmp_path)
    result = finetune(replace(options(tmp_path, "run"), evaluate_every=2))
    history = result["report"]["test"]["history"]
    assert [one["step"] for one in history] == [2, 4]
    assert all(0 <= one["accuracy"] <= 1 for one in history)


def test_the_command_trains_a_network_of_ones_own_and_runs_its_code_only_if_asked(
    tmp_path, monkeypatch
):
    source(tmp_path)
    (tmp_path / "ones_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = replace(SETTINGS, model="ones_own:network")
    result = finetune(replace(options(tmp_path, "run"), settings=own))
    said = list(_next_commands(tmp_path / "run", result["report"]))
    assert said[1].endswith(" --model ones_own:network")
    assert "IMAGES/ --model ones_own:network" in model_card(result["report"])
    (release,) = result["report"]["guarantee"]["releases"]
    assert "groups" not in release["statistic"]
    assert "groups" not in result["report"]["method"]["settings"]
    predict = ("predict", tmp_path / "run", tmp_path / "images.npz", "--split", "test")
    assert "Pass --model ones_own:network" in refusal(*predict)
    assert "must be ones_own:network" in refusal(*predict, "--model", "a:b")
    done = fitted(*predict, "--model", "ones_own:network")
    assert len(done.out.splitlines()) == 21


@pytest.mark.parametrize(
    "settings, given, message",
    [
        ({"batch_size": 41}, {}, "--batch-size must be at most 40"),
        ({"steps": None}, {"epsilon": 1e-9}, "too small for one step"),
        ({}, {"delta": 0.5, "not_private": False, "seed": None}, "delta"),
    ],
)
def test_a_plan_is_refused_before_gradients_are_tried(
    settings, given, message, tmp_path, monkeypatch
):
    """Their trial takes up to a minute."""
    source(tmp_path)
    monkeypatch.setattr("dphead.finetune.run._sums", None)
    own = replace(SETTINGS, **settings)
    with pytest.raises(ValueError, match=message):
        finetune(replace(options(tmp_path, "run", **given), settings=own))


def test_a_model_that_cannot_be_built_is_refused_before_images_are_read(tmp_path):
    (tmp_path / "images.npz").write_bytes(b"not read")
    own = replace(SETTINGS, model="resnet18")
    with pytest.raises(ValueError, match="BatchNorm2d"):
        finetune(replace(options(tmp_path, "run"), settings=own))


def allocated(folder, out, **fit):
    """Two epochs of four steps, of 40 images."""
    asked = options(folder, out, accountant="auto", **fit)
    own = replace(SETTINGS, batch_size=10, steps=8, sampling="allocation")
    return replace(asked, settings=own)


def test_a_run_with_allocation_uses_each_image_once_an_epoch(tmp_path, monkeypatch):
    source(tmp_path)
    used = []
    blocks = ImageRows.blocks

    def watched(self, indices=None, known=None):
        used.append(indices)
        return blocks(self, indices, known)

    monkeypatch.setattr(ImageRows, "blocks", watched)
    report = finetune(allocated(tmp_path, "run"))["report"]
    for epoch in (used[:4], used[4:8]):
        assert sorted(np.concatenate(epoch)) == list(range(40))
    g = report["guarantee"]
    (release,) = g["releases"]
    assert (release["count"], release["epoch_steps"]) == (8, 4)
    assert (release["sampling_prob"], g["mu"]) == (1.0, None)
    event = GaussianEvent(1.5, count=8, epoch_steps=4)
    assert g["nominal_epsilon"] == accounting.compose_epsilon([event], 1e-3)
    assert report["warnings"] == []
    # the report is read and computed again
    assert "Data set" in dphead("check", tmp_path / "run").out
    charged = Ledger(tmp_path / "ledger.sqlite").events()
    assert accounting.compose_epsilon(charged, 1e-3) == g["epsilon"]


@pytest.mark.parametrize("at, lost", [([1, 6], 5), ([4, 8], 0)])
def test_an_interrupted_run_with_allocation_says_how_many_steps_it_lost(
    at, lost, tmp_path
):
    """Of all its interruptions, the last one's and those before."""
    source(tmp_path)
    for step in at:
        with pytest.raises(Crash):
            finetune(allocated(tmp_path, "run"), progress=crash_at(step))
    report = finetune(allocated(tmp_path, "run"))["report"]
    said = [f"{lost} of its 8 steps used no images" in w for w in report["warnings"]]
    assert said == [True] * (lost > 0)
    assert len(Ledger(tmp_path / "ledger.sqlite").fits()) == 1


def test_another_option_does_not_continue_an_interrupted_run_and_is_named(tmp_path):
    source(tmp_path)
    with pytest.raises(Crash):
        finetune(options(tmp_path, "run"), progress=crash_at(3))
    other = options(tmp_path, "run")
    with pytest.raises(ValueError, match=r"--learning-rate must be 0.5, .* got 0.25"):
        finetune(replace(other, settings=replace(SETTINGS, learning_rate=0.25)))
    with pytest.raises(ValueError, match=r"--seed must be 3, .* got 4"):
        finetune(replace(other, seed=4))
    # the ledger has no later declaration of people
    assert {"people", "new_people"} <= other.repeated().keys()
    # the earlier steps have images of a different scale
    with pytest.raises(ValueError, match=r"--std must be none, .* got \[0.1\]"):
        finetune(replace(other, std=(0.1,)))
    for command in (["check"], ["predict", "--", tmp_path / "images.npz"]):
        name, *more = command
        done = dphead(name, tmp_path / "run", *more)
        assert "holds an interrupted run" in refused(done)


def test_another_split_does_not_continue_an_interrupted_run(tmp_path):
    """Its test rows would be rows that the network was trained on."""
    asked = replace(maps(tmp_path), checkpoint=1, features=tmp_path / "splits.h5")
    x = np.random.default_rng(0).random((50, 81 * 49)).astype(np.float32)
    splits = {"split": np.arange(50) % 2, "split_names": ["train", "test"]}
    names = {"class_names": ["a", "b"]}
    write_features(asked.features, x, np.arange(50) % 2, **names, **splits)
    with pytest.raises(Crash):
        finetune(replace(asked, split="train"), progress=crash_at(2))
    with pytest.raises(ValueError, match="--split must be train"):
        finetune(replace(asked, split="test"))


def test_another_shape_does_not_continue_an_interrupted_run(tmp_path):
    asked = maps(tmp_path)
    settings = replace(asked.settings, model="wrn-10-1", groups=4)
    asked = replace(asked, checkpoint=1, settings=settings, shape=(9, 21, 21))
    with pytest.raises(Crash):
        finetune(asked, progress=crash_at(2))
    with pytest.raises(ValueError, match="shape must be"):
        finetune(replace(asked, shape=(9, 49, 9)))


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    """It was computed from other releases: they were charged for another network."""
    source(tmp_path)
    for name in ("run", "other"):
        with pytest.raises(Crash):
            finetune(options(tmp_path, name, seed=None), progress=crash_at(3))
    theirs = (tmp_path / "other" / "checkpoint.npz").read_bytes()
    (tmp_path / "run" / "checkpoint.npz").write_bytes(theirs)
    with pytest.raises(ValueError, match="belongs to another fit"):
        finetune(options(tmp_path, "run", seed=None))
    fits = Ledger(tmp_path / "ledger.sqlite").fits()
    states = [r["state"] for r in fits[0]["releases"]]
    assert states == ["committed"] * 3 + ["reserved"] * 2
    (tmp_path / "other" / "fit.json").unlink()
    with pytest.raises(ValueError, match="belongs to another fit"):
        finetune(options(tmp_path, "other", seed=None))
    assert len(Ledger(tmp_path / "ledger.sqlite").fits()) == len(fits)


def test_a_source_with_groups_is_refused_unless_images_are_to_be_protected(tmp_path):
    """A person with several images has less than the epsilon that the report states."""
    source(tmp_path, group=np.arange(60) // 3)
    with pytest.raises(ValueError, match=r"needs a decision\. .*--protect image"):
        finetune(options(tmp_path, "run"))
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()
    finetune(replace(options(tmp_path, "run"), protect="image"))
    report = report_of(tmp_path / "run")
    assert any(
        "--protect image" in w and "several images" in w for w in report["warnings"]
    )
    assert report["guarantee"]["protected_unit"] == "one image"


def maps(folder, group=None, **settings):
    """Options of a small convolution on a features file, as TB21's on ScatterNet's."""
    y = np.arange(50) % 2
    x = np.random.default_rng(0).random((50, 81 * 49)) + y[:, None]
    made = x.astype(np.float32)
    write_features(folder / "maps.h5", made, y, class_names=["a", "b"], group=group)
    given = {"steps": 2, "noise_multiplier": 8.0, "normalize": False} | settings
    return FinetuneOptions(
        features=folder / "maps.h5",
        out=folder / "run",
        delta=1e-3,
        accountant="rdp",
        settings=Settings("tb21-sn-mnist", batch_size=25, **given),
        shape=(81, 7, 7),
    )


def test_maps_with_groups_are_refused_unless_images_are_to_be_protected(tmp_path):
    asked = maps(tmp_path, group=np.arange(50) // 2)
    with pytest.raises(ValueError, match=r"groups .*--group-cap.*--protect image"):
        finetune(asked)


def test_maps_of_a_features_file_with_private_normalization(tmp_path):
    """Two releases more, all in the ledger."""
    report = finetune(maps(tmp_path, normalization=CLIPS))["report"]
    assert [r["label"] for r in report["guarantee"]["releases"]] == [
        "channel means",
        "channel mean squares",
        "gradient",
    ]
    state = read_network(tmp_path / "run")[1]
    assert state.center.shape == state.scale.shape == (81 * 49,)


def test_images_take_no_normalization_of_maps(tmp_path):
    """They would be normalized in the training, and not where they are measured."""
    source(tmp_path)
    ours = options(tmp_path, "run")
    given = replace(ours.settings, normalization=CLIPS)
    with pytest.raises(ValueError, match="feature maps, not to images"):
        finetune(replace(ours, settings=given))
    assert not (tmp_path / "ledger.sqlite").exists()


def test_test_rows_may_be_chosen_by_position(tmp_path):
    """This changes no training row."""
    asked = replace(maps(tmp_path), relation="add_remove")
    names = {"class_names": ["a", "b"], "classes_declared": "classes-flag"}
    header = Header(10, 81 * 49, config={"limit": 10}, **names)
    with FeaturesWriter(tmp_path / "first.h5", header) as writer:
        writer.append(np.ones((10, 81 * 49)), {"labels": np.arange(10) % 2})
        writer.finish()
    with pytest.raises(ValueError, match="--limit chose its rows by positions"):
        load_data(asked, tmp_path / "first.h5", None)
    tested = load_data(asked, tmp_path / "first.h5", None, is_test=True)
    assert tested.measured is not None


def test_the_data_holder_is_told_of_copies_of_training_images(tmp_path, capsys):
    held = dict(np.load(source(tmp_path)))
    held["images"][-7:] = held["images"][:7]
    np.savez(tmp_path / "images.npz", **held)
    finetune(options(tmp_path, "run", dry_run=True))
    told = "7 test rows are equal to training rows"
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_data_holder_is_told_of_copies_of_training_maps(tmp_path, capsys):
    asked = replace(maps(tmp_path), features=tmp_path / "two.h5")
    rng = np.random.default_rng(0)
    names = {"class_names": ["a", "b"], "classes_declared": "classes-flag"}
    header = Header(50, 81 * 49, split_names=["train", "test"], **names)
    rows = np.arange(50)
    digests = rng.integers(0, 256, (50, 16), np.uint8)
    digests[-7:] = digests[:7]
    columns = {"labels": rows % 2, "split": rows >= 40, "row_digest": digests}
    with FeaturesWriter(asked.features, header) as writer:
        writer.append(rng.random((50, 81 * 49)), columns)
        writer.finish()
    finetune(replace(asked, split="train", test_split="test", dry_run=True))
    told = "7 test rows are equal to training rows"
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("splits", [("all", "test"), ("train", "all")])
def test_all_rows_of_a_source_have_its_training_rows(splits, tmp_path):
    source(tmp_path)
    named = dict(zip(("split", "test_split"), splits, strict=True))
    with pytest.raises(ValueError, match="cannot be training rows"):
        finetune(options(tmp_path, "run", **named))
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("test", [None, "link.npz"])
def test_training_rows_are_no_public_test_rows(test, tmp_path):
    """The report would hold the exact accuracy on images that it protects."""
    source(tmp_path)
    (tmp_path / "link.npz").symlink_to("images.npz")
    other = None if test is None else tmp_path / "." / test
    named = {"test": other, "test_split": "train"}
    with pytest.raises(ValueError, match="cannot be training rows"):
        finetune(options(tmp_path, "run", **named))
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()
    report = finetune(options(tmp_path, "run", **named, test_is="private"))["report"]
    assert (report["test_rows"], report["test"]) == ("training rows", None)


def test_training_images_under_another_path_are_no_public_test_rows(tmp_path, capsys):
    path = source(tmp_path)
    named = {"test": tmp_path / "copy.npz", "test_split": "train"}
    named["test"].write_bytes(path.read_bytes())
    ours = options(tmp_path, "run", **named)
    with pytest.raises(ValueError, match="images of the test data set are in the"):
        finetune(ours)
    assert not (tmp_path / "ledger.sqlite").exists()
    finetune(replace(ours, test_is="private", dry_run=True))
    assert "some may be training images" in " ".join(capsys.readouterr().err.split())


def test_known_images_of_the_data_set_are_no_public_test_rows(tmp_path):
    """Not only those of the split that this fit trains on: an earlier one read more."""
    path, copy = source(tmp_path), tmp_path / "copy.npz"
    copy.write_bytes(path.read_bytes())
    given = {"ledger": None, "dataset_id": "e" * 32, "test": copy}
    ours = options(tmp_path, "run", **given)
    index = image_index()
    index.add("e" * 32, load_data(ours, path, "test", index).digests)
    with pytest.raises(ValueError, match="images of the test data set are in the"):
        finetune(ours)


@pytest.mark.parametrize("read", [True, False])
def test_copies_of_16_bit_images_in_colors_are_no_public_test_rows(tmp_path, read):
    """dphead reads their upper bytes only: of the images read here, or before."""
    deep = np.random.default_rng(0).integers(0, 2**16, (60, 8, 8), np.uint16)
    held = dict(np.load(source(tmp_path))) | {"images": deep}
    np.savez(tmp_path / "images.npz", **held)
    chosen = held["split"] == ("train" if read else "test")
    upper = np.repeat((deep[chosen] >> 8).astype(np.uint8)[..., None], 3, axis=-1)
    np.savez(tmp_path / "copy.npz", images=upper, labels=held["labels"][chosen])
    given = {"ledger": None, "dataset_id": "e" * 32, "test": tmp_path / "copy.npz"}
    ours = options(tmp_path, "run", **given, test_split=None)
    index = image_index()
    if not read:
        images = load_data(ours, tmp_path / "images.npz", "test", index)
        index.add("e" * 32, images.digests)
    with pytest.raises(ValueError, match=r"(20|40) images of the test data set"):
        finetune(ours)


def test_images_of_protected_people_are_no_public_test_rows(tmp_path, capsys):
    """The report would hold exact figures on people whom epsilon covers."""
    splits = np.load(source(tmp_path))["split"]
    people = [np.flatnonzero(splits == split) for split in ("train", "test")]
    group = np.arange(len(splits))
    group[people[1]] = people[0][: len(people[1])]
    source(tmp_path, group=group)
    ours = options(tmp_path, "run", group_cap=1)
    with pytest.raises(ValueError, match="needs test rows of other groups"):
        finetune(ours)
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()
    finetune(replace(ours, test_is="private", dry_run=True))
    assert "have training rows too" in " ".join(capsys.readouterr().err.split())


def test_images_are_known_again_and_have_one_ledger(tmp_path):
    """Whatever their file is called: the second training is charged to the first's."""
    source(tmp_path)
    first = finetune(options(tmp_path, "one", ledger=None))["report"]
    (tmp_path / "images.npz").rename(tmp_path / "moved.npz")
    assert first["data"]["image_index"]
    again = replace(
        options(tmp_path, "two", ledger=None), features=tmp_path / "moved.npz"
    )
    second = finetune(again)["report"]["ledger"]
    assert (second["path"], second["fits"]) == (first["ledger"]["path"], 2)
    third = finetune(replace(again, out=tmp_path / "three", new_data_set=True))
    (elsewhere,) = third["report"]["ledger"]["elsewhere"]
    known = {"path": second["path"], "fits": 2, "of": "some of the images"}
    assert known.items() <= elsewhere.items()


@pytest.mark.parametrize("ledger", [None, ":memory:"])
def test_a_run_that_protects_nothing_keeps_the_budget_of_each_data_set(
    tmp_path, ledger
):
    """It has images of two data sets. The budget is that of the one with fewer."""
    source(tmp_path)
    given = options(tmp_path, "run", epsilon=math.inf, ledger=ledger, seed=None)
    given = replace(given, settings=replace(SETTINGS, noise_multiplier=None))
    index = image_index()
    data = load_data(given, given.features, given.split, index)
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    index.add(first, data.digests[:25])
    index.add(second, data.digests[25:])
    book = open_ledger(None, second)
    fix_budget(book, 1.0, 1e-3)
    with pytest.raises(LedgerError, match=f"the budget epsilon=1 in .*{second}"):
        finetune(given)
    assert not open_ledger(None, first).count_fits()
    if ledger is None:
        index.add(first, np.arange(40, dtype=np.uint64))  # no more than half is shared
        with pytest.raises(ExtractError, match="Type --dataset-id"):
            finetune(given)
        return
    with pytest.raises(LedgerError, match=second):
        finetune(replace(given, dataset_id=uuid.uuid4().hex))
    reserve(specs(1, 8.0), book)
    data = identified(given, data, index)
    assert data.source.image_index is None  # the index keeps none of them
    about = About(source=data.source, name="")
    where = (given.out, ledger, None, True)
    found = beside_others(about, *where, known=data.known).elsewhere
    listed = [(one["path"], one["of"]) for one in found]
    assert listed == [(named(book.path, given.out), "some of the images")]


def test_a_run_that_protects_nothing_is_charged_for_new_images(tmp_path):
    """Otherwise its result could choose the settings of a later run unnoticed."""
    source(tmp_path)
    given = options(tmp_path, "run", epsilon=math.inf, ledger=None, seed=None)
    given = replace(given, settings=replace(SETTINGS, noise_multiplier=None))
    book = open_ledger(None, finetune(given)["report"]["data"]["dataset_id"])
    assert book.count_fits() == 1
    with pytest.raises(LedgerError, match="fits in this ledger is 1"):
        fix_budget(book, 1.0, 1e-3)
    later = options(tmp_path, "later", ledger=None, tuning="none")
    with pytest.raises(ValueError, match="--tuning none is not true"):
        finetune(later)


def test_images_of_an_id_system_are_charged_to_its_ledger(tmp_path):
    """And one known person is no new person."""
    source(tmp_path, group=np.arange(60) // 2)
    own = {"ledger": None, "protect": "image", "people": "clinic"}
    report = finetune(options(tmp_path, "one", **own))["report"]
    shared = People(people_index(), "clinic").shared_id
    assert report["data"]["dataset_id"] == shared
    assert report["data"]["people"] == {"system": "clinic", "new": False}
    with pytest.raises(ValueError, match="Drop --new-people"):
        finetune(options(tmp_path, "two", **own, new_people=True))
    assert not (tmp_path / "two").exists()


def test_people_of_a_run_that_protects_nothing_are_checked_and_recorded(tmp_path):
    """Its report states that nobody is in another data set of the id system."""
    source(tmp_path, group=np.arange(60) // 2)
    own = {"ledger": None, "epsilon": math.inf, "seed": None, "people": "clinic"}
    given = options(tmp_path, "run", **own, new_people=True)
    given = replace(given, settings=replace(SETTINGS, noise_multiplier=None))
    groups = load_data(given, given.features, given.split, image_index()).groups
    people = People(people_index(), "clinic", True)
    first = uuid.uuid4().hex
    people.keep(first, "", np.append(groups[:2], 1))
    with pytest.raises(ExtractError, match=f"1 of 20 people are also in .*{first}"):
        finetune(given)
    assert not given.out.exists() and not [*image_index().folder.glob("*.digests")]
    source(tmp_path, group=np.arange(60) // 2 + 100)
    data = finetune(given)["report"]["data"]
    assert data["people"] == {"system": "clinic", "new": True}
    now = load_data(given, given.features, given.split, image_index()).groups
    with pytest.raises(ExtractError, match=f"20 of 20 .*{data['dataset_id']}"):
        people.check(None, now)


def test_a_ledger_in_memory_declares_no_people(tmp_path):
    """No later run would know them."""
    with pytest.raises(ValueError, match="--people clinic needs a stored ledger"):
        options(tmp_path, "run", people="clinic", new_people=True, ledger=":memory:")


def test_images_have_the_declaration_of_their_ledger(tmp_path):
    """Where the index of people does not have it."""
    source(tmp_path, group=np.arange(60) // 2)
    given = {"ledger": None, "protect": "image"}
    report = finetune(options(tmp_path, "one", **given))["report"]
    book = open_ledger(None, report["data"]["dataset_id"])
    with book.transaction():
        book.set_once(PEOPLE, json.dumps({"system": "clinic", "new": True}))
        seals.seal(book)
    with pytest.raises(ValueError, match="type --people clinic --new-people"):
        finetune(options(tmp_path, "two", **given))
    assert book.count_fits() == 1
    declared = {"people": "clinic", "new_people": True}
    report = finetune(options(tmp_path, "two", **given, **declared))["report"]
    assert report["data"]["people"] == {"system": "clinic", "new": True}


def command(tmp_path, *more, **columns):
    fixed = (
        f"finetune {source(tmp_path, **columns)} -o {tmp_path / 'run'} --classes a,b,c "
        "--split train --model wrn-10-1 --groups 4 --delta 1e-3 --accountant rdp "
        f"--ledger {tmp_path / 'l.sqlite'}"
    )
    return dphead(*fixed.split(), *more)


def test_a_dry_run_declares_nothing(tmp_path):
    """A declaration stays, and a mistaken one would refuse the run itself."""
    more = ["--batch-size", "20", "--noise-multiplier", "2", "--epsilon", "4"]
    more += ["--protect", "image", "--people", "clinic", "--dry-run"]
    path = source(tmp_path, group=np.arange(60) // 2)
    dry = f"finetune {path} -o {tmp_path / 'run'} --classes a,b,c --split train "
    dry = (dry + "--model wrn-10-1 --groups 4 --delta 1e-3 --accountant rdp").split()
    assert "batches of 20" in dphead(*dry, *more, "--new-people").out
    for index in (people_index(), image_index()):
        assert not [*index.folder.glob("*.digests")]
    assert dphead(*dry, *more).code == 0
    said = dphead(*dry, *more, "--dataset-id", "another")  # it checks as the run does
    assert said.code == 2 and "Drop --dataset-id" in said.err


def test_a_dry_run_from_python_charges_nothing(tmp_path):
    source(tmp_path)
    told = []
    dry = options(tmp_path, "run", dry_run=True)
    assert finetune(dry, announce=lambda *given: told.append(given)) is None
    assert len(told) == 1
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()


def test_a_resume_compares_the_contents_of_images(tmp_path):
    """Another image of the same name, size and label belongs to another run."""
    source(tmp_path)
    path = tmp_path / "folder/a/1.bmp"
    path.parent.mkdir(parents=True)
    given = replace(options(tmp_path, "run"), features=path.parents[1], split=None)
    given = replace(given, image_size=8)
    found = []
    for level in (1, 1, 2):
        Image.new("L", (8, 8), level).save(path)
        found.append(load_data(given, given.features, None, image_index()).digest)
    assert found[0] == found[1] != found[2]


def test_the_command_says_what_to_type_where_there_are_groups(tmp_path):
    more = ["--batch-size", "20", "--noise-multiplier", "2", "--dry-run"]
    more += ["--epsilon", "4"]
    people = np.arange(60) // 3
    assert "--protect image" in command(tmp_path, *more, group=people).err
    done = command(tmp_path, *more, "--protect", "image", group=people)
    assert done.code == 0
    assert "batches of 20" in done.out
    assert not (tmp_path / "l.sqlite").exists()
    assert not (tmp_path / "run").exists()
    more[-1] = "inf"  # nothing is protected, and nothing need be said
    assert command(tmp_path, *more, "--steps", "1", group=people).code == 0


def test_a_setting_is_given_once(tmp_path):
    """Otherwise a typed option would not replace that of --config."""
    twice = ("--clip-norm", "1", "--set", "clip_norm=5")
    assert "cannot repeat an option" in refused(command(tmp_path, *twice))


def test_the_command_trains(tmp_path):
    more = "--batch-size 20 --steps 2 --epsilon 4 --test-split test --views 2"
    done = command(tmp_path, *more.split())
    assert done.code == 0, done.err
    for part in (
        "membership-inference attack on this",
        "private, not in the report",
        "use --group-cap.",
    ):
        assert part in done.out, done.out
    report = report_of(tmp_path / "run")
    assert report["test"] is None
    assert report["tuning"] == "NOT ACCOUNTED"
    assert "epsilon" in dphead("check", tmp_path / "run").out


def test_the_command_trains_some_layers_of_a_timm_model_from_public_weights(tmp_path):
    """Trained parameters move, the others keep the public values to the last bit."""
    layers = ("^blocks[.]5", "^head")
    spec = ModelSpec("test_vit", init_seed=1)
    save_file(build_network(spec, 7).state_dict(), tmp_path / "public.safetensors")
    arguments = (
        f"finetune {source(tmp_path)} -o {tmp_path / 'run'} --classes a,b,c "
        f"--split train --model test_vit --layers {','.join(layers)} --seed 1 "
        "--i-know-this-is-not-private "
        f"--weights {tmp_path / 'public.safetensors'} --image-size 32 --batch-size 20 "
        "--steps 2 --delta 1e-3 --accountant rdp --learning-rate 0.5 "
        f"--ledger {tmp_path / 'l.sqlite'}"
    )
    fitted(*arguments.split())
    used = report_of(tmp_path / "run")["method"]["settings"]["weights"]
    assert used == sha256((tmp_path / "public.safetensors").read_bytes()).hexdigest()
    assert holds(tmp_path / "run") == ["run.toml"]  # what was typed
    network, _, facts = read_network(tmp_path / "run")
    assert facts["network"]["mean"] == [0.5, 0.5, 0.5]
    assert facts["network"]["shape"] == [3, 32, 32]
    chosen = {n for n, _ in trained(build_network(replace(spec, layers=layers), 3))}
    public = dict(build_network(spec, 7).named_parameters())
    for name, value in network.model.named_parameters():
        if name.startswith("head"):
            continue  # the public one has seven classes
        assert torch.equal(value, public[name]) == (name not in chosen), name


# `dphead`, which says before its first release where it listens
TRAIN = """
import sys
from dphead.cli import main
from dphead.sums.hosts import Hosts
from together import listening

next = Hosts.next

def listened(self, *arguments):
    print("listens on", *listening(), file=sys.stderr, flush=True)
    Hosts.next = next
    return next(self, *arguments)

Hosts.next = listened
main()
"""


def test_two_processes_train_the_network_of_one(tmp_path):
    """Byte for byte: one sample, one draw of noise, and whole numbers add up to the
    same. The environment is torchrun's. Nobody on the network can reach the processes.
    """
    source(tmp_path)
    finetune(options(tmp_path, "one", ledger=tmp_path / "one.sqlite"))
    command = (
        f"finetune {tmp_path / 'images.npz'} -o {tmp_path / 'two'} "
        f"--ledger {tmp_path / 'two.sqlite'} --classes a,b,c --split train "
        "--test-split test --test-is public --accountant rdp --epsilon 4 --delta 1e-3 "
        "--model wrn-10-1 --groups 4 --noise-multiplier 1.5 --batch-size 20 --steps 5 "
        "--learning-rate 0.5 --augment crop --views 2 --seed 3 "
        "--i-know-this-is-not-private"
    ).split()
    agent = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    running = [
        Fork(tmp_path, TRAIN, *command, **place, RANK=str(i), LOCAL_RANK=str(i))
        for i in range(2)
    ]
    done = [process.wait() for process in running]
    assert [one.code for one in done] == [0, 0], done
    for one in done:
        (found,) = re.findall("listens on (.*)", one.err)
        assert found.split() and set(found.split()) <= LOOPBACK
    # one process speaks
    said = "".join(one.out for one in done)
    assert said.count("Trained ") == said.count("model.safetensors") == 1
    one, two = (read_network(tmp_path / n)[1].average for n in ("one", "two"))
    np.testing.assert_array_equal(two, one)
    assert len(Ledger(tmp_path / "two.sqlite").fits()) == 1
