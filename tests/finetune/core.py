"""Tiny networks and rows for the tests of end-to-end training."""

import numpy as np

from dphead.finetune.network import Network, NetworkSpec
from dphead.finetune.rows import ImageRows
from dphead.finetune.settings import ModelSpec
from dphead.finetune.solver import NetworkDescent
from dphead.planning.plan import make_plan
from dphead.solvers.base import ProblemInfo


def images(n=40, size=8, channels=3, classes=3, seed=0):
    """Random images (n, channels, size, size) uint8, brighter for higher classes, and
    their labels.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.integers(0, 120, (n, channels, size, size)) + 60 * y[:, None, None, None]
    return x.astype(np.uint8), y


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


__all__ = ["ImageRows", "facts", "images", "tiny", "training"]
