"""Tiny networks and rows for the tests of end-to-end training."""

import numpy as np

from dphead.finetune.network import Network, NetworkSpec
from dphead.finetune.rows import ImageRows
from dphead.finetune.settings import ModelSpec
from dphead.finetune.solver import NetworkDescent
from dphead.planning.plan import make_plan
from dphead.solvers.base import ProblemInfo

# private statistics of maps of 81 channels
CLIPS = {"n_channels": 81, "mean_clip": 1.0, "square_clip": 1.0}
CLIPS |= {"noise_multiplier": 8.0}
# a module with a network of one's own
OWN = """
from torch import nn
class Network(nn.Sequential):
    def forward(self, rows):
        return super().forward(rows)  # of ward 7
def network(n_classes):
    return Network(nn.Flatten(), nn.Linear(192, n_classes))
"""


def images(n=40, size=8, channels=3, classes=3, seed=0):
    """Random images (n, channels, size, size) uint8, brighter for higher classes, and
    their labels.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.integers(0, 120, (n, channels, size, size)) + 60 * y[:, None, None, None]
    return x.astype(np.uint8), y


def images_file(path, n=60, names=(0, 1, 2), test=20, seed=0, **columns):
    """The same as an npz file, the last `test` of them in another split."""
    x, y = images(n, seed=seed)
    if test:
        columns["split"] = np.where(np.arange(n) < n - test, "train", "test")
    named = np.array(names)[y]
    np.savez(path, images=x.transpose(0, 2, 3, 1), labels=named, **columns)
    return path


def tiny(classes=3, size=8, channels=3, **options):
    """A Wide-ResNet of ten layers on small images."""
    model = ModelSpec("wrn-10-1", groups=4)
    return Network(NetworkSpec(model, (channels, size, size), classes, **options))


def facts(n=40, classes=3, shape=(3, 8, 8)):
    """Public facts of image rows."""
    return ProblemInfo(n, int(np.prod(shape)), classes)


def training(network, n=40, epsilon=2.0, relation="zero_out", **options):
    """(solver, facts, plan) of a short training."""
    settings = {"steps": 3, "sampling_prob": 0.5} | options
    solver = NetworkDescent(network.statistic, network.start, **settings)
    public = facts(n, network.spec.n_classes, network.spec.shape)
    plan = make_plan(
        solver, public, epsilon=epsilon, delta=1e-3, relation=relation, accountant="rdp"
    )  # rdp: it is fast
    return solver, public, plan


__all__ = ["ImageRows", "facts", "images", "images_file", "tiny", "training"]
