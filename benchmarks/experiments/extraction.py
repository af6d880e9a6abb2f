"""Extraction beside its peers, taken in turn in one process: `python -m
benchmarks extraction [scattering timm]`.

Each candidate runs on all cores in two ways, with torch's own threads and as one
single-threaded worker a core (as `dphead extract` does), at several batch sizes; its
best median counts. A run is a line of results/extraction.jsonl.
scattering: ScatterNet beside kymatio. timm: MobileNetV2 as extraction runs it on a CPU,
beside plain timm. `gpu` is a part of `python -m benchmarks gpu`.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.sources.classes import Classes
from PIL import Image

from benchmarks.store import RESULTS, append, provenance

OUT = RESULTS / "extraction.jsonl"
REPEATS = 5
WEIGHTS = (
    Path(__file__).parents[3]
    / "shared"
    / "weights"
    / "mobilenetv2_100.in1k.safetensors"
)
Network = Callable[[torch.Tensor], torch.Tensor]


def run_threads(network: Network, images: torch.Tensor, batch: int) -> None:
    """One batch after the other, torch's threads inside."""
    torch.set_num_threads(os.cpu_count() or 1)
    with torch.inference_mode():
        for part in images.split(batch):
            network(part)


def run_workers(network: Network, images: torch.Tensor, batch: int) -> None:
    """Several batches at a time, one thread each."""
    torch.set_num_threads(1)

    def work(part: torch.Tensor) -> None:
        with torch.inference_mode():
            network(part)

    with ThreadPoolExecutor(
        os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        list(pool.map(work, images.split(batch)))


WAYS = {"threads": run_threads, "workers": run_workers}


def compare(
    networks: dict[str, Network],
    images: torch.Tensor,
    batches: dict[str, tuple[int, ...]],
) -> dict[str, Any]:
    """For each network its best way, batch size and images a second (median, least,
    most), and all medians.
    """
    tries = [
        (name, way, batch)
        for name in networks
        for way in WAYS
        for batch in batches[name]
    ]
    rates: dict[tuple[str, str, int], list[float]] = {key: [] for key in tries}
    for repeat in range(REPEATS + 1):  # the first warms up
        for name, way, batch in tries:
            start = time.perf_counter()
            WAYS[way](networks[name], images, batch)
            if repeat:
                rates[name, way, batch].append(
                    len(images) / (time.perf_counter() - start)
                )
    found = {}
    for name in networks:
        medians = {
            key[1:]: median(values) for key, values in rates.items() if key[0] == name
        }
        way, batch = max(medians, key=lambda key: medians[key])
        best = rates[name, way, batch]
        found[name] = {
            "way": way,
            "batch": batch,
            "images_per_second": median(best),
            "least": min(best),
            "most": max(best),
            "medians": {
                f"{way} {batch}": value for (way, batch), value in medians.items()
            },
        }
    return found


def store(job: str, found: dict[str, Any], base: str, ours: str, **facts: Any) -> None:
    """Append the row and print it.

    plain_ratio: to the base as it is usually run, with torch's own threads.
    """
    rate = found[ours]["images_per_second"]
    theirs = found[base]
    plain = max(
        (v for key, v in theirs["medians"].items() if key.startswith("threads")),
        default=None,
    )
    ratios = {
        "ratio": rate / theirs["images_per_second"],
        "plain_ratio": plain and rate / plain,
    }
    append(
        OUT,
        {
            "job": job,
            **facts,
            "rates": found,
            **ratios,
            "torch": torch.__version__,
            **provenance(),
        },
    )
    print(f"{job} {facts}")
    for name, best in found.items():
        print(
            f"  {name:<22} {best['images_per_second']:8.0f} images/s ({best['way']}, "
            f"batches of {best['batch']})"
        )
        medians = (f"{key}: {value:.0f}" for key, value in best["medians"].items())
        print(f"  {'':<22} {', '.join(medians)}")
    print(f"  {ours} / {base}: {ratios}", flush=True)


def scattering() -> None:
    """ScatterNet, J = 2 and L = 8, beside kymatio 0.3."""
    # of the extra `bench`
    from kymatio.scattering2d.frontend import (  # pyright: ignore[reportMissingImports]
        torch_frontend,
    )

    for shape, colors, n in (((28, 28), 1, 1024), ((32, 32), 3, 512)):
        images = torch.rand(
            n, colors, *shape, generator=torch.Generator().manual_seed(0)
        )
        networks: dict[str, Network] = {
            "kymatio": torch_frontend.ScatteringTorch2D(2, shape),
            "dphead": ScatterNet(2, shape),
        }
        with torch.inference_mode():
            theirs, ours = (
                network(images[:32]).flatten(1) for network in networks.values()
            )
        difference = float(
            torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)
        )
        found = compare(
            networks, images, {"kymatio": (64, 128, 256), "dphead": (64, 128, 256)}
        )
        facts = {
            "shape": [*shape, colors],
            "images": n,
            "relative_difference": difference,
        }
        store("scattering", found, "kymatio", "dphead", **facts)


def timm() -> None:
    """MobileNetV2 at 128 pixels: plain timm and extraction's path (batch norms folded,
    channels last).
    """
    from dphead_extract.backbones.timm_models import timm_backbone

    arguments = {"num_classes": 1001, "pad_type": "same"}
    options = BackboneOptions(
        "mobilenetv2_100", WEIGHTS, arguments, (0.5,), (0.5,), image_size=128
    )
    images = torch.randn(128, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    plain = timm_backbone(options).module.eval()
    fast = load_backbone(options, (32, 32), True).module

    networks: dict[str, Network] = {
        "plain timm": plain,
        "dphead": lambda part: fast(part.to(memory_format=torch.channels_last)),
    }
    with torch.inference_mode():
        theirs = plain(images[:16])
        ours = networks["dphead"](images[:16])
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    found = compare(networks, images, {"plain timm": (16, 64), "dphead": (16, 64)})
    facts = {"model": "mobilenetv2_100", "size": 128, "relative_difference": difference}
    store("timm", found, "plain timm", "dphead", **facts)


class Images(torch.utils.data.Dataset):
    """Images of an array through a transform, as practitioners write it."""

    def __init__(self, images: np.ndarray, transform: Callable[[Any], torch.Tensor]):
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.transform(Image.fromarray(self.images[row]))


def plain(
    network: Network,
    images: np.ndarray,
    transform: Any,
    batch: int,
    device: str,
    mixed: bool,
) -> float:
    """Images a second of a loader with workers, mixed precision and one array."""
    loader: Any = torch.utils.data.DataLoader(
        Images(images, transform),  # pyright: ignore[reportArgumentType]
        batch,
        num_workers=os.cpu_count() or 1,
        pin_memory=device == "cuda",
    )
    start = time.perf_counter()
    found = []
    amp = torch.autocast(device, torch.bfloat16, enabled=mixed)
    with torch.inference_mode(), amp:
        for part in loader:
            part = part.to(device, non_blocking=True)
            if mixed:  # kymatio needs the usual format
                part = part.contiguous(memory_format=torch.channels_last)
            found.append(network(part).flatten(1).float().cpu().numpy())
    assert sum(map(len, found)) == len(images)
    return len(images) / (time.perf_counter() - start)


def gpu(store: Callable[..., None], tiny: bool = False, repeats: int = 3) -> None:
    """`extract` of three papers' networks at random weights beside a plain loop.

    Both read the same 8-bit images from memory with the same transform, batch size and
    mixed precision, in turn; ours also writes and checks the features file.
    """
    import timm as library
    from kymatio.scattering2d.frontend import (  # pyright: ignore[reportMissingImports]
        torch_frontend,
    )
    from timm import data as timm_data
    from torchvision.transforms.functional import (  # pyright: ignore
        pil_to_tensor,
    )

    data: Any = timm_data
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = 16 if tiny else 256

    def measured(name: str, size: int, n: int, network: Any, transform: Any) -> None:
        images = np.random.default_rng(0).integers(
            0, 256, (n, size, size, 3), dtype=np.uint8
        )
        timm_model = name != "scatternet"
        mixed = device == "cuda" and timm_model
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/images.npz", images=images)

            def ours() -> float:
                amp = "bfloat16" if mixed else None
                options = ExtractOptions(
                    f"{folder}/images.npz",
                    f"{folder}/{time.perf_counter_ns()}.h5",
                    BackboneOptions(name, random_weights=timm_model),
                    classes=Classes(ignore_labels=True),
                    device=device,
                    amp=amp,
                    batch_size=batch,
                    check=False,
                )
                return extract(options).rows_per_second

            rates: dict[str, list[float]] = {"dphead": [], "plain": []}
            for _ in range(repeats + 1):  # the first warms up
                rates["dphead"].append(ours())
                given = network, images, transform, batch, device, mixed
                rates["plain"].append(plain(*given))
        store(
            model=name,
            size=size,
            images=n,
            batch=batch,
            rates={way: values[1:] for way, values in rates.items()},
            ratio=median(rates["dphead"][1:]) / median(rates["plain"][1:]),
            torch=torch.__version__,
        )

    for name, n in (("vit_base_patch16_224", 8192), ("nf_resnet50", 8192)):
        if tiny:
            name = "test_vit" if "vit" in name else "resnet18"
        model = library.create_model(name, num_classes=0).eval().to(device)
        if device == "cuda":
            model = model.to(memory_format=torch.channels_last)
        config = data.resolve_model_data_config(model)
        transform = data.create_transform(**config, is_training=False)
        size = int(config["input_size"][1])
        measured(name, size, 64 if tiny else n, model, transform)
    network = torch_frontend.ScatteringTorch2D(2, (32, 32)).to(device)
    measured(
        "scatternet",
        32,
        64 if tiny else 32_768,
        network,
        lambda image: pil_to_tensor(image).float() / 255,
    )
