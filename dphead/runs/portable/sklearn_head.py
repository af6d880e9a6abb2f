"""The head of a dphead run as a fitted scikit-learn classifier. `dphead export` copies
this file to `head.py`, so nothing but numpy, safetensors and scikit-learn may be
imported.

classifier = load_head(folder)   # predict, predict_proba, decision_function, coef_
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

LOSSES = ("softmax", "sigmoid", "squared")  # dphead's; a test holds them equal


def load_head(folder: str | Path) -> Pipeline | LogisticRegression | SGDClassifier:
    """A fitted classifier of rows (n, n_features); `classes_` are the classes' names.

    Its last step is a LogisticRegression, whose probabilities are a softmax; for heads
    of the loss "sigmoid" of three classes and more an SGDClassifier, whose are sigmoids
    divided by their sum. With two classes `decision_function` is the difference of the
    two scores (half of it for "sigmoid"), as scikit-learn has it. ValueError for a loss
    that is not one of LOSSES.
    """
    facts = json.loads((Path(folder) / "head.json").read_text())
    if (loss := facts["loss"]) not in LOSSES:
        raise ValueError(
            f"loss must be one of {', '.join(LOSSES)}, got {loss=}. Export again."
        )
    tensors = load_file(Path(folder) / "head.safetensors")
    steps: list[Any] = [Normalizer()] if facts["unit_norm"] else []
    if facts["center"] or facts["scale"]:
        steps.append(_scaler(tensors, facts["n_features"]))
    if facts["unit_norm"] and facts["center"]:
        steps.append(Normalizer())
    last = _linear(tensors, facts)
    return make_pipeline(*steps, last) if steps else last


def _scaler(tensors: dict[str, np.ndarray], n_features: int) -> Any:
    """(x - center) * scale; scikit-learn divides, so a scale of zero is infinite."""
    center = tensors.get("center", np.zeros(n_features, np.float32))
    with np.errstate(divide="ignore"):
        spread = 1 / tensors.get("scale", np.ones(n_features, np.float32))
    scaler: Any = StandardScaler()
    scaler.mean_ = center
    scaler.scale_ = spread
    scaler.var_ = spread**2
    scaler.n_features_in_ = n_features
    return scaler


def _linear(tensors: dict[str, np.ndarray], facts: dict[str, Any]) -> Any:
    """The linear classifier alone; of two classes one row of coefficients."""
    weight, bias = tensors["weight"], tensors["bias"]
    sigmoid = facts["loss"] == "sigmoid"
    if len(bias) == 2:
        half = 2 if sigmoid else 1
        weight = (weight[1:] - weight[:1]) / half
        bias = (bias[1:] - bias[:1]) / half
    many = sigmoid and len(bias) > 1
    linear: Any = SGDClassifier(loss="log_loss") if many else LogisticRegression()
    linear.coef_ = weight
    linear.intercept_ = bias
    linear.classes_ = np.array(facts["class_names"])
    linear.n_features_in_ = facts["n_features"]
    return linear
