"""Write an export's README.md, with an example and the guarantee."""

import textwrap

from dphead.analysis.card.page import cell
from dphead.analysis.protected import about_scores
from dphead.export.trained import Trained

_TORCH = """
import sys

import torch

sys.path.insert(0, "{folder}")
from head import load_head  # needs torch and safetensors, not dphead{code}

head, classes = load_head("{folder}"{model})
features = {torch_rows}  # yours
best = head.classes(head(features))
# -1: a row that is not finite has no class
print([classes[k] if k >= 0 else None for k in best])
"""
_TIMM = """
import sys

sys.path.insert(0, "{folder}")
from head import load_model  # needs timm and safetensors, not dphead

model, prepare, classes = load_model("{folder}")
image = prepare("picture.png")
scores = model(image[None])[0]
# a row that is not finite has no class
print(classes[scores.argmax()] if scores.isfinite().all() else None)
"""
_ONNX_IMAGES = """
import json
import sys

import onnxruntime

sys.path.insert(0, "{folder}")
from prepare import prepare  # needs numpy and Pillow

session = onnxruntime.InferenceSession("{folder}/model.onnx")
images = prepare("picture.png", "{folder}")[None]
scores, probabilities, best = session.run(None, {{"images": images}})
classes = json.load(open("{folder}/guarantee.json"))["class_names"]
# -1: a row that is not finite has no class
print([classes[k] if k >= 0 else None for k in best])
"""
_ONNX_FEATURES = """
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{folder}/model.onnx")
features = {numpy_rows}.astype("float32")  # yours
scores, probabilities, best = session.run(None, {{"features": features}})
classes = json.load(open("{folder}/guarantee.json"))["class_names"]
# -1: a row that is not finite has no class
print([classes[k] if k >= 0 else None for k in best])
"""
_SKLEARN = """
import sys

import numpy as np

sys.path.insert(0, "{folder}")
from head import load_head  # needs scikit-learn and safetensors, not dphead

classifier = load_head("{folder}")
features = {numpy_rows}.astype("float32")  # yours
print(classifier.predict(features), classifier.predict_proba(features))
"""
_NETWORK_IMAGES = """
import sys

import torch

sys.path.insert(0, "{folder}")
from head import load_network  # needs torch and safetensors, not dphead
from prepare import prepare  # needs numpy and Pillow{code}

network, classes = load_network("{folder}"{model})
images = torch.from_numpy(prepare("picture.png", "{folder}"))[None]
best = network.classes(network(images))
# -1: a row that is not finite has no class
print([classes[k] if k >= 0 else None for k in best])
"""
_NETWORK_FEATURES = _TORCH.replace("load_head", "load_network")
_NETWORK_TIMM = """
import timm
import torch
from PIL import Image

model = timm.create_model("local-dir:{folder}", pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
# decode.py in this folder reads more kinds of images, as in training
image = transform(Image.open("picture.png").convert("RGB"))
scores = model(image[None])[0]
print(model.pretrained_cfg["label_names"][scores.argmax()])
"""
_EXAMPLES = {
    ("torch", "features"): _TORCH,
    ("timm", "images"): _TIMM,
    ("onnx", "images"): _ONNX_IMAGES,
    ("onnx", "features"): _ONNX_FEATURES,
    ("sklearn", "features"): _SKLEARN,
}
_OF_NETWORKS = _EXAMPLES | {
    ("torch", "images"): _NETWORK_IMAGES,
    ("torch", "features"): _NETWORK_FEATURES,
    ("timm", "images"): _NETWORK_TIMM,
}
_DECODER = (
    "`decode.py` (numpy and Pillow) decodes image files as in the extraction: "
    "`open_picture(file, folder)` returns the image before resizing. Other decoders "
    "may rotate, invert or scale it differently."
)
_WIDTH = 100  # columns of prose; chosen
_SHOWN_CLASSES = 20  # largest number of listed classes; chosen


def example(trained: Trained, to: str, takes: str, folder: str) -> str:
    """Return Python code that loads an export and uses it once.

    `takes` is the input: "images" or "features".
    """
    examples = _EXAMPLES if trained.kind == "head" else _OF_NETWORKS
    text = examples[to, takes].strip()
    code, model = _own_code(trained)
    shape, tokens = f"3, {trained.n_features}", trained.vocabulary
    draw = f"randn({shape})"
    if tokens is not None:
        draw = f"randint(0, {tokens}, ({shape}))"
    return text.format(
        folder=folder,
        code=code,
        model=model,
        torch_rows=f"torch.{draw}",
        numpy_rows=f"np.random.{draw}",
    )


def _own_code(trained: Trained) -> tuple[str, str]:
    """Return code that builds the user's own module, and the argument that passes it.

    Both are "" for other networks and for heads.
    """
    if not trained.is_own:
        return "", ""
    if not isinstance(trained.model, str):  # the estimator got the module itself
        return "\nmodel = ...  # your module, built as in training", ", model"
    module, function = trained.model.split(":")
    n_classes = len(trained.facts["class_names"])
    code = f"from {module} import {function}  # your code"
    return f"\n{code}", f", {function}({n_classes})"


def input_in_words(trained: Trained, takes: str) -> str:
    """Describe the input of an export."""
    extraction = trained.facts["extraction"]
    network = extraction.get("backbone")
    if trained.vocabulary is not None:
        most = trained.vocabulary - 1
        return f"{trained.n_features} tokens per row, from 0 to {most}"
    if takes == "features":
        return f"{trained.n_features} features per row (backbone: {network})"
    if trained.kind == "head":
        size = extraction["transform"]["input_size"]
    else:
        size = trained.facts["network"]["shape"]
        network = trained.facts["network"]["model"]["model"]
    channels, height, width = size
    colors = "color" if channels == 3 else "gray"
    return f"{colors} images of {height} x {width}, for {network}"


def readme(trained: Trained, takes: str, code: str) -> str:
    """Return the text of README.md, with `code` from `example`."""
    names = trained.facts["class_names"]
    shown = cell(", ".join(names[:_SHOWN_CLASSES]))
    rest = len(names) - _SHOWN_CLASSES
    more = f" and {rest} more" if rest > 0 else ""
    private = trained.guarantee["private"]
    how = " trained with differential privacy" if private else ", NOT PRIVATE"
    kept = (
        " The guarantee covers the training data, not the inputs that you classify. "
        f"Using this {trained.kind} costs no privacy. Training it further on the same "
        "data is not covered."
    )
    parts = [
        f"# A classifier {trained.kind}{how}",
        _filled(
            f"It takes {cell(input_in_words(trained, takes))}. Classes: {shown}{more}. "
            f"{about_scores(trained.guarantee['balanced'])}"
        ),
        "From the folder above this one:",
        textwrap.indent(code, "    "),
        *([_filled(_DECODER)] if trained.has_decoder else []),
        "## The guarantee",
        _filled(cell(trained.guarantee["statement"])),
        _filled(
            f"`guarantee.json` holds this guarantee as data.{kept if private else ''}"
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
