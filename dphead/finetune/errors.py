"""Note errors of torch inside a call, even if the user's code catches them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any

from dphead_extract.vectors import Operations
from torch import Tensor, _tensor_str
from torch._C import (
    _functorch,  # pyright: ignore[reportAttributeAccessIssue] - has no stub
)
from torch.overrides import TorchFunctionMode

# `__repr__` and `__format__` show the values of all rows. `lstsq` omits the residuals
# of all rows if one matrix lacks full rank, and prints a line if a row has NaN. The
# other functions read beyond a row if it has indices or labels outside their range.
_UNSAFE = {
    "__repr__",
    "__format__",
    "index_fill",
    "index_fill_",
    "ctc_loss",
    "_ctc_loss",
    "linalg_lstsq",
    "segment_reduce",
}


# An operator of `torch.library` without a rule for `vmap` gets one plain row at a time,
# so its code could keep rows, or draw random numbers for some rows only.
_NAMESPACES = ("", "aten", "prims", "profiler", "quantized")  # "" for functions


class _Ended(BaseException):
    """End a call at an error of torch, so that no `except` of the user's code runs.

    What the code then prints would show the size of a batch, or the steps of a row.
    """


class Errors(TorchFunctionMode):
    """Note the first error of torch in a block `with`.

    Under `torch.func.vmap`, an operation raises an error for a whole chunk because of
    one row. If the user's code catches it, the code computes all rows in another way.

    This mode does not see what runs inside a function of torch, in the backward pass or
    in torch.jit. So blocks of `raised` watch each operation too, which takes longer, if
    `watched` is True: for a user's own code.
    """

    _first: Exception | None = None
    watched = True

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the noted error at the end of a block, instead of any other one."""
        _calls.append(get_ident())
        try:
            with Operations(self._noted) if self.watched else nullcontext():
                yield
        finally:
            first, self._first = self._first, None
            _calls.remove(get_ident())
            if first is not None:
                raise first

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch. Only torch calls this method."""
        return self._noted(func, args, kwargs or {})

    def _noted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and note its error."""
        name = getattr(func, "__name__", "").partition(".")[0]
        try:
            if (
                name in _UNSAFE
                or str(getattr(func, "__module__", "")).partition("torch._ops.")[2]
                not in _NAMESPACES
                # the library MKL prints a line
                or (
                    name in ("_linalg_svd", "linalg_pinv")
                    and args
                    and not (_is_of_rows(args[0]) or args[0].isfinite().all())
                )
                # NaN in a grid ends the process, unless the padding is zeros
                or (name == "grid_sampler_2d_backward" and args[4])
                or (
                    name == "embedding"
                    and sum(map(_is_of_rows, [*args, *kwargs.values()])) > 1
                )
            ):
                raise ValueError(f"{name} is unsafe for a chunk of rows")
            return func(*args, **kwargs)
        except AttributeError:
            raise  # depends on types and devices, never on values; `hasattr` needs it
        except Exception as error:
            self._first = self._first or error
            raise _Ended from error


def _is_of_rows(value: Any) -> bool:
    """Return whether an argument is a tensor with a part for each row."""
    while isinstance(value, Tensor) and _functorch.is_functorch_wrapped_tensor(value):
        if _functorch.is_batchedtensor(value):
            return True
        value = _functorch.get_unwrapped(value)
    return False


_calls: list[int] = []  # the thread of each block of `Errors.raised` that runs
_as_text = _tensor_str._str


def _text(tensor: Tensor, **given: Any) -> str:
    """Return torch's text of a tensor.

    No mode sees a print in the backward pass, inside a function of torch or in another
    thread. So during a call its own thread gets no text, and others none of rows.
    """
    if get_ident() in _calls or (_calls and _is_of_rows(tensor)):
        raise ValueError("the text of a tensor is unsafe for a chunk of rows")
    return _as_text(tensor, **given)


# An error inside of torch's function would switch torch.func off, while a traceback
# keeps the frames of this function.
_tensor_str._str = _text
# torch would warn at each call of an operation that vmap computes row by row
_functorch._set_vmap_fallback_warning_enabled(False)
