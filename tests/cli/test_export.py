"""`dphead export` as a user sees it."""

import os
import re

import pytest
from commands import (
    NOT_PRIVATE,
    features_file,
    fit,
    fitted,
    refusal,
    run_of,
    words,
)

from dphead.cli.export import export
from dphead.export.exporting import FORMATS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("export"))


def test_it_says_what_was_written_how_to_load_it_and_what_it_guarantees(run):
    said = fitted("export", run, "--to", "torch").out
    out = run.with_name("run-torch")
    assert str(out) in said
    for name in os.listdir(out):
        assert name in said
    assert 'load_head("run-torch")' in said
    assert "epsilon 1, delta 1e-05 for one row" in said
    # again: what is there is not overwritten
    assert "a new or an empty folder" in refusal("export", run, "--to", "pytorch")
    other = ("export", run, "--to", "sklearn", "-o")
    assert "/proc/none" in refusal(*other, "/proc/none/out")
    fitted(*other, run.parent / "elsewhere")
    assert (run.parent / "elsewhere/head.py").exists()


def test_the_help_says_what_each_format_holds():
    (to,) = (option for option in export.params if option.name == "to")
    assert set(FORMATS) <= set(re.findall(r"\w+", to.help))


def test_a_head_without_privacy_says_so(tmp_path):
    features = features_file(tmp_path / "train.h5")
    fit(features, tmp_path / "run", "--seed", 1, NOT_PRIVATE)
    said = fitted("export", tmp_path / "run", "--to", "torch").out
    assert "NOT PRIVATE" in said and "epsilon" not in said
    text = words((tmp_path / "run-torch/README.md").read_text())
    assert "Reproducible, not private" in text
    assert "differential privacy" not in text and "guarantee covers" not in text
