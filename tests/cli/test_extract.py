"""`dphead extract` as a clinic uses it that tries two networks on the same images."""

import json
import re
import shlex
from unittest.mock import patch

import click
import numpy as np
import pytest
from commands import charges, dphead, fitted, refusal, refused, report_of, words
from dphead_extract.backbones.families import settings_of_families
from dphead_extract.features.format import open_features
from pictures import drawn, encoded, pack

from dphead.cli.extract import extract

SCATTER = ("--backbone", "scatternet", "--scatter-j", 1, "--classes", 3)
PIXELS = ("--backbone", "scatternet", "--scatter-j", 1, "--image-size", 8)
FIT = ("--method", "prototypes", "--backend", "numpy")


@pytest.fixture
def images(tmp_path):
    """Ninety images of three classes, and a part of them."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (90, 8, 8), np.uint8)
    for name, count in (("all", 90), ("part", 30)):
        np.savez(
            tmp_path / f"{name}.npz",
            images=pictures[:count],
            labels=np.arange(count) % 3,
        )
    return tmp_path / "all.npz"


def test_each_option_of_fixed_filters_is_one_of_a_family():
    """Another name would be dropped without a word."""
    options = extract.get_params(click.Context(extract))
    sections = {o.name: getattr(o, "heading", "") for o in options}
    names = {name for name, section in sections.items() if section == "Fixed filters"}
    assert names == settings_of_families().keys() | {"colors"}


def test_two_networks_on_the_same_images_share_a_budget(images, tmp_path):
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    fitted("extract", images, "-o", one, *SCATTER)
    done = fitted("extract", images, "-o", two, *SCATTER, "--scatter-l", 2)
    assert "these images were extracted before" in done.out
    fitted("ledger", "budget", one, "--epsilon", 1.2, "--delta", 1e-5)
    fitted("fit", one, "-o", tmp_path / "run", *FIT)
    said = refusal("fit", two, "-o", tmp_path / "again", *FIT)
    assert "would exceed the budget" in said
    fitted("fit", two, "-o", tmp_path / "again", *FIT, "--epsilon", 0.2)
    assert report_of(tmp_path / "again")["ledger"]["fits"] == 2
    assert report_of(tmp_path / "again")["tuning"] == "NOT ACCOUNTED"


def test_a_part_is_asked_about_and_named_when_it_is_counted_apart(images, tmp_path):
    fitted("extract", images, "-o", tmp_path / "all.h5", *SCATTER)
    fitted("fit", tmp_path / "all.h5", "-o", tmp_path / "run", *FIT)
    command = ("extract", tmp_path / "part.npz", "-o", tmp_path / "part.h5", *SCATTER)
    said = refusal(*command)
    assert "30 of 30 images are also among the 90" in said
    assert "--new-data-set" in said
    done = fitted(*command, "--new-data-set")
    assert "private, do not publish: 30 of 30 images" in words(done.err)
    fitted("fit", tmp_path / "part.h5", "-o", tmp_path / "apart", *FIT)
    found = json.loads(dphead("check", tmp_path / "apart", "--json").out)
    named = {f["name"]: f["what"] for f in found["findings"]}
    assert "holds 30 of these images" in named["fits in another ledger"]
    report = (tmp_path / "apart" / "report.json").read_text()
    assert "of these images" not in report
    with open_features(tmp_path / "all.h5") as file:
        again = (*command[:2], "-o", tmp_path / "n.h5", *SCATTER)
        fitted(*again, "--dataset-id", file.dataset_id)


def test_without_a_home_nothing_is_extracted(images, tmp_path, monkeypatch):
    """The images would not be known again."""
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    done = dphead("extract", images, "-o", tmp_path / "f.h5", *SCATTER)
    assert "is a relative path" in refused(done)
    assert not (tmp_path / "f.h5").exists()


def test_what_is_left_out_is_counted_on_the_private_screen(tmp_path):
    data = pack(tmp_path / "data", {f"cat/{i}.png": drawn(i) for i in range(2)})
    command = ("extract", data, *PIXELS, "--channels", 1, "--classes", "cat")
    said = fitted(*command, "-o", tmp_path / "all.h5")
    assert "Left out   nothing" in said.out
    (data / "cat" / "notes.txt").touch()
    said = fitted(*command, "-o", tmp_path / "one.h5", "--limit", 1, "--new-data-set")
    told = words(said.err)
    assert "Left out private, for the data holder only:" in told
    assert "1 files without an image's ending (.txt)" in told
    assert "1 rows beyond --limit" in told
    assert "Left out" not in said.out


def radiographs(folder):
    """Thirty 12-bit images of three classes in 16-bit PNG files."""
    rng = np.random.default_rng(1)
    files = {}
    for row in range(30):
        image = rng.integers(0, 4096, (8, 8)) // (1 + row % 3)
        name = ("cat", "dog", "owl")[row % 3]
        files[f"{name}/{row:02}.png"] = encoded(image.astype(np.uint16))
    return pack(folder, files)


GRAY = (*PIXELS, "--channels", 1, "--classes", "cat,dog,owl")


def test_a_declared_range_belongs_to_the_features_and_to_the_head(tmp_path):
    source = radiographs(tmp_path / "images")
    plain, twelve = tmp_path / "plain.h5", tmp_path / "twelve.h5"
    fitted("extract", source, "-o", plain, *GRAY)
    done = fitted("extract", source, "-o", twelve, *GRAY, "--bits", 12)
    # the same images, whatever is declared, so the same ledger
    assert "these images were extracted before" in done.out
    with open_features(plain) as one, open_features(twelve) as two:
        assert two.config["transform"] == one.config["transform"] | {"bits": 12}
        assert one.feature_space != two.feature_space
        assert not np.array_equal(one.features, two.features)
    run = tmp_path / "run"
    fitted("fit", twelve, "-o", run, *FIT)
    names = ("row", "class", "probability")
    predicted = []
    for rows in (twelve, source):
        fitted("predict", run, rows, "-o", tmp_path / "rows.json")
        lines = json.loads((tmp_path / "rows.json").read_text())
        predicted.append([{name: line[name] for name in names} for line in lines])
    assert predicted[0] == predicted[1]
    for command in ("predict", "evaluate"):
        assert "the head's backbone" in refusal(command, run, plain)


def test_images_without_a_known_range_are_named_with_what_to_declare(tmp_path):
    source = radiographs(tmp_path / "images")
    signed = np.arange(64, dtype=np.int32).reshape(8, 8)
    pack(source, {"cat/signed.tiff": encoded(signed, "TIFF")})
    command = ("extract", source, "-o", tmp_path / "f.h5", *GRAY)
    said = refusal(*command)
    assert "cat/signed.tiff (integers without a known range: declare --bits" in said
    skipped = fitted(*command, "--skip-unreadable")
    told = words(skipped.err)
    assert "1 unreadable images (integers without a known range: declare" in told
    (tmp_path / "f.h5").unlink()
    fitted(*command, "--intensity", "0,4095")
    with open_features(tmp_path / "f.h5") as file:
        assert file.config["transform"]["intensity"] == [0.0, 4095.0]
    assert "--bits and --intensity both" in refusal(
        *command, "--bits", 12, "--intensity", "0,4095"
    )


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """Sixty photographs of twenty patients, and a table as Excel writes it."""
    folder = pack(tmp_path / "photos", {f"{i}.png": drawn(i) for i in range(60)})
    lines = ["filename;patient_id;dx"]
    lines += [f"{i}.png;Müller {i // 3};{'ab'[i % 2]}" for i in range(60)]
    (folder / "patients.csv").write_text("\n".join(lines), encoding="windows-1252")
    monkeypatch.chdir(tmp_path)
    return folder


COLUMNS = ("--columns", "path=filename,group=patient_id,label=dx")
WINDOWS = ("--columns", "encoding=windows-1252")


def test_a_clinics_folder_becomes_a_head_tested_on_other_patients(clinic):
    typed = ["extract", "photos", "-o", "f.h5", "--classes", "a,b"]
    naive = dphead(*typed, "--backbone", "scatternet", "--image-size", 8)
    assert "--columns path=NAME,label=NAME for a table" in refused(naive)
    typed += COLUMNS
    typed += ["--backbone", "scatternet", "--scatter-j", 1, "--image-size", 8]
    assert "Type --columns encoding=windows-1252" in refusal(*typed)
    typed += [*WINDOWS, "--test-fraction", "0.3:groups"]
    done = dphead(*typed)
    assert done.code == 0, done.err
    # the printed command is the one that `fit` takes
    assert max(map(len, done.out.splitlines())) <= 80
    command = done.out[done.out.index("dphead fit") :].replace("\\\n", "").split()
    command = command[1 : command.index("run") + 1]
    assert command[2:6] == ["--split", "train", "--test-split", "test"]
    assert "--group-cap" in command and "4 is an example: choose" in words(done.out)
    fit = dphead(*command, "--method", "prototypes", "--backend", "numpy")
    assert fit.code == 0, fit.err
    assert re.search(r"test images of \d+ other people: private", words(fit.out))
    assert report_of(clinic.parent / "run")["test_rows"] == "other groups"
    with open_features("f.h5") as file:
        assert file.holdout == {"fraction": 0.3, "by": "group", "positions": False}
        in_test = set(file.group[file.split == 1].tolist())
        assert in_test and not in_test & set(file.group[file.split == 0].tolist())
    csv = (*COLUMNS, *WINDOWS)
    found = json.loads(fitted("evaluate", "run", "photos", *csv, "--json").out)
    assert found["n"] == 60
    assert len(fitted("predict", "run", "photos", *csv).out.splitlines()) == 61
    assert "Drop --columns" in refusal("predict", "run", "f.h5", *csv)
    again = dphead(*typed[:-2], "--test-fraction", 0.4)
    assert "holdout.fraction was 0.3, and is now 0.4" in refused(again)


def test_finetune_reads_a_clinics_table_and_offers_a_budget(clinic):
    typed = ["finetune", "photos", "-o", "network", "--classes", "a,b", *COLUMNS]
    typed += [*WINDOWS, "--image-size", 8, "--protect", "image"]
    typed += ["--model", "wrn-10-1", "--batch-size", 20, "--steps", 2]
    said = words(fitted(*typed, "--dry-run").out)
    assert "none yet" in said
    assert "epsilon 1 at delta 1e-05 requested by this fit" in said
    assert charges() == 0
    with (
        patch("dphead.cli.budget.on_terminal", return_value=True),
        patch("click.confirm", side_effect=click.Abort),
    ):
        said = words(dphead(*typed).out).replace("\\ ", "")
    command = re.search(r"dphead (ledger budget .*) Then type this command again", said)
    assert command and charges() == 0
    fitted(*shlex.split(command[1]))
    said = words(fitted(*typed).out)
    assert "epsilon 3 at delta 1e-05 for all fits in this ledger" in said
    found = fitted("evaluate", "network", "photos", *typed[6:10]).out
    assert "60 with a label" in found


def test_a_missing_photograph_is_named(clinic):
    (clinic / "7.png").unlink()
    typed = ("extract", "photos", "-o", "f.h5", "--ignore-labels", "--columns")
    typed += ("encoding=latin-1,path=filename", *PIXELS)
    assert "are unreadable: 7.png (the file does not exist)" in refusal(*typed)
