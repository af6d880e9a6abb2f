"""Class axes are made from a network's classifier alone, and are the same features
turned.
"""

import torch
from dphead_extract.backbones.axes import class_axes
from torch import nn


def classifier(seed=0, classes=9, features=16):
    torch.manual_seed(seed)
    return nn.Linear(features, classes)


def test_axes_are_the_directions_in_which_classes_differ_most():
    linear = classifier()
    weights = linear.weight.detach().double()
    between = weights - weights.mean(dim=0)
    axes = class_axes(linear, 8).double()
    torch.testing.assert_close(axes @ axes.T, torch.eye(8).double(), atol=1e-4, rtol=0)
    held = torch.linalg.vector_norm(between @ axes.T, dim=0)
    expected = torch.linalg.svdvals(between)[:8]
    torch.testing.assert_close(held, expected, atol=1e-4, rtol=1e-4)
