"""Time extraction beside other libraries, in turn.

`python -m benchmarks extraction [scattering loader photographs]` stores each run as a
line of results/extraction.jsonl.

scattering: ScatterNet beside kymatio. Each runs on all cores in two ways: with torch's
own threads, and with one single-threaded worker per core, as `dphead extract` does. The
best median over several batch sizes is compared. loader: MobileNetV2 on JPEG files
beside plain timm with a loader of torch. photographs: from 500 files to a head, by two
commands. `gpu` is a part of `python -m benchmarks gpu`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from dphead_extract.backbones.base import BackboneOptions
from dphead_extract.backbones.scattering import ScatterNet
from dphead_extract.run import ExtractOptions, extract
from dphead_extract.sources.classes import Classes
from PIL import Image

from benchmarks.heads import timed
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
    """Process one batch after another, each with all of torch's threads."""
    torch.set_num_threads(os.cpu_count() or 1)
    with torch.inference_mode():
        for part in images.split(batch):
            network(part)


def run_workers(network: Network, images: torch.Tensor, batch: int) -> None:
    """Process several batches at a time, each with one thread."""
    torch.set_num_threads(1)

    def work(part: torch.Tensor) -> None:
        with torch.inference_mode():
            network(part)

    with ThreadPoolExecutor(
        os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        list(pool.map(work, images.split(batch)))


WAYS = {"threads": run_threads, "workers": run_workers}


def scattering() -> None:
    """Time ScatterNet with J = 2 and L = 8 beside kymatio 0.3.

    `ratio` compares the best rates of both. `plain_ratio` compares with kymatio's best
    rate with torch's own threads, as kymatio is usually run.
    """
    # the extra `bench` installs kymatio
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
        tries = list(product(networks, WAYS, (64, 128, 256)))
        rates: dict[str, list[float]] = {" ".join(map(str, key)): [] for key in tries}
        for repeat in range(REPEATS + 1):  # the first warms up
            for name, way, batch in tries:
                start = time.perf_counter()
                WAYS[way](networks[name], images, batch)
                if repeat:
                    seconds = time.perf_counter() - start
                    rates[f"{name} {way} {batch}"].append(n / seconds)

        def best(kind: str, rates: dict[str, list[float]] = rates) -> float:
            return max(median(v) for key, v in rates.items() if key.startswith(kind))

        row = {
            "job": "scattering",
            "shape": [*shape, colors],
            "images": n,
            "rates": rates,
            "ratio": best("dphead") / best("kymatio"),
            "plain_ratio": best("dphead") / best("kymatio threads"),
            "torch": torch.__version__,
        }
        append(OUT, row | provenance())
        print(row)


class Images(torch.utils.data.Dataset):
    """Apply a transform to images of an array or of files, as in usual PyTorch code."""

    def __init__(self, images: Any, transform: Callable[[Any], torch.Tensor]):
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> torch.Tensor:
        image = self.images[row]
        if isinstance(image, Path):
            return self.transform(Image.open(image).convert("RGB"))
        return self.transform(Image.fromarray(image))


def plain(
    network: Network,
    images: Any,
    transform: Any,
    batch: int,
    device: str,
    mixed: bool,
) -> float:
    """Return images per second of a loader with workers, into one array."""
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


def in_turn(
    repeats: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> dict[str, list[float]]:
    """Return images per second of both, run in turn after a warm-up."""
    pairs = [(ours(), theirs()) for _ in range(repeats + 1)]
    dphead, others = zip(*pairs[1:], strict=True)
    return {"dphead": [*dphead], "plain": [*others]}


def photographs_in(folder: Path) -> list[Path]:
    """Write 500 JPEG files of 500 x 375 pixels in ten folders, and return their paths.

    The images are crops of two photographs of scikit-learn.
    """
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    rng = np.random.default_rng(0)
    paths = [folder / str(i % 10) / f"{i}.jpg" for i in range(500)]
    for i, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        top = rng.integers(427 - 375)
        left = rng.integers(640 - 500)
        crop = photos[i % 2][top : top + 375, left : left + 500]
        Image.fromarray(crop).save(path, quality=90)
    return paths


def loader() -> None:
    """Time all of `extract`, with its checks, beside only the loop of plain timm."""
    from dphead_extract.backbones.timm_models import TimmFamily
    from timm import data as timm_data

    data: Any = timm_data
    half = (0.5,) * 3
    arguments = {"num_classes": 1001, "pad_type": "same"}
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs_in(Path(folder, "photos"))
        for size in (128, 224):
            options = BackboneOptions(
                "mobilenetv2_100", WEIGHTS, arguments, half, half, image_size=size
            )
            network = TimmFamily().build(options, (size, size), True).module.eval()
            transform = data.create_transform(
                size, mean=half, std=half, interpolation="bicubic", crop_pct=0.875
            )

            def ours(options: BackboneOptions = options) -> float:
                start = time.perf_counter()
                out = f"{folder}/{time.perf_counter_ns()}.h5"
                classes = Classes(ignore_labels=True)
                extract(
                    ExtractOptions(f"{folder}/photos", out, options, classes=classes)
                )
                return len(paths) / (time.perf_counter() - start)

            def theirs(network: Any = network, transform: Any = transform) -> float:
                torch.set_num_threads(os.cpu_count() or 1)
                return plain(network, paths, transform, 64, "cpu", False)

            rates = in_turn(3, ours, theirs)
            ratios = np.divide(rates["dphead"], rates["plain"])
            facts = {"job": "loader", "size": size, "images": len(paths)}
            row = facts | {"rates": rates, "ratios": ratios.tolist()}
            append(OUT, row | {"torch": torch.__version__} | provenance())
            print(row)


def photographs() -> None:
    """Time `dphead extract` at 224 pixels, then `dphead fit`."""
    with tempfile.TemporaryDirectory() as folder:
        photographs_in(Path(folder, "photos"))
        environment = {**os.environ, "DPHEAD_HOME": f"{folder}/home"}
        commands = (
            f"extract {folder}/photos -o {folder}/photos.h5 --classes 10 --backbone "
            f"mobilenetv2_100 --image-size 224 --weights {WEIGHTS} --mean 0.5,0.5,0.5 "
            "--std 0.5,0.5,0.5 --model-arg num_classes=1001 --model-arg pad_type=same",
            f"fit {folder}/photos.h5 --epsilon 1 -o {folder}/run",
        )
        seconds = []
        for command in commands:
            words = [sys.executable, "-m", "dphead", *command.split()]
            seconds.append(timed(words, environment)[0])
    row = {"job": "photographs", "seconds": seconds, "total": sum(seconds)}
    append(OUT, row | provenance())
    print(row)


def gpu(store: Callable[..., None], tiny: bool = False, repeats: int = 3) -> None:
    """Time `extract` with three papers' networks beside a plain loop.

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

            given = network, images, transform, batch, device, mixed
            rates = in_turn(repeats, ours, lambda: plain(*given))
        store(
            model=name,
            size=size,
            images=n,
            batch=batch,
            rates=rates,
            ratio=median(rates["dphead"]) / median(rates["plain"]),
            torch=torch.__version__,
        )

    for name in ("vit_base_patch16_224", "nf_resnet50"):
        if tiny:
            name = "test_vit" if "vit" in name else "resnet18"
        model = library.create_model(name, num_classes=0).eval().to(device)
        if device == "cuda":
            model = model.to(memory_format=torch.channels_last)
        config = data.resolve_model_data_config(model)
        transform = data.create_transform(**config, is_training=False)
        size = int(config["input_size"][1])
        measured(name, size, 64 if tiny else 8192, model, transform)
    network = torch_frontend.ScatteringTorch2D(2, (32, 32)).to(device)
    measured(
        "scatternet",
        32,
        64 if tiny else 32_768,
        network,
        lambda image: pil_to_tensor(image).float() / 255,
    )
