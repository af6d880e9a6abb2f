"""A backbone's options are checked without PyTorch."""

import os
import subprocess
import sys

import pytest
from dphead_extract.backbones.base import BackboneOptions, check_options
from dphead_extract.errors import ExtractError

WRONG = {
    "scatternet --scatter-j 1,15": "whole numbers from 1 to 14",
    "scatternet --scatter-l 65": "a whole number from 1 to 64",
    "resnet18 --colors opponent": "--colors is not",
    "resnet18 --scatter-j 1": "--scatter-j is not",
    "scatternet --crop-pct 0.5": "--crop-pct is not",
    "scatternet --axes 4": "--axes is not",
    "resnet18 --normalize group": "as group:4",
    "resnet18 --shard 4/2": "0 <= I < K",
    "resnet18 --shard 1": "--shard",
    "resnet18 --test-fraction 0:groups": "from 0 to 0.9",
}
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from commands import dphead
for line in sys.argv[1:]:
    done = dphead(*f"extract images -o f.h5 --backbone {line}".split())
    print(done.code, " ".join(done.err.split()))
"""


def test_a_wrong_command_line_is_refused_without_pytorch(tmp_path):
    """Importing torch takes seconds."""
    (tmp_path / "images").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *WRONG],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for line, said in zip(done.stdout.splitlines(), WRONG.values(), strict=True):
        assert line.startswith("2 ") and said in line


@pytest.mark.parametrize("wrong", [(), (0,), 2, (1.0,), (15,)])
def test_a_setting_out_of_range_is_refused_in_python(wrong):
    with pytest.raises(ExtractError, match="--scatter-j must be whole numbers from 1"):
        check_options(BackboneOptions("scatternet", settings={"scatter_j": wrong}))
