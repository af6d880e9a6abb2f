"""`make smoke`: an installed dphead without extras, run as a user would from another
folder.

No test of pytest's: it must not find the sources.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from commands import words
from dphead_extract.features.format import write_features

import dphead

COMMAND = Path(sys.executable).with_name("dphead")


def typed(*arguments: object, code: int = 0) -> str:
    """What a command prints; AssertionError for another exit code."""
    words = [str(COMMAND), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == code, (words, said)
    return said


def main() -> None:
    """Features, budget, fit, check, evaluate, predict; then what extras are for."""
    sources = Path(__file__).parents[1]
    installed = Path(dphead.__file__)
    assert sources / "dphead" not in installed.parents, installed
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 600)
    x = generator.random((600, 12), np.float32)
    x[np.arange(600), y] += 2
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["DPHEAD_HOME"] = str(Path(name) / "home")
        write_features(Path("f.h5"), x, y, ["a", "b", "c"])
        typed("ledger", "budget", "f.h5", "--epsilon", 2, "--delta", 1e-5)
        said = typed("fit", "f.h5", "-o", "run")
        assert "false-positive rate" in words(said), said
        found = typed("check", "run", code=1)
        assert "the origin of each row is not recorded" in words(found)
        typed("evaluate", "run", "f.h5")
        typed("predict", "run", "f.h5", "-o", "p.csv")
        with open("p.csv") as file:
            found = [row["class"] for row in csv.DictReader(file)]
        right = np.mean([found[i] == "abc"[k] for i, k in enumerate(y)])
        assert right > 0.9, right
        Path("images/a").mkdir(parents=True)
        options = ("--backbone", "scatternet", "--classes", "a,b", "-o", "g.h5")
        said = typed("extract", "images", *options, code=2)
        assert "pip install 'dphead[extract]'" in said, said
    print("an installation without extras works, and says what extract needs")


if __name__ == "__main__":
    main()
