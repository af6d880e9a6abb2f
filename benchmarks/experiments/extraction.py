"""Extraction beside its peers, taken in turn in one process: `python -m
benchmarks extraction [scattering timm]`.

Each candidate runs on all cores in two ways, with torch's own threads and as one
single-threaded worker a core (as `dphead extract` does), at several batch sizes; its
best median counts. A run is a line of results/extraction.jsonl.
scattering: ScatterNet beside kymatio. timm: MobileNetV2 as extraction runs it on a CPU,
beside plain timm. profile: whether extraction decodes, copies and computes at the same
time. `gpu` is a part of `python -m benchmarks gpu`.
"""

import json
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
from dphead_extract import loop
from dphead_extract import run as extraction
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.registry import load_backbone
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.image import Source
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
MOBILENET = BackboneOptions(
    "mobilenetv2_100",
    WEIGHTS,
    {"num_classes": 1001, "pad_type": "same"},
    (0.5,),
    (0.5,),
    image_size=128,
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

    images = torch.randn(128, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    plain = timm_backbone(MOBILENET).module.eval()
    fast = load_backbone(MOBILENET, (32, 32), True).module

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


def profile(n: int = 1000) -> None:
    """Profile `extract` of n JPEG files of 224 pixels by MobileNetV2 at 128 pixels."""

    def named(name: str, function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            with torch.profiler.record_function(name):
                return function(*arguments, **more)

        return call

    def backbone(*arguments: Any) -> Any:
        made = load_backbone(*arguments)
        made.prepare = named("copy", made.prepare)
        return made

    Source.decode = named("decode", Source.decode)
    loop.forward = named("network", loop.forward)
    extraction.load_backbone = backbone
    rng = np.random.default_rng(0)
    every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with tempfile.TemporaryDirectory() as folder:
        for k in range(n):
            pixels = rng.integers(0, 256, (28, 28, 3), np.uint8)
            Image.fromarray(pixels).resize((224, 224)).save(f"{folder}/{k:04}.jpg")
        options = ExtractOptions(
            folder,
            f"{folder}/f.h5",
            MOBILENET,
            classes=Classes(ignore_labels=True),
            check=False,
        )
        with torch.profiler.profile(experimental_config=every) as profiler:
            rate = extract(options).rows_per_second
        profiler.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    spans: dict[str, np.ndarray] = {}
    for name in ("decode", "copy", "network"):
        found = [e for e in trace if e.get("name") == name and e["ph"] == "X"]
        spans[name] = np.array([[e["ts"], e["ts"] + e["dur"]] for e in found]) / 1e6
    network = spans["network"]
    row: dict[str, Any] = {"job": "profile", "images": n, "images_per_second": rate}
    for name, times in spans.items():
        starts = np.maximum(times[:, None, 0], network[None, :, 0])
        ends = np.minimum(times[:, None, 1], network[None, :, 1])
        row[name] = {
            "seconds": float((times[:, 1] - times[:, 0]).sum()),
            "beside_network": float((ends - starts).clip(0).sum()),
        }
    row["network"]["beside_network"] -= row["network"]["seconds"]
    append(OUT, row | {"torch": torch.__version__} | provenance())
    print(row)


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
            if device == "cuda":
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

            def ours(**more: Any) -> float:
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
                    **more,
                )
                return extract(options).rows_per_second

            rates: dict[str, list[float]] = {"dphead": [], "plain": []}
            if mixed:
                rates["dphead --compile"] = []
            for _ in range(repeats + 1):  # the first warms up
                rates["dphead"].append(ours())
                given = network, images, transform, batch, device, mixed
                rates["plain"].append(plain(*given))
                if "dphead --compile" in rates:
                    rates["dphead --compile"].append(ours(compile=True))
            only = alone(network, size, batch, device, mixed)
        store(
            model=name,
            size=size,
            images=n,
            batch=batch,
            rates={way: values[1:] for way, values in rates.items()},
            network_alone=only,
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


def alone(network: Network, size: int, batch: int, device: str, mixed: bool) -> float:
    """Images a second of the network on inputs that are on the device already."""
    inputs = torch.randn(batch, 3, size, size, device=device)
    amp = torch.autocast(device, torch.bfloat16, enabled=mixed)
    with torch.inference_mode(), amp:
        for _ in range(3):
            network(inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            network(inputs)
        if device == "cuda":
            torch.cuda.synchronize()
    return 10 * batch / (time.perf_counter() - start)


JOBS = {"scattering": scattering, "timm": timm, "profile": profile}


def run(job: str) -> None:
    """Measure one of JOBS."""
    JOBS[job]()
