"""The clipped sum of a network's per-example gradients: a query of `dphead.privacy`,
whose block sum runs in torch.

This module is trusted: privacy/proofs/finetune.md says why one row moves the sum by at
most the clip norm. A row's gradient is float32 and a function of that row alone; norms
and clip factors are float64.
Each row's clipped gradient becomes integers, so sums over rows are exact. Sampling,
noise and the charge are in `dphead.privacy.release` and nowhere else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dphead.endtoend.models import loss_of, trained
from dphead.privacy.query import Query
from extract.vectors import are_alike

# numbers that are float64 at a time; chosen, not measured
CPU_FLOAT64_NUMBERS = 2**18
GPU_FLOAT64_NUMBERS = 2**24
# Bounds (proofs/finetune.md).
CLIP_INTEGERS = 2**20  # integers of a gradient of the clip norm


@dataclass(frozen=True)
class ModelGradient(Query):
    """Gradient (size,) of a network's cross entropy, each row's clipped to C [De22
    equation 4].

    size: number of trained parameters. model, augment: what they are, in words. views:
        the augmentation multiplicity
    K: a row's gradient is the mean over K views of it, taken before the clip; 0 takes
        the row as it is.
    """

    size: int
    model: str
    views: int = 0
    augment: str = "none"
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "rows"

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """A part of C."""
        return clip_norm / CLIP_INTEGERS

    def squared_sensitivity(
        self, relation: str, clip_norm: float, append: float = 0.0
    ) -> int:
        """C; replaced 2 C."""
        return CLIP_INTEGERS**2 * (4 if relation == "replace_one" else 1)

    def most(self) -> int:
        """An entry."""
        return CLIP_INTEGERS

    def shape(self, width: int) -> tuple[int, ...]:
        """(size,)."""
        return (self.size,)

    def factors(self, *_: Any, **__: Any) -> Any:
        """Networks need a block sum in torch."""
        raise NotImplementedError(
            "the gradient of a network is summed by TorchSums. Pass it to `release`."
        )


class Part:
    """One parameter's gradients, a row each: value (k, ...) float32.

    They become float64 some columns at a time, in the cache. Rows are the outermost
    dimension of the memory: torch adds each row in one order then, at every place.
    """

    def __init__(self, value: Tensor) -> None:
        value = value.detach().flatten(1).float().contiguous()
        most = GPU_FLOAT64_NUMBERS if value.is_cuda else CPU_FLOAT64_NUMBERS
        self.columns = value.split(max(1, most // len(value)), dim=1)

    def is_alike(self) -> bool:
        """Return whether all rows have the same bits: for one row at every place."""
        return all(map(are_alike, self.columns))

    def norm2(self) -> Tensor:
        """Return squared norms (k,) float64, from which the clip factor is made."""
        return added(part.double().square().sum(dim=1) for part in self.columns)

    def sum(self, factor: Tensor) -> Tensor:
        """Return the flat sum (size,) over rows of factor_i times the gradient.

        Each entry is truncated to a whole number, which float64 adds exactly. A row
        with factor 0 adds zero.
        """
        return torch.cat([part.sum(dim=0) for part in self._whole(factor)])

    def squared(self, factor: Tensor) -> Tensor:
        """Return squared norms (k,) of what `sum` adds.

        They are sums of whole numbers, exact up to 2**53 and never rounded below.
        """
        return added(part.square().sum(dim=1) for part in self._whole(factor))

    def _whole(self, factor: Tensor) -> Iterator[Tensor]:
        """Whole numbers (k, columns), some columns at a time."""
        used = factor[:, None] > 0  # nan * 0 is not 0
        for part in self.columns:
            yield torch.trunc(torch.where(used, part, 0.0).double() * factor[:, None])


def clipped(parts: list[Part], keep: Tensor, clip_norm: float) -> Tensor:
    """The sum (size,) over rows of min(1, C / norm) times the gradient, whole numbers
    of C / CLIP_INTEGERS.

    Rows not kept or not finite add 0. A gradient is brought to CLIP_INTEGERS - 1 and
    truncated towards zero. A row whose whole numbers are longer than CLIP_INTEGERS
    after all adds 0.
    """
    norm2 = squared_norms(parts)
    factor = (CLIP_INTEGERS - 1) / norm2.sqrt().clamp(min=clip_norm)
    factor = torch.where(keep & torch.isfinite(norm2), factor, 0.0)
    squared = added(part.squared(factor) for part in parts)
    factor = torch.where(squared <= float(CLIP_INTEGERS) ** 2, factor, 0.0)
    return torch.cat([part.sum(factor) for part in parts])


def squared_norms(parts: list[Part]) -> Tensor:
    """(k,) float64, of rows' whole gradients."""
    return added(part.norm2() for part in parts)


def added(vectors: Iterable[Tensor]) -> Tensor:
    """Sum (k,) of vectors (k,), one after another.

    One sum over a stack of them takes the last rows of 17 and more in another order.
    """
    return reduce(torch.add, vectors)


class PerExample:
    """Per-example gradients of `model`, by torch.func.

    `set` gives it weights; `parts` its rows. bf16: whether products are bfloat16.
    """

    def __init__(self, model: nn.Module, bf16: bool = False) -> None:
        self.model, self.bf16 = model, bf16
        self.names = [name for name, _ in trained(model)]

    def set(self, weights: Tensor) -> None:
        """Give the trained parameters the values of a flat vector (size,)."""
        start = 0
        with torch.no_grad():
            for _, p in trained(self.model):
                p.copy_(weights[start : start + p.numel()].view_as(p))
                start += p.numel()

    def parts(self, x: Tensor, y: Tensor) -> list[Part]:
        """Gradients of the rows' mean losses over their views.

        x: (k, views, channels, h, w) float32; y: (k,).
        """
        weights = {name: p.detach() for name, p in trained(self.model)}

        def loss(weights: dict[str, Tensor], views: Tensor, label: Tensor) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
                scores = functional_call(self.model, weights, (views,))
            return loss_of(scores, label.expand(len(views))).mean()

        found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            weights, x, y
        )
        return [Part(found[name]) for name in self.names]
