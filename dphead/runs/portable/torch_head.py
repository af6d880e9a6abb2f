"""The head of a dphead run as a PyTorch module. `dphead export` copies this file to
`head.py`, so nothing but torch and safetensors may be imported at its top.

head, classes = load_head(folder)            # of `dphead export --to torch`
model, prepare, classes = load_model(folder) # of `dphead export --to timm`
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

SMALLEST = 1e-30  # a squared norm below it counts as zero, as in dphead
LOSSES = ("softmax", "sigmoid", "squared")  # dphead's; a test holds them equal


class Head(nn.Linear):
    """scores = transform(x) @ weight.T + bias; a row that is not finite scores bias.

    The transform acts on each row by itself: divide by the norm (unit_norm), subtract
    center, multiply by scale, divide by the norm again (unit_norm with a center).

    loss: how scores become probabilities ("softmax", "sigmoid", or "squared", whose
    scores are not calibrated). ValueError for another.
    """

    center: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        unit_norm: bool = False,
        center: bool = False,
        scale: bool = False,
        loss: str = "softmax",
    ):
        if loss not in LOSSES:
            raise ValueError(
                f"loss must be one of {', '.join(LOSSES)}, got {loss=}. Export again."
            )
        super().__init__(n_features, n_classes)
        self.unit_norm, self.loss = unit_norm, loss
        self.register_buffer("center", torch.zeros(n_features) if center else None)
        self.register_buffer("scale", torch.ones(n_features) if scale else None)

    def forward(self, input: Tensor) -> Tensor:
        """Scores (..., n_classes) float32 of features (..., n_features)."""
        x = input.float()
        squared = _squared(x)
        finite = torch.isfinite(squared)
        if self.unit_norm:
            x = _unit(x, squared)
        if self.center is not None:
            x = x - self.center
        if self.scale is not None:
            x = x * self.scale
        squared = _squared(x)
        finite = finite & torch.isfinite(squared)
        if self.unit_norm and self.center is not None:
            x = _unit(x, squared)
        return super().forward(torch.where(finite, x, torch.zeros_like(x)))

    def probabilities(self, scores: Tensor) -> Tensor:
        """(..., n_classes) of scores; they add up to one."""
        if self.loss == "sigmoid":
            two = scores.shape[-1] == 2
            scores = scores / 2 if two else nn.functional.logsigmoid(scores)
        return torch.softmax(scores, dim=-1)


def _squared(x: Tensor) -> Tensor:
    return (x * x).sum(dim=-1, keepdim=True)


def _unit(x: Tensor, squared: Tensor) -> Tensor:
    """Rows of norm one; those too small to divide by become zeros."""
    known = squared > SMALLEST
    inverse = 1 / torch.sqrt(torch.where(known, squared, torch.ones_like(squared)))
    return x * torch.where(known, inverse, torch.zeros_like(inverse))


def load_head(folder: str | Path) -> tuple[Head, list[str]]:
    """(the head in eval mode, its classes' names)."""
    facts = _facts(folder)
    head = _empty(facts)
    head.load_state_dict(load_file(Path(folder) / "head.safetensors"))
    return head.eval(), facts["class_names"]


def load_model(folder: str | Path) -> tuple[nn.Module, Callable[[Any], Tensor], Any]:
    """(a timm model whose classifier is the head, in eval mode; its transform, from a
    PIL image to (channels, height, width); its classes' names).
    """
    import timm
    from timm import data

    facts = _facts(folder)
    made = facts["timm"]
    n_classes = len(facts["class_names"])
    arguments = made["model_args"] | {"num_classes": n_classes}
    model = timm.create_model(made["architecture"], pretrained=False, **arguments)
    model.set_submodule(made["classifier"], _empty(facts))
    model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    library: Any = data  # it does not say what it exports
    prepare = library.create_transform(**made["transform"], is_training=False)
    return model.eval(), prepare, facts["class_names"]


def _facts(folder: str | Path) -> dict[str, Any]:
    return json.loads((Path(folder) / "head.json").read_text())


def _empty(facts: dict[str, Any]) -> Head:
    """A head of the right shape, to be filled."""
    names = ("n_features", "unit_norm", "center", "scale", "loss")
    return Head(
        n_classes=len(facts["class_names"]), **{name: facts[name] for name in names}
    )
