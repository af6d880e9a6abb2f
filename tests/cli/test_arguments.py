"""Every argument of `dphead fit`: a value that cannot be is refused before anything is
charged, in one line and with no run folder left.
"""

import click
import numpy as np
import pytest
from commands import charges, dphead, features_file

from dphead.cli.fit import fit

# of each option a value that cannot be, and the method whose it is, else dp-ls
VALUES = """
out {file}
method nothing
preset nothing
epsilon -1
delta 1
relation nothing
nominal_n 100
group_cap 2
protect group
accountant nothing
classes a,a
split nothing
test {other}
test_split nothing
test_is nothing
ledger {file}
tuning nothing
seed x
memory 1MB
backend nothing
processes nowhere
config {file}
axes_from {other}
axes_count 4
settings nothing=1
"""
BAD = {name: more for name, *more in map(str.split, VALUES.strip().splitlines())}
FLAGS = {
    *("allow_large_delta", "not_private", "dry_run", "verbose", "group_mean", "yes"),
}


def options():
    return fit.get_params(click.Context(fit))


@pytest.fixture
def places(tmp_path):
    """A features file, a file that is none, and features of another width."""
    features_file(tmp_path / "f.h5")
    features_file(tmp_path / "other.h5", d=13, seed=1)
    (tmp_path / "file").write_bytes(b"no ledger, no folder, no features" * 100)
    np.save(tmp_path / "wrong.npy", np.zeros((5, 3)))
    return {
        "file": tmp_path / "file",
        "other": tmp_path / "other.h5",
        "wrong": tmp_path / "wrong.npy",
    }


def refused_unseen(tmp_path, *command):
    """A refusal that leaves neither a charge nor a run folder."""
    done = dphead(*command)
    assert done.code == 2, (command, done)
    assert "Traceback" not in done.err + done.out
    assert "Error" in done.err
    assert charges() == 0
    assert not (tmp_path / "run").exists()


def test_every_option_has_a_value_that_is_tried():
    """A new option needs a line here; settings are tried below."""
    from dphead.planning.methods import options as declared

    settings = {one.name for one, _ in declared()}
    names = {option.name for option in options()}
    names -= {"features", "help", "_click_default_help"}
    assert names == set(BAD) | FLAGS | settings


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_before_the_charge(name, tmp_path, places):
    value, method = (*BAD[name], "dp-ls")[:2]
    word = next(option.opts[-1] for option in options() if option.name == name)
    command = ["fit", tmp_path / "f.h5", "-o", tmp_path / "run", "--method", method]
    if name in ("out", "method"):
        at = command.index("-o" if name == "out" else "--method")
        command[at + 1] = value.format(**places)
    else:
        command += [word, value.format(**places)]
    refused_unseen(tmp_path, *command)


def settings():
    """(option, value, method) of every setting: beyond its range, no choice of its, or
    no file.
    """
    from dphead.planning.methods import options as declared

    for one, methods in declared():
        word = "--" + one.name.replace("_", "-")
        numbers = {int, float} & set(one.types)
        if bool in one.types:
            continue
        for method in methods[:1]:
            if numbers:
                yield word, "nan" if float in one.types else "-1", method
            elif one.choices:
                yield word, "nothing", method
            else:
                yield word, "{wrong}", method


@pytest.mark.parametrize("word, value, method", list(settings()))
def test_a_setting_out_of_its_range_is_refused_before_the_charge(
    word, value, method, tmp_path, places
):
    command = ("fit", tmp_path / "f.h5", "-o", tmp_path / "run", "--method", method)
    refused_unseen(tmp_path, *command, word, value.format(**places))


def test_features_that_are_none_are_refused(tmp_path, places):
    for path in (places["file"], tmp_path / "missing.h5", tmp_path):
        refused_unseen(tmp_path, "fit", path, "-o", tmp_path / "run")


@pytest.mark.parametrize("name", ["fit", "finetune", "extract"])
def test_a_missing_output_is_one_line(name, tmp_path):
    features = features_file(tmp_path / "train.h5")
    done = dphead(name, features)
    assert done.code == 2 and "Missing option '-o' / '--output'." in done.err
    assert "Traceback" not in done.err
