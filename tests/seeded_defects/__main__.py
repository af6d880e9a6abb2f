"""Apply each defect of mutants.toml to a copy of the project, run the tests that should
find it, print who did.

A kill counts only if the defective copy still imports and still fits a head (so that it
is a defect that could go unnoticed), if the same tests pass without the defect, and if
an assertion fails rather than an import or a fixture. Exit code 1 if a defect survives.
`cd tests; python -m seeded_defects NAME ...` runs those whose name contains a word.
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
from typing import Any

from seeded_defects.forks import pytest, pytest_alone, start_libraries

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "dphead",
    "extract",
    "tests",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "benchmarks/faults",
    "benchmarks/__init__.py",
)
ALIVE = "tests/seeded_defects/alive.py"
PARTS = 4  # of the tests without a defect: each ends within the time of a mutant
SKIPPED = "all of its tests are skipped on this machine"


@dataclass(frozen=True)
class Outcome:
    """killer: the test whose assertion failed, or "" and the reason why there is none.

    seconds: wall time.
    """

    killer: str = ""
    reason: str = ""
    seconds: float = 0.0


def main(words: list[str]) -> int:
    """Run the mutants and print a line for each. Returns the exit code."""
    start = time.monotonic()
    os.environ["TMPDIR"] = in_memory() or tempfile.gettempdir()
    start_libraries()
    mutants = [m for m in load() if not words or any(w in m["name"] for w in words)]
    if not mutants:
        raise SystemExit(
            f"NAME must be part of a mutant's name, got {words}. The names are in "
            "tests/seeded_defects/mutants.toml."
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        # all mutants are of the same code, whatever is edited meanwhile
        snapshot = copy(ROOT, Path(folder), "*.pyc", ".*")
        tests = sorted({t for m in mutants for t in m["tests"]})
        # each copy has the bytecode of all that its defect does not edit
        pytest(snapshot, "--collect-only", ALIVE, *tests, bytecode=True)
        size = -(-len(tests) // PARTS)
        parts = [tests[i : i + size] for i in range(0, len(tests), size)]
        healthy = pool.map(lambda part: baseline(snapshot, part), parts)
        killed, alive = 0, []
        outcomes = pool.map(lambda m: run(snapshot, m), mutants)
        for mutant, outcome in zip(mutants, outcomes, strict=True):
            line = f"{mutant['name']}: {outcome.killer or outcome.reason}"
            print(f"{outcome.seconds:5.1f} s  {line}", flush=True)
            killed += bool(outcome.killer)
            if not outcome.killer and outcome.reason != SKIPPED:
                alive.append(line)
    print(f"{killed} of {len(mutants)} killed in {time.monotonic() - start:.0f} s")
    for line in alive:
        print(f"SURVIVED  {line}")
    broken = [printed for printed in healthy if printed]
    for printed in broken:
        print(
            f"\n{printed}\nThese tests fail without any defect too: their kills prove "
            "nothing."
        )
    return 1 if alive or broken else 0


def in_memory() -> str | None:
    """A folder in memory with room for the copies, or None if there is none.

    A copy takes 0.03 s there, and 0.6 s on a disk (measured on ext4).
    """
    folder = "/dev/shm"
    has_room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2**30
    return folder if has_room else None


def load() -> list[dict[str, Any]]:
    """Every mutant: its name, its number among the fifteen defects if it has one, its
    tests, its edits.

    An entry with a single edit holds the edit's keys itself.
    """
    text = (Path(__file__).parent / "mutants.toml").read_text()
    mutants = tomllib.loads(text)["mutant"]
    for mutant in mutants:
        if "edit" not in mutant:
            keys = ("file", "search", "replace")
            mutant["edit"] = [{key: mutant.pop(key) for key in keys}]
    return mutants


def baseline(snapshot: Path, tests: list[str]) -> str:
    """What fails of the listed tests without any defect, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        done = pytest(copy(snapshot, Path(folder)), ALIVE, *tests)
        return "" if done.code == 0 else done.printed[-4000:]


def run(snapshot: Path, mutant: dict[str, Any]) -> Outcome:
    """Apply one defect to a copy, then fit with the copy and run the mutant's tests
    until something fails.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy(snapshot, Path(folder))
        for edit in mutant["edit"]:
            text, problem = edited((tree / edit["file"]).read_text(), edit)
            if problem:
                return Outcome(reason=problem)
            (tree / edit["file"]).write_text(text)
            of_it = f"__pycache__/{Path(edit['file']).stem}.*"
            for compiled in (tree / edit["file"]).parent.glob(of_it):
                compiled.unlink()
        if summed_by_numpy(mutant):
            for library in (tree / "dphead/sums/kernels").glob("*.so"):
                library.unlink()
        if any(Path(edit["file"]).suffix in (".c", ".h") for edit in mutant["edit"]):
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(command, cwd=tree, check=True, capture_output=True)
        report = tree / "report.xml"
        arguments = ("-x", f"--junitxml={report}", ALIVE, *mutant["tests"])
        done = pytest(tree, *arguments)
        if not report.exists():  # a fork can hang or die for reasons of its own
            done = pytest_alone(tree, *arguments)
        if done.code == 0:
            killer, reason = "", SKIPPED if all_skipped(report) else "its tests pass"
        elif report.exists():
            killer, reason = first_failure(report)
        else:
            killer, reason = "", "no tests ran: " + done.printed[-300:]
        return Outcome(killer, reason, time.monotonic() - start)


def summed_by_numpy(mutant: dict[str, Any]) -> bool:
    """Whether the copy runs without compiled kernels, which have no defect of privacy/.

    They differ from such a definition, and their comparison with it ends every fit
    before the mutant's tests.
    """
    definitions = [e["file"].startswith("dphead/privacy/") for e in mutant["edit"]]
    return all(definitions) and not any("tests/sums/" in t for t in mutant["tests"])


def copy(root: Path, folder: Path, *but: str) -> Path:
    """A copy of what runs of the project and its tests, but for some files."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            ignored = shutil.ignore_patterns(*but)
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def edited(text: str, edit: dict[str, str]) -> tuple[str, str]:
    """The text with the one occurrence of the search replaced, and what is wrong, or
    "".
    """
    found = text.count(edit["search"])
    if found != 1:
        return (
            text,
            (
                f"its search must occur once in {edit['file']}, got {found}: "
                f"{edit['search'].strip()[:60]!r}"
            ),
        )
    return text.replace(edit["search"], edit["replace"]), ""


def all_skipped(report: Path) -> bool:
    """Whether a JUnit report has no test that ran, but for the fit with the copy."""
    cases = ElementTree.parse(report).iter("testcase")
    return all(
        case.find("skipped") is not None
        for case in cases
        if not case.get("classname", "").startswith("tests.seeded_defects")
    )


def first_failure(report: Path) -> tuple[str, str]:
    """The first failed test of a JUnit report if what failed in it was an assertion;
    else "" and what it was.
    """
    for case in ElementTree.parse(report).iter("testcase"):
        where = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
        for problem in (*case.iter("failure"), *case.iter("error")):
            message = (problem.get("message") or "").strip()
            if where.startswith("tests/seeded_defects/alive"):
                return "", f"the copy does not fit: {message[:100]!r}"
            if problem.tag == "failure" and re.match(
                r"AssertionError|assert |Failed: DID NOT", message
            ):
                return re.sub(r"^tests/", "", where)[:110], ""
            return "", f"{where}: not an assertion but {message[:100]!r}"
    return "", "the report has no failure"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
