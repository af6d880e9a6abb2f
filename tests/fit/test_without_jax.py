"""What one host does without jax, and what is said where a run needs it."""

import textwrap

import pytest
from commands import charges, dphead, features_file, refused
from core import python

from dphead.fit import processes

FIT = ("--method", "prototypes")


@pytest.mark.parametrize(
    "more",
    [
        ("--backend", "jax"),
        ("--processes", 2),
        ("--coordinator", "127.0.0.1:1", "--num-processes", 2, "--process-id", 0),
    ],
)
def test_without_jax_what_needs_it_says_what_to_install(more, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    features = features_file(tmp_path / "f.h5")
    said = refused(dphead("fit", features, "-o", tmp_path / "run", *FIT, *more))
    assert "needs jax, which is not installed. Type pip install 'dphead[jax]'" in said
    assert charges() == 0
    assert not (tmp_path / "run").exists()


def test_one_host_needs_no_jax(tmp_path):
    """Fit, check and estimators, where no module of jax can be imported."""
    features = features_file(tmp_path / "f.h5")
    script = textwrap.dedent(f"""
        import sys

        sys.modules["jax"] = sys.modules["jaxlib"] = None
        from dphead.cli import cli
        from dphead import DPAutoClassifier

        for command in ("fit {features} -o {tmp_path}/run", "check {tmp_path}/run"):
            try:
                cli.main(command.split(), "dphead", standalone_mode=False)
            except SystemExit as stop:
                assert stop.code == 1, stop.code  # findings of arrays
        DPAutoClassifier(ledger="{tmp_path}/l.sqlite").fit("{features}")
        print("done")
    """)
    done = python(script)
    assert done.out.strip().endswith("done"), done.err
