"""Write an export's README.md: how to load it, and the guarantee that goes with it."""

import textwrap

from dphead.analysis.protected import made_of_images
from dphead.export.trained import TrainedHead

_TORCH = """
import sys

import torch

sys.path.insert(0, "{folder}")
from head import load_head  # needs torch and safetensors, not dphead

head, classes = load_head("{folder}")
features = torch.randn(3, {n_features})  # yours
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
features = np.random.randn(3, {n_features}).astype("float32")  # yours
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
features = np.random.randn(3, {n_features}).astype("float32")  # yours
print(classifier.predict(features), classifier.predict_proba(features))
"""
_EXAMPLES = {
    ("torch", "features"): _TORCH,
    ("timm", "images"): _TIMM,
    ("onnx", "images"): _ONNX_IMAGES,
    ("onnx", "features"): _ONNX_FEATURES,
    ("sklearn", "features"): _SKLEARN,
}
_DECODER = (
    "`decode.py` (numpy and Pillow) decodes image files as they were decoded for the "
    "features: `open_picture(file, folder)` returns what the network saw before it "
    "was resized. Another decoder may turn, invert or scale it otherwise."
)
WIDTH = 100  # columns of prose; a choice
_SHOWN_CLASSES = 20  # number of classes that the text names; a choice


def example(trained: TrainedHead, to: str, takes: str, folder: str) -> str:
    """Return Python code that loads an export and uses it once.

    `takes` is what it is given, "images" or "features".
    """
    n_features = len(trained.head.weights)
    return _EXAMPLES[to, takes].strip().format(folder=folder, n_features=n_features)


def in_words(trained: TrainedHead, takes: str) -> str:
    """Return in words what an export is given."""
    extraction = trained.facts["extraction"]
    network = extraction.get("backbone")
    if takes == "features":
        return f"{len(trained.head.weights)} features a row, as {network} makes them"
    channels, height, width = extraction["transform"]["input_size"]
    colours = "colour" if channels == 3 else "grey"
    return f"{colours} images of {height} x {width}, for {network}"


def readme(trained: TrainedHead, takes: str, code: str) -> str:
    """Return the text of README.md. `code` is the result of `example`."""
    names = trained.facts["class_names"]
    shown = ", ".join(names[:_SHOWN_CLASSES])
    more = (
        f" and {len(names) - _SHOWN_CLASSES} more"
        if len(names) > _SHOWN_CLASSES
        else ""
    )
    private = trained.guarantee["private"]
    how = " trained with differential privacy" if private else ", NOT PRIVATE"
    kept = (
        " The guarantee is of the training data, not of what you classify. Whatever is "
        "done with this head keeps it; training it further on the same data is not "
        "covered."
    )
    parts = [
        f"# A classifier head{how}",
        _filled(f"It takes {in_words(trained, takes)}. Classes: {shown}{more}."),
        "From the folder above this one:",
        textwrap.indent(code, "    "),
        *([_filled(_DECODER)] if made_of_images(trained.facts["extraction"]) else []),
        "## The guarantee",
        _filled(trained.guarantee["statement"]),
        _filled(f"`guarantee.json` holds the same as data.{kept if private else ''}"),
    ]
    return "\n\n".join(parts) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
