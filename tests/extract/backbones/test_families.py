"""A backbone's options are checked without PyTorch."""

import socket
import subprocess
import sys

import pytest
from dphead_extract.backbones import families
from dphead_extract.backbones.base import FAMILIES, BackboneOptions
from dphead_extract.backbones.families import TRAITS, check_options
from dphead_extract.errors import ExtractError
from huggingface_hub import constants


@pytest.fixture
def offline(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(families, "getproxies", dict)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_every_family_has_its_options():
    import dphead_extract.backbones.registry  # noqa: F401 - registers families

    assert set(TRAITS) == set(FAMILIES)


def test_hub_weights_are_refused_offline_unless_they_are_cached(offline):
    with pytest.raises(ExtractError, match=r"no route to host.*--weights FILE"):
        check_options(BackboneOptions("resnet18"))
    check_options(BackboneOptions("resnet18", weights=offline / "w.pth"))
    check_options(BackboneOptions("scatternet"))
    (offline / "models--timm--resnet18.a1_in1k").mkdir()
    check_options(BackboneOptions("resnet18"))


def test_a_model_that_timm_renamed_is_known(offline):
    (offline / "models--timm--any").mkdir()
    for name in ("vit_base_patch16_224_in21k", "vit_base_patch16_224.augreg_in21k"):
        families._check_model(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backbone", "resnet81"], "Similar models: resnet"),
        (["--backbone", "resnet18", "--scatter-j", "1"], "--scatter-j is not"),
        (["--backbone", "scatternet", "--crop-pct", "0.5"], "--crop-pct is not"),
        (["--backbone", "scatternet", "--axes", "4"], "--axes is not"),
        (["--backbone", "resnet18", "--normalize", "group"], "--groups G"),
        (["--backbone", "resnet18", "--shard", "4/2"], "0 <= I < K"),
        (["--backbone", "resnet18", "--by-group"], "needs --test-fraction"),
    ],
)
def test_a_wrong_command_line_is_refused_without_pytorch(tmp_path, arguments, said):
    """Importing torch takes seconds."""
    code = (
        "import sys; sys.modules['torch'] = None; from dphead.cli.extract import "
        "extract; extract()"
    )
    (tmp_path / "images").mkdir()
    typed = [str(tmp_path / "images"), "-o", str(tmp_path / "f.h5"), *arguments]
    done = subprocess.run(
        [sys.executable, "-c", code, *typed], capture_output=True, text=True
    )
    assert done.returncode == 2 and said in done.stderr, done.stderr
