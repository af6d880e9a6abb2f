"""Compare the CPU time of a step of end-to-end training with Opacus' hooks and ghost.

`python -m benchmarks steps` takes turns in one process, with one thread, on the same
128 random images of 32 x 32 pixels: gradients, clip and sum. Opacus adds noise too. The
time is CPU time, so other work on the machine matters less. A cell is the median of the
turns (best to worst), then the median ratio of a turn to dphead's.
"""

# Opacus comes with the extra `bench` only.
# pyright: reportMissingImports=false

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import prose
from benchmarks.store import RESULTS, append, provenance, read
from dphead.finetune.architectures import by_name
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.transform import RowTransform

OUT = RESULTS / "steps"
BATCH, TURNS = 128, 5


def cnn() -> nn.Module:
    """Three convolutions with group norms, 66,890 parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        norm = nn.GroupNorm(8, outputs)
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers += [conv, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def wide() -> nn.Module:
    """WRN-10-1 without weight standardization, which Opacus has no sampler for."""
    return by_name("wrn-10-1", 10, 3, 16, False, "before")


MODELS: dict[str, Callable[[], nn.Module]] = {"CNN": cnn, "WRN-10-1": wide}


def contenders(make: Callable[[], nn.Module]) -> dict[str, Callable[[], Any]]:
    """A step of each library on the same images."""
    from opacus import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping as Ghost,
    )
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import (
        DPOptimizerFastGradientClipping as GhostOptimizer,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (BATCH, 3 * 32 * 32)).astype(np.float32)
    y = rng.integers(0, 10, BATCH)
    spec = NetworkSpec(ModelSpec("own:network"), (3, 32, 32), 10)
    network = Network(spec, module=make())
    sums, block = TorchSums(network, batch=BATCH), Block(np.arange(BATCH), x, y)

    def ours() -> None:
        # new parameters each turn, because equal ones are not set again
        params = StepParams(RowTransform(), network.start.astype(np.float32))
        total = np.zeros(network.statistic.size, np.int64)
        sums.add(SumTask(network.statistic, params, 1.0), block, y, y >= 0, total)

    images, labels = spec.inputs(x, 0)[:, 0], torch.from_numpy(y)
    noise: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    noise |= {"expected_batch_size": BATCH}
    hooked = GradSampleModule(make())
    optimizer = DPOptimizer(torch.optim.SGD(hooked.parameters(), lr=0.1), **noise)

    def hooks() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(hooked(images), labels).backward()
        optimizer.step()

    fast = Ghost(make(), max_grad_norm=1, use_ghost_clipping=True)
    sgd = torch.optim.SGD(fast.parameters(), lr=0.1)
    second = GhostOptimizer(sgd, **noise)
    loss = DPLossFastGradientClipping(fast, second, nn.CrossEntropyLoss())

    def ghost() -> None:
        second.zero_grad()
        loss(fast(images), labels).backward()
        second.step()

    return {"dphead": ours, "Opacus, hooks": hooks, "Opacus, ghost": ghost}


def run() -> None:
    """Time every contender on every model, in turns."""
    warnings.simplefilter("ignore")  # Opacus' and torch's on hooks
    torch.set_num_threads(1)
    for model, make in MODELS.items():
        steps = contenders(make)
        for turn in range(-1, TURNS):  # the first warms up
            for name, step in steps.items():
                start = time.process_time()
                step()
                seconds = time.process_time() - start
                row = {"contender": name, "model": model, "turn": turn}
                row |= {"cpu_seconds": seconds, "batch": BATCH}
                if turn >= 0:
                    append(OUT / "rows.jsonl", row | provenance())


def table() -> str:
    """Median, best and worst turn of each contender and model."""
    rows = read(OUT / "rows.jsonl")
    names = dict.fromkeys(row["contender"] for row in rows)
    lines = []
    for name in names:
        cells = []
        for model in MODELS:
            own, ours = (
                [r["cpu_seconds"] for r in rows if (r["contender"], r["model"]) == key]
                for key in ((name, model), ("dphead", model))
            )
            ratio = median(a / b for a, b in zip(own, ours, strict=True))
            spread = f"{min(own):.2f} to {max(own):.2f}"
            cells.append(f"{median(own):.2f} ({spread}), {ratio:.2f} ×")
        lines.append([name, *cells])
    return prose.table(["CPU seconds", *MODELS], lines)


def readme() -> str:
    """results/steps/README.md from the stored rows."""
    return prose.wrapped(f"# {__doc__}\n{table()}\n")
