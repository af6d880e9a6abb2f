"""Find batch sizes at which torch rounds a row equally at every position.

torch processes an array in whole vectors, and the remaining numbers one by one. Both
ways give the same sum, product and root, but can give different sigmoids. A row at the
end of a batch was therefore rounded differently from the same row elsewhere. No number
remains if the length of every such array is a multiple of the vector length.

Products can depend on the position too. If the length of a row is not a multiple of 4,
MKL's rounding depends on where the row begins in memory. Therefore `are_alike` also
tests the result.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Numbers in two AVX-512 registers, which torch's loops process at once. Among lengths
# from 1 to 259, SiLU, sigmoid, tanh-GELU, softplus, mish, ELU, SELU and x**0.3 were
# rounded differently at many lengths, but at no multiple of 32 (torch 2.14, float32 and
# bfloat16, forward and backward).
VECTOR = 32

# Operations that return the number nearest to the true result, or one of their inputs.
# They give the same bits however they are computed.
_EXACT = frozenset(
    (
        *("abs", "add", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "div"),
        *("eq", "floor", "ge", "gt", "hardtanh", "hardtanh_backward", "le", "lt"),
        *("maximum", "minimum", "mul", "ne", "neg", "reciprocal", "relu", "round"),
        *("sign", "sqrt", "sub", "threshold", "threshold_backward", "trunc", "where"),
        *("bitwise_and", "bitwise_not", "bitwise_or", "logical_and", "logical_not"),
        *("logical_or", "isfinite", "isinf", "isnan"),
    )
)


class Operations(TorchDispatchMode):
    """Run each operation of torch by a function of (operation, args, kwargs)."""

    def __init__(self, run: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._run = run

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch's compiler, and this mode watches no compiled network
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that torch compiles functions as it does without this mode.

        Otherwise a trial would not raise the errors of later calls.
        """
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operation. Only torch calls this."""
        return self._run(func, args, kwargs or {})


class WholeVectors(Operations):
    """Observe torch's operations on ONE row, to find a batch size (`rounded`).

    Attributes
    ----------
    multiple : int
        This many rows, or a multiple of it, have whole vectors in every array from an
        operation that torch calls pointwise and that is not exact (`_is_exact`).
    """

    def __init__(self) -> None:
        super().__init__(self._observed)
        self.multiple = 1

    def _observed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation, and update `multiple`."""
        result = func(*args, **kwargs)
        if torch.Tag.pointwise in func.tags:
            made = result if isinstance(result, (tuple, list)) else (result,)
            for value in made:
                if not _is_exact(func, args, kwargs, value):
                    # powers of two: the largest is a multiple of all
                    least = VECTOR // gcd(VECTOR, value.numel())
                    self.multiple = max(self.multiple, least)
        return result

    def rounded(self, rows: int, most: int | None = None) -> int:
        """Return the least number of rows, from `rows` on, that has whole vectors.

        If this number is more than `most`, return the largest number up to `most` that
        has whole vectors, or 1, because a single row has one position only.
        """
        if rows == 1:
            return 1
        up = -(-rows // self.multiple) * self.multiple
        if most is None or up <= most:
            return up
        return max(1, most // self.multiple * self.multiple)


def _is_exact(func: Any, args: Any, kwargs: Any, value: torch.Tensor) -> bool:
    """Return whether vector and scalar instructions give the same bits."""
    if value.is_complex():  # a product may use a fused multiply-add, which rounds once
        return False
    if not value.is_floating_point():
        return True
    name = func.overloadpacket.__name__.removesuffix("_")
    if name == "pow":  # exact only with the exponent 1 or 2
        return isinstance(args[1], (int, float)) and args[1] in (1, 2)
    if name in ("add", "sub"):
        return kwargs.get("alpha", 1) == 1
    return name in _EXACT


def are_alike(rows: torch.Tensor) -> bool:
    """Return whether all rows of (k, ...) are equal, without any NaN."""
    return torch.equal(rows, rows[:1].expand_as(rows))
