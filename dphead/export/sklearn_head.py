"""Load the head of a dphead run as a fitted scikit-learn classifier.

`dphead export` copies this file to `head.py`. The file imports only numpy, safetensors
and scikit-learn.

classifier = load_head(folder)   # predict, predict_proba, decision_function, coef_
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

# Normalizer treats norms below 2e-15 as zero. This factor moves float32's smallest
# number to 2**51 and its largest to 2**328; float64 holds the square of both.
_ENLARGED = 2.0**200
# links of dphead's losses; a test compares the two lists
LINKS = ("softmax", "sigmoid")


def load_head(folder: str | Path) -> Pipeline:
    """Return a fitted classifier of rows (n, n_features), with names as `classes_`.

    Features and their products with axes are rounded to float32, as in dphead. Other
    results are float64. scikit-learn raises ValueError for a row that is not finite.

    The last step is a LogisticRegression with softmax probabilities. Heads with the
    link "sigmoid" and three or more classes end in an SGDClassifier, with sigmoids
    divided by their sum. With two classes, `decision_function` is the difference of the
    two scores (half of it for "sigmoid"). Raises ValueError for a link that is not one
    of LINKS.
    """
    facts = json.loads((Path(folder) / "head.json").read_text())
    if (link := facts["link"]) not in LINKS:
        raise ValueError(
            f"link must be one of {', '.join(LINKS)}, got {link}. Export the run "
            "again with `dphead export`."
        )
    tensors = load_file(Path(folder) / "head.safetensors")
    n = facts["axes"] or facts["n_features"]
    one = np.ones(n)
    steps: list[Any] = [_cast(np.float32), _cast(np.float64)]
    if facts["axes"]:
        axes: Any = TruncatedSVD(n)
        axes.components_ = tensors["axes"].astype(np.float64)
        axes.n_features_in_ = facts["n_features"]
        # dphead rounds the products to float32 too
        steps += [axes, _cast(np.float32), _cast(np.float64)]
    if facts["unit_norm"]:
        steps += [_scaler(0 * one, _ENLARGED * one, n), Normalizer()]
    if facts["center"] or facts["scale"]:
        center, scale = tensors.get("center", 0 * one), tensors.get("scale", one)
        steps.append(_scaler(center, scale, n))
    if facts["unit_norm"] and facts["center"]:
        steps.append(Normalizer())
    return make_pipeline(*steps, _linear(tensors, facts))


def _cast(dtype: Any) -> FunctionTransformer:
    return FunctionTransformer(np.asarray, kw_args={"dtype": dtype})


def _scaler(center: np.ndarray, scale: np.ndarray, n_features: int) -> StandardScaler:
    """Return (x - center) * scale as a step of a pipeline.

    scikit-learn divides, so a scale of zero becomes an infinite divisor.
    """
    with np.errstate(divide="ignore"):
        spread = 1 / scale.astype(np.float64)
    scaler: Any = StandardScaler()
    scaler.mean_ = center
    scaler.scale_ = spread
    scaler.var_ = spread**2
    scaler.n_features_in_ = n_features
    return scaler


def _linear(tensors: dict[str, np.ndarray], facts: dict[str, Any]) -> Any:
    """Return the linear classifier, with one row of coefficients for two classes."""
    weight, bias = tensors["weight"], tensors["bias"]
    sigmoid = facts["link"] == "sigmoid"
    if len(bias) == 2:
        half = 2 if sigmoid else 1
        weight = (weight[1:] - weight[:1]) / half
        bias = (bias[1:] - bias[:1]) / half
    many = sigmoid and len(bias) > 1
    linear: Any = SGDClassifier(loss="log_loss") if many else LogisticRegression()
    linear.coef_ = weight
    linear.intercept_ = bias
    linear.classes_ = np.array(facts["class_names"])
    linear.n_features_in_ = weight.shape[1]
    return linear
