"""A step of `dphead finetune` beside one of Opacus: `python -m benchmarks steps`.

Both train the same network on the same rows with one thread, in turn in one process,
with noise and the optimizer's step. Ours samples its batch, Opacus gets one of the
expected size. Rows are of results/finetune/rows.jsonl.
"""

import time
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.store import RESULTS, append, provenance
from dphead.finetune.models import build
from dphead.finetune.network import Network, TorchSums
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import make_training, network_spec
from dphead.finetune.settings import ModelSpec, Settings
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import Target
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.sums.verified import VerifiedSum

OUT = RESULTS / "finetune" / "rows.jsonl"
# network, (channels, h, w), batch; Opacus has no sampler for weight standardization
SIZES = (
    ("tb21-mnist", (1, 28, 28), 256),
    ("tb21-mnist", (1, 28, 28), 1024),
    ("tb21-cifar10", (3, 32, 32), 256),
    ("wrn-16-4", (3, 32, 32), 64),
)
STEPS, TURNS = 4, 3


def ours(model: str, x: np.ndarray, y: np.ndarray, batch: int) -> list[float]:
    """Seconds of steps of `fit_head`, without the first."""
    settings = Settings(model, batch_size=batch, steps=STEPS, standardize=False)
    network = Network(network_spec(settings, x.shape[1:], 10))
    facts = ProblemInfo(len(x), int(np.prod(x.shape[1:])), 10)
    target = Target(8.0, 1e-5, accountant="rdp")
    method, plan, _ = make_training(settings, target, facts, network)
    solver: Any = method.solver
    ends: list[float] = []
    object.__setattr__(solver, "after", lambda _: ends.append(time.perf_counter()))
    sums = VerifiedSum(TorchSums(network, batch=batch))
    how = Run(noise=NoiseSource(0), summer=sums)
    fit_head(solver, ImageRows(x, y), facts, plan, how)
    return np.diff(ends).tolist()


def opacus(model: str, x: np.ndarray, y: np.ndarray, batch: int) -> list[float]:
    """Seconds of steps of its optimizer on per-example gradients by hooks."""
    # of the extra `bench`
    from opacus.grad_sample import (  # pyright: ignore[reportMissingImports]
        GradSampleModule,
    )
    from opacus.optimizers import DPOptimizer  # pyright: ignore[reportMissingImports]

    network = GradSampleModule(
        build(ModelSpec(model, standardize=False), 10, x.shape[1])
    )
    plain = torch.optim.SGD(network.parameters(), 2.0)
    optimizer = DPOptimizer(
        plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )
    inputs = (torch.from_numpy(x[:batch]).float() / 255 - 0.5) / 0.25
    labels = torch.from_numpy(y[:batch])
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def run() -> None:
    """Every size, both in turn."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for model, shape, batch in SIZES:
        x = rng.integers(0, 256, (10 * batch, *shape), dtype=np.uint8)
        y = rng.integers(0, 10, len(x))
        seconds: dict[str, list[float]] = {"dphead": [], "opacus": []}
        for _ in range(TURNS):
            seconds["dphead"].append(median(ours(model, x, y, batch)))
            seconds["opacus"].append(median(opacus(model, x, y, batch)))
        pairs = zip(seconds["dphead"], seconds["opacus"], strict=True)
        ratios = [one / other for one, other in pairs]
        row = {"job": "steps", "variant": f"{model}, batches of {batch}"}
        row |= {"seconds_a_step": seconds, "ratios": ratios, "ratio": median(ratios)}
        append(OUT, row | {"torch": torch.__version__} | provenance())
        print(row, flush=True)
