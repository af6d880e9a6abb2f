"""Build a network, load weights, and refuse networks that mix rows.

The network is one of `architectures`, a timm model, or a user's module.
"""

import gc
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from itertools import chain
from logging import Logger
from pathlib import Path
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any

import torch
from dphead_extract.backbones.weights import (
    check_finite,
    config_beside,
    first_line,
    read_state,
)
from dphead_extract.compiler import import_timm
from dphead_extract.threads import one_thread
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.jit import (
    is_tracing,  # pyright: ignore[reportPrivateImportUsage] - documented
)
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dphead.finetune.adapters import adapt
from dphead.finetune.architectures import by_name, convert_batch_norms
from dphead.finetune.errors import Errors
from dphead.finetune.options import Scale
from dphead.finetune.settings import ModelSpec
from dphead.privacy.python_values import python_value
from dphead.solvers.settings import is_a, typed

# Bounds of `mean` and `std`, for pixels in [0, 1]. Chosen, not measured.
_MOST_SCALE, _LEAST_STD = 1e6, 1e-6

# takes float32 scores (k, n_classes) and labels (k,), and returns losses (k,) or their
# mean
NetworkLoss = Callable[[Tensor, Tensor], Tensor]
# takes a module and one row's views (k, ...) and labels (k,), and returns its loss
RowLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
# types of attributes: those that hold no further objects, and containers
_PLAIN = {int, float, bool, str, type(None)}
_CONTAINERS = (dict, list, set, frozenset, deque, tuple)
# where a module keeps hooks, which could keep rows
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def build_network(
    spec: ModelSpec, n_classes: int, channels: int = 3, module: nn.Module | None = None
) -> nn.Module:
    """Return the network in training mode, on the CPU or the device of `module`.

    Parameters
    ----------
    spec : ModelSpec
        The network's name and options.
    n_classes : int
        Number of public classes.
    channels : int, default 3
        Image channels (timm models and Wide-ResNets).
    module : nn.Module, optional
        The user's own network, which is copied. Its weights are public.

    Returns
    -------
    nn.Module
        The network. Only its trained parameters require a gradient. Layers with frozen
        statistics are in evaluation mode.

    Raises
    ------
    ValueError
        If the name is unknown, the weights do not match, or `layers` matches no
        parameter. If `refuse_mixing` raises it, or a tensor is of a kind that dphead
        cannot train.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.init_seed)
        if module is not None:
            model = _copied(module).train()
        elif spec.of_user:
            model = _of_user(spec.model, n_classes)
        elif spec.of_timm:
            model = _of_timm(spec.model, n_classes, channels)
        else:
            model = by_name(
                spec.model,
                n_classes,
                channels,
                spec.groups,
                spec.standardize,
                spec.norm,
            )
            _initialize(model)
    if spec.weights is not None:
        load_public_weights(model, spec.weights)
    convert_batch_norms(model, spec.batch_norm)
    _make_deterministic(model)
    refuse_mixing(model)
    _choose(model, spec)
    saved = model.state_dict()
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        sparse = name in saved and value.layout is not torch.strided
        if sparse or value.is_meta or (value.requires_grad and value.is_complex()):
            raise ValueError(
                f"dphead cannot train --model with {name}, a {value.layout} tensor of "
                f"{value.dtype} on {value.device}. Load values for a tensor on meta, "
                "train real numbers only, and register a sparse buffer with "
                "`persistent=False`."
            )
    return model


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of the user's module that shares no layer or tensor with it.

    Otherwise a hook or a buffer of the user's module could see the rows of the copy.
    Raises ValueError if the module cannot be copied in this way.
    """
    try:
        model = deepcopy(module)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(
            f"dphead cannot copy the module ({first_line(error)}). Remove attributes "
            "that `copy.deepcopy` cannot copy."
        ) from error
    if _parts_of(module) & (_parts_of(model) | _used_by_functions(model)):
        raise ValueError(
            "a copy of the module shares layers or tensors with the module. Remove the "
            "`__deepcopy__` of its layers. Replace functions that use a layer, such as "
            "a lambda that `__init__` stores, by methods."
        )
    return model


def _used_by_functions(module: nn.Module) -> set[int]:
    """Return the ids of objects in the closures of functions that layers store.

    `deepcopy` does not copy functions, so a copy of the layers uses the same objects.
    """
    stored = chain.from_iterable(vars(layer).values() for layer in module.modules())
    cells = (f.__closure__ or () for f in stored if isinstance(f, FunctionType))
    used = gc.get_referents(*chain.from_iterable(cells))
    return {id(getattr(one, "__self__", one)) for one in used}


def _parts_of(module: nn.Module) -> set[int]:
    """Return the ids of a module's layers, and the memory addresses of its tensors."""
    found = {
        one.untyped_storage().data_ptr()
        for one in chain(module.parameters(), module.buffers())
        if one.layout is torch.strided
    }
    return found.union(map(id, module.modules())) - {0}  # 0: no memory


@contextmanager
def unchanged(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give modules clones of their tensors for a `with` block, then restore all.

    Afterwards tensors, attributes, layers, hooks and containers are as before, even if
    code writes to weights in place, or an error ends the block. Other objects that code
    changes in place, such as numpy arrays, stay changed. Without this function,
    torch.func would leave its tensors in a layer that has two names, in an RNN's list
    of weights, and in the cache of `parametrize.cached`, which all threads share.
    """
    parametrize._cache.clear()
    held = _held(modules)
    clones: dict[Tensor, Tensor] = {}  # one of each tensor, even if layers share it
    try:
        for own, kept in held:
            if isinstance(own, dict | list):
                items = kept.items() if isinstance(own, dict) else enumerate(kept)
                for name, value in items:
                    if isinstance(value, Tensor):
                        own[name] = clones.setdefault(value, value.detach().clone())
        yield
    finally:
        parametrize._cache.clear()
        for own, kept in held:
            # Compare by identity, because `!=` of tensors raises an error. Leave an
            # unchanged container alone: other threads may use it, and
            # `Counter.update` adds.
            if [*map(id, own)] != [*map(id, kept)]:
                own.clear()
                (own.extend if isinstance(own, list | deque) else own.update)(kept)
            elif isinstance(own, dict):
                for name, value in kept.items():
                    if own[name] is not value:
                        own[name] = value


def _held(roots: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return (container, copy) of all containers that attributes reach, at any depth.

    An object's attributes are in its `__dict__`, which is a container too.
    """
    held: dict[int, tuple[Any, Any]] = {}
    todo = [*roots]
    for one in todo:  # the loop appends to it
        # Python modules and loggers belong to the process, and noted errors to dphead
        if type(one) in _PLAIN or isinstance(one, ModuleType | Logger | Errors):
            continue
        for own in (one, getattr(one, "__dict__", ())):
            if isinstance(own, _CONTAINERS) and id(own) not in held:
                kept = dict(own) if isinstance(own, dict) else [*own]
                held[id(own)] = own, kept
                todo += kept.values() if isinstance(kept, dict) else kept
    return [*held.values()]


def _of_timm(name: str, n_classes: int, channels: int) -> nn.Module:
    """Return a timm model."""
    try:
        # timm also takes a folder or a hub, but reports would publish the path
        if not import_timm().is_model(name):
            raise RuntimeError("no model has this name, and a path needs --weights")
        return import_timm().create_model(
            name, num_classes=n_classes, in_chans=channels
        )
    except RuntimeError as error:  # unknown names, and unknown tags of weights
        raise ValueError(
            f"timm cannot make --model {name} ({first_line(error)}). Use a timm model "
            "(`timm.list_models()` lists them), wrn-DEPTH-WIDTH, tb21-NAME or "
            "package.module:function."
        ) from error


def is_users(spec: ModelSpec) -> bool:
    """Return whether a network has code of the user, even under a timm name."""
    if not spec.of_timm:
        return spec.of_user
    known = import_timm().models
    # a module of the user's own can have any name
    if not known.is_model(spec.model):
        return True
    made = known.model_entrypoint(spec.model)
    # `__module__` does not tell: timm's deprecated names and `functools.wraps` set it
    return vars(known).get(made.__name__) is not made


def _of_user(name: str, n_classes: int) -> nn.Module:
    """Return the module that package.module:function makes for n_classes classes.

    Python imports the package from its path or from the working directory.
    """
    place, function = name.split(":")
    before = sys.path.copy()
    sys.path.append("")
    doing = "import"
    remedy = "Correct the name, install the package, or run dphead in its folder."
    try:
        make = getattr(import_module(place), function)
        doing = f"call with {n_classes} classes"
        remedy = "Correct the function: it takes the number of classes."
        made = make(n_classes)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(
            f"dphead cannot {doing} the function of --model {name} "
            f"({type(error).__name__}: {first_line(error)}). {remedy}"
        ) from error
    finally:
        sys.path[:] = before
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"--model {name} must return a torch.nn.Module, got "
            f"{type(made).__name__}. Return the module from {function}."
        )
    return made.train()


def _make_deterministic(model: nn.Module) -> None:
    """Set the rates of dropout and stochastic depth to 0, as De22 C.1 does.

    Also choose timm's attention that `vmap` can compute for all rows at once.
    """
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            # for fused attention, vmap would use a loop over rows
            vars(module)["fused_attn"] = False
        drops = any(w in type(module).__name__.lower() for w in ("drop", "stochastic"))
        # attention and recurrent layers call their rate "dropout"
        for field in ("p", "drop_prob", "dropout") if drops else ("dropout",):
            if isinstance(getattr(module, field, None), float):
                setattr(module, field, 0.0)


def _choose(model: nn.Module, spec: ModelSpec) -> None:
    """Freeze the parameters that match no pattern, or that the adapter does not train.

    Without patterns and without an adapter, this freezes nothing.
    """
    patterns = spec.layers
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    try:
        found = {
            pattern: {name for name in names if re.search(pattern, name)}
            for pattern in patterns
        }
    except (re.error, TypeError) as error:
        raise ValueError(
            f"--layers must be regular expressions, got {typed(patterns)} ({error}). "
            "Escape special characters with a backslash."
        ) from None
    if not names:
        raise ValueError("--model has no parameters to train. Choose another model.")
    if unknown := [pattern for pattern, of in found.items() if not of]:
        raise ValueError(
            f"--layers {unknown[0]} matches no parameter of the model. Use names "
            f"such as {', '.join(names[:4])}."
        )
    chosen = set().union(*found.values()) if patterns else {*names}
    if spec.adapter != "none":
        adapt(model, spec.adapter, spec.rank, spec.init_seed, chosen.__contains__)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in chosen)


def pixel_scale(
    spec: ModelSpec, channels: int, mean: Scale | None = None, std: Scale | None = None
) -> tuple[Scale, Scale]:
    """Return (mean, std) of pixels in [0, 1], as given or as the model's default.

    The default of a timm model is in config.json beside its weights, else in timm. For
    other models, and if timm has none, it is 0.5 and 0.25. A default has one number per
    channel. Raises ValueError if numbers are out of range or their count is wrong.
    """
    config: Any = None
    if spec.of_timm:
        config = import_timm().get_pretrained_cfg(spec.model)
    own = ((0.5,), (0.25,)) if config is None else (config.mean, config.std)
    beside = config_beside(Path(spec.weights)) if spec.weights else None
    if config is not None and beside and beside["architecture"] == config.architecture:
        values = beside.get("pretrained_cfg") or beside
        own = values.get("mean") or own[0], values.get("std") or own[1]
    own = [
        tuple(v) if len(v) == channels else (sum(v) / len(v),) * channels for v in own
    ]
    found = own[0] if mean is None else mean, own[1] if std is None else std
    found = python_value(found)
    _check_scale("mean", found[0], channels, -_MOST_SCALE)
    _check_scale("std", found[1], channels, _LEAST_STD)
    return found


def _check_scale(name: str, value: Scale, channels: int, least: float) -> None:
    """Raise ValueError unless `value` is one number in range, or one per channel."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if len(parts) not in (1, channels) or not all(
        is_a(part, float) and least <= part <= _MOST_SCALE for part in parts
    ):
        raise ValueError(
            f"--{name} must be a number from {least:g} to {_MOST_SCALE:g}, or one for "
            f"each of {channels} channels, got {typed(value)}. Pass one number."
        )


class Called(set[nn.Module]):
    """Record the modules that one thread calls, as a global hook of torch.

    The thread is the one that makes this object.
    """

    def __init__(self) -> None:
        self._thread = get_ident()

    def __call__(self, module: nn.Module, _: object) -> None:
        """Record a module. Only torch calls this."""
        if get_ident() == self._thread:
            self.add(module)


def refuse_hooks(modules: Iterable[nn.Module]) -> None:
    """Raise ValueError if the user gave torch a hook or mode, which would see rows.

    Also if torch.jit traces the caller, or if torch compiled one of `modules`. Hooks
    for saved tensors raise RuntimeError. The mode of a default device is allowed.
    `modules` are the network's layers, and other modules that a loss calls.
    """
    for mode in (
        *_get_current_function_mode_stack(),
        *_get_current_dispatch_mode_stack(),
    ):
        if type(mode) is not DeviceContext:
            raise ValueError(
                f"torch has a mode ({type(mode).__name__}) that would see the rows of "
                "every operation. Leave the `with` block of this mode."
            )
    if is_tracing():
        raise ValueError(
            "torch.jit traces the caller, and its graph would keep rows. Call dphead "
            "outside of torch.jit.trace."
        )
    # raises the error if there are such hooks
    with disable_saved_tensors_hooks(
        "torch has hooks for saved tensors, which would see rows. Leave the `with` "
        "block of these hooks, such as save_on_cpu."
    ):
        pass
    for kind, hooks in vars(nn.modules.module).items():
        if kind.endswith("_hooks") and not all(
            isinstance(hook, Called) for hook in hooks.values()
        ):
            raise ValueError(
                f"torch has a global hook ({kind}) that would see the rows of every "
                "module. Remove the hook."
            )
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
            raise ValueError(
                f"the network or its loss calls a {type(module).__name__} that torch "
                "compiled. Use the module without torch.jit and torch.compile."
            )
        if hooks := [kind for kind in _HOOKS if vars(module).get(f"_{kind}")]:
            raise ValueError(
                f"the network or its loss calls a {type(module).__name__} with "
                f"{hooks[0]}, which would see rows. Remove the hook. For "
                "weight_norm or spectral_norm, use torch.nn.utils.parametrizations."
            )


def refuse_mixing(model: nn.Module) -> None:
    """Raise ValueError if a layer's type mixes rows or keeps state that is no tensor.

    Raises the errors of `refuse_hooks` too. `refuse_moving` tests layers of other
    types, once the image size is known.
    """
    refuse_hooks(model.modules())
    for name, module in model.named_modules():
        mixing = isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(
            module, "track_running_stats", False
        )
        has_statistics = getattr(module, "running_mean", None) is not None
        if mixing and (module.training or not has_statistics):
            raise ValueError(
                f"--model has layer {name or 'model'} ({type(module).__name__}), which "
                "mixes the images of a batch. Add --batch-norm freeze for its public "
                "statistics, or --batch-norm group for group norms instead."
            )
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(
                f"--model has layer {name or 'model'}, which keeps state that is not a "
                "tensor. Remove its `get_extra_state`."
            )


@one_thread()  # as in `try_rows` of gradients.py
def refuse_moving(model: nn.Module, x: Tensor, other: Tensor) -> Tensor:
    """Return scores (k, n_classes) of random rows, after a check that rows do not mix.

    The check compares the outputs of the first row in two batches with different other
    rows. It also finds layers that `refuse_mixing` does not know, if their effect is
    not small.

    Parameters
    ----------
    model : nn.Module
        The network.
    x, other : Tensor of shape (k, ...)
        Public random rows.

    Raises
    ------
    ValueError
        If scores are not finite. With the layer's name, if a row's output depends on
        other rows or on chance.
    """
    other = torch.cat([x[:1], other[1:]])
    first, scores = _outputs(model, x)
    check_finite(model, scores, "scores")
    second, _ = _outputs(model, other)
    for name, value in first.items():
        # this tolerance is far above float32's rounding
        if len(value) == len(x) and not torch.allclose(
            value[0], second[name][0], rtol=1e-3, atol=1e-4
        ):
            raise ValueError(
                f"--model has layer {name} with an output that depends on other images "
                "of the batch, or is random. Remove this layer."
            )
    return scores


def bits(value: Tensor) -> bytes:
    """Return the bytes of a tensor, to compare tensors that may have NaN."""
    data = value.detach().to_dense().cpu().contiguous().view(-1).view(torch.uint8)
    return data.numpy().tobytes()


def _outputs(model: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], Any]:
    """Return the first output of every layer by name, and the model's output."""
    seen: dict[str, Tensor] = {}
    with torch.no_grad(), unchanged(model.modules()):  # which removes the hooks
        for name, module in model.named_modules():

            def keep(
                _: object, __: object, output: object, name: str = name or "model"
            ) -> None:
                if isinstance(output, Tensor) and output.dim():
                    seen.setdefault(name, output.detach())

            module.register_forward_hook(keep)
        return seen, model(x)


def load_public_weights(model: nn.Module, path: str) -> None:
    """Load public weights from a safetensors file or a state dict.

    If the last linear layer is missing or has a different shape in the file, it keeps
    its initial weights. Raises ValueError if the file is unreadable, or if any other
    parameter, or a statistic of a batch norm, is missing or has a different shape.
    """
    state = read_state(Path(path))
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    head = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    ][-1:]
    free = {f"{name}.{kind}" for name in head for kind in ("weight", "bias")}
    needed = [name for name, _ in model.named_parameters() if name not in free]
    # the statistics of frozen batch norms must come from the weights file
    needed += [name for name in own if name.endswith(("running_mean", "running_var"))]
    missing = [name for name in needed if name not in fitting]
    if missing:
        raise ValueError(
            f"{path} (--weights) lacks {', '.join(missing[:3])} in the model's shape. "
            "Use the model and image size that the weights were trained with."
        )
    model.load_state_dict(fitting, strict=False)


def _initialize(model: nn.Module) -> None:
    """Draw Conv2d and Linear weights from N(0, 1 / fan_in); biases are 0 [De22 C.1]."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=1 / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return an iterator of (name, parameter) of trained parameters, in fixed order."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def flat(model: nn.Module) -> Tensor:
    """Return the trained parameters as one vector (size,)."""
    return torch.cat([p.detach().reshape(-1) for _, p in trained(model)])


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cross entropy (k,), in float32."""
    return F.cross_entropy(scores, labels, reduction="none")


def of_scores(loss: NetworkLoss = loss_of, bf16: bool = False) -> RowLoss:
    """Return a row's loss as a function: the mean of `loss` over the row's views.

    With `bf16`, the network computes products in bfloat16.
    """

    def row_loss(model: nn.Module, views: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(views.device.type, torch.bfloat16, enabled=bf16):
            scores = model(views)
        return loss(scores.float(), labels).mean()

    return row_loss


def name_of(module: nn.Module) -> str:
    """Return package.module:class of a module."""
    kind = type(module)
    return f"{kind.__module__}:{kind.__name__}"
