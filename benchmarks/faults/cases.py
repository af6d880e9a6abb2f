"""Define small inputs, the commands that read them, and checks of their results."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# methods of a fit, with few releases, so that most events are of files and SQL
METHODS = {
    "dp-ls": (),
    "dp-fc": ("--steps", "2"),
    "auto": (),
    "prototypes": (),
    "dp-sgd": ("--steps", "3"),
    "dp-adam": ("--steps", "2", "--batch-size", "20"),
}
CLASSES = ("a", "b", "c")
SIDE = 6  # pixels
# options that make every step quick; the noise is given, so nothing is calibrated
NETWORK = (
    *("--model", "wrn-10-1", "--groups", "4", "--memory", "50MB"),
    *("--noise-multiplier", "3", "--batch-size", "10", "--accountant", "rdp"),
    *("--classes", "3", "--learning-rate", "0.5"),
)
SCATTERING = ("--backbone", "scatternet", "--scatter-j", "1", "--scatter-l", "2")


class Case(NamedTuple):
    """Describe a command that can be interrupted, in its own folder.

    `out` is the path that it writes. `problems` returns what is wrong after it ended
    without an error.
    """

    name: str
    arguments: tuple[str, ...]
    out: Path
    problems: Callable[[Path, Path], list[str]]


def features_file(path: Path, seed: int = 0, **more: Any) -> Path:
    """Write a features file with 60 rows, 6 features and 3 classes."""
    from dphead_extract.features.format import write_features

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 60)
    x = rng.random((60, 6)).astype(np.float32)
    x[np.arange(60), y] += 1
    write_features(path, x, y, list(CLASSES), block_rows=16, **more)
    return path


def images_file(path: Path, seed: int = 0) -> Path:
    """Write an .npz of 40 images of SIDE x SIDE pixels, brighter for higher classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 40)
    x = rng.integers(0, 100, (40, SIDE, SIDE, 3))
    x += 60 * y.reshape(40, 1, 1, 1)
    np.savez(path, images=x.astype(np.uint8), labels=y)
    return path


def fit(folder: Path, run: str, method: str = "dp-ls", *more: str) -> Case:
    """Return `dphead fit` on a features file, which is written if it is missing."""
    features = folder / "f.h5"
    if not features.exists():
        features_file(features)
    out = folder / run
    fixed = ("--delta", "1e-3", "--backend", "numpy", "--method", method)
    arguments = ("fit", str(features), "-o", str(out), *fixed, *METHODS[method], *more)
    return Case(f"fit {method}", arguments, out, problems_of_run)


def finetune(folder: Path, run: str, *more: str) -> Case:
    """Return `dphead finetune` of a tiny network for three steps, with a checkpoint."""
    images = folder / "images.npz"
    if not images.exists():
        images_file(images)
    out, ledger = folder / run, folder / "home" / "network.sqlite"
    length = ("--steps", "3", "--checkpoint", "2", "--epsilon", "8", "--delta", "1e-3")
    arguments = ("finetune", str(images), "-o", str(out), "--ledger", str(ledger))
    arguments += (*NETWORK, *length, *more)
    return Case("finetune", arguments, out, problems_of_run)


def extract(folder: Path, name: str = "g.h5", *more: str) -> Case:
    """Return `dphead extract` with a tiny ScatterNet, in blocks of eight rows."""
    images = folder / "images.npz"
    if not images.exists():
        images_file(images)
    arguments = ("extract", str(images), "-o", str(folder / name), *SCATTERING)
    arguments += ("--classes", "3", "--workers", "1", "--block-rows", "8", *more)
    return Case("extract", arguments, folder / name, problems_of_features)


def fits_of(folder: Path) -> list[dict[str, Any]]:
    """Return every fit of every ledger of a try, including the team's server."""
    from dphead_extract.features.format import open_features

    from dphead.privacy.ledger import Ledger

    found = []
    files = sorted((folder / "home").rglob("*.sqlite"))
    ledgers: list[tuple[Path | str, str | None]] = [(path, None) for path in files]
    if url := os.environ.get("DPHEAD_LEDGER"):
        with open_features(folder / "f.h5") as file:
            ledgers.append((url, file.dataset_id))
    for path, dataset_id in ledgers:
        ledger = Ledger(path, dataset_id)
        found += ledger.fits()
        ledger.close()
    return found


def problems_of_run(folder: Path, run: Path) -> list[str]:
    """Return what is wrong with a finished run and its single charge."""
    from dphead.analysis.sealed import read_sealed

    fits = fits_of(folder)
    problems = []
    if len(fits) != 1:
        problems.append(f"{len(fits)} charges of one fit")
    states = {r["state"] for fit in fits for r in fit["releases"]}
    if states - {"committed"}:
        problems.append(f"releases of a finished fit are {sorted(states)}")
    try:
        report = json.loads((run / "report.json").read_text())
        copy = json.loads((run / "ledger.json").read_text())
        read_sealed(run, "model" if (run / "model.json").exists() else "head")
        if [f["fit_id"] for f in copy["fits"]] != [f["fit_id"] for f in fits]:
            problems.append("the ledger's copy differs")
        if report["ledger"]["fit_id"] not in {f["fit_id"] for f in fits}:
            problems.append("the report's fit was not charged")
    except (OSError, ValueError, KeyError) as error:
        problems.append(f"a finished run cannot be read: {error!r}")
    kept = {"report.json", "report.html", "ledger.json", "run.toml"}
    kept |= {f"{a}.{b}" for a in ("head", "model") for b in ("json", "safetensors")}
    left = sorted({path.name for path in run.iterdir()} - kept) if run.exists() else []
    if left:
        problems.append(f"a finished run left {left}")
    return problems


def problems_of_features(folder: Path, path: Path) -> list[str]:
    """Return what is wrong with a finished features file."""
    from dphead_extract.features.format import open_features, verify

    problems = verify(path)
    if path.with_name(path.name + ".part").exists():
        problems.append("a finished file left its .part")
    with np.load(folder / "images.npz") as given, open_features(path) as file:
        if not np.array_equal(file.labels, given["labels"]):
            problems.append("labels of other rows")
        if not np.asarray(file.features[:]).any(axis=1).all():
            problems.append("rows without features")
    return problems


def again(folder: Path, case: Case, run: Callable[..., Any]) -> list[str]:
    """Run the same command again by `run`, and return what is wrong then."""
    finished = case.out.exists() and case.name == "extract"
    finished |= (case.out / "report.json").exists()
    last = run(folder, case.arguments)
    if "Traceback" in last.said:
        return [f"a traceback: {last.said[-300:]}"]
    # a finished extraction succeeds again, and a finished run is refused
    wanted = 2 if finished and case.name != "extract" else 0
    if last.code != wanted:
        return [f"exit code {last.code} for {wanted} again: {last.said[-300:]}"]
    return case.problems(folder, case.out)
