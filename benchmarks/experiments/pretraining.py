"""Small networks trained on the public images of CIFAR-100, with their labels or without,
for `transfer`: a stand-in for the networks of TB21's section 5.2.

Made for minutes on one core of a CPU: few layers, convolutions in bfloat16. No image of
CIFAR-10 comes near, neither for training nor to choose a recipe.
"""

import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from benchmarks.features import fifth_apart, images
from extract.backbones import OPPONENT

# three of its 10,000 test rows stand in CIFAR-10 too; training rows alone train a network
ALSO_IN_CIFAR10 = (3693, 7603, 8383)
SMOOTHING = 0.1
TEMPERATURE = 0.2
PROJECTED = 128  # columns of what is compared of two views
LEAST_AREA = {True: 0.35, False: 0.25}  # of a view, in parts of the image, if labelled
BLOCK = 500
RIDGE = 1e-2  # of a probe, in parts of the features' mean square


@dataclass(frozen=True)
class Recipe:
    """How a network is pre-trained. layers, channels: of timm's resnet18, a number a
    stage. sides: of the images, one after the other in equal parts of all steps.
    rate: the highest, of SGD with Nesterov's momentum 0.9; it rises for a fifth of the
    steps and falls to 0.
    """

    labelled: bool
    layers: tuple[int, ...]
    channels: tuple[int, ...]
    sides: tuple[int, ...]
    epochs: int
    rate: float
    batch: int = 128
    weight_decay: float = 5e-4

    @property
    def model_args(self) -> dict[str, Any]:
        """For `timm.create_model("resnet18")`, and for `dphead extract`."""
        shape = {"layers": list(self.layers), "channels": list(self.channels)}
        return shape | {"num_classes": 0}


class Images(NamedTuple):
    """Images (n, 3, 32, 32) uint8 and their labels (n,)."""

    x: torch.Tensor
    y: torch.Tensor

    def part(self, rows: np.ndarray) -> "Images":
        """Some rows."""
        at = torch.from_numpy(rows)
        return Images(self.x[at], self.y[at])


@dataclass(frozen=True)
class Trained:
    """A network without classifier, what stood on it in training, the mean loss of the
    last twentieth of the steps, and CPU seconds of training.
    """

    network: nn.Module
    head: nn.Module
    loss: float
    seconds: float


@lru_cache(maxsize=2)
def cifar100(split: str) -> Images:
    """The 25,000 training images at hand, or the test images that are not in CIFAR-10."""
    with np.load(images("cifar100", None) / "cifar100.npz") as file:
        rows = np.flatnonzero(file["split"] == split)
        if split == "test":
            rows = np.delete(rows, ALSO_IN_CIFAR10)
        x = torch.from_numpy(file["images"][rows]).permute(0, 3, 1, 2).contiguous()
        return Images(x, torch.from_numpy(file["labels"][rows].astype(np.int64)))


def network(recipe: Recipe) -> nn.Module:
    """The network with random weights, without classifier."""
    return timm.create_model("resnet18", pretrained=False, **recipe.model_args)


def head_of(recipe: Recipe, n_classes: int) -> nn.Module:
    """What stands on the network in training: a classifier, or two layers to what views
    are compared by.
    """
    width = recipe.channels[-1]
    if recipe.labelled:
        return nn.Linear(width, n_classes)
    inner = nn.Sequential(
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
    )
    return nn.Sequential(inner, nn.Linear(width, PROJECTED))


def train(recipe: Recipe, data: Images, seed: int, steps: int | None = None) -> Trained:
    """Pre-train from a seed; steps: so many, not the recipe's epochs."""
    torch.manual_seed(seed)
    n_classes = int(data.y.max()) + 1
    net = network(recipe).to(memory_format=torch.channels_last).train()
    head = head_of(recipe, n_classes).train()
    total = steps or recipe.epochs * (len(data.x) // recipe.batch)
    optimizer = torch.optim.SGD(
        [*net.parameters(), *head.parameters()],
        recipe.rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=recipe.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        recipe.rate,
        total_steps=total,
        pct_start=0.2,
        cycle_momentum=False,
    )
    start = time.process_time()
    losses = []
    order = torch.empty(0, dtype=torch.int64)
    for step in range(total):
        if len(order) < recipe.batch:
            order = torch.randperm(len(data.x))
        batch, order = order[: recipe.batch], order[recipe.batch :]
        side = recipe.sides[step * len(recipe.sides) // total]
        found = loss(recipe, net, head, data.x[batch], data.y[batch], side)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(found.detach()))
        if step % 100 == 0:
            seconds = time.process_time() - start
            print(
                f"step {step} of {total}: {losses[-1]:.3f}, {seconds:.0f} s", flush=True
            )
    last = float(np.mean(losses[-max(1, total // 20) :]))
    return Trained(net.eval(), head.eval(), last, time.process_time() - start)


def loss(
    recipe: Recipe,
    net: nn.Module,
    head: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    side: int,
) -> torch.Tensor:
    """Cross-entropy of one view of each image, or what tells the other view of the same
    image from those of all others (SimCLR).
    """
    once = x if recipe.labelled else torch.cat([x, x])
    seen = views(once.float() / 255, side, recipe.labelled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = head(net(seen.contiguous(memory_format=torch.channels_last)))
    if recipe.labelled:
        return F.cross_entropy(out.float(), y, label_smoothing=SMOOTHING)
    return contrast(out.float())


def contrast(z: torch.Tensor) -> torch.Tensor:
    """SimCLR's loss of rows (2n, d): row i and row n + i are views of one image."""
    unit = F.normalize(z)
    similar = (unit @ unit.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    other = torch.arange(len(z)).roll(len(z) // 2)
    return F.cross_entropy(similar, other)


def views(x: torch.Tensor, side: int, labelled: bool) -> torch.Tensor:
    """A random part of each image (n, 3, h, w) in 0 to 1, half of them mirrored, scaled
    to `side`, in -1 to 1; without labels in other colours too.
    """
    n = len(x)
    area = torch.empty(n).uniform_(LEAST_AREA[labelled], 1)
    ratio = torch.empty(n).uniform_(-0.28, 0.28).exp()  # about 3/4 to 4/3
    half = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)
    middle = torch.empty(n, 2).uniform_(-1, 1) * (1 - half)
    mirror = torch.randint(0, 2, (n,)) * 2.0 - 1
    map_ = torch.zeros(n, 2, 3)
    map_[:, 0, 0] = half[:, 0] * mirror
    map_[:, 1, 1] = half[:, 1]
    map_[:, :, 2] = middle
    grid = F.affine_grid(map_, [n, 3, side, side], align_corners=False)
    seen = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return (seen if labelled else recoloured(seen)) * 2 - 1


def recoloured(x: torch.Tensor) -> torch.Tensor:
    """Four fifths of images (n, 3, h, w) with another brightness, contrast, saturation
    and hue, and a fifth of all without colour.
    """
    n = len(x)
    bright, contrast_, saturation = torch.empty(3, n).uniform_(0.6, 1.4)
    hue = torch.empty(n).uniform_(-0.6, 0.6)
    changed = torch.rand(n) < 0.8
    strength = torch.where(changed, saturation, 1.0) * (torch.rand(n) >= 0.2)
    turn = torch.where(changed, hue, 0.0)
    own = torch.zeros(n, 3, 3)  # luminance, and a turn of the plane of the two colours
    own[:, 0, 0] = 1
    own[:, 1, 1] = own[:, 2, 2] = strength * turn.cos()
    own[:, 1, 2] = strength * turn.sin()
    own[:, 2, 1] = -own[:, 1, 2]
    colours = OPPONENT.T @ own @ OPPONENT
    x = torch.einsum("nij,njhw->nihw", colours, x)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    factor = torch.where(changed, bright * contrast_, 1.0).reshape(n, 1, 1, 1)
    shift = torch.where(changed, bright, 1.0).reshape(n, 1, 1, 1)
    return (mean * shift + (x - mean) * factor).clamp(0, 1)


@torch.inference_mode()
def features(net: nn.Module, x: torch.Tensor, side: int) -> torch.Tensor:
    """Features (n, d) of images (n, 3, h, w) uint8."""
    found = []
    for block in x.split(BLOCK):
        scaled = F.interpolate(block.float() / 255, (side, side), mode="bilinear")
        seen = (scaled * 2 - 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(net(seen).float())
    return torch.cat(found)


def accuracy(trained: Trained, data: Images, side: int) -> float:
    """Of the network's own classifier."""
    with torch.inference_mode():
        scores = trained.head(features(trained.network, data.x, side))
    return float((scores.argmax(dim=1) == data.y).float().mean())


def probed(net: nn.Module, kept: Images, held: Images, side: int) -> float:
    """Accuracy on `held` of least squares, fitted on the features of `kept`."""
    x, other = (features(net, part.x, side).double() for part in (kept, held))
    mean = x.mean(dim=0)
    x = x - mean
    ridge = RIDGE * x.square().mean() * torch.eye(x.shape[1])
    targets = F.one_hot(kept.y).double()
    targets = targets - targets.mean(dim=0)
    weights = torch.linalg.solve(x.T @ x / len(x) + ridge, x.T @ targets / len(x))
    found = ((other - mean) @ weights).argmax(dim=1)
    return float((found == held.y).double().mean())


def tried(recipe: Recipe, seed: int) -> dict[str, Any]:
    """What a recipe gives on a fifth of CIFAR-100's training rows that it does not see:
    by its own classifier, or by least squares on its features.
    """
    data = cifar100("train")
    kept, held = (data.part(rows) for rows in fifth_apart(len(data.x)))
    found = train(recipe, kept, seed)
    side = recipe.sides[-1]
    if recipe.labelled:
        value = accuracy(found, held, side)
    else:
        value = probed(found.network, kept, held, side)
    return described(recipe, seed, found) | {"held_out": value}


def weights(recipe: Recipe, seed: int, path: Path) -> dict[str, Any]:
    """Train on all training images of CIFAR-100 and save the network at `path`; returns
    the accuracy on CIFAR-100's test rows too, which chooses nothing.
    """
    data, test = cifar100("train"), cifar100("test")
    found = train(recipe, data, seed)
    state = {k: v.contiguous() for k, v in found.network.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)
    side = recipe.sides[-1]
    if recipe.labelled:
        value = accuracy(found, test, side)
    else:
        value = probed(found.network, data, test, side)
    return described(recipe, seed, found) | {"test": value}


def described(recipe: Recipe, seed: int, found: Trained) -> dict[str, Any]:
    """A recipe and its training, as JSON data."""
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "loss": found.loss,
        "seconds": found.seconds,
        "parameters": sum(p.numel() for p in found.network.parameters()),
    }
