"""Choose registers and instructions for compiled loops, and compile them.

Every choice gives the same sums. Choose only instructions of numba's target processor,
or LLVM ends the process.
"""

import hashlib
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba.core import codegen, config


def _instruction_sets() -> set[str]:
    """Return the instruction sets of numba's target processor.

    The set has this machine's features, except features that numba's settings disable.
    The set is empty if NUMBA_CPU_NAME names another processor.
    """
    settings: Any = config
    name = settings.CPU_NAME
    if name is not None and name != binding.get_host_cpu_name():
        return set()
    listed = settings.CPU_FEATURES
    if listed is None:
        listed = codegen.get_host_cpu_features()
    return {part[1:] for part in listed.split(",") if part.startswith("+")}


_FEATURES = _instruction_sets()
_ARM = platform.machine().lower() in ("arm64", "aarch64")
# int32 numbers in a register
LANES = 16 if "avx512bw" in _FEATURES else 8 if "avx2" in _FEATURES else 4
# multiplies pairs of int16, and adds the two products of each pair, in int32
MULTIPLY_ADD = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "",  # plain LLVM, for any processor
}[LANES]
REGISTER_COLUMNS = 2 * LANES  # int16 numbers in a register
# 32 registers, otherwise 16: the sizes below fit in them
_MANY_REGISTERS = LANES == 16 or _ARM
TILE_HEIGHT = {16: 8, 8: 4, 4: 6 if _ARM else 4}[LANES]  # rows of a tile of a sum
TILE_REGISTERS = 3  # registers of each row of a tile
TILE_WIDTH = TILE_REGISTERS * LANES
# A strip keeps two registers for each class, and needs a few for rows.
STRIP_CLASSES = 12 if _MANY_REGISTERS else 6  # largest number of classes of a strip
SCORED_ROWS = 8 if _MANY_REGISTERS else 4  # rows that are scored together
# SCORED_ROWS * SCORED_CLASSES sums are in registers: 24 of 32, or 12 of 16
SCORED_CLASSES = 3  # largest number of classes that are scored together


def sources(files: Iterable[Path]) -> str:
    """Return eight hexadecimal digits of a hash of the files' contents."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


# Files that compiled loops depend on. Loops inline functions and constants of each
# other's files, but numba recompiles only if a function's own file changes.
_HERE = Path(__file__).parent
_PRIVACY = _HERE.parents[1] / "privacy"
MADE_OF = [
    *sorted(_HERE.glob("*.py")),
    _HERE.parent / "tuning.py",
    _PRIVACY / "transform.py",
    _PRIVACY / "predictions.py",
    _PRIVACY / "statistics.py",
]
# in the name of each compiled function, so that a stale one is never loaded
_SOURCES = sources(MADE_OF)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled, and cache it on disk if a folder can be written.

    The cache name has the sizes of a tile, because other processors may share the
    folder, and a hash of all files of compiled loops.
    """
    function.__qualname__ += f"_{LANES}_{TILE_HEIGHT}_{_SOURCES}"
    # no fastmath: it would reorder floating-point operations. "numpy": x / 0 is inf, as
    # in the reference, without an exception.
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable folder for numba's cache
        return numba.njit(**options)(function)
