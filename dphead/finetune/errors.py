"""Note errors of torch inside a call, even if the user's code catches them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from dphead_extract.vectors import Operations
from torch.overrides import TorchFunctionMode


class Errors(TorchFunctionMode):
    """Note the first error of torch in a block `with`.

    Under `torch.func.vmap`, an operation raises an error for a whole chunk because of
    one row. If the user's code catches it, the code computes all rows in another way.

    This mode does not see what runs inside a function of torch, in the backward pass or
    in torch.jit. If a trial finds the user's code there, later blocks of `raised` watch
    each operation, which takes longer.
    """

    _first: Exception | None = None
    _hidden = False

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the noted error at the end of a block, instead of any other error."""
        try:
            with Operations(self._noted) if self._hidden else nullcontext():
                yield
        finally:
            first, self._first = self._first, None
            if first is not None:
                raise first

    def trial(self) -> Operations:
        """Return a mode that finds the user's code that this mode does not see.

        Values of rows do not decide which operations a call has before its first
        error. So public rows show the code that can catch an error of private rows.
        """
        return Operations(self._tried)

    def _tried(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and note whether the user's code called it unseen."""
        frame, name = sys._getframe(1), "torch"
        while frame and name in ("torch", "dphead_extract"):
            name = frame.f_globals.get("__name__", "").partition(".")[0]
            frame = frame.f_back
        # `_noted` is found first in a function that this mode sees. On a GPU, the
        # backward pass has its own thread, with frames of torch only.
        self._hidden |= name not in ("dphead", "torch", "dphead_extract")
        return self._noted(func, args, kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch. Only torch calls this method."""
        return self._noted(func, args, kwargs or {})

    def _noted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and note its error."""
        try:
            return func(*args, **kwargs)
        except AttributeError:
            raise  # depends on types and devices, never on values; `hasattr` needs it
        except Exception as error:
            self._first = self._first or error
            raise
