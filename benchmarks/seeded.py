"""A digest of each seeded head and report: what a change of the code's shape must leave
as it is.

`python -m benchmarks seeded > before.txt`, again after the change, then `diff`. Heads
are those of the command line, for each method, relation and backend, full and Poisson
batches, groups and presets; floats differ between machines, so the digests are of use
on one machine only and are not stored.
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
    """Print one line a head."""
    with tempfile.TemporaryDirectory() as folder:
        features = write_rows(Path(folder) / "features.h5")
        for name, options in cases():
            digest = fitted(Path(folder), features, options)
            print(f"{digest}  {name}", flush=True)


def cases() -> list[tuple[str, str]]:
    """Each head's name and options."""
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
    """A features file of n rows in 350 groups, whose first m columns tell the class."""
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
    """Digests of a head's arrays, of its report and of what was printed, or how it
    ended.
    """
    from dphead.cli import cli

    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    # a home of its own: a report names the ledgers of other fits that its home knows
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
    # of this run alone, or of the commit
    del report["ledger"]["fit_id"], report["ledger"]["path"], report["sha256"]
    del report["provenance"]["commit"], report["provenance"]["config_sha256"]
    return f"{short(head_bytes(run))} {short(json.dumps(report, sort_keys=True))}"


def head_bytes(run: Path) -> bytes:
    """The arrays of the head's file, with names and shapes."""
    from safetensors.numpy import load_file

    found = b""
    for path in sorted(run.glob("*.safetensors")):
        for name, array in sorted(load_file(path).items()):
            found += f"{name} {array.shape} {array.dtype}".encode() + array.tobytes()
    return found


def short(content: str | bytes) -> str:
    """The first half of a SHA-1 digest."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha1(data).hexdigest()[:20]
