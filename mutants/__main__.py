"""Apply each defect of mutants.toml to a copy of the project, run the tests that should find it, print who did.

A kill counts only if the defective copy still imports and still fits a head (so that it is a defect that could go
unnoticed), if the same tests pass without the defect, and if an assertion fails rather than an import or a fixture.
Exit code 1 if a defect survives. `python -m mutants NAME ...` runs those whose name contains one of the words.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("dphead", "extract", "tests", "pyproject.toml")
AT_ONCE = 2
ALIVE = """
import sys, numpy as np
import dphead.privacy.mechanism as mechanism
assert mechanism.__file__.startswith(sys.argv[1]), mechanism.__file__
from dphead.data import ArrayRows
from dphead.fit import fit_head
from dphead.solvers import GradientDescent, LeastSquares, PublicFacts
rng = np.random.default_rng(0)
rows = ArrayRows(rng.standard_normal((40, 4)).astype(np.float32), rng.integers(0, 3, 40))
for solver, epsilon in ((LeastSquares(), 5.0), (GradientDescent(steps=2, sampling_prob=0.5), np.inf)):
    head = fit_head(solver, rows, PublicFacts(40, 4, 3), epsilon=epsilon).head
    assert np.isfinite(head.weights).all()
"""


@dataclass(frozen=True)
class Outcome:
    """killer: the test whose assertion failed, or "" and the reason why there is none."""

    killer: str = ""
    reason: str = ""


def main(words: list[str]) -> int:
    """Run the mutants and print the table. Returns the exit code."""
    start = time.monotonic()
    mutants = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    mutants = [m for m in mutants if not words or any(w in m["name"] for w in words)]
    assert len({m["name"] for m in mutants}) == len(mutants), "names must be unique"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        snapshot = copy(ROOT, Path(folder))  # all mutants are of the same code, whatever is edited meanwhile
        healthy = pool.submit(baseline, snapshot, sorted({t for m in mutants for t in m["tests"]}))
        outcomes = []
        for mutant, outcome in zip(mutants, pool.map(lambda m: run(snapshot, m), mutants), strict=True):
            outcomes.append(outcome)
            print(f"{mutant['name']}: {'killed' if outcome.killer else 'SURVIVED'}", file=sys.stderr, flush=True)
    width = max(len(m["name"]) for m in mutants)
    print(f"{'mutant':<{width}}  §6  killed by")
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        verdict = outcome.killer or "SURVIVED: " + outcome.reason
        print(f"{mutant['name']:<{width}}  {mutant.get('defect', ''):>2}  {verdict}")
    alive = sum(not o.killer for o in outcomes)
    print(f"{len(mutants) - alive} of {len(mutants)} killed in {time.monotonic() - start:.0f} s")
    if healthy.result():
        print(f"\n{healthy.result()}\nThese tests fail without any defect too: their kills prove nothing.")
    return 1 if alive or healthy.result() else 0


def baseline(snapshot: Path, tests: list[str]) -> str:
    """What fails of the listed tests without any defect, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy(snapshot, Path(folder))
        done = python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, timeout=1200)
        return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]


def run(snapshot: Path, mutant: dict) -> Outcome:
    """Apply one defect to a copy, see that the copy works, and run its tests until one fails."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy(snapshot, Path(folder))
        for edit in mutant["edit"]:
            problem = apply(tree / edit["file"], edit["search"], edit["replace"])
            if problem:
                return Outcome(reason=problem)
        alive = python(tree, "-c", ALIVE, str(tree), timeout=600)
        if alive.returncode:
            return Outcome(reason="the copy does not fit: " + alive.stderr.strip().splitlines()[-1])
        report = tree / "report.xml"
        command = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *mutant["tests"])
        done = python(tree, *command, timeout=900)
        if done.returncode == 0:
            return Outcome(reason="its tests pass")
        return killer(report) if report.exists() else Outcome(reason="no tests ran: " + done.stdout[-300:])


def copy(root: Path, folder: Path) -> Path:
    """A copy of the project without what it has built."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, folder / name)
    return folder


def apply(path: Path, search: str, replace: str) -> str:
    """Replace the one occurrence of `search`; returns what is wrong, or ""."""
    text = path.read_text()
    found = text.count(search)
    if found != 1:
        return f"its search text must occur once in {path.name}, got {found}: {search.strip()[:60]!r}"
    path.write_text(text.replace(search, replace))
    return ""


def python(tree: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in the copy, whose packages come before the installed ones."""
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        return subprocess.run(
            [sys.executable, *arguments], cwd=tree, env=env, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, 1, "", f"no end after {timeout} s")


def killer(report: Path) -> Outcome:
    """The first failed test of a JUnit report, if what failed in it was an assertion."""
    for case in ElementTree.parse(report).iter("testcase"):
        where = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
        for failure in case.iter("failure"):
            message = (failure.get("message") or "").strip()
            if re.match(r"AssertionError|assert |Failed: DID NOT", message):
                return Outcome(killer=re.sub(r"^tests/", "", where)[:110])
            return Outcome(reason=f"{where}: not an assertion but {message[:100]!r}")
        for error in case.iter("error"):
            return Outcome(reason=f"{where}: error {(error.get('message') or '')[:100]!r}")
    return Outcome(reason="the report has no failure")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
