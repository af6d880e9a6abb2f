"""Compare the CPU time and memory of a step of end-to-end training with Opacus.

`python -m benchmarks.experiments.steps` takes turns in one process, with one thread, on
the same random images of 32 x 32 pixels: gradients, clip and sum. With views, both
libraries compute the same four views of an image in each step, and Opacus' gradients
are averaged over them before the clip. Opacus adds noise too. The time is CPU time, so
other work on the machine matters less. A cell is the median of the turns (best to
worst), then the median ratio of a turn to dphead's.
"""

# Opacus comes with the extra `bench` only.
# pyright: reportMissingImports=false

import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import prose
from benchmarks.machine import alone, peak_memory
from benchmarks.store import RESULTS, append, provenance, read
from dphead.finetune.architectures import by_name
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.transform import RowTransform

OUT = RESULTS / "steps"
TURNS, DRAWS = 5, 3
PLAIN = "plain step"
NAMES = ("dphead", "Opacus, hooks", "Opacus, ghost")


def cnn() -> nn.Module:
    """Three convolutions with group norms, 66,890 parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        norm = nn.GroupNorm(8, outputs)
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers += [conv, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def wide(name: str) -> nn.Module:
    """A Wide-ResNet without weight standardization, which Opacus has no sampler for."""
    return by_name(name, 10, 3, 16, False, "before")


def linear() -> nn.Module:
    """A small network, with which a process imports what its steps need."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


# model, batch, views
PROBLEMS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "CNN": (cnn, 128, 0),
    "WRN-10-1": (partial(wide, "wrn-10-1"), 128, 0),
    "WRN-16-4": (partial(wide, "wrn-16-4"), 64, 0),
    "CNN, 4 views": (cnn, 32, 4),
    "WRN-10-1, 4 views": (partial(wide, "wrn-10-1"), 32, 4),
}


IMPORTS = {"linear": (linear, 8, 0)}


def contender(problem: str, name: str) -> Callable[[], Any]:
    """A step of a library on a problem's images."""
    make, batch, views = (PROBLEMS | IMPORTS)[problem]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (batch, 3 * 32 * 32)).astype(np.float32)
    y = rng.integers(0, 10, batch)
    own = {"views": views, "augment": "crop"} if views else {}
    spec = NetworkSpec(ModelSpec("own:network"), (3, 32, 32), 10, **own)
    if name == "dphead":
        network = Network(spec, module=make())
        sums, block = TorchSums(network, batch=batch), Block(np.arange(batch), x, y)

        def ours() -> None:
            # new parameters each turn, because equal ones are not set again
            params = StepParams(RowTransform(), network.start.astype(np.float32))
            total = np.zeros(network.statistic.size, np.int64)
            sums.add(SumTask(network.statistic, params, 1.0), block, y, y >= 0, total)

        return ours
    each = max(1, views)
    labels = torch.from_numpy(y).repeat_interleave(each)
    inputs = partial(spec.inputs, x, 0)
    if name == PLAIN:
        model = make()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            plain.zero_grad()
            scores = model(inputs().flatten(0, 1))
            nn.functional.cross_entropy(scores, labels).backward()
            plain.step()

        return step
    noise: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    noise |= {"expected_batch_size": batch}
    if name == "Opacus, hooks":
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        hooked = GradSampleModule(make())
        optimizer = DPOptimizer(torch.optim.SGD(hooked.parameters(), lr=0.1), **noise)

        def hooks() -> None:
            optimizer.zero_grad()
            scores = hooked(inputs().flatten(0, 1))
            nn.functional.cross_entropy(scores, labels).backward()
            for p in hooked.parameters() if views else ():
                found: Any = p.grad_sample
                p.grad_sample = found.unflatten(0, (batch, views)).mean(dim=1)
            optimizer.step()

        return hooks
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping as Ghost,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import (
        DPOptimizerFastGradientClipping as GhostOptimizer,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    fast = Ghost(make(), max_grad_norm=1, use_ghost_clipping=True)
    second = GhostOptimizer(torch.optim.SGD(fast.parameters(), lr=0.1), **noise)
    loss = DPLossFastGradientClipping(fast, second, nn.CrossEntropyLoss())

    def ghost() -> None:
        second.zero_grad()
        loss(fast(inputs()[:, 0]), labels).backward()
        second.step()

    return ghost


def applies(problem: str, name: str) -> bool:
    """Whether a library has the step: ghost norms cannot average views."""
    return name != "Opacus, ghost" or not PROBLEMS[problem][2]


def memory(problem: str, name: str) -> float:
    """Return the MB that three steps, and what they need, add to this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    contender("linear", name)()  # imports
    status = Path("/proc/self/status").read_text()
    before = 1024 * int(status.split("VmRSS:")[1].split()[0])
    step = contender(problem, name)
    for _ in range(3):
        step()
    return (peak_memory() - before) / 1e6


def run() -> None:
    """Time every contender on every problem, in turns. Then measure their memory."""
    warnings.simplefilter("ignore")  # Opacus' and torch's on hooks
    torch.set_num_threads(1)
    for problem, (_, batch, views) in PROBLEMS.items():
        names = [name for name in NAMES if applies(problem, name)]
        what = {"model": problem, "batch": batch, "views": views} | provenance()
        steps = {name: contender(problem, name) for name in names}
        for turn in range(-1, TURNS):  # the first warms up
            for name, step in steps.items():
                row = {"contender": name, "turn": turn, "load": os.getloadavg()[0]}
                start = time.process_time()
                step()
                seconds = time.process_time() - start
                if turn >= 0:
                    append(OUT / "rows.jsonl", what | row | {"cpu_seconds": seconds})
        for draw in range(DRAWS):
            for name in (PLAIN, *names):
                row = {"contender": name, "turn": draw}
                row |= {"peak_mb": alone(memory, problem, name)}
                append(OUT / "rows.jsonl", what | row)


def table(value: str, names: tuple[str, ...]) -> str:
    """Median, best and worst of each contender and problem; ratios to `names[0]`."""
    rows = [row for row in read(OUT / "rows.jsonl") if value in row]
    lines = []
    for name in names:
        cells = []
        for problem in PROBLEMS:
            own, first = (
                [r[value] for r in rows if (r["contender"], r["model"]) == key]
                for key in ((name, problem), (names[0], problem))
            )
            if not own:
                cells.append("")
                continue
            ratio = median(a / b for a, b in zip(own, first, strict=True))
            spread = f"{min(own):.3g} to {max(own):.3g}"
            cells.append(f"{median(own):.3g} ({spread}), {ratio:.2f} ×")
        lines.append([name, *cells])
    return prose.table([value, *PROBLEMS], lines)


if __name__ == "__main__":
    run()
    print(table("cpu_seconds", NAMES), table("peak_mb", (PLAIN, *NAMES)), sep="\n\n")
