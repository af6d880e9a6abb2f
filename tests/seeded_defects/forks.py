"""pytest in a copy of the project, by a process that has loaded what the copies have in
common.

To import jax, scipy and torch takes longer than most of the tests that kill a mutant,
so one process does it, and that of each run is its fork. It imports nothing of the
project: each run has its own.
"""

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 300  # seconds for one mutant, whose tests take a few
PRINTED = "printed.txt"
# Slow tests too, with their temporary files in the copy.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "", "--basetemp=tmp")
FORKS = multiprocessing.get_context("forkserver")
# One that is missing is skipped.
FORKS.set_forkserver_preload(
    [
        "PIL.Image",
        "click",
        "dp_accounting.pld",
        "dp_accounting.rdp",
        "h5py",
        "hypothesis",
        "jax.numpy",
        "jinja2",
        "mpmath",
        "optax",
        "psycopg",
        "pyarrow.csv",
        "pyarrow.parquet",
        "pytest",
        "randomgen",
        "rich.console",
        "safetensors.numpy",
        "scipy.stats",
        "sklearn.datasets",
        "sklearn.linear_model",
        "sklearn.utils.estimator_checks",
        "sqlalchemy.dialects.postgresql",
        "sqlalchemy.dialects.sqlite",
        "timm",
        "torch",
    ]
)
SETTINGS = {
    "HYPOTHESIS_PROFILE": "mutants",
    # Read when the libraries are imported, as in tests/conftest.py.
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # the plugins of other packages take as long to load as a fit
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True)
class Done:
    """What pytest returned, and what it printed."""

    code: int
    printed: str


def start_libraries() -> None:
    """Start the process that loads them, before the first run."""
    os.environ.update(SETTINGS)
    multiprocessing.forkserver.ensure_running()


def pytest(tree: Path, *arguments: str, bytecode: bool = False) -> Done:
    """Run pytest in the copy, whose packages come before the installed ones.

    bytecode: whether the compiled modules stay in the copy.
    """
    process = FORKS.Process(target=_pytest, args=(tree, arguments, bytecode))
    process.start()
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        process.join()
        return Done(1, f"no end after {TIMEOUT} s")
    return Done(process.exitcode, (tree / PRINTED).read_text(errors="replace"))


def pytest_alone(tree: Path, *arguments: str) -> Done:
    """The same in an interpreter of its own, which shares nothing with a fork."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
    environment = os.environ | _environment(tree)
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=2 * TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Done(1, f"no end after {2 * TIMEOUT} s")
    return Done(done.returncode, done.stdout)


def _environment(tree: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{tree}:{tree}/extract:{tree}/tests",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _pytest(tree: Path, arguments: tuple[str, ...], bytecode: bool) -> None:
    """In the fork, which ends with pytest's exit code."""
    gc.freeze()  # the libraries' million objects are no garbage
    with open(tree / PRINTED, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    root = Path(__file__).resolve().parents[2]
    os.chdir(tree)
    os.environ |= _environment(tree)
    sys.dont_write_bytecode = not bytecode
    sys.path[:] = [
        str(tree),
        str(tree / "extract"),
        str(tree / "tests"),
        *(p for p in sys.path if p not in ("", str(root))),
    ]
    for name in [
        name for name in sys.modules if name.split(".")[0] == "seeded_defects"
    ]:
        del sys.modules[name]  # the copy has its own
    import pytest

    sys.exit(pytest.main([*OPTIONS, *arguments]))
