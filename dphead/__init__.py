"""Train differentially private classifier heads on frozen image features.

Names are imported on first use, so `import dphead` loads no numerical library. Type
checkers and this module read the public names in `__init__.pyi`.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path

if sys.platform == "win32":
    raise ImportError("dphead runs on Linux and macOS. On Windows, install it in WSL.")

__version__ = "0.1.0"
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes())
_MODULES = {
    alias.name: statement.module
    for statement in _STUB.body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for alias in statement.names
}
# `from dphead import *` excludes what needs PyTorch
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    {*_MODULES, "__version__"} - {"DPFinetuneClassifier", "PrivateTraining"}
)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'dphead' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
