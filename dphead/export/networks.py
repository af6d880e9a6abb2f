"""Export a head to timm or ONNX, with its backbone if that is a timm model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dphead_extract.backbones.base import Backbone
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.backbones.timm_models import timm_model
from dphead_extract.images import with_channels
from dphead_extract.normalization import RowNorm
from safetensors.torch import save
from torch import Tensor, nn

from dphead.export.heads import tried_rows, write_code
from dphead.export.pictures import transformed
from dphead.export.torch_head import Head, NormalizedNetwork, load_model
from dphead.export.trained import (
    Format,
    Trained,
    Written,
    described,
    file_metadata,
    tensors_of,
    write_plain_json,
)
from dphead.fit.files import backbone_options
from dphead.privacy.transform import RowTransform

_TRIED = 4  # number of random images or other rows; chosen
_OPSET = 18  # ONNX opset that torch's exporter writes without a conversion


class Answers(nn.Module):
    """Compute scores, probabilities and classes of rows by a head or a network."""

    def __init__(self, head: Head | NormalizedNetwork):
        super().__init__()
        self.head = head

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probabilities (n, n_classes), and classes (n,) or -1."""
        scores = self.head(rows)
        return scores, self.head.probabilities(scores), self.head.classes(scores)


class _Classifier(Answers):
    """Compute scores, probabilities and classes of images by backbone and head.

    Images (n, channels, height, width) have values from 0 to 1 and the backbone's size.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, norm: RowNorm, head: Head):
        super().__init__(head)
        self.network, self.norm = backbone.module, norm
        self.mirror, self.input_shape = backbone.mirror, backbone.input_shape
        self.prepare = backbone.prepare
        for name in ("mean", "std"):
            values = torch.tensor(backbone.transform[name], dtype=torch.float32)
            self.register_buffer(name, values.reshape(-1, 1, 1))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, probabilities and classes of images.

        Features are computed as in the extraction.
        """
        x = (rows - self.mean) / self.std
        features = self.norm(self.network(x))
        if self.mirror:
            features = (features + self.norm(self.network(x.flip(-1)))) / 2
        return super().forward(features)


def _torch_head(trained: Trained) -> Head:
    """Return the head as a module, in eval mode."""
    tensors = tensors_of(trained.linear)
    head = Head(described(trained, tensors))
    state = {k: torch.from_numpy(v) for k, v in tensors.items()}
    head.load_state_dict(state, assign=True)
    return head.eval()


def _write_timm(trained: Trained, folder: Path) -> Written:
    """Write model.safetensors, head.json, and a head.py that loads them.

    If the head has neither a unit norm nor a feature clip, timm's config.json is also
    written, for `timm.create_model("local-dir:...")`.

    Raises
    ------
    ValueError
        If the features are not from a timm backbone, or need more than a timm model
        (normalization, mirrored images, axes). If the backbone's weights differ, or it
        does not end in one linear classifier.
    """
    extraction = trained.facts["extraction"]
    classifier = _classifier(trained)
    kind = extraction["normalization"]["kind"]
    axes = extraction["transform"].get("axes")
    if kind != "none" or classifier.mirror or axes is not None:
        raise ValueError(
            "--to timm needs plain features of the backbone, got --normalize "
            f"{kind}, --mirror {classifier.mirror}, --axes {axes}. Use --to onnx."
        )
    trained = _folded(trained)
    model, _ = timm_model(backbone_options(extraction, trained.weights))
    name = _name_of_classifier(model)
    model.set_submodule(name, _torch_head(trained))
    save_tensors(model, trained, folder)
    facts = described(trained, tensors_of(trained.linear))
    facts["timm"] = _timm_facts(model, name, extraction)
    write_plain_json(folder / "head.json", facts)
    if not trained.linear.transform.unit_norm and trained.linear.feature_clip is None:
        made = facts["timm"] | {"num_features": facts["n_features"]}
        write_timm_config(folder, made, facts["class_names"], model)
    write_code("torch_head.py", folder / "head.py")
    return answered(classifier, random_rows(classifier.input_shape), "images")


def _load_timm(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    model = load_model(folder)[0]
    return timm_scores(model, trained.facts["extraction"]["transform"])


def timm_scores(
    model: nn.Module, config: dict[str, Any]
) -> Callable[[np.ndarray], Tensor]:
    """Return a function from images to a timm model's scores.

    `config` has the mean and std of pixels.
    """
    model.eval()
    mean, std = (torch.tensor(config[k]).reshape(-1, 1, 1) for k in ("mean", "std"))
    return in_inference(lambda images: model((images - mean) / std))


def in_inference(
    network: Callable[[Tensor], Tensor],
) -> Callable[[np.ndarray], Tensor]:
    """Return a network's scores as a function of arrays, without gradients."""

    def scores(given: np.ndarray) -> Tensor:
        with torch.inference_mode():
            return network(torch.from_numpy(given))

    return scores


def _timm_facts(
    model: nn.Module, classifier: str, extraction: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings that rebuild the model and its transform.

    `classifier` is the submodule's name.
    """
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    arguments = {
        key: value
        for key, value in extraction["backbone_kwargs"].items()
        if key != "num_classes"
    }
    config: Any = model.pretrained_cfg
    return {
        "architecture": config["architecture"],
        "model_args": arguments,
        "classifier": classifier,
        "transform": {key: extraction["transform"][key] for key in keys},
    }


def write_timm_config(
    folder: Path, made: dict[str, Any], classes: list[str], model: nn.Module
) -> None:
    """Write timm's own config.json."""
    source: Any = model.pretrained_cfg
    keys = ("pool_size", "first_conv", "classifier")
    config = {key: source[key] for key in keys if key in source}
    config |= made["transform"] | {"num_classes": len(classes)}
    facts = {
        "architecture": made["architecture"],
        "num_classes": len(classes),
        "num_features": made["num_features"],
        "label_names": classes,
        "model_args": made["model_args"],
        "pretrained_cfg": config,
    }
    write_plain_json(folder / "config.json", facts)


def save_tensors(model: nn.Module, trained: Trained, folder: Path) -> None:
    """Write a network's model.safetensors, with its guarantee."""
    state = {k: v.contiguous().clone() for k, v in model.state_dict().items()}
    about = {"format": "pt"} | file_metadata(trained.guarantee)
    (folder / "model.safetensors").write_bytes(save(state, metadata=about))


def _write_onnx(trained: Trained, folder: Path) -> Written:
    """Write model.onnx, for images if a timm backbone made the features.

    Otherwise the graph takes features. For images, prepare.py and a head.json with the
    transform are also written.

    Raises
    ------
    ModuleNotFoundError
        If onnx, onnxruntime or onnxscript is not installed.
    ValueError
        If the backbone's weights differ, or prepare.py gives different pixels.
    """
    if _is_timm(trained.facts["extraction"]):
        classifier = _classifier(trained)
        _check_prepare(classifier, trained.facts["extraction"]["transform"])
        written = answered(classifier, random_rows(classifier.input_shape), "images")
        facts = described(trained, tensors_of(trained.linear))
        write_plain_json(folder / "head.json", facts)
        write_code("pictures.py", folder / "prepare.py")
        write_graph(trained, folder, classifier, written)
        return written
    written = Written("features", *tried_rows(trained.linear))
    write_graph(trained, folder, Answers(_torch_head(trained)), written)
    return written


def answered(module: "Answers", given: Tensor, takes: str) -> Written:
    """Return the input `given` with the module's scores for it."""
    with torch.inference_mode():
        return Written(takes, given.numpy(), module(given)[0].numpy())


def _check_prepare(classifier: Any, transform: dict[str, Any]) -> None:
    """Raise ValueError unless prepare.py and the extraction give equal pixels.

    They are compared on two random images.
    """
    channels, height, width = classifier.input_shape
    draw = np.random.default_rng(0)
    for shape in ((2 * height + 1, 3 * width), (3 * height, width // 2 + 1)):
        pixels = draw.integers(0, 256, (*shape, 3)[: 3 if channels == 3 else 2])
        pixels = pixels.astype(np.uint8)
        ours = classifier.prepare(pixels)
        theirs = np.asarray(transformed(with_channels(pixels, channels), transform))
        if not np.array_equal(ours, theirs.reshape(ours.shape)):
            raise ValueError(
                "prepare.py cannot resize images exactly as the extraction did. Use "
                "--to timm."
            )


def write_graph(
    trained: Trained, folder: Path, module: "Answers", written: Written
) -> None:
    """Write a module as model.onnx.

    The graph's metadata has the guarantee and the classes. Its nodes have no metadata:
    torch would write paths of this machine there, and lines of the user's code.
    """
    import onnx  # noqa: F401  # if missing, `cli.missing` names the package to install
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    program: Any = torch.onnx.export(
        module.eval(),
        (torch.from_numpy(written.given),),
        dynamo=True,
        opset_version=_OPSET,
        input_names=[written.takes],
        output_names=["scores", "probabilities", "classes"],
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        verbose=False,
    )
    about = file_metadata(trained.guarantee)
    about["class_names"] = json.dumps(trained.facts["class_names"])
    ClearMetadataAndDocStringPass()(program.model)
    program.model.metadata_props.update(about)
    program.save(str(folder / "model.onnx"))


def load_graph(trained: Trained, folder: Path) -> Callable[[np.ndarray], Any]:
    """Return a function from the input of model.onnx to its scores."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (only,) = session.get_inputs()
    return lambda given: session.run(["scores"], {only.name: given})[0]


TIMM = Format(_write_timm, _load_timm)
ONNX = Format(_write_onnx, load_graph)


def _classifier(trained: Trained) -> _Classifier:
    """Return a module of the backbone, its normalization and the head.

    Raises ValueError if no timm model made the features, or the weights differ.
    """
    extraction = trained.facts["extraction"]
    if not _is_timm(extraction):
        raise ValueError(
            "--to timm needs features of a timm backbone, got features of "
            f"{extraction.get('backbone')!r}. Export only the head with --to torch, "
            "sklearn or onnx."
        )
    options = backbone_options(extraction, trained.weights)
    # a timm backbone has its own size and channels, and ignores declared ones
    backbone = load_backbone(options, (0, 0), True)
    if backbone.weights_sha256 != extraction["weights_sha256"]:
        raise ValueError(
            f"The weights with sha256 {backbone.weights_sha256[:12]} did not make the "
            "head's features. Pass the file with sha256 "
            f"{extraction['weights_sha256'][:12]} with --weights."
        )
    kind = extraction["normalization"]
    norm = RowNorm(kind["kind"], kind.get("groups", 0)).fitted(backbone)
    return _Classifier(backbone, norm, _torch_head(trained)).eval()


def _is_timm(extraction: dict[str, Any]) -> bool:
    return (extraction.get("transform") or {}).get("library") == "timm"


def _folded(trained: Trained) -> Trained:
    """Return the same head with axes, center and scale in its weights.

    A head with a unit norm or a feature clip stays unchanged.
    """
    head, transform = trained.linear, trained.linear.transform
    if transform.unit_norm or head.feature_clip is not None:
        return trained
    weights, intercept = head.weights, head.intercept
    if transform.scale is not None:
        weights = weights * transform.scale[:, None]
    if transform.center is not None:
        intercept = intercept - transform.center @ weights
    if head.axes is not None:
        weights = head.axes.values.astype(np.float64) @ weights
    plain = replace(
        head, weights=weights, intercept=intercept, transform=RowTransform(), axes=None
    )
    return replace(trained, head=plain)


def _name_of_classifier(model: nn.Module) -> str:
    """Return the name of the submodule to replace by the head.

    Raises ValueError if there is none.
    """
    classifier: Any = getattr(model, "get_classifier", lambda: None)()
    names = [name for name, part in model.named_modules() if part is classifier]
    if len(names) != 1 or not isinstance(classifier, nn.Linear):
        raise ValueError(
            "--to timm needs a backbone that ends in one linear classifier, got a last "
            f"layer {type(classifier).__name__}. Use --to onnx."
        )
    return names[0]


def random_rows(shape: tuple[int, ...]) -> Tensor:
    """Return a few random rows of this shape, from 0 to 1."""
    return torch.rand(_TRIED, *shape, generator=torch.Generator().manual_seed(0))
