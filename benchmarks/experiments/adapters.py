"""Compare low-rank updates and biases with a head alone, and with Opacus.

A public EfficientNet-Lite2 (ImageNet) reads CIFAR-10 at 96 pixels. Its first six blocks
are frozen. Their maps (208 x 3 x 3) are computed once, so a step costs the trained part
only: the last block, the last convolution and the classifier. All methods get the same
4,000 training images, batches of 400 expected images, 10 steps, clip norm 1, and for
each epsilon the same noise multiplier. Three draws are paired by their initial
classifier. The learning rate of a method is the better of 2 and 8 at another draw
and epsilon 3, on 1,000 further images. The accuracy is that of 2,000 test images.
Opacus trains the same module with the same noise multiplier. "auto" is
`DPAutoClassifier` on the pooled features of the network without fine-tuning.
"""

# Opacus comes with the extra `bench` only.
# pyright: reportMissingImports=false

import time
from collections import OrderedDict, defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from dphead_extract.images import with_channels
from PIL import Image
from torch import nn

from benchmarks import prose
from benchmarks.features import cache, images
from benchmarks.store import RESULTS, append, provenance, read
from dphead import DPAutoClassifier, DPFinetuneClassifier
from dphead.finetune.models import build_network
from dphead.finetune.settings import ModelSpec

OUT = RESULTS / "adapters"
EPSILONS, DRAWS, DELTA = (1.0, 3.0, 8.0), 3, 1e-5
TRAIN, HELD, TEST, SIDE, BATCH, STEPS = 4_000, 1_000, 2_000, 96, 400, 10
RATES, CHOICE = (2.0, 8.0), 9  # learning rates, and the draw that chooses
METHODS: dict[str, dict[str, Any]] = {
    "head": {"layers": ("^classifier",)},
    "bias": {"adapter": "bias"},
    "lora": {"adapter": "lora", "rank": 4},
}
_MODEL = "tf_efficientnet_lite2"


def backbone(weights: Path) -> Any:
    """The network with its public weights."""
    spec = ModelSpec(_MODEL, batch_norm="freeze", weights=str(weights))
    return build_network(spec, 10).eval()


def maps(weights: Path, folder: Path | None) -> dict[str, np.ndarray]:
    """Maps of the frozen blocks and labels, of the train and test images."""
    path = cache() / f"cifar10-{_MODEL}-{SIDE}.npz"
    if not path.exists():
        from dphead_extract.sources.classes import Classes
        from dphead_extract.sources.opening import open_source

        network, found = backbone(weights), {}
        ten = Classes([str(i) for i in range(10)])
        for split, n in (("train", TRAIN + HELD), ("test", TEST)):
            source = open_source(images("cifar10", folder), ten, split)
            x = np.stack([_pixels(source.decode(source.raw(i))) for i in range(n)])
            found[f"{split}_x"] = _frozen(network, x)
            found[f"{split}_y"] = np.asarray(source.labels[:n])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **found)
    with np.load(path) as file:
        return dict(file)


def _pixels(image: Any) -> np.ndarray:
    """An image of the network's size, from -1 to 1."""
    image = with_channels(image, 3)
    resized = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return (np.asarray(resized, np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5


@torch.inference_mode()
def _frozen(network: Any, x: np.ndarray) -> np.ndarray:
    """The maps of all blocks but the last."""
    parts = []
    for batch in torch.from_numpy(x).split(100):
        found = network.bn1(network.conv_stem(batch))
        for block in network.blocks[:-1]:
            found = block(found)
        parts.append(found.numpy())
    return np.concatenate(parts)


def tail(network: Any, draw: int) -> nn.Sequential:
    """The trained part, with a new classifier."""
    torch.manual_seed(draw)
    classifier = nn.Linear(network.classifier.in_features, 10)
    nn.init.zeros_(classifier.weight)
    parts = {
        "block": network.blocks[-1],
        "conv_head": network.conv_head,
        "norm": network.bn2,
        "pool": network.global_pool,
        "classifier": classifier,
    }
    return nn.Sequential(OrderedDict(parts))


def fitted(
    module: nn.Module, x: Any, y: Any, epsilon: float, **given: Any
) -> DPFinetuneClassifier:
    """A trained classifier."""
    return DPFinetuneClassifier(
        model=module,
        classes=range(10),
        epsilon=epsilon,
        delta=DELTA,
        accountant="rdp",
        batch_norm="freeze",
        batch_size=BATCH,
        steps=STEPS,
        average="last",
        **given,
    ).fit(x, y)


def by_opacus(
    module: nn.Module, x: Any, y: Any, sigma: float, rate: float, given: dict[str, Any]
) -> nn.Module:
    """The same training with Opacus' hooks and Poisson samples."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    spec = ModelSpec("own:tail", batch_norm="freeze", **given)
    model = build_network(spec, 10, module=module)
    private = GradSampleModule(model, strict=False)
    wanted = [p for p in private.parameters() if p.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.SGD(wanted, lr=rate),
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    for _ in range(STEPS):
        drawn = torch.rand(len(x)) < BATCH / len(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(x[drawn]), y[drawn]).backward()
        optimizer.step()
    return model


def run(weights: Path, folder: Path | None = None) -> None:
    """Choose learning rates, then train what is missing."""
    data, network = maps(weights, folder), backbone(weights)
    x, y = data["train_x"], data["train_y"].astype(int)
    held, held_y = x[TRAIN:], y[TRAIN:]
    x, y, test, test_y = x[:TRAIN], y[:TRAIN], data["test_x"], data["test_y"]
    rows = read(OUT / "rows.jsonl")
    known = {r["method"]: r["tried"] for r in rows if r["kind"] == "choice"}
    done = {(r["method"], r["epsilon"], r["draw"]) for r in rows if r["kind"] == "run"}
    chosen: dict[str, float] = {}
    for name, given in METHODS.items():
        tried = known.get(name, {})
        for rate in () if tried else RATES:
            model = fitted(
                tail(network, CHOICE), x, y, 3.0, learning_rate=rate, **given
            )
            tried[rate] = float((model.predict(held) == held_y).mean())
        if name not in known:
            _store(method=name, kind="choice", tried=tried)
        chosen[name] = float(max(tried, key=lambda rate: tried[rate]))
    with torch.inference_mode():
        bare = tail(network, 0)[:-1].eval()
        pooled = [bare(torch.from_numpy(one)).numpy() for one in (x, test)]
    for epsilon in EPSILONS:
        for draw in range(DRAWS):
            own = {"epsilon": epsilon, "draw": draw, "kind": "run"}
            if ("auto", epsilon, draw) not in done:
                head = DPAutoClassifier(epsilon=epsilon, delta=DELTA, classes=range(10))
                accuracy = head.fit(pooled[0], y).score(pooled[1], test_y)
                _store(method="auto", accuracy=accuracy, **own)
            for name, given in METHODS.items():
                if (f"{name}, Opacus", epsilon, draw) in done:
                    continue
                rate, start = chosen[name], time.process_time()
                model = fitted(
                    tail(network, draw), x, y, epsilon, learning_rate=rate, **given
                )
                more = {"rate": rate, "parameters": len(model.weights_)}
                more |= {"cpu_seconds": time.process_time() - start}
                accuracy = float((model.predict(test) == test_y).mean())
                if (name, epsilon, draw) not in done:
                    _store(method=name, accuracy=accuracy, **own, **more)
                sigma = model.privacy_.noise_multipliers[0]
                more = {"rate": rate, "sigma": sigma}
                start, found = time.process_time(), tail(network, draw)
                try:
                    peer = by_opacus(found, x, y, sigma, rate, given)
                except NotImplementedError as error:
                    _store(method=f"{name}, Opacus", refused=str(error), **own, **more)
                    continue
                more |= {"cpu_seconds": time.process_time() - start}
                with torch.inference_mode():
                    best = peer(torch.from_numpy(test)).argmax(dim=1).numpy()
                accuracy = float((best == test_y).mean())
                _store(method=f"{name}, Opacus", accuracy=accuracy, **own, **more)


def _store(**row: Any) -> None:
    append(OUT / "rows.jsonl", row | provenance())
    print(row, flush=True)


def table() -> str:
    """Mean and standard deviation of the draws, by method and epsilon."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    refused = set()
    for row in read(OUT / "rows.jsonl"):
        if "refused" in row:
            refused.add(row["method"])
        elif row["kind"] == "run":
            found[row["method"], row["epsilon"]].append(100 * row["accuracy"])
    lines = []
    for name in ("auto", *(f"{m}{by}" for m in METHODS for by in ("", ", Opacus"))):
        cells = [found[name, epsilon] for epsilon in EPSILONS]
        missing = "refused by Opacus" if name in refused else "not measured"
        shown = [
            f"{mean(c):.1f} ± {stdev(c):.1f} ({len(c)})" if len(c) > 1 else missing
            for c in cells
        ]
        lines.append([name, *shown])
    heads = ["accuracy, % (draws)", *(f"ε = {e:g}" for e in EPSILONS)]
    return prose.table(heads, lines)


def readme() -> str:
    """results/adapters/README.md from the stored rows."""
    return prose.wrapped(f"# {__doc__}\n{table()}\n")
