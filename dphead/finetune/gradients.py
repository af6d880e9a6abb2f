"""Sum per-example gradients of a network, clipped to the clip norm.

The sum is a statistic of `dphead.privacy`, computed by torch.

This module is trusted: privacy/proofs/finetune.md proves that each row adds a vector of
at most the clip norm. A row's gradient is float32 and depends on that row only. Norms
and clip factors are float64. Each row's clipped gradient becomes integers, so sums over
rows are exact. Only `dphead.privacy` charges, samples and adds noise.
"""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
from dphead_extract.backbones.weights import first_line
from dphead_extract.compiler import without_compiler
from dphead_extract.threads import one_thread
from torch import Tensor, nn
from torch._C import (
    _functorch,  # pyright: ignore[reportAttributeAccessIssue] - has no stub
)
from torch.func import grad, vmap
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.stateless import _reparametrize_module

from dphead.finetune.errors import Errors
from dphead.finetune.models import (
    Called,
    RowLoss,
    of_scores,
    refuse_hooks,
    trained,
    unchanged,
)
from dphead.privacy.statistic_base import Statistic
from dphead.sums.reference import BlockSum

# Numbers converted to float64 at a time; chosen, not measured.
_CPU_FLOAT64_NUMBERS = 2**18
_GPU_FLOAT64_NUMBERS = 2**24
# The clip norm in units of the integer sum (proofs/finetune.md).
CLIP_INTEGERS = 2**20
# Wait this long for other threads, whose fits use tensors during a step; chosen, not
# measured.
_OTHERS_SECONDS = 5.0
# One check at a time, because the end of one unfreezes the tensors of earlier checks.
_FREEZING = threading.Lock()


@dataclass(frozen=True)
class ModelGradient(Statistic):
    """Describe the sum of the gradients of a network's loss, each clipped to norm C.

    Parameters
    ----------
    n_classes : int
        Number of public classes.
    size : int
        Number of trained parameters. The sum has shape (size,).
    model : str
        Description of the network, for the ledger.
    views : int, default 0
        Augmentation multiplicity K. A row's gradient is the mean over K views of the
        row, taken before the clip. 0 uses the row without augmentation.
    augment : str, default "none"
        Name of the augmentation.
    block_sum : callable, optional
        Function that returns the summation backend for `dphead.analysis.audit`. None in
        a fit, which passes its backend to `release`.

    References
    ----------
    [De22] equation 4.
    """

    size: int
    model: str
    views: int = 0
    augment: str = "none"
    block_sum: Callable[[], BlockSum] | None = field(
        default=None, repr=False, compare=False
    )
    clips: ClassVar[Literal["features", "rows", "nothing"]] = "rows"
    row_sq: ClassVar[int] = CLIP_INTEGERS**2  # C²
    replace_factor: ClassVar[int] = 4  # (2 C)²: two opposite gradients
    max_entry: ClassVar[int] = CLIP_INTEGERS

    def unit(self, clip_norm: float, append: float = 0.0) -> float:
        """Return the real value of one integer unit: C / CLIP_INTEGERS."""
        return clip_norm / CLIP_INTEGERS

    def shape(self, width: int) -> tuple[int, ...]:
        """Return the shape of the sum, (size,)."""
        return (self.size,)


class Part:
    """Hold one parameter's per-example gradients.

    The columns become float64 a few at a time, so that they fit the cache. Rows are the
    outermost dimension of the memory: torch then adds every row in the same order.

    Parameters
    ----------
    value : Tensor of shape (k, ...)
        The gradients of k rows. They are stored as float32.
    """

    def __init__(self, value: Tensor) -> None:
        # a scalar parameter has one gradient for each row
        value = value.detach()[..., None].flatten(1).float().contiguous()
        most = _GPU_FLOAT64_NUMBERS if value.is_cuda else _CPU_FLOAT64_NUMBERS
        self.columns = value.split(max(1, most // len(value)), dim=1)

    def norm2(self) -> Tensor:
        """Return squared norms (k,) in float64, for the clip factor."""
        squares = (part.double().square().sum(dim=1) for part in self.columns)
        return reduce(torch.add, squares)

    def summed(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over rows of factor_i times the gradient, and squared norms.

        Each entry of a product is truncated to a whole number first.

        Parameters
        ----------
        factor : Tensor of shape (k,), float64
            The rows' factors. A row with factor 0 adds zero.

        Returns
        -------
        tuple of (Tensor, Tensor)
            The flat sum (size,), and the squared norm (k,) of each row's whole numbers.
            float64 adds whole numbers and their squares exactly up to 2**53.
        """
        used = factor[:, None] > 0  # select rows, since nan * 0 is nan
        every = bool(used.all())
        sums, squared = [], torch.zeros_like(factor)
        for part in self.columns:
            whole = (part if every else torch.where(used, part, 0.0)).double()
            whole.mul_(factor[:, None]).div_(1, rounding_mode="trunc")
            sums.append(whole.sum(dim=0))
            squared += whole.square_().sum(dim=1)
        return torch.cat(sums), squared


def clipped(parts: list[Part], keep: Tensor, clip_norm: float) -> Tensor:
    """Return the sum (size,) over rows of min(1, C / norm) times the gradient.

    Parameters
    ----------
    parts : list of Part
        Gradients of each parameter for the same k rows.
    keep : Tensor of shape (k,), bool
        False for rows that add 0.
    clip_norm : float
        The clip norm C.

    Returns
    -------
    Tensor of shape (size,), float64
        Whole numbers, in units of C / CLIP_INTEGERS.

    Notes
    -----
    Rows that are not kept or not finite add 0. Other gradients are multiplied by
    (CLIP_INTEGERS - 1) / max(norm, C), and truncated toward zero. If rounding still
    leaves a row's whole numbers with a norm above CLIP_INTEGERS, that row adds 0.
    """
    norm2 = squared_norms(parts)
    factor = (CLIP_INTEGERS - 1) / norm2.sqrt().clamp(min=clip_norm)
    factor = torch.where(keep & torch.isfinite(norm2), factor, 0.0)
    sums, norms2 = zip(*(part.summed(factor) for part in parts), strict=True)
    squared = reduce(torch.add, norms2)
    short = torch.where(squared <= float(CLIP_INTEGERS) ** 2, factor, 0.0)
    if (short != factor).any():
        sums = [part.summed(short)[0] for part in parts]
    return torch.cat(sums)


def squared_norms(parts: list[Part]) -> Tensor:
    """Return the squared norms (k,) of the rows' full gradients, in float64.

    `Part.norm2`, `clipped` and this function add vectors one after another. If torch
    summed a stack of 17 rows or more, its order of addition would depend on the row.
    """
    return reduce(torch.add, (part.norm2() for part in parts))


class PerExample:
    """Compute per-example gradients of `model` with torch.func.

    Call `set` to give the model weights, then `parts` for each chunk of rows.

    Parameters
    ----------
    model : nn.Module
        The network.
    loss : callable, optional
        Loss of one row. torch.func calls it for each row. Default: cross entropy.

    Attributes
    ----------
    called : set of nn.Module
        The model's layers. `refuse_memory` adds other modules that the loss calls.
        `parts` leaves all of them as they were.
    errors : Errors
        The errors of torch in a call of `parts`.
    """

    def __init__(self, model: nn.Module, loss: RowLoss | None = None) -> None:
        self._model, self._loss = model, loss or of_scores()
        self.errors = Errors()
        self.called = {*model.modules()}
        self._trained = dict(trained(model))  # fixed, so that no row changes a shape

    def set(self, weights: Tensor) -> None:
        """Set the trained parameters to the values of a flat vector (size,)."""
        start = 0
        with torch.no_grad():
            for p in self._trained.values():
                p.copy_(weights[start : start + p.numel()].view_as(p))
                start += p.numel()

    def parts(self, x: Tensor, y: Tensor, share: Tensor | None = None) -> list[Part]:
        """Return each parameter's gradients of the rows' losses, averaged over views.

        Parameters
        ----------
        x : Tensor of shape (k, views, channels, h, w), float32
            The views of k rows. With `share`, (k, images, views, ...).
        y : Tensor of shape (k,)
            The classes. With `share`, (k, images).
        share : Tensor of shape (k, images), optional
            Weights of a group's images: a row's loss is the weighted sum of theirs.

        Returns
        -------
        list of Part
            One entry for each trained parameter, in the order of `trained`.
        """
        weights = {name: p.detach().clone() for name, p in self._trained.items()}

        def loss(
            weights: dict[str, Tensor], views: Tensor, label: Tensor, share: Any = None
        ) -> Tensor:
            if share is not None:  # of a group
                of_image = vmap(loss, in_dims=(None, 0, 0), randomness="error")
                return (of_image(weights, views, label) * share).sum()
            model, labels = self._model, label.expand(len(views))
            # torch.func refuses in-place changes, except of tensors of the call
            buffers = {name: one.clone() for name, one in model.named_buffers()}
            with (
                _reparametrize_module(model, weights | buffers, tie_weights=True),
                self.errors,
            ):
                return self._loss(model, views, labels)

        dims = None, 0, 0, None if share is None else 0
        # random numbers would depend on a row's place, so drawing them raises an error
        of_rows = vmap(grad(loss), in_dims=dims, randomness="error")
        with (
            # anomaly detection would show a row whose gradient is NaN
            torch.autograd.set_detect_anomaly(False),
            # trials before the charge run without the caller's autocast, so rows do too
            torch.autocast(x.device.type, enabled=False),
            without_compiler(),
            self.errors.raised(),
            unchanged(self.called),
        ):
            found = of_rows(weights, x, y, share)
        return [Part(found[name]) for name in weights]


@one_thread()  # more threads would wait for each other for over a second
def try_rows(gradients: PerExample, views: Tensor) -> Tensor:
    """Return the gradients (k, size) of some public rows.

    Parameters
    ----------
    gradients : PerExample
        The network and its loss.
    views : Tensor of shape (k, 1, channels, h, w)
        Public random rows.

    Raises
    ------
    ValueError
        If the computation raises an error: private rows would then add zero in silence.
        Also as `refuse_hooks` does.
    """
    refuse_hooks(gradients.called)
    y = torch.zeros(len(views), dtype=torch.int64, device=views.device)
    try:
        parts = gradients.parts(views.clone(), y)  # a loss may change its input
    # for example, a module keeps a tensor, or does not know a token
    except Exception as error:
        raise ValueError(
            "dphead cannot compute gradients of the module and the loss "
            f"({first_line(error)}). They must not keep state between images, and must "
            "work under torch.func.vmap. Remove random numbers, layers that keep "
            "tensors, branches that depend on values, `try` blocks that catch errors, "
            "and `torch.compile`. Call `eval()` on the other modules that the loss "
            "calls. If rows are tokens, check `vocabulary`."
        ) from error
    return torch.cat([part for one in parts for part in one.columns], dim=1)


@one_thread()  # as in `try_rows`
def refuse_memory(gradients: PerExample, views: Tensor) -> None:
    """Raise ValueError if other rows or chance change the gradient of a row.

    Also if the code keeps tensors of rows or has hooks, or if the loss does not depend
    on the trained parameters.

    The user's module or loss could keep values in Python between calls, or see all rows
    of a chunk in a `vmap` rule of its own. The check detects effects within a few
    calls, and tensors of rows that are kept. Beyond that, the user's code is trusted
    (AUDIT.md).

    Parameters
    ----------
    gradients : PerExample
        The network and its loss. Its `called` gets the modules that the loss called.
        None of them may have hooks.
    views : Tensor of shape (3, 1, channels, h, w)
        Public random rows.
    """
    called = Called()
    with _FREEZING:
        hook = register_module_forward_pre_hook(called)
        # exclude tensors of an earlier trial, which a traceback may hold
        gc.freeze()
        try:
            alone = [try_rows(gradients, x)[0] for x in views.split(1)]
            (again,), chunk = (try_rows(gradients, x) for x in (views[:1], views))
            # torch.func wraps every tensor that it computes from rows
            kept = [
                weakref.ref(one)
                for one in gc.get_objects()
                if issubclass(type(one), Tensor)
                and _functorch.is_functorch_wrapped_tensor(one)
            ]
        finally:
            hook.remove()
            gc.unfreeze()
    gradients.called |= called
    refuse_hooks(called)
    if not alone[0].any():
        raise ValueError(
            "The loss of a random image does not depend on the trained parameters. "
            "Compute it with the module that the loss gets, and no other."
        )
    if _moved(alone[0], again):
        raise ValueError(
            "The gradient of an image depends on earlier images or on chance: a second "
            "call gave a different gradient. Remove random numbers, and state that the "
            "module or the loss keeps between calls."
        )
    if sum(map(_moved, alone, chunk)) > 1:
        raise ValueError(
            "The gradient of an image must not depend on other images of its chunk. "
            "Remove code that sees all of them, such as the `vmap` rule of a "
            "torch.autograd.Function."
        )
    if kept:
        gc.collect()  # torch's own reference cycles do not count as use
    end = time.monotonic() + (_OTHERS_SECONDS if threading.active_count() > 1 else 0)
    while any(one() is not None for one in kept):
        if time.monotonic() >= end:
            raise ValueError(
                "The module or the loss keeps a tensor of an image after the gradient. "
                "Remove the code that stores it."
            )
        time.sleep(0.01)


def _moved(one: Tensor, other: Tensor) -> bool:
    """Return whether two gradients of a row differ by more than 1e-3 of their norm.

    This is far above float32's rounding. A value that the code keeps between calls is
    not detected if its effect is smaller.
    """
    same = (one == other) | (one.isnan() & other.isnan())
    pair = torch.where(same, 0.0, one - other), one.nan_to_num(0.0, 0.0, 0.0)
    moved, size = (torch.linalg.vector_norm(v, dtype=torch.float64) for v in pair)
    return not bool(moved <= 1e-3 * size)
