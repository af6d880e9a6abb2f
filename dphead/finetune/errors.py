"""Note errors of torch inside a call, even if the user's code catches them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from dphead_extract.vectors import Operations
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Errors(TorchFunctionMode):
    """Note the first error of torch in a block `with`.

    Under `torch.func.vmap`, an operation raises an error for a whole chunk because of
    one row. If the user's code catches it, the code computes all rows in another way.
    """

    _first: Exception | None = None
    _calls_code = False

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the noted error at the end of a block, instead of any other error."""
        try:
            with Operations(self._noted) if self._calls_code else nullcontext():
                yield
        finally:
            first, self._first = self._first, None
            if first is not None:
                raise first

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch. Only torch calls this method.

        torch turns this mode off inside `func`. If `func` may call the user's code,
        such as methods of a torch.autograd.Function, later blocks of `raised` watch
        each operation, which takes longer. Trials before the charge find these.
        """
        kwargs = kwargs or {}
        calls_code = any(map(callable, (*args, *kwargs.values())))
        self._calls_code |= calls_code or types not in ((), (Tensor,))
        return self._noted(func, args, kwargs)

    def _noted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and note its error."""
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self._first = self._first or error
            raise
