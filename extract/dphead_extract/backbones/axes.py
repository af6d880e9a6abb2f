"""Compute the axes along which a backbone's own classes differ most.

The axes depend only on the backbone's weights; no image may change the axes. A private
head has noise in each direction of its features. With a small budget, the few
directions that separate the classes best are therefore better than all directions
(benchmarks/results/ablation, "Class axes").
"""

import numpy as np
import torch
from torch import nn

from dphead_extract.errors import ExtractError

# Axes are rounded to multiples of 1/_GRID. Processors whose eigenvectors differ in
# their last bits then agree on nearly all entries.
_GRID = 2**16


def class_axes(classifier: nn.Module, count: int) -> torch.Tensor:
    """Return the class axes of a linear classifier.

    The axes are the leading right singular vectors of its weights, after the classes'
    mean was subtracted.

    Parameters
    ----------
    classifier : nn.Module
        The backbone's last layer.
    count : int
        Number of axes.

    Returns
    -------
    (count, n_features) float32
        The axes.

    Raises
    ------
    ExtractError
        If the classifier is not linear, or has too few classes or features for `count`
        axes.
    """
    if not isinstance(classifier, nn.Linear):
        raise ExtractError(
            f"--axes needs a linear last layer, got {type(classifier).__name__}. Give "
            "weights with a classifier and --model-arg num_classes=N, or remove "
            "--axes."
        )
    weights = classifier.weight.detach().cpu().double().numpy()
    most = min(weights.shape[0] - 1, weights.shape[1])
    if not 1 <= count <= most:
        raise ExtractError(
            f"--axes must be from 1 to {most} for {weights.shape[0]} classes and "
            f"{weights.shape[1]} features, got {count}."
        )
    between = weights - weights.mean(axis=0)
    vectors = np.linalg.eigh(between.T @ between)[1]
    axes = vectors[:, ::-1][:, :count].T
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(count), largest])[:, None]
    return torch.from_numpy((np.rint(axes * _GRID) / _GRID).astype(np.float32))
