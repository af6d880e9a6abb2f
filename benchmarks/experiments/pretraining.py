"""Small networks trained on the public images of CIFAR-100, with their labels or
without, or on synthetic ones, for `transfer`: a stand-in for the networks of TB21's
section 5.2.

Made for minutes on one core of a CPU: few layers, convolutions in bfloat16. No image of
CIFAR-10 trains a network.
"""

import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from dphead_extract.backbones.patches import dead_leaves
from dphead_extract.backbones.registry import OPPONENT
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from benchmarks.features import fifth_apart, images

# three of its test rows stand in CIFAR-10 too; only training rows train a network
ALSO_IN_CIFAR10 = (3693, 7603, 8383)
SMOOTHING = 0.1
TEMPERATURE = 0.2
PROJECTED = 128  # columns of what is compared of views
LEAST_AREA = {True: 0.35, False: 0.25}  # of a view, in parts of the image, if labelled
SIDE = 32  # of an image
BLOCK = 500
RIDGE = 1e-2  # of a probe, in parts of the features' mean square


@dataclass(frozen=True)
class Recipe:
    """How a network is pre-trained. layers, channels: of timm's resnet18, a number a
    stage. sides: of the images, 32 at least, one after the other in equal parts of all
    steps. rate: the highest, of SGD with Nesterov's momentum 0.9; it rises for a fifth
    of the steps and falls to 0. views: of an image in one step, 1 if labelled.
    synthetic: dead leaves in place of CIFAR-100, as many.

    Below 32 the last stage has one pixel, of which torch 2.14's bfloat16 gradients of
    strided convolutions are now and then no numbers.
    """

    labelled: bool
    layers: tuple[int, ...]
    channels: tuple[int, ...]
    sides: tuple[int, ...]
    epochs: int
    rate: float
    batch: int = 128
    weight_decay: float = 5e-4
    views: int = 1
    synthetic: bool = False

    @property
    def model_args(self) -> dict[str, Any]:
        """For `timm.create_model("resnet18")`, and for `dphead extract`."""
        return {
            "layers": list(self.layers),
            "channels": list(self.channels),
            "num_classes": 0,
        }


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
    """The 25,000 training images at hand, or the test images not in CIFAR-10."""
    with np.load(images("cifar100", None) / "cifar100.npz") as file:
        rows = np.flatnonzero(file["split"] == split)
        if split == "test":
            rows = np.delete(rows, ALSO_IN_CIFAR10)
        x = torch.from_numpy(file["images"][rows])
        y = torch.from_numpy(file["labels"][rows])
    planes = x.permute(0, 3, 1, 2).contiguous()
    return Images(planes, y.to(torch.int64))


def synthetic(count: int) -> Images:
    """Dead leaves, all of one class."""
    x = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8)
    for i, leaves in enumerate(dead_leaves(SIDE, SIDE, 3, count)):
        x[i] = torch.from_numpy(255 * leaves).round()
    return Images(x, torch.zeros(count, dtype=torch.int64))


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
    return nn.Sequential(
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, PROJECTED),
    )


def train(recipe: Recipe, data: Images, seed: int, steps: int | None = None) -> Trained:
    """Pre-train from a seed; steps: so many (10 at least), not the recipe's epochs."""
    torch.manual_seed(seed)
    n = len(data.x)
    net = network(recipe).train()
    net = net.to(memory_format=torch.channels_last)
    head = head_of(recipe, 1 + int(data.y.max())).train()
    total = steps or recipe.epochs * (n // recipe.batch)
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
    order = torch.randperm(n)
    for step in range(total):
        if len(order) < recipe.batch:
            order = torch.randperm(n)
        batch = order[: recipe.batch]
        order = order[recipe.batch :]
        side = recipe.sides[step * len(recipe.sides) // total]
        found = loss(
            recipe,
            net,
            head,
            data.x[batch],
            data.y[batch],
            side,
        )
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        schedule.step()
        losses.append(found.item())
        if step % 100 == 0:
            seconds = time.process_time() - start
            print(
                f"step {step} of {total}: {losses[-1]:.3f}, {seconds:.0f} s",
                flush=True,
            )
    seconds = time.process_time() - start
    last = float(np.mean(losses[-max(1, total // 20) :]))
    return Trained(net.eval(), head.eval(), last, seconds)


def loss(
    recipe: Recipe,
    net: nn.Module,
    head: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    side: int,
) -> torch.Tensor:
    """Cross-entropy of a view of each image, or what tells the other views of the same
    image from those of all others (SimCLR).
    """
    seen = x.repeat(recipe.views, 1, 1, 1).float() / 255
    seen = views(seen, side, recipe.labelled)
    seen = seen.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = head(net(seen))
    out = out.float()
    if recipe.labelled:
        return F.cross_entropy(
            out,
            y,
            label_smoothing=SMOOTHING,
        )
    return contrast(out, len(x))


def contrast(z: torch.Tensor, n: int) -> torch.Tensor:
    """SimCLR's loss of rows (views x n, d), of which row i is a view of image i mod n;
    of several other views, the mean.
    """
    unit = F.normalize(z)
    similar = unit @ unit.T / TEMPERATURE
    itself = torch.eye(len(z), dtype=torch.bool)
    similar = similar.masked_fill(itself, -torch.inf)
    image = torch.arange(len(z)) % n
    same = image[:, None] == image
    others = same & ~itself
    return -F.log_softmax(similar, dim=1)[others].mean()


def views(x: torch.Tensor, side: int, labelled: bool) -> torch.Tensor:
    """A random part of each image (n, 3, h, w) in 0 to 1, half of them mirrored, scaled
    to `side`, in -1 to 1; without labels in other colours too.
    """
    n = len(x)
    area = uniform(n, LEAST_AREA[labelled], 1.0)
    ratio = uniform(n, -0.28, 0.28).exp()  # about 3/4 to 4/3
    wide = (area * ratio).sqrt().clamp(max=1)
    tall = (area / ratio).sqrt().clamp(max=1)
    mirror = torch.randint(0, 2, (n,)) * 2 - 1
    to_part = torch.zeros(n, 2, 3)
    to_part[:, 0, 0] = wide * mirror
    to_part[:, 1, 1] = tall
    to_part[:, 0, 2] = uniform(n, -1.0, 1.0) * (1 - wide)
    to_part[:, 1, 2] = uniform(n, -1.0, 1.0) * (1 - tall)
    grid = F.affine_grid(
        to_part,
        [n, 3, side, side],
        align_corners=False,
    )
    seen = F.grid_sample(
        x,
        grid,
        padding_mode="border",
        align_corners=False,
    )
    if not labelled:
        seen = recoloured(seen)
    return seen * 2 - 1


def recoloured(x: torch.Tensor) -> torch.Tensor:
    """Four fifths of images (n, 3, h, w) with another brightness, contrast, saturation
    and hue, and a fifth of all without colour.
    """
    n = len(x)
    changed = torch.rand(n) < 0.8
    bright, contrasted, saturation = (
        torch.where(changed, uniform(n, 0.6, 1.4), 1.0) for _ in range(3)
    )
    turn = torch.where(changed, uniform(n, -0.6, 0.6), 0.0)
    strength = saturation * (torch.rand(n) >= 0.2)
    # luminance stays, and the plane of the two colours turns
    own = torch.zeros(n, 3, 3)
    own[:, 0, 0] = 1
    own[:, 1, 1] = strength * turn.cos()
    own[:, 2, 2] = own[:, 1, 1]
    own[:, 1, 2] = strength * turn.sin()
    own[:, 2, 1] = -own[:, 1, 2]
    colours = OPPONENT.T @ own @ OPPONENT
    x = torch.einsum("nij,njhw->nihw", colours, x)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    bright = bright.reshape(n, 1, 1, 1)
    spread = (x - mean) * contrasted.reshape(n, 1, 1, 1)
    return ((mean + spread) * bright).clamp(0, 1)


def uniform(n: int, low: float, high: float) -> torch.Tensor:
    """Random numbers (n,)."""
    return torch.rand(n) * (high - low) + low


@torch.inference_mode()
def features(net: nn.Module, x: torch.Tensor, side: int) -> torch.Tensor:
    """Features (n, d) of images (n, 3, h, w) uint8."""
    found = []
    for block in x.split(BLOCK):
        scaled = F.interpolate(
            block.float() / 255,
            (side, side),
            mode="bilinear",
        )
        seen = scaled * 2 - 1
        seen = seen.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(seen)
        found.append(out.float())
    return torch.cat(found)


def accuracy(trained: Trained, data: Images, side: int) -> float:
    """Of the network's own classifier."""
    with torch.inference_mode():
        scores = trained.head(features(trained.network, data.x, side))
    right = scores.argmax(dim=1) == data.y
    return right.double().mean().item()


def probed(net: nn.Module, kept: Images, held: Images, side: int) -> float:
    """Accuracy on `held` of least squares, fitted on the features of `kept`."""
    x = features(net, kept.x, side).double()
    mean = x.mean(dim=0)
    x = x - mean
    gram = x.T @ x / len(x)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    targets = F.one_hot(kept.y).double()
    targets = targets - targets.mean(dim=0)
    weights = torch.linalg.solve(gram, x.T @ targets / len(x))
    other = features(net, held.x, side).double()
    scores = (other - mean) @ weights
    right = scores.argmax(dim=1) == held.y
    return right.double().mean().item()


def measured(
    recipe: Recipe,
    trained: Trained,
    kept: Images,
    held: Images,
) -> float:
    """Accuracy on `held`: by the network's own classifier or, without labels, by least
    squares on the features of `kept`.
    """
    side = recipe.sides[-1]
    if recipe.labelled:
        return accuracy(trained, held, side)
    return probed(
        trained.network,
        kept,
        held,
        side,
    )


def tried(recipe: Recipe, seed: int) -> dict[str, Any]:
    """What a recipe gives on a fifth of CIFAR-100's training rows that it does not
    see.
    """
    data = cifar100("train")
    kept, held = (data.part(rows) for rows in fifth_apart(len(data.x)))
    found = train(recipe, kept, seed)
    value = measured(recipe, found, kept, held)
    return described(recipe, seed, found) | {"held_out": value}


def weights(recipe: Recipe, seed: int, path: Path) -> dict[str, Any]:
    """Train on all training images of CIFAR-100, or as many synthetic ones, and save
    the network at `path`; returns the accuracy on CIFAR-100's test rows too, which
    chooses nothing.
    """
    data = cifar100("train")
    test = cifar100("test")
    seen = synthetic(len(data.x)) if recipe.synthetic else data
    found = train(recipe, seen, seed)
    save(found.network, path)
    value = measured(recipe, found, data, test)
    return described(recipe, seed, found) | {"test": value}


def save(net: nn.Module, path: Path) -> None:
    """Write a network's weights for `dphead extract --weights`."""
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path)


def described(recipe: Recipe, seed: int, found: Trained) -> dict[str, Any]:
    """A recipe and its training, as JSON data."""
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "loss": found.loss,
        "seconds": found.seconds,
        "parameters": sum(p.numel() for p in found.network.parameters()),
    }
