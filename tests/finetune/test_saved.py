"""`dphead evaluate`, `predict` and `check` on the run folder of a network."""

import json

import numpy as np
import pytest
from commands import (
    fitted,
    refusal,
    table,
    words,
)
from dphead_extract.features.format import open_features, write_features
from dphead_extract.sources.classes import Classes
from finetune.core import CLIPS, images, images_file
from pictures import encoded, pack

from dphead.finetune.options import FinetuneOptions
from dphead.finetune.run import finetune
from dphead.finetune.settings import Settings

NAMES = ["bird", "cat", "dog"]
N_TEST = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """train.npz and test.npz of images, maps.h5, and trained without noise: pixels/,
    maps/.
    """
    folder = tmp_path_factory.mktemp("saved")
    for name, n, seed in (("train", 60, 0), ("test", N_TEST, 1)):
        # a position is no name
        images_file(folder / f"{name}.npz", n, NAMES, test=0, seed=seed)
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 3
    maps = (rng.random((40, 81 * 49)) + labels[:, None]).astype(np.float32)
    write_features(folder / "maps.h5", maps, labels, class_names=NAMES)
    write_features(
        folder / "other.h5", maps, labels, class_names=NAMES, backbone="another"
    )
    fixed = {"epsilon": np.inf, "not_private": True, "classes": Classes(NAMES)}
    given = {"batch_size": 60, "steps": 6, "learning_rate": 0.5, "average": "last"}
    finetune(
        FinetuneOptions(
            features=folder / "train.npz",
            out=folder / "pixels",
            test=folder / "test.npz",
            test_is="public",
            settings=Settings("wrn-10-1", groups=4, views=2, augment="crop", **given),
            **fixed,
        )
    )
    given = {"batch_size": 40, "steps": 10, "learning_rate": 0.1}
    finetune(
        FinetuneOptions(
            features=folder / "maps.h5",
            out=folder / "maps",
            settings=Settings("tb21-sn-mnist", normalization=CLIPS, **given),
            shape=(81, 7, 7),
            **fixed,
        )
    )
    return folder


def measured(*arguments):
    return json.loads(fitted("evaluate", *arguments, "--json").out)


def predicted(*arguments):
    return table(fitted("predict", *arguments).out)


def test_evaluate_repeats_what_the_training_measured(folder):
    name = "pixels"
    found = measured(folder / name, folder / "test.npz")
    theirs = json.loads((folder / name / "report.json").read_text())["test"]
    # chance is a third
    assert found["n"] == N_TEST
    assert 0.5 < found["accuracy"] < 1
    assert found == theirs
    text = words(fitted("evaluate", folder / name, folder / "test.npz").out)
    worst = NAMES[int(np.argmin(found["per_class_accuracy"]))]
    assert f"in class {worst} " in text[text.index("Classes") :].split("%")[1]
    assert "the network's guarantee" in text


def test_the_error_of_an_accuracy_knows_the_people_of_the_images(folder, tmp_path):
    """Of images and of feature maps."""
    group = np.arange(N_TEST) // 8
    path = images_file(tmp_path / "t.npz", N_TEST, NAMES, test=0, seed=1, group=group)
    alone = measured(folder / "pixels", folder / "test.npz")
    found = measured(folder / "pixels", path)
    assert found.get("n_groups") == 5 and found["accuracy_se"] >= alone["accuracy_se"]
    assert found["accuracy"] == alone["accuracy"]
    with open_features(folder / "maps.h5") as file:
        maps, labels = file.features[:], file.labels
    write_features(tmp_path / "m.h5", maps, labels, class_names=NAMES, group=labels)
    assert measured(folder / "maps", tmp_path / "m.h5")["n_groups"] == 3


def test_predict_gives_each_row_the_class_that_evaluate_counts(folder):
    rows = predicted(folder / "pixels", folder / "test.npz")
    y = images(N_TEST, seed=1)[1]
    assert [int(r["row"]) for r in rows] == list(range(N_TEST))
    named = [r["class"] for r in rows]
    right = np.mean([NAMES[k] == p for k, p in zip(y, named, strict=True)])
    assert right == pytest.approx(
        measured(folder / "pixels", folder / "test.npz")["accuracy"]
    )
    assert all(1 / 3 <= float(r["probability"]) <= 1 for r in rows)


def photos(folder, n):
    """Image files of the test's first images, in a folder for each class."""
    files = {
        f"{NAMES[label]}/{i:03}.png": encoded(image.transpose(1, 2, 0))
        for i, (image, label) in enumerate(zip(*images(n, seed=1), strict=True))
    }
    return pack(folder / "photos", files)


def test_an_image_that_cannot_be_read_has_no_class_and_counts_as_wrong(
    folder, tmp_path
):
    """The black image in its place has one, and a probability."""
    photos(tmp_path, 6)
    whole = predicted(folder / "pixels", tmp_path / "photos")
    broken = sorted((tmp_path / "photos").rglob("*.png"))[2]
    broken.write_bytes(b"no image")
    done = fitted("predict", folder / "pixels", tmp_path / "photos")
    rows = table(done.out)
    assert rows[2]["class"] == rows[2]["probability"] == ""
    assert rows[:2] + rows[3:] == whole[:2] + whole[3:]
    assert "1 row is unreadable or not finite: no class" in done.err
    found = measured(folder / "pixels", tmp_path / "photos")
    assert (found["n"], found["n_without_class"]) == (6, 1)
    share = sum(r["class"] in r["image"] for r in rows if r["class"]) / 6
    assert found["accuracy"] == pytest.approx(share)


def test_maps_go_through_the_released_normalization(folder):
    # three brightnesses, no noise
    assert measured(folder / "maps", folder / "maps.h5")["accuracy"] > 0.9
    assert len(predicted(folder / "maps", folder / "maps.h5")) == 40


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("pixels nowhere.npz", "does not exist"),
        ("pixels maps.h5", "was trained on images"),
        ("maps test.npz", "was trained on a features file"),
        ("maps other.h5", "with the same settings"),
        ("pixels unlabeled.npz", "no labels of the network"),
        ("broken test.npz", "has no readable model.json and model.safetensors"),
    ],
)
def test_what_cannot_be_measured_is_refused(folder, arguments, message):
    run, source, *more = arguments.split()
    images_file(folder / "unlabeled.npz", 4, (7, 7, 7), test=0)
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "model.json").write_text("{}")
    assert message in refusal("evaluate", folder / run, folder / source, *more)
    if source != "unlabeled.npz":
        assert message in refusal("predict", folder / run, folder / source, *more)


@pytest.mark.parametrize(
    "option, todo",
    [
        ("--bits 12", "Drop --bits"),
        ("--image-size 8", "Drop --image-size"),
        ("--mean 0.5", "Drop --mean"),
        ("--people clinic", "Type dphead ledger people clinic"),
        ("--same-data-as maps.h5", "Write the file again with --same-data-as"),
        (f"--dataset-id {'ab' * 16}", "Write the file again with --dataset-id"),
        ("--new-data-set", "Write the file again with --new-data-set"),
        ("--new-people", "Drop --new-people"),
        ("--allow-unlabeled", "Drop --allow-unlabeled"),
        ("--folder-names-are-public", "Drop --folder-names-are-public"),
    ],
)
def test_an_option_of_images_is_refused_for_a_features_file(
    folder, tmp_path, monkeypatch, option, todo
):
    """Its fits would be charged to the file's own data set."""
    monkeypatch.chdir(folder)
    more = ["--shape", "81,7,7", "--batch-size", "20", "--steps", "2", *option.split()]
    said = words(refusal("finetune", "maps.h5", "-o", tmp_path / "run", *more))
    assert f"{more[6]} is for images, and maps.h5 is a features file." in said
    assert todo in said


def test_a_shape_is_refused_for_images(folder, tmp_path):
    more = ["--shape", "7,7", "--batch-size", "20", "--steps", "2", "--split", "train"]
    said = refusal("finetune", folder / "train.npz", "-o", tmp_path / "run", *more)
    assert "--shape is for features files" in words(said)
