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
# other functions use memory outside a row if its indices or labels are out of range.
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


# Namespaces of allowed operators; "" is for functions. An operator of `torch.library`
# without a rule for `vmap` gets one plain row at a time. Its code could keep rows, or
# draw random numbers for some rows only.
_NAMESPACES = ("", "aten", "prims", "profiler", "quantized")


class _Ended(BaseException):
    """End a call at an error of torch. `except Exception` does not catch this one.

    Code after `except Exception` could print lines that show the size of a batch, or
    which operations a row needs. A bare `except` and `finally` still run
    (proofs/finetune.md).
    """


class Errors(TorchFunctionMode):
    """Note the first error of torch in a `with` block.

    Under `torch.func.vmap`, an operation raises an error for a whole chunk because of
    one row. If the user's code catches it, the code computes all rows in another way.

    This mode does not see operations inside a function of torch, in the backward pass
    or in torch.jit. For a user's own code, `watched` is True, and `raised` also watches
    each operation, which takes longer.
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
                # MKL prints a line for a matrix that is not finite
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
    thread. So while a block of `raised` runs, its thread gets no text of any tensor,
    and other threads get none of a tensor of rows.
    """
    if get_ident() in _calls or (_calls and _is_of_rows(tensor)):
        raise ValueError("the text of a tensor is unsafe for a chunk of rows")
    return _as_text(tensor, **given)


# Replace torch's function, because it switches torch.func off. After an error inside
# it, torch.func would stay off while a traceback keeps the function's frame.
_tensor_str._str = _text
# torch would warn at each call of an operation that vmap computes row by row
_functorch._set_vmap_fallback_warning_enabled(False)
