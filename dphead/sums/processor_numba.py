"""What loops are compiled for: the processor's registers and its multiply-add.

Sums are the same whatever is chosen here, and no instruction may be chosen that numba's
processor lacks: LLVM would end the process.
"""

import hashlib
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba.core import codegen, config


def features() -> set[str]:
    """The instructions of the processor that numba compiles for.

    Of this machine's, less those that numba's settings leave out. None is counted on
    where NUMBA_CPU_NAME names another processor.
    """
    settings: Any = config
    name = settings.CPU_NAME
    if name is not None and name != binding.get_host_cpu_name():
        return set()
    listed = settings.CPU_FEATURES
    if listed is None:
        listed = codegen.get_host_cpu_features()
    return {part[1:] for part in listed.split(",") if part.startswith("+")}


_FEATURES = features()
_ARM = platform.machine().lower() in ("arm64", "aarch64")
# int32 numbers of a register
LANES = 16 if "avx512bw" in _FEATURES else 8 if "avx2" in _FEATURES else 4
MULTIPLY_ADD = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "",  # any processor
}[LANES]
REGISTER_COLUMNS = 2 * LANES  # int16 numbers of a register
_MANY_REGISTERS = LANES == 16 or _ARM  # 32, else 16: what follows fits in them
TILE_HEIGHT = {16: 8, 8: 4, 4: 6 if _ARM else 4}[LANES]  # rows of a tile of a sum
TILE_REGISTERS = 3  # of each of these rows
TILE_WIDTH = TILE_REGISTERS * LANES
STRIP_CLASSES = 12 if _MANY_REGISTERS else 6  # the most of a strip
SCORED_ROWS = 8 if _MANY_REGISTERS else 4  # rows whose scores are made at once
SCORED_CLASSES = 3  # the most whose scores are made at once


def sources(files: Iterable[Path]) -> str:
    """A name for the text of files, eight hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


# What compiled loops are made of. They take functions and constants of each other's
# files into their code, and numba itself compiles anew for the function's own alone.
_HERE = Path(__file__).parent
MADE_OF = [
    *sorted(_HERE.glob("*_numba.py")),
    _HERE / "tuning.py",
    _HERE.parent / "privacy" / "transform.py",
    _HERE.parent / "privacy" / "predictions.py",
    _HERE.parent / "privacy" / "statistics.py",
]
_SOURCES = sources(MADE_OF)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, kept on the disk where a folder for it can be written.

    Under a name of its own for each size of a tile, as other processors may share it,
    and for each text of what it is made of.
    """
    function.__qualname__ += f"_{LANES}_{TILE_HEIGHT}_{_SOURCES}"
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's own folder
        return numba.njit(**options)(function)
