"""Load the head or the network of a dphead run as a PyTorch module.

`dphead export` writes this file as `head.py`. The file imports only torch and
safetensors at its top.

head, classes = load_head(folder)            # of `dphead export --to torch`
model, prepare, classes = load_model(folder) # of `dphead export --to timm`
network, classes = load_network(folder)      # of `dphead finetune`, --to torch
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

# links of dphead's losses; a test compares the two lists
LINKS = ("softmax", "sigmoid")


class Head(nn.Linear):
    """Compute scores = transform(x) @ weight.T + bias.

    `facts` is the content of head.json. Load the weights with `load_state_dict`.

    A row that is not finite has no class, and its scores and probabilities are NaN. The
    transform acts on one row at a time: project onto the axes (`axes` is their number),
    divide by the norm (unit_norm), subtract center, multiply by scale, and divide by
    the norm again (unit_norm with a center). It then shortens a row that is longer than
    feature_clip to this norm.

    `link` gives probabilities: "softmax" of the scores, or each class's "sigmoid"
    divided by their sum. Raises ValueError for an unknown link.
    """

    axes: Tensor | None
    center: Tensor | None
    scale: Tensor | None

    def __init__(self, facts: dict[str, Any]):
        self.link = facts["link"]
        if self.link not in LINKS:
            raise ValueError(
                f"link must be one of {', '.join(LINKS)}, got {self.link}. Export the "
                "run again with `dphead export`."
            )
        axes = facts["axes"] and (facts["axes"], facts["n_features"])
        width = facts["axes"] or facts["n_features"]
        super().__init__(width, len(facts["class_names"]))
        self.unit_norm, self.feature_clip = facts["unit_norm"], facts["feature_clip"]
        self.register_buffer("axes", torch.zeros(axes) if axes else None)
        for name in ("center", "scale"):
            self.register_buffer(name, torch.zeros(width) if facts[name] else None)

    def forward(self, input: Tensor) -> Tensor:
        """Return scores (..., n_classes) of features (..., n_features).

        Scores are float32, or the wider type of the weights.
        """
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        x = input.float().to(wide)  # dphead also rounds features to float32
        finite = torch.isfinite(x).all(dim=-1, keepdim=True)
        if self.axes is not None:
            size = _or_one(x.abs().amax(dim=-1, keepdim=True))  # no product overflows
            x = nn.functional.linear(x / size, self.axes.to(wide)) * size
        if self.unit_norm:
            x = _unit(x)
        if self.center is not None:
            x = x - self.center.to(wide)
        if self.scale is not None:
            x = x * self.scale.to(wide)
        finite = finite & torch.isfinite(x).all(dim=-1, keepdim=True)
        if self.unit_norm and self.center is not None:
            x = _unit(x)
        if self.feature_clip is not None:
            unit = _unit(x)
            # a row's norm is its product with the unit row; infinite if it overflows
            longer = (x * unit).sum(dim=-1, keepdim=True) > self.feature_clip
            x = torch.where(longer, unit * self.feature_clip, x)
        x = torch.where(finite, x, torch.full_like(x, torch.nan))
        return nn.functional.linear(x, self.weight.to(wide), self.bias.to(wide))

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return probabilities (..., n_classes) of finite scores.

        They are NaN for a row with a score of NaN.
        """
        if self.link == "sigmoid":
            two = scores.shape[-1] == 2
            scores = scores / 2 if two else nn.functional.logsigmoid(scores)
        return torch.softmax(scores, dim=-1)

    def classes(self, scores: Tensor) -> Tensor:
        """Return the index (...) of the highest score, or -1 if a score is not finite.

        Do not index a list with -1, which is its last entry in Python.
        """
        return _classes(scores)


class NormalizedNetwork(nn.Module):
    """Compute scores of images (n, channels, h, w) from 0 to 1, or of other rows.

    The network normalizes its input as in training: subtract `mean`, divide by `std`.
    With `tokens`, the input has whole numbers, which the network gets as int64.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        shape: Any,
        mean: Tensor,
        std: Tensor,
        tokens: bool = False,
    ):
        super().__init__()
        self.model, self.shape, self.tokens = model, tuple(shape), tokens
        self.register_buffer("mean", mean.float())
        self.register_buffer("std", std.float())

    def forward(self, rows: Tensor) -> Tensor:
        """Return scores (n, n_classes) of rows."""
        rows = rows.reshape(-1, *self.shape)
        rows = rows.long() if self.tokens else (rows - self.mean) / self.std
        return self.model(rows).float()

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return softmax probabilities (..., n_classes).

        They are NaN for a row with a score of NaN or +inf.
        """
        return torch.softmax(scores, dim=-1)

    def classes(self, scores: Tensor) -> Tensor:
        """Return the index (...) of the highest score, or -1, as in `Head`."""
        return _classes(scores)


def _classes(scores: Tensor) -> Tensor:
    known = torch.isfinite(scores).all(dim=-1)
    best = scores.argmax(dim=-1)
    return torch.where(known, best, torch.full_like(best, -1))


def _unit(x: Tensor) -> Tensor:
    """Return rows divided by their norm. Rows of zeros stay zero.

    Dividing by the largest entry first avoids overflow and underflow of squares.
    """
    x = x / _or_one(x.abs().amax(dim=-1, keepdim=True))
    return x / _or_one((x * x).sum(dim=-1, keepdim=True).sqrt())


def _or_one(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, torch.ones_like(size))


def load_head(folder: str | Path) -> tuple[Head, list[str]]:
    """Return the head in eval mode, and its class names."""
    facts = _facts(folder)
    head = Head(facts)
    # keep the file's types: float64 if float32 cannot hold the weights
    head.load_state_dict(load_file(Path(folder) / "head.safetensors"), assign=True)
    return head.eval(), facts["class_names"]


def load_network(
    folder: str | Path, model: nn.Module | None = None
) -> tuple[NormalizedNetwork, list[str]]:
    """Return the network in eval mode, and its class names.

    `model` is required if the network is a module of your own. Pass a module with the
    same architecture. Without it, ValueError is raised.
    """
    facts = _facts(folder)
    own, classes = facts["network"], facts["class_names"]
    name, channels = own["model"], facts["shape"][0]
    if model is None and ":" in name:
        raise ValueError(
            f"the network {name} is your own code. Build the module, and pass it as "
            "`model`."
        )
    from dphead.finetune.architectures import by_name, convert_batch_norms

    if model is None and name.startswith(("wrn-", "tb21-")):
        norms = (own["groups"], own["standardize"], own["norm"])
        model = by_name(name, len(classes), channels, *norms)
    if model is None:
        import timm

        model = timm.create_model(name, num_classes=len(classes), in_chans=channels)
    convert_batch_norms(model, own["batch_norm"])
    mean, std = (torch.empty(size) for size in facts["scales"])
    tokens = own.get("vocabulary") is not None
    network = NormalizedNetwork(model, facts["shape"], mean, std, tokens)
    network.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return network.eval(), classes


def load_model(folder: str | Path) -> tuple[nn.Module, Callable[[Any], Tensor], Any]:
    """Return a timm model with the head as classifier, its transform and its classes.

    The model is in eval mode. The transform decodes an image file as in the extraction,
    and returns (channels, height, width).
    """
    import timm
    from dphead_extract.images import open_picture
    from timm import data

    facts = _facts(folder)
    made = facts["timm"]
    n_classes = len(facts["class_names"])
    arguments = made["model_args"] | {"num_classes": n_classes}
    model = timm.create_model(made["architecture"], pretrained=False, **arguments)
    model.set_submodule(made["classifier"], Head(facts))
    model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    library: Any = data  # timm.data lacks types
    transform = library.create_transform(**made["transform"], is_training=False)

    def prepare(file: str | Path) -> Tensor:
        return transform(open_picture(file, folder))

    return model.eval(), prepare, facts["class_names"]


def _facts(folder: str | Path) -> dict[str, Any]:
    return json.loads((Path(folder) / "head.json").read_text())
