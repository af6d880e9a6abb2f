"""`dphead plan`: what is printed, drawn and refused; what it must not touch."""

import json
import re

import pytest
from commands import (
    charges,
    contents,
    features_file,
    fitted,
    refusal,
    words,
)
from dphead_extract.features.format import write_features
from sklearn.datasets import load_digits

QUICK = ("--method", "dp-ls", "--draws", "2")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "public.h5"
    x, y = load_digits(return_X_y=True)
    write_features(path, x.astype("f4"), y, [str(k) for k in range(10)])
    return path


def test_a_table_a_bar_each_and_what_is_enough(digits, tmp_path):
    before = contents(digits.parent)
    done = fitted("plan", digits, "--public-rows", "--n-rows", 5000, *QUICK)
    lines = done.out.splitlines()
    found = [
        re.match(r" +([\d.]+|no noise) │ +([\d.]+) ± [\d.]+ % │ █", x) for x in lines
    ]
    table = {m[1]: float(m[2]) for m in found if m}
    assert list(table) == ["0.1", "0.5", "1", "2", "4", "8", "no noise"]
    assert table["0.1"] < table["1"] < table["no noise"]
    text = words(done.out.replace("\xa0", " "))
    goal = max(v for k, v in table.items() if k != "no noise") - 1
    enough = next(k for k, v in table.items() if v >= goal - 0.05)
    assert f"Enough epsilon {enough} with {table[enough]} %" in text
    assert "images of each class; you have" in text
    assert f"PRIVATE.h5 --epsilon {enough} --delta 1e-05" in text
    assert "The forecast used 1,438 public rows in place of 5,000" in text
    assert "declared public: nothing is charged" in text
    assert contents(digits.parent) == before
    assert charges() == 0


def test_json_has_every_draw(digits):
    asked = ("--epsilon", "8,0.5", "--delta", "1e-4", "--relation", "replace_one")
    command = ("plan", digits, "--public-rows", "--n-rows", 1000, *QUICK, *asked)
    done = fitted(*command, "--json")
    found = json.loads(done.out)
    assert [p["epsilon"] for p in found["points"]] == [0.5, 8]
    assert {len(p["accuracies"]) for p in found["points"]} == {2}
    assert (found["n_rows"], found["n_train"], found["n_held_out"]) == (1000, 1000, 359)
    said = [found[k] for k in ("delta", "relation", "draws", "method")]
    assert said == [1e-4, "replace_one", 2, "dp-ls"]
    assert found["ceiling"]["epsilon"] == "inf"


def test_what_may_not_be_is_refused(digits, tmp_path):
    public = ("plan", digits, "--public-rows", "--n-rows", 1000, *QUICK)
    assert "not declared public" in refusal("plan", digits, "--n-rows", 1000)
    for options, said in (
        (("--epsilon", "inf"), "write numbers: 0.5,1,2 (each a number from 0"),
        (("--epsilon", "1,x"), "write numbers: 0.5,1,2"),
        (("--set", "nothing=1"), "has no setting 'nothing'"),
        (("--set", "loss=softmax"), "a method among dp-fc, dp-adam, dp-sgd, dp-optax"),
        (("--split", "test"), "one of its splits: all"),
        (("--n-rows", "9"), "at least as many rows as classes"),
    ):
        assert said in refusal(*public, *options), options
    few = features_file(tmp_path / "few.h5", n=4)
    command = ("plan", few, "--public-rows", "--n-rows", 50, *QUICK, "--delta", 1e-3)
    assert "a forecast needs at least 5 labeled public rows" in refusal(*command)


def test_rows_that_were_fitted_and_a_large_delta_are_pointed_at(tmp_path):
    path = features_file(tmp_path / "f.h5")
    fitted("fit", path, "--method", "dp-ls", "--delta", 1e-3, "-o", tmp_path / "run")
    command = ("plan", path, "--public-rows", "--n-rows", 100, *QUICK)
    command += ("--delta", 0.1, "--epsilon", 1)
    text = words(fitted(*command).out)
    assert "! If these rows are private, stop. The output is not charged to" in text
    assert "(1 fit for single rows under zero_out) of this data set." in text
    assert "! delta must be below 1/n = 0.01, got delta=0.1." in text
    assert charges() == 1
    grouped = fitted(*command, "--group-cap", 2)
    assert "n rows form at most n groups" in words(grouped.out)
