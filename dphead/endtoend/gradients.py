"""The clipped sum of a network's per-example gradients: a query of `dphead.privacy`,
whose block sum runs in torch.

This module is trusted: privacy/proofs/finetune.md says why one row moves the sum by at
most the clip norm. A row's gradient is float32 and a function of that row alone; norms
and clip factors are float64.
Each row's clipped gradient becomes integers, so sums over rows are exact. Sampling,
noise and the charge are in `dphead.privacy.release` and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
import torch.nn.grad as convolution
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional as F

from dphead.endtoend.architectures import WSConv2d
from dphead.endtoend.models import loss_of, trained
from dphead.privacy.query import Query
from extract.vectors import are_alike

Engine = Literal["vmap", "layers", "ghost"]
ENGINES: tuple[Engine, ...] = ("vmap", "layers", "ghost")
# numbers that are float64 at a time; chosen, not measured
CPU_FLOAT64_NUMBERS = 2**18
GPU_FLOAT64_NUMBERS = 2**24
# a convolution of at least so many times as much fan-in as positions is faster as a
# matrix product; chosen, not measured
FAN_IN_PER_POSITION = 8
# Bounds (proofs/finetune.md).
CLIP_INTEGERS = 2**20  # integers of a gradient of the clip norm
# share of (sum of |a_t||b_t|)^2 that covers the rounding of a float64 ghost norm
CANCELLATION = 2.0**-40


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
    """One parameter's gradients, a row each.

    norm2: (k,) float64, from which the clip factor is made. held: what is kept, each
    (k, ...).
    """

    held: tuple[Tensor, ...]

    def is_alike(self) -> bool:
        """Whether what is kept, and all else that `sum` is made of, is the same bits
        for every row: to be tried with one row at every place.
        """
        return all(map(are_alike, self.held))

    def norm2(self) -> Tensor:
        """Squared norms (k,)."""
        raise NotImplementedError

    def sum(self, factor: Tensor) -> Tensor:
        """Sum over rows of factor_i times the gradient, each towards zero to whole
        numbers, which float64 adds exactly.

        Flat, (size,). A row with factor 0 adds zero.
        """
        raise NotImplementedError

    def squared(self, factor: Tensor) -> Tensor:
        """Squared norms (k,) of what `sum` adds: sums of whole numbers, exact up to
        2**53 and never rounded below.
        """
        raise NotImplementedError


class Stored(Part):
    """Gradients kept in memory: value (k, ...) float32.

    They become float64 some columns at a time, in the cache. Rows are the outermost
    dimension of the memory: torch adds each row in one order then, at every place.
    """

    def __init__(self, value: Tensor) -> None:
        value = value.detach().flatten(1).float().contiguous()
        most = GPU_FLOAT64_NUMBERS if value.is_cuda else CPU_FLOAT64_NUMBERS
        self.columns = self.held = value.split(max(1, most // len(value)), dim=1)

    def norm2(self) -> Tensor:
        return added(part.double().square().sum(dim=1) for part in self.columns)

    def sum(self, factor: Tensor) -> Tensor:
        return torch.cat([part.sum(dim=0) for part in self._whole(factor)])

    def squared(self, factor: Tensor) -> Tensor:
        return added(part.square().sum(dim=1) for part in self._whole(factor))

    def _whole(self, factor: Tensor) -> Iterator[Tensor]:
        """Whole numbers (k, columns), some columns at a time."""
        used = factor[:, None] > 0  # nan * 0 is not 0
        for part in self.columns:
            yield torch.trunc(torch.where(used, part, 0.0).double() * factor[:, None])


class Ghost(Part):
    """Gradients b_iᵀ a_i of a layer, never kept: a (k, t, p) inputs and b (k, t, q)
    output gradients at t positions.

    |bᵀa|² = sum of (a aᵀ) (b bᵀ) over pairs of positions [Goodfellow 2015; Bu et al.
    2022], in float64. Positions that cancel could leave only its rounding, so the norm
    is raised by `CANCELLATION`: `clipped` checks the length.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a = a.detach().double().contiguous()
        self.b = b.detach().double().contiguous()
        self.held = (self.a, self.b)

    def is_alike(self) -> bool:
        """And the products, each of rows that begin elsewhere in memory."""
        products = _products(self.a, self.b)
        first = next(products)
        return super().is_alike() and all(torch.equal(one, first) for one in products)

    def norm2(self) -> Tensor:
        pairs = torch.bmm(self.a, self.a.transpose(1, 2)) * torch.bmm(
            self.b, self.b.transpose(1, 2)
        )
        lengths = torch.linalg.vector_norm(self.a, dim=2) * torch.linalg.vector_norm(
            self.b, dim=2
        )
        lost = CANCELLATION * lengths.sum(dim=1) ** 2
        return pairs.sum(dim=(1, 2)).clamp(min=0) + lost

    def sum(self, factor: Tensor) -> Tensor:
        total = torch.zeros(
            (self.b.shape[2], self.a.shape[2]),
            dtype=torch.float64,
            device=self.a.device,
        )
        for gradient in self._whole(factor):
            total += gradient
        return total.reshape(-1)

    def squared(self, factor: Tensor) -> Tensor:
        return torch.stack(
            [gradient.square().sum() for gradient in self._whole(factor)]
        )

    def _whole(self, factor: Tensor) -> Iterator[Tensor]:
        """Whole numbers (q, p) of one row at a time."""
        used = (factor > 0)[:, None, None]
        a = torch.where(used, self.a, 0.0)
        b = torch.where(used, self.b * factor[:, None, None], 0.0)
        return map(torch.trunc, _products(a, b))


def _products(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """b_iᵀ a_i (q, p) of one row at a time."""
    for row, slopes in zip(a, b, strict=True):
        yield slopes.T @ row


def clipped(parts: list[Part], keep: Tensor, clip_norm: float) -> Tensor:
    """The sum (size,) over rows of min(1, C / norm) times the gradient, whole numbers
    of C / CLIP_INTEGERS.

    Rows not kept or not finite add 0. A gradient is brought to CLIP_INTEGERS - 1 and
    truncated
    towards zero. That its whole numbers are no longer than CLIP_INTEGERS is checked: a
    row
    whose are adds 0.
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
    """Per-example gradients of `model` by one of three engines.

    `set` gives it weights; `parts` its rows.

    "vmap": torch.func, any network. "layers": one backward pass for the chunk, then
    each layer's gradients from its inputs and output gradients. "ghost": the same
    without keeping those of a Linear or Conv2d where norms are cheaper.
    """

    def __init__(
        self, model: nn.Module, engine: Engine = "vmap", bf16: bool = False
    ) -> None:
        self.model, self.engine, self.bf16 = model, engine, bf16
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
        return self._vmapped(x, y) if self.engine == "vmap" else self._layered(x, y)

    def _autocast(self, x: Tensor) -> Any:
        return (
            torch.autocast(x.device.type, torch.bfloat16)
            if self.bf16
            else nullcontext()
        )

    def _vmapped(self, x: Tensor, y: Tensor) -> list[Part]:
        weights = {name: p.detach() for name, p in trained(self.model)}

        def loss(weights: dict[str, Tensor], views: Tensor, label: Tensor) -> Tensor:
            with self._autocast(x):
                scores = functional_call(self.model, weights, (views,))
            return loss_of(scores, label.expand(len(views))).mean()

        found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            weights, x, y
        )
        return [Stored(found[name]) for name in self.names]

    def _layered(self, x: Tensor, y: Tensor) -> list[Part]:
        rows, views = x.shape[:2]
        owners = owners_of(self.model)
        # each layer's name, itself, inputs, outputs
        seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []

        def keep(name: str) -> Callable[..., None]:
            return lambda module, inputs, output: seen.append(
                (name, module, inputs[0].detach(), output)
            )

        hooks = [
            module.register_forward_hook(keep(name)) for name, module in owners.items()
        ]
        try:
            with torch.enable_grad(), self._autocast(x):
                scores = self.model(x.flatten(0, 1))
        finally:
            for hook in hooks:
                hook.remove()
        if sorted(s[0] for s in seen) != sorted(owners):
            raise ValueError(
                "the layers engine needs each layer used once, got another use. Use "
                "engine='vmap'."
            )
        total = loss_of(scores, y.repeat_interleave(views)).sum() / views
        slopes = torch.autograd.grad(total, [s[3] for s in seen])
        found: dict[str, Part] = {}
        for (name, module, inputs, _), slope in zip(seen, slopes, strict=True):
            shaped = (
                t.float().contiguous().unflatten(0, (rows, views))
                for t in (inputs, slope)
            )
            for key, part in layer_parts(module, *shaped, ghost=self.engine == "ghost"):
                found[f"{name}.{key}" if name else key] = part
        return [found[name] for name in self.names]


def owners_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that hold the trained parameters.

    ValueError if one has children or shares a parameter.
    """
    owners: dict[str, nn.Module] = {}
    for name, _ in trained(model):
        owner, _, _ = name.rpartition(".")
        module = model.get_submodule(owner)
        owners[owner] = module
    all_names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if any(list(m.children()) for m in owners.values()) or len(all_names) != len(
        list(model.named_parameters())
    ):
        raise ValueError(
            "the layers engine needs parameters in layers of their own, got others. "
            "Use engine='vmap'."
        )
    return owners


def layer_parts(
    module: nn.Module, x: Tensor, b: Tensor, ghost: bool
) -> Iterator[tuple[str, Part]]:
    """(parameter, gradients) of a layer.

    x: its inputs and b: output gradients, (rows, views, ...).
    """
    wanted = [
        name for name, p in module.named_parameters(recurse=False) if p.requires_grad
    ]
    plain = (
        type(module) in (nn.Linear, nn.Conv2d, WSConv2d)
        and getattr(module, "padding_mode", "zeros") == "zeros"
    )
    if plain:
        if "weight" in wanted:
            yield "weight", _weight_part(module, x, b, ghost)
        if "bias" in wanted:
            summed = (
                (1, *range(3, b.dim()))
                if isinstance(module, nn.Conv2d)
                else tuple(range(1, b.dim() - 1))
            )
            yield "bias", Stored(b.sum(dim=summed))
        return
    weights = {
        name: p.detach()
        for name, p in module.named_parameters(recurse=False)
        if p.requires_grad
    }

    def pull(x: Tensor, b: Tensor) -> dict[str, Tensor]:
        return vjp(lambda w: functional_call(module, w, (x,)), weights)[1](b)[0]

    for name, value in vmap(pull, randomness="different")(x, b).items():
        yield name, Stored(value)


def _weight_part(module: Any, x: Tensor, b: Tensor, ghost: bool) -> Part:
    """Of a Linear or a convolution."""
    rows = len(x)
    if isinstance(module, nn.Linear):
        a = x.reshape(rows, -1, x.shape[-1])
        b = b.reshape(rows, -1, b.shape[-1])
        if ghost and _cheaper(a.shape[1], a.shape[2], b.shape[2]):
            return Ghost(a, b)
        return Stored(torch.bmm(b.transpose(1, 2), a))
    positions = x.shape[1] * b[0, 0, 0].numel()
    p = module.weight[0].numel()
    q = module.out_channels
    simple = module.groups == 1 and not isinstance(module.padding, str)
    ghost = ghost and simple and type(module) is nn.Conv2d and _cheaper(positions, p, q)
    if ghost or (simple and FAN_IN_PER_POSITION * positions <= p):
        sizes: Any = (
            module.kernel_size,
            module.dilation,
            module.padding,
            module.stride,
        )
        a = (
            F.unfold(x.flatten(0, 1), *sizes)
            .unflatten(0, x.shape[:2])
            .transpose(2, 3)
            .reshape(rows, -1, p)
        )
        b = b.flatten(3).transpose(2, 3).reshape(rows, -1, q)
        if ghost:
            return Ghost(a, b)
        value = torch.bmm(b.transpose(1, 2), a)
        value = value.unflatten(2, module.weight.shape[1:])
    else:
        value = _grouped(module, x, b)
    if isinstance(module, WSConv2d):
        pull: Callable[..., Any] = vjp(module.standardised, module.weight.detach())[1]
        value = vmap(lambda g: pull(g)[0])(value)
    return Stored(value)


def _grouped(module: Any, x: Tensor, b: Tensor) -> Tensor:
    """Weight gradients (rows, out, in, kh, kw) of a convolution: the rows are the
    groups of one convolution.
    """
    rows, views = x.shape[:2]
    size = (rows * module.weight.shape[0], *module.weight.shape[1:])
    settings = (module.stride, module.padding, module.dilation, rows * module.groups)
    x = x.transpose(0, 1).reshape(views, -1, *x.shape[3:])
    b = b.transpose(0, 1).reshape(views, -1, *b.shape[3:])
    together = convolution.conv2d_weight(x, size, b, *settings)
    return together.unflatten(0, (rows, -1))


def _cheaper(positions: int, p: int, q: int) -> bool:
    """Whether norms from pairs of positions take fewer products than the gradients
    themselves.
    """
    return positions * (p + q) < p * q
