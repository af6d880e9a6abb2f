"""Import timm without torch's compiler.

The import takes 2.3 s of processor time instead of 4.1 s (medians of three runs, torch
2.14). torchvision imports a function of the compiler, and timm marks methods for it.
Both need the compiler only when these functions run.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_UTILS = "torch._dynamo.utils"


class _StandIn(ModuleType):
    """Stand for a module of the compiler, and import it for any other attribute."""

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module for it
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(import_module(self.__name__), name)


def import_timm() -> Any:
    """Return timm. The compiler is imported by the first function that needs it."""
    if not {_COMPILER, "timm"} & sys.modules.keys():
        compiler: Any = _StandIn(_COMPILER)
        utils: Any = _StandIn(_UTILS)
        compiler.disable = _disable
        utils.is_compile_supported = _is_compile_supported
        utils.__path__ = []  # `from ... import` asks for it
        sys.modules |= {_COMPILER: compiler, _UTILS: utils}
    try:
        return import_module("timm")
    finally:
        _remove_stand_ins()


def _remove_stand_ins() -> None:
    for name in (_COMPILER, _UTILS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _is_compile_supported(device: Any) -> bool:
    return import_module(_UTILS).is_compile_supported(device)


def _disable(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    @wraps(function)
    def marked(*given: Any, **named: Any) -> Any:
        disabled = import_module(_COMPILER).disable(function, *args, **kwargs)
        return disabled(*given, **named)

    return marked
