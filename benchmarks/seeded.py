"""Print a digest of each seeded head and report, which a refactoring must not change.

Run `python -m benchmarks seeded > before.txt`, run it again after the change, then
compare by `diff`. The heads cover each method, relation and backend, full and Poisson
batches, groups and presets. Floats differ between machines, so digests can be compared
on one machine only, and are not stored.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.commands import METHODS

RELATIONS = ("zero_out", "add_remove", "replace_one")
BACKENDS = ("numpy", "jax", "reference")
SOME = ("numpy", "jax")
EXTRA = {
    "poisson dp-sgd": "--method dp-sgd --batch-size 50 --steps 3",
    "poisson dp-adam": "--method dp-adam --batch-size 50 --epochs 1",
    "sigmoid": "--method dp-sgd --loss sigmoid --steps 3 --momentum 0.5",
    "squared": "--method dp-sgd --loss squared --steps 3 --no-unit-norm",
    "groups": "--method dp-fc --group-cap 2",
    "groups of auto": "--method auto --group-cap 2",
    "class grams": "--method dp-ls --class-grams",
    "error bars": "--method dp-ls --error-bars",
    "preset fc23": "--method dp-fc --preset fc23 --ridge 1 --learning-rate 1",
    "no privacy": "--method auto --epsilon inf --i-know-this-is-not-private",
    "small epsilon": "--method auto --epsilon 0.2",
}
SETTINGS = {"dp-sgd": "--steps 3", "dp-adam": "--steps 3", "dp-newton": "--steps 2"}


def run() -> None:
    """Print a line for each head."""
    with tempfile.TemporaryDirectory() as folder:
        features = write_rows(Path(folder) / "features.h5")
        for name, options in cases():
            digest = fitted(Path(folder), features, options)
            print(f"{digest}  {name}", flush=True)


def cases() -> list[tuple[str, str]]:
    """Return the name and options of each head."""
    plain = [
        (
            f"{method} {relation} {backend}",
            (
                f"--method {method} --relation {relation} --backend {backend} "
                f"{SETTINGS.get(method, '')}"
            ),
        )
        for method in METHODS
        for relation in RELATIONS
        for backend in BACKENDS
    ]
    extra = [
        (f"{name} {backend}", f"{options} --backend {backend}")
        for name, options in EXTRA.items()
        for backend in SOME
    ]
    return plain + extra


def write_rows(path: Path, n: int = 700, d: int = 24, m: int = 5) -> Path:
    """Write a features file of n rows in pairs; the first m columns tell the class."""
    from dphead_extract.features.format import write_features

    rng = np.random.default_rng(0)
    labels = rng.integers(0, m, n)
    rows = rng.random((n, d), np.float32)
    rows[np.arange(n), labels] += 1
    write_features(
        path,
        rows,
        labels,
        class_names=[str(i) for i in range(m)],
        group=np.arange(n) // 2,
        dataset_id="5eed" * 8,
    )
    return path


def fitted(folder: Path, features: Path, options: str) -> str:
    """Fit a head, and return digests of its arrays and report, or of the refusal."""
    from dphead.cli import cli

    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    # a new home, because a report names ledgers of other fits in its home
    os.environ["DPHEAD_HOME"] = str(run.parent / "home")
    extra = "--nominal-n 700" if "add_remove" in options else ""
    extra += "" if "--group-cap" in options else " --protect image"
    words = f"fit {features} -o {run} --ledger {run}.sqlite --seed 1"
    words += " --i-know-this-is-not-private"
    out = io.StringIO()
    error = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            cli.main(f"{words} {extra} {options}".split(), "dphead")
        except SystemExit as stop:
            if stop.code:
                return "refused " + short(error.getvalue().replace(str(folder), ""))
        except (ValueError, OSError) as wrong:
            return "refused " + short(str(wrong).replace(str(folder), ""))
    report = json.loads((run / "report.json").read_text())
    # remove entries that differ between runs or commits
    del report["ledger"]["fit_id"], report["ledger"]["path"], report["sha256"]
    report["ledger"].pop("identity", None)  # earlier commits have none
    del report["provenance"]["commit"], report["provenance"]["config_sha256"]
    return f"{short(head_bytes(run))} {short(json.dumps(report, sort_keys=True))}"


def head_bytes(run: Path) -> bytes:
    """Return the arrays of the head's file as bytes, with names and shapes."""
    from safetensors.numpy import load_file

    found = b""
    for path in sorted(run.glob("*.safetensors")):
        for name, array in sorted(load_file(path).items()):
            found += f"{name} {array.shape} {array.dtype}".encode() + array.tobytes()
    return found


def short(content: str | bytes) -> str:
    """Return the first half of a SHA-1 digest."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha1(data).hexdigest()[:20]
