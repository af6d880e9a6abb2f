"""Keep torch's compiler unloaded where torch and timm do not need it.

torch, torchvision and timm import the compiler only to mark code for it, or to ask
whether it runs. `import timm` takes 2.3 s of processor time instead of 4.1 s
without it (medians of three runs, torch 2.14), and the first per-example gradient 3 s
less. Stand-in modules answer these calls, and import the compiler for any other
attribute.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


class _StandIn(ModuleType):
    """Replace a module of the compiler. A missing attribute imports the module."""

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module for it
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(import_module(self.__name__), name)


def import_timm() -> Any:
    """Return timm. The compiler is imported by the first function that needs it."""
    with without_compiler():
        return import_module("timm")


@contextmanager
def without_compiler() -> Iterator[None]:
    """Replace the compiler by stand-in modules in this context, unless it is loaded."""
    for name, answers in _ANSWERS.items():
        if name not in sys.modules:
            sys.modules[name] = stand_in = _StandIn(name)
            vars(stand_in).update(answers)
    try:
        yield
    finally:
        _remove_stand_ins()


def _remove_stand_ins() -> None:
    for name in _ANSWERS:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _is_compile_supported(device: Any) -> bool:
    return import_module(f"{_COMPILER}.utils").is_compile_supported(device)


def _disable(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    @wraps(function)
    def marked(*given: Any, **named: Any) -> Any:
        _remove_stand_ins()  # otherwise `disable` below would be this function again
        disabled = import_module(_COMPILER).disable(function, *args, **kwargs)
        return disabled(*given, **named)

    return marked


_AUTOGRAD = _StandIn(f"{_COMPILER}.compiled_autograd")
vars(_AUTOGRAD)["_disable"] = nullcontext  # nothing to disable before the import
_ANSWERS: dict[str, dict[str, Any]] = {
    _COMPILER: {"disable": _disable, "compiled_autograd": _AUTOGRAD},
    # `__path__`, because `from ... import` reads it
    f"{_COMPILER}.utils": {
        "is_compile_supported": _is_compile_supported,
        "__path__": [],
    },
    # Outside the compiler, conditions are plain booleans: return them unchanged.
    "torch.fx.experimental.symbolic_shapes": {"expect_true": bool, "__path__": []},
}
