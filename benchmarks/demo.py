"""`make demo`: scikit-learn's digits become features, and those private heads, by the
commands a user would type.
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

FOLDER = Path("demo")
METHODS = ("auto", "dp-fc", "dp-ls")
EPSILONS = ("1", "8", "inf")


def run() -> None:
    """Extract once, fit nine heads, print one table."""
    start = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_digits(FOLDER / "digits.npz")
    features = FOLDER / "features.h5"
    dphead(
        f"extract {FOLDER}/digits.npz -o {features} --backbone scatternet --scatter-j "
        "1 --classes 10"
    )
    rows = []
    for method in METHODS:
        for epsilon in EPSILONS:
            run = FOLDER / f"{method}-{epsilon}"
            dphead(
                f"fit {features} --method {method} --epsilon {epsilon} --split train "
                f"--test-split test --test-is public -o {run}"
                + (" --i-know-this-is-not-private" if epsilon == "inf" else "")
            )
            rows.append(
                (method, epsilon, json.loads((run / "report.json").read_text()))
            )
    print_table(rows)
    print(
        f"\n{rows[0][2]['statement']}\n\n{FOLDER}/: one run folder a head; "
        f"{time.perf_counter() - start:.0f} s in all"
    )


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1,797 real 8x8 images (UCI, bundled with scikit-learn), uint8, their classes, and
    their splits: three quarters are for training.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    # arrays, whatever pandas lets the type of what is loaded be
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    images = (images.reshape(-1, 8, 8) * 255 / 16).round().astype(np.uint8)
    split = np.full(len(labels), "train")
    split[
        train_test_split(np.arange(len(labels)), stratify=labels, random_state=0)[1]
    ] = "test"
    return images, labels, split


def write_digits(path: Path) -> None:
    """All of them in an .npz."""
    images, labels, split = digits()
    np.savez(path, images=images, labels=labels, split=split)


def dphead(arguments: str) -> None:
    """Run a command as a user would, showing it and keeping its output for when it
    fails.
    """
    print(f"$ dphead {arguments}", flush=True)
    environment = {**os.environ, "DPHEAD_HOME": str((FOLDER / "home").resolve())}
    command = [sys.executable, "-m", "dphead", *shlex.split(arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)


def print_table(rows: list[tuple[str, str, dict]]) -> None:
    """One line a head."""
    print(f"\n{'method':<8}{'epsilon':>9}{'mu':>9}{'test accuracy':>17}")
    for method, epsilon, report in rows:
        g = report["guarantee"]
        test = report["test"]
        mu = "-" if g["mu"] is None else f"{g['mu']:.4f}"
        accuracy = f"{100 * test['accuracy']:.1f} ± {100 * test['accuracy_se']:.1f} %"
        print(f"{method:<8}{epsilon:>9}{mu:>9}{accuracy:>17}")
