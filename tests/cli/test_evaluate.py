"""`dphead evaluate` and `dphead predict`."""

import csv
import json
import locale

import numpy as np
import pytest
from commands import (
    CLASSES,
    charges,
    contents,
    dphead,
    features_file,
    fitted,
    refusal,
    rows,
    run_of,
    table,
    words,
)
from dphead_extract.features.disk import write_names
from dphead_extract.features.format import write_features
from pyarrow import parquet

from dphead.analysis.metrics import accuracy, probabilities
from dphead.cli import predictions
from dphead.fit.head_file import open_head


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(run folder, test file): one fit for all tests of this file, which only read
    them.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    test = features_file(folder / "test.h5", n=90, seed=5)
    return run_of(folder, "--epsilon", 4), test


PLACES = ("", "_2", "_3")


def scores(run, n=90, seed=5):
    x, y = rows(n, seed=seed)
    return open_head(run)[0].scores(x), y


def test_evaluate_measures_the_head_on_the_rows(made):
    """It stores nothing and charges nothing, nor does `predict`."""
    run, test = made
    before = contents(run.parent)
    z, y = scores(run)
    found = json.loads(fitted("evaluate", run, test, "--json").out)
    assert found["accuracy"] == (z.argmax(1) == y).mean()
    assert found["n"] == 90
    assert found["per_class_n"] == np.bincount(y).tolist()
    text = words(fitted("evaluate", run, test).out)
    assert f"{100 * found['calibration_error']:.2f} % on average" in text
    for share, count, name in zip(
        found["per_class_accuracy"], found["per_class_n"], CLASSES, strict=True
    ):
        assert f"{100 * share:.2f} % of {count} in class {name}" in text
    assert "guarantee does not cover the measured rows" in text
    fitted("predict", run, test)
    assert contents(run.parent) == before
    assert charges() == 0


def test_the_error_of_an_accuracy_knows_the_people_of_the_rows(made, tmp_path):
    run, _ = made
    x, y = rows(90, seed=5)
    path = tmp_path / "people.h5"
    group = np.arange(90) // 30
    write_features(path, x, y, CLASSES, group=group)
    found = json.loads(fitted("evaluate", run, path, "--json").out)
    right = scores(run)[0].argmax(axis=1) == y
    assert found.get("n_groups") == 3
    assert found["accuracy_se"] == accuracy(right, np.ones(90), group)[1]
    assert "classes of 3 people" in words(fitted("evaluate", run, path).out)


def test_predict_names_rows_where_names_are_known_and_gives_the_top_classes(
    made, tmp_path
):
    run, test = made
    z, _ = scores(run)
    order = np.argsort(-z, axis=1)
    found = table(fitted("predict", run, test, "--top", 2).out)
    assert list(found[0]) == ["row", "class", "probability", "class_2", "probability_2"]
    assert [r["class_2"] for r in found] == [CLASSES[k] for k in order[:, 1]]
    copy = tmp_path / "named.h5"
    copy.write_bytes(test.read_bytes())
    names = [f"ward, {i}.png" for i in range(90)]
    write_names(copy, names)
    for kind, read in (
        ("csv", lambda path: table(path.read_text())),
        ("json", lambda path: json.loads(path.read_text())),
        ("parquet", lambda path: parquet.read_table(path).to_pylist()),
    ):
        fitted("predict", run, copy, "-o", tmp_path / f"out.{kind}")
        found = read(tmp_path / f"out.{kind}")
        assert [r["image"] for r in found] == names
        assert [r["class"] for r in found] == [CLASSES[k] for k in order[:, 0]]
        least = probabilities(z[:1]).min()
        assert float(found[0]["probability_3"]) == pytest.approx(least, abs=1e-4)
    write_names(copy, names[1:])  # of another file
    assert "image" not in table(fitted("predict", run, copy).out)[0]


def test_predict_averages_the_probabilities_of_each_person(made, tmp_path):
    """Rows without a class are in no mean; a row without a group is a person."""
    run, test = made
    x, y = rows(90, seed=5)
    group = np.array([f"p{i % 7}" for i in range(90)])
    group[8:10] = ""
    there = group != "p3"
    there[0] = False
    x = np.where(there[:, None], x, 0)
    path = tmp_path / "people.h5"
    write_features(path, x, y, CLASSES, group=group, valid=there)
    write_names(path, [f"{i}.png" for i in range(90)])
    each = probabilities(scores(run)[0])
    of = [group == f"p{i}" for i in range(7)]
    of += [np.arange(90) == 8, np.arange(90) == 9]
    people = table(fitted("predict", run, path, "--per-person", "--top", 1).out)
    wanted = [f"{i}.png" for i in (*range(7), 8, 9)]
    assert [r["first_image"] for r in people] == wanted
    for person, own in zip(people, of, strict=True):
        own = own & there
        assert int(person["images"]) == own.sum()
        if not own.any():
            assert not person["class"]
            continue
        mean = each[own].mean(axis=0)
        assert person["class"] == CLASSES[mean.argmax()]
        assert float(person["probability"]) == pytest.approx(mean.max(), abs=1e-4)
    assert "--columns group=NAME" in refusal("predict", run, test, "--per-person")


def test_unusable_input_is_refused(made, tmp_path):
    run, test = made
    excel = tmp_path / "out.xlsx"
    other = features_file(tmp_path / "other.h5", backbone="resnet18")
    splits = features_file(
        tmp_path / "splits.h5", split=np.arange(240) % 2, split_names=("train", "test")
    )
    narrow = features_file(tmp_path / "narrow.h5", d=1, m=1)
    cut = features_file(tmp_path / "cut.h5")
    cut.write_bytes(cut.read_bytes()[:-4000])
    for arguments, message in (
        ((run, test, "-o", excel), ".csv, .json or .parquet"),
        ((run, other), "the head's backbone"),
        # numpy would repeat one column beside a center, and predict classes
        ((run, narrow), "(arrays, 12 columns)"),
        ((run, cut), "cut short"),
        ((run, splits), "--split"),
        ((run, splits, "--split", "third"), "one of its splits: train, test"),
        ((tmp_path, splits, "--split", "test"), "run folder of `dphead fit`"),
    ):
        assert message in refusal("predict", *arguments)
    fitted("predict", run, splits, "--split", "test", "-o", tmp_path / "out.csv")
    assert len(table((tmp_path / "out.csv").read_text())) == 120


def test_an_option_that_a_head_does_not_use_is_refused(made, tmp_path):
    run, test = made
    x, y = rows(20)
    table = tmp_path / "emb.npz"
    np.savez(table, features=x, label=np.array(CLASSES)[y])
    for given, of in (
        (("--layout", "split/class"), "is for folders of images"),
        (("--weights", test), "is for images"),
        (("--device", "cuda"), "is for images"),
        (("--model", "own:network"), "is for networks"),
    ):
        assert f"{of}" in refusal("evaluate", run, test, *given)
        assert " is for " in refusal("predict", run, table, *given)
    fitted("evaluate", run, test, "--device", "cpu")


def test_evaluate_refuses_rows_of_other_classes_or_without_labels(made, tmp_path):
    """The labels of another order of classes are other labels."""
    run, _ = made
    x, y = rows(90, seed=5)
    write_features(tmp_path / "renamed.h5", x, y, ["owl", "dog", "cat"])
    write_features(tmp_path / "bare.h5", x, None, CLASSES)
    assert "differ from the classes of" in refusal(
        "evaluate", run, tmp_path / "renamed.h5"
    )
    assert "label" in refusal("evaluate", run, tmp_path / "bare.h5")


def test_a_masked_row_has_no_class_and_counts_as_wrong(made, tmp_path):
    """A row of zeros would have one, and a confident probability."""
    run, _ = made
    x, _ = rows(90, seed=5)
    z, y = scores(run)
    there = ~np.isin(np.arange(90), [4, 10, 11])
    x = np.where(there[:, None], x, 0)  # as an import or an extraction writes them
    path = tmp_path / "masked.h5"
    write_features(path, x, y, CLASSES, valid=there)
    said = words(fitted("predict", run, path, "-o", tmp_path / "out.csv").out)
    assert "3 rows are unreadable or not finite: no class" in said
    found = table((tmp_path / "out.csv").read_text())
    for row, known in zip(found, there, strict=True):
        cells = [row[f"{name}{k}"] for name in ("class", "probability") for k in PLACES]
        assert all(cells) if known else not any(cells)
    best = z.argmax(axis=1)
    wanted = [CLASSES[k] if t else "" for k, t in zip(best, there, strict=True)]
    assert [row["class"] for row in found] == wanted
    measured = json.loads(fitted("evaluate", run, path, "--json").out)
    assert (measured["n"], measured["n_without_class"]) == (90, 3)
    assert measured["accuracy"] == ((best == y) & there).mean()


def test_embeddings_are_read_as_those_of_the_heads_model(tmp_path):
    """What attests that the model has not seen them passes the check."""
    x, y = rows(240)
    np.savez(tmp_path / "train.npz", features=x, labels=np.array(CLASSES)[y])
    np.savez(tmp_path / "new.npz", features=x)
    np.savez(tmp_path / "narrow.npz", features=x[:, :-1])
    features, run = tmp_path / "train.h5", tmp_path / "run"
    given = ("--classes", ",".join(CLASSES), "--backbone", "encoder")
    fitted("features", "import", tmp_path / "train.npz", "-o", features, *given)
    fitted("fit", features, "-o", run, "--method", "dp-ls", "--epsilon", 4)
    done = fitted("predict", run, tmp_path / "new.npz")
    assert "read as embeddings by encoder, the head's model" in done.err
    assert done.out == fitted("predict", run, features).out
    measured = [
        fitted("evaluate", run, tmp_path / name, "--json").out
        for name in ("train.npz", "train.h5")
    ]
    assert json.loads(measured[0]) == json.loads(measured[1])
    said = refusal("predict", run, tmp_path / "narrow.npz")
    assert "has 11 columns, and the head needs 12" in said
    np.savez(tmp_path / "named.npz", features=x[:, :-1], emb=x)
    given = ("predict", run, tmp_path / "named.npz", "--columns", "features=emb")
    assert fitted(*given).out == done.out
    said = refusal("predict", run, features, "--columns", "features=emb")
    assert "is for a file of embeddings, got" in said


def test_attested_embeddings_pass_the_check(tmp_path):
    np.savez(tmp_path / "train.npz", features=rows()[0], labels=rows()[1])
    for attest in ((), ("--not-fitted-on-these-rows",)):
        features, run = tmp_path / f"{len(attest)}.h5", tmp_path / f"run{len(attest)}"
        given = (tmp_path / "train.npz", "-o", features, "--classes", 3, *attest)
        fitted("features", "import", *given)
        fitted("ledger", "budget", features, "--epsilon", 3, "--delta", 1e-5)
        fitted("fit", features, "-o", run, "--method", "dp-ls")
        done = dphead("check", run)
        assert done.code == 1 - len(attest)
        assert ("--not-fitted-on-these-rows" in done.out) == (not attest)
        card = (run / "report.html").read_text()
        assert ("The data holder attests" in card) == bool(attest)


@pytest.mark.parametrize("sign, separator", [(".", ","), (",", ";")])
def test_predictions_for_excel_follow_the_decimal_sign(
    made, tmp_path, monkeypatch, sign, separator
):
    run, test = made
    plain, excel = tmp_path / "plain.csv", tmp_path / "excel.csv"
    fitted("predict", run, test, "-o", plain)
    monkeypatch.setattr(predictions, "decimal_sign", lambda: sign)
    fitted("predict", run, test, "-o", excel, "--csv-dialect", "excel")
    text = excel.read_bytes()
    assert text.startswith(b"\xef\xbb\xbf")
    found = csv.reader(text.decode("utf-8-sig").splitlines(), delimiter=separator)
    expected = list(csv.reader(plain.read_text().splitlines()))
    assert list(found) == [[c.replace(".", sign) for c in row] for row in expected]
    done = dphead(
        "predict", run, test, "-o", tmp_path / "a.json", "--csv-dialect=excel"
    )
    assert "needs a CSV file" in refusal_of(done)


def refusal_of(done):
    """What a command that was refused prints, on one line."""
    assert done.code == 2
    return " ".join(done.err.split())


def test_the_decimal_sign_leaves_the_locale_of_the_process():
    before = locale.setlocale(locale.LC_NUMERIC)
    assert predictions.decimal_sign() in {".", ","}
    assert locale.setlocale(locale.LC_NUMERIC) == before
