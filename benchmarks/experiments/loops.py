"""Compare a loop of one's own on frozen batch norms, a table and tokens with Opacus.

`python -m benchmarks.experiments.loops WEIGHTS IMAGES` trains the same module on the
same rows with the same optimizer, noise multiplier and expected batch size. Three draws
are paired by their initial weights. The learning rate is the best of three
(MobileNetV2: of two) at another draw on held-out rows, for each library.

"MobileNetV2" reads CIFAR-10 at 96 pixels. Its batch norms are frozen. The maps of all
blocks but the last are computed once, and the last block, the last convolution and the
classifier are trained. "table" is an MLP on the 64 numbers of scikit-learn's digits,
and "tokens" the mean of embeddings of their 64 (place, level) pairs. CPU seconds are
those of a step, with one thread (median).
"""

# Opacus comes with the extra `bench` only.
# pyright: reportMissingImports=false

import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from dphead_extract.images import with_channels
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.opening import open_source
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.features import cache
from benchmarks.store import RESULTS, append, provenance, read
from dphead import PrivateTraining
from dphead.finetune.architectures import convert_batch_norms
from dphead.finetune.models import load_public_weights

OUT = RESULTS / "loops" / "rows.jsonl"
EPSILON, DELTA, DRAWS, CHOICE = 3.0, 1e-5, 3, 9
RATES = (0.5, 2.0, 8.0)


class Problem(NamedTuple):
    """Rows (train, held out, test), and the module of a draw."""

    make: Callable[[int], nn.Module]
    x: np.ndarray
    y: np.ndarray
    ends: tuple[int, int]
    batch: int
    steps: int
    vocabulary: int | None = None


class Bag(nn.Module):
    """The mean of the tokens' embeddings."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, 32), nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens).mean(dim=1))


def digits() -> dict[str, Problem]:
    """A table and tokens."""
    found: Any = load_digits(return_X_y=True)
    x, y = found
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]

    def table(draw: int) -> nn.Module:
        torch.manual_seed(draw)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def bag(draw: int) -> nn.Module:
        torch.manual_seed(draw)
        return Bag(64 * 17)

    tokens = (np.arange(64) * 17 + x).astype(np.int64)
    numbers = (x / 16).astype(np.float32)
    return {
        "table": Problem(table, numbers, y, (1200, 1400), 256, 60),
        "tokens": Problem(bag, tokens, y, (1200, 1400), 256, 60, 64 * 17),
    }


def mobilenet(weights: Path, images: Path) -> Problem:
    """The last blocks, and the maps of the others."""
    network: Any = timm.create_model("mobilenetv2_100", pad_type="same", num_classes=10)
    load_public_weights(network, str(weights))
    network.eval()
    path = cache() / "cifar10-mobilenetv2-96.npz"
    sizes = {"train": 3000, "test": 2000}
    if not path.exists():
        parts = []
        for split, n in sizes.items():
            ten = Classes([str(i) for i in range(10)])
            source = open_source(images, ten, split)
            x = np.stack([_pixels(source.decode(source.raw(i))) for i in range(n)])
            parts.append((_frozen(network, x), np.asarray(source.labels[:n])))
        x, y = (np.concatenate(one) for one in zip(*parts, strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=x, y=y)
    found = np.load(path)

    def make(draw: int) -> nn.Module:
        torch.manual_seed(draw)
        classifier = nn.Linear(network.classifier.in_features, 10)
        parts = {
            "block": network.blocks[-1],
            "conv_head": network.conv_head,
            "norm": network.bn2,
            "pool": network.global_pool,
            "classifier": classifier,
        }
        # a copy of the public blocks; Opacus trains no layer in eval mode
        module = deepcopy(nn.Sequential(OrderedDict(parts))).train()
        convert_batch_norms(module, "freeze")
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("conv" in name or "classifier" in name)
        return module

    return Problem(make, found["x"], found["y"].astype(int), (2500, 3000), 200, 8)


def _pixels(image: Any) -> np.ndarray:
    image = with_channels(image, 3).resize((96, 96), Image.Resampling.BICUBIC)
    return (np.asarray(image, np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5


@torch.inference_mode()
def _frozen(network: Any, x: np.ndarray) -> np.ndarray:
    parts = []
    for batch in torch.from_numpy(x).split(100):
        found = network.bn1(network.conv_stem(batch))
        for block in network.blocks[:-1]:
            found = block(found)
        parts.append(found.numpy())
    return np.concatenate(parts)


def ours(problem: Problem, draw: int, rate: float) -> tuple[nn.Module, float, float]:
    """The trained module, its noise multiplier and the CPU seconds of a step."""
    model, n = problem.make(draw), problem.ends[0]
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=rate
    )
    private = PrivateTraining(
        model,
        lambda model, x, y: nn.functional.cross_entropy(model(x), y),
        (problem.x[:n], problem.y[:n]),
        classes=range(10),
        sampling_prob=problem.batch / n,
        steps=problem.steps,
        epsilon=EPSILON,
        delta=DELTA,
        vocabulary=problem.vocabulary,
    )
    seconds = []
    with private as training:
        start = time.process_time()
        for _ in training:
            optimizer.step()
            seconds.append(time.process_time() - start)
            start = time.process_time()
    return model, private.privacy.noise_multipliers[0], median(seconds)


def theirs(
    problem: Problem, draw: int, rate: float, sigma: float
) -> tuple[nn.Module, float]:
    """The same by Opacus' hooks."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, n = problem.make(draw), problem.ends[0]
    private = GradSampleModule(model, strict=False)
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in private.parameters() if p.requires_grad], lr=rate),
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        expected_batch_size=problem.batch,
    )
    x, y = torch.from_numpy(problem.x[:n]), torch.from_numpy(problem.y[:n])
    seconds = []
    for _ in range(problem.steps):
        start = time.process_time()
        drawn = torch.rand(n) < problem.batch / n
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(x[drawn]), y[drawn]).backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
    return model, median(seconds)


def accuracy(problem: Problem, model: nn.Module, start: int, stop: int | None) -> float:
    x, y = problem.x[start:stop], problem.y[start:stop]
    with torch.inference_mode():
        return float((model(torch.from_numpy(x)).argmax(dim=1).numpy() == y).mean())


def main(weights: Path, images: Path) -> None:
    """Train what is missing."""
    warnings.simplefilter("ignore")  # Opacus' and torch's on hooks
    torch.set_num_threads(1)
    done = {(r["problem"], r["draw"]) for r in read(OUT)}
    for name, problem in {
        **digits(),
        "MobileNetV2": mobilenet(weights, images),
    }.items():
        if {(name, draw) for draw in range(DRAWS)} <= done:
            continue
        chosen: dict[str, float] = {}
        rates = RATES[1:] if name == "MobileNetV2" else RATES
        for rate in rates:
            model, sigma, _ = ours(problem, CHOICE, rate)
            peer, _ = theirs(problem, CHOICE, rate, sigma)
            for library, one in (("dphead", model), ("Opacus", peer)):
                found = accuracy(problem, one, *problem.ends)
                chosen[f"{library} {rate}"] = found
                print(name, library, rate, found, flush=True)
        best = {
            library: max(rates, key=lambda r: chosen[f"{library} {r}"])
            for library in ("dphead", "Opacus")
        }
        for draw in range(DRAWS):
            model, sigma, seconds = ours(problem, draw, best["dphead"])
            peer, others = theirs(problem, draw, best["Opacus"], sigma)
            for library, one, took in (
                ("dphead", model, seconds),
                ("Opacus", peer, others),
            ):
                row = {
                    "problem": name,
                    "library": library,
                    "draw": draw,
                    "rate": best[library],
                    "tried": {
                        k.split()[1]: v for k, v in chosen.items() if library in k
                    },
                    "accuracy": accuracy(problem, one, problem.ends[1], None),
                    "cpu_seconds": took,
                    "sigma": sigma,
                    "epsilon": EPSILON,
                    "batch": problem.batch,
                    "steps": problem.steps,
                    "parameters": sum(
                        p.numel() for p in one.parameters() if p.requires_grad
                    ),
                }
                append(OUT, row | provenance())
                print(row, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
