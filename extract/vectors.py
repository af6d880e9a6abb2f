"""Batches in which torch rounds every row alike, whatever its place.

torch works through an array in whole vectors, and through the numbers that are left at
its end one by one. A sum, a product or a root is the same number either way; a sigmoid
need not be, and so a row at a batch's end had other last bits than the same row before
it. No number is left where every such array's length is a whole number of vectors.

Products may follow the place too: MKL's of rows that are no multiple of 4 long have
other last bits by where a row begins in memory. What is left is therefore tried.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# numbers: two registers of AVX-512, which torch's loops take together. Of the lengths
# from 1 to 259, SiLU, sigmoid, tanh-GELU, softplus, mish, ELU, SELU and x**0.3 had
# other last bits at many, and none at a multiple of 32 (torch 2.14, float32 and
# bfloat16, forward and backward).
VECTOR = 32

# operations whose result is the nearest number to the true one, or a choice: however
# they are computed they give the same bits
EXACT = frozenset(
    (
        *("abs", "add", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "div"),
        *("eq", "floor", "ge", "gt", "hardtanh", "hardtanh_backward", "le", "lt"),
        *("maximum", "minimum", "mul", "ne", "neg", "reciprocal", "relu", "round"),
        *("sign", "sqrt", "sub", "threshold", "threshold_backward", "trunc", "where"),
        *("bitwise_and", "bitwise_not", "bitwise_or", "logical_and", "logical_not"),
        *("logical_or", "isfinite", "isinf", "isnan"),
    )
)


class WholeVectors(TorchDispatchMode):
    """Looks at what is computed within it, which is to be of ONE row, for `rounded`.

    multiple: so many rows, or twice, or three times, have whole vectors in every array
    that an operation makes which torch calls pointwise and which is not `EXACT`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.multiple = 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called by torch for each operation, and by nobody else."""
        result = func(*args, **(kwargs or {}))
        if torch.Tag.pointwise in func.tags:
            made = result if isinstance(result, (tuple, list)) else (result,)
            for value in made:
                if not _is_exact(func, args, kwargs or {}, value):
                    # powers of two: the largest is a multiple of all
                    least = VECTOR // gcd(VECTOR, value.numel())
                    self.multiple = max(self.multiple, least)
        return result

    def rounded(self, rows: int, most: int | None = None) -> int:
        """The least number of rows from `rows` on that has whole vectors; where that is
        more than `most`, the largest below, or a single row, which has one place.
        """
        if rows == 1:
            return 1
        up = -(-rows // self.multiple) * self.multiple
        if most is None or up <= most:
            return up
        return max(1, most // self.multiple * self.multiple)


def _is_exact(func: Any, args: Any, kwargs: Any, value: torch.Tensor) -> bool:
    """Whether the value has the same bits by whatever instructions it is computed."""
    if value.is_complex():  # products of several numbers, added in one rounding or two
        return False
    if not value.is_floating_point():
        return True
    name = func.overloadpacket.__name__.removesuffix("_")
    if name == "pow":  # which has an exponent, or an array of them
        return isinstance(args[1], (int, float)) and args[1] in (1, 2)
    if name in ("add", "sub"):
        return kwargs.get("alpha", 1) == 1
    return name in EXACT


def are_alike(rows: torch.Tensor) -> bool:
    """Whether rows (k, ...) have the same bits; a number that is none is like no
    other.
    """
    return torch.equal(rows, rows[:1].expand_as(rows))
