"""`make demo`: turn scikit-learn's digits into features and nine private heads.

It runs the commands that a user types.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dphead.analysis.tradeoff import true_positive_rates
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.rounding import percent_up

FOLDER = Path("demo")
METHODS = ("auto", "dp-fc", "dp-ls")
EPSILONS = ("1", "3", "8")
BUDGET = 20  # epsilon of all nine heads, at delta = 1e-5


def run() -> None:
    """Extract once, set a budget, fit nine heads, print a table and three lines."""
    start = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_images(FOLDER)
    features = FOLDER / "features.h5"
    dphead(
        f"extract {FOLDER}/digits -o {features} --layout split/class --classes 10 "
        "--backbone scatternet --image-size 8 --channels 1 --scatter-j 1"
    )
    dphead(f"ledger budget {features} --epsilon {BUDGET} --delta 1e-5")
    rows = []
    for method in METHODS:
        for epsilon in EPSILONS:
            run = FOLDER / f"{method}-{epsilon}"
            dphead(
                f"fit {features} --method {method} --epsilon {epsilon} --split train "
                f"--test-split test --test-is public -o {run}"
            )
            rows.append(
                (method, epsilon, json.loads((run / "report.json").read_text()))
            )
    print_table(rows)
    spent = rows[-1][2]["ledger"]["total_epsilon"]
    event = GaussianEvent(1 / rows[0][2]["guarantee"]["mu"])
    (detected,) = true_positive_rates([event], (0.01,), replaced=True)
    print(
        f"\nBudget   epsilon {spent:.3g} of {BUDGET} spent by nine heads (delta 1e-5)\n"
        f"Meaning  epsilon {EPSILONS[0]}: at 1 % false positives, an attack detects at "
        f"most {percent_up(detected)}\n"
        f"Files    {FOLDER}/: the images, and a run folder for each head "
        f"({time.perf_counter() - start:.0f} s)"
    )


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 real 8x8 images (UCI), their classes and splits.

    Images are uint8. Three quarters of them are for training.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    # convert for type checkers, which expect pandas frames
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    images = (images.reshape(-1, 8, 8) * 255 / 16).round().astype(np.uint8)
    split = np.full(len(labels), "train")
    split[
        train_test_split(np.arange(len(labels)), stratify=labels, random_state=0)[1]
    ] = "test"
    return images, labels, split


def write_images(folder: Path) -> None:
    """Write digits/SPLIT/CLASS/NUMBER.png, and ten test images in new_images/."""
    from PIL import Image

    images, labels, split = digits()
    for row, image in enumerate(images):
        path = folder / "digits" / str(split[row]) / str(labels[row]) / f"{row:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "new_images").mkdir()
    for path in sorted((folder / "digits" / "test").rglob("*.png"))[:10]:
        shutil.copy(path, folder / "new_images")


def dphead(arguments: str) -> None:
    """Print and run a command. If it fails, exit with its output."""
    print(f"$ dphead {arguments}", flush=True)
    environment = {**os.environ, "DPHEAD_HOME": str((FOLDER / "home").resolve())}
    command = [sys.executable, "-m", "dphead", *shlex.split(arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)


def print_table(rows: list[tuple[str, str, dict]]) -> None:
    """Print a line for each head."""
    print(f"\n{'method':<8}{'epsilon':>9}{'mu':>9}{'test accuracy':>17}")
    for method, epsilon, report in rows:
        g = report["guarantee"]
        test = report["test"]
        mu = "-" if g["mu"] is None else f"{g['mu']:.4f}"
        accuracy = f"{100 * test['accuracy']:.1f} ± {100 * test['accuracy_se']:.1f} %"
        print(f"{method:<8}{epsilon:>9}{mu:>9}{accuracy:>17}")
