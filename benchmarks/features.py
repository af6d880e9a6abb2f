"""Provide images and features for the benchmarks.

They are made once, and kept in $DPHEAD_CACHE (default ~/.cache/dphead).
Images come from a folder given by the user or from $DPHEAD_CACHE/images, or, for the
digits, from scikit-learn. Features come from `dphead extract`. MobileNetV2 has weights
in $DPHEAD_CACHE/weights/mobilenetv2_100.in1k.safetensors.
"""

import os
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.opening import open_source

from benchmarks import claims
from benchmarks.demo import digits
from benchmarks.heads import describe
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features
from dphead.finetune.images import load_images
from dphead.solvers.base import ProblemInfo

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {  # names of data sets' folders: ours, then torchvision's or the publisher's
    "mnist": ("mnist", "MNIST/raw"),
    "fashion-mnist": ("fashion_mnist", "FashionMNIST/raw"),
    "cifar10": ("cifar10", "cifar-10-batches-bin"),
    "cifar100": ("cifar100", "cifar-100-binary", "cifar100/cifar100.npz"),
}
# number of ScatterNet features
WIDTHS = {"mnist": 3_969, "fashion-mnist": 3_969, "cifar10": 15_552}
MAPS, SMALL = "CNN on ScatterNet", "WRN-16-1, 16 px"  # inputs of networks
SMALL_ROWS, SMALL_SIDE = 8000, 16
MOBILENET = (
    "--backbone mobilenetv2_100 --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5 --image-size 128 "
    "--model-arg num_classes=1001 --model-arg pad_type=same --weights "
)
IMAGENET = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
SPLITS = ("train", "test")
BLOCK = 256  # rows of a block: it stays in the cache between the two products


class Loaded(NamedTuple):
    """Hold training rows, held-out features (n, d) and labels (n,), and public sizes.

    `described` describes the training file.
    """

    rows: ArrayRows
    x: np.ndarray
    y: np.ndarray
    facts: ProblemInfo
    described: dict


def cache() -> Path:
    """Return the folder of images and features."""
    return Path(os.environ.get("DPHEAD_CACHE", Path.home() / ".cache" / "dphead"))


def extract_options(dataset: str, features: str) -> str:
    """Return options of `dphead extract` for `mobilenetv2-128` or a ScatterNet.

    TB21's published code scales CIFAR-10's colors by ImageNet's public means and
    deviations before the ScatterNet. The paper does not mention this.
    `scatternet-unscaled` has unscaled colors.
    """
    if features == "mobilenetv2-128":
        weights = cache() / "weights" / "mobilenetv2_100.in1k.safetensors"
        if not weights.exists():
            raise FileNotFoundError(
                f"{weights} does not exist. Copy the weights of MobileNetV2 to it "
                "(docs/papers.md)."
            )
        return MOBILENET + shlex.quote(str(weights))
    if features == "scatternet-normalized-27":
        return "--backbone scatternet --normalize group:27"
    options = "--backbone scatternet --normalize none"
    if dataset == "digits":
        return f"{options} --scatter-j 1"
    scaled = dataset == "cifar10" and features == "scatternet"
    return f"{options} {IMAGENET}" if scaled else options


def facts_of(dataset: str, features: str) -> ProblemInfo:
    """Return the public sizes of a data set's features, without reading data."""
    if dataset == "digits":
        return ProblemInfo(1_347, 144, 10)
    known = claims.needs("data")[dataset]
    width = claims.needs("features").get(features, {}).get("width")
    width = width or (1280 if features.startswith("mobilenet") else WIDTHS[dataset])
    # runs with the verdict "in small" used half of CIFAR-100's training images
    small = dataset == "cifar100" and features.startswith("mobilenet")
    n_rows = known["train_rows"] // (2 if small else 1)
    return ProblemInfo(n_rows, width, known["classes"])


def images(dataset: str, folder: Path | None) -> Path:
    """Return the path of a data set's images in `folder`, or in the cache's images/.

    The digits are written to the cache if they are missing. Raises FileNotFoundError if
    other images are missing.
    """
    if dataset == "digits":
        path = cache() / "images" / "digits.npz"
        if not path.exists():
            _write_images(path, *digits())
        return path
    parent = folder or cache() / "images"
    for name in reversed(FOLDERS[dataset]):
        if (parent / name).exists():
            return parent / name
    raise FileNotFoundError(
        f"{parent} has no folder {' or '.join(FOLDERS[dataset])}. Pass --images DIR "
        "with one of these folders (docs/papers.md says which files they hold)."
    )


def small_images(folder: Path | None) -> Path:
    """Return a file of CIFAR-10's first training and all test images, made smaller.

    The file is written if it is missing.
    """
    path = cache() / "images" / f"cifar10-{SMALL_SIDE}.npz"
    if not path.exists():
        parts = []
        for split in SPLITS:
            ten = Classes([str(i) for i in range(10)])
            source = open_source(images("cifar10", folder), ten, split)
            found, _ = load_images(source, SMALL_SIDE)
            kept = SMALL_ROWS if split == "train" else len(found.y)
            x = found.x[:kept].transpose(0, 2, 3, 1)
            parts.append((x, found.y[:kept], [split] * kept))
        _write_images(path, *map(np.concatenate, zip(*parts, strict=True)))
    return path


def _write_images(path: Path, x: np.ndarray, y: np.ndarray, split: np.ndarray) -> None:
    """Write a file of images. A run that is killed leaves no part of it at its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".part.npz")
    np.savez(new, images=x, labels=y, split=split)
    new.replace(path)


def files(dataset: str, features: str, folder: Path | None = None) -> list[Path]:
    """Return the train and test features files, extracted if they are missing.

    Networks on pixels get files of images instead. Features named `-gN` are normalized
    by `load`, not in the file.
    """
    if features == SMALL:
        return [small_images(folder)] * 2
    if features == "CNN on pixels":
        return [images(dataset, folder)] * 2
    if features == MAPS:  # normalized as in TB21's Table 13
        norm = "-normalized-27" if dataset == "fashion-mnist" else ""
        features = f"scatternet{norm}"
    else:
        features = features.partition("-g")[0]
    paths = [
        cache() / "features" / f"{dataset}-{features}-{split}.h5" for split in SPLITS
    ]
    for path, split in zip(paths, SPLITS, strict=True):
        if not path.exists():
            print(f"extracting {path.name}", file=sys.stderr)
            options = f"--split {split} {extract_options(dataset, features)}"
            n_classes = facts_of(dataset, features).n_classes
            extract(images(dataset, folder), path, options, n_classes)
    return paths


def extract(source: Path, path: Path, options: str, n_classes: int = 10) -> None:
    """Run `dphead extract` in a new process, which shows its progress.

    Raises RuntimeError if it fails, and removes a file that is not complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dphead", "extract", str(source), "-o", str(path)]
    command += ["--classes", str(n_classes), "--dtype", "float16"]
    command += shlex.split(options)
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        path.unlink(missing_ok=True)
        raise RuntimeError(f"this command failed: {shlex.join(command)}")


@lru_cache(maxsize=1)
def load(dataset: str, features: str, file: Path | None = None) -> Loaded:
    """Return features as float32, from the user's file if there is one."""
    if file is None:
        paths = files(dataset, features)
        train, test = (load_features(path, memory=0) for path in paths)
    else:
        train, test = (load_features(file, part, memory=0) for part in SPLITS)
    x, held_out = (grouped(part[0].features(), features) for part in (train, test))
    facts = ProblemInfo(len(x), x.shape[1], len(train[1].class_names or []))
    rows = ArrayRows(x, train[0].labels(), BLOCK)
    return Loaded(rows, held_out, test[0].labels(), facts, describe(train[1], facts))


def grouped(x: np.ndarray, features: str) -> np.ndarray:
    """Normalize rows (n, d) of `scatternet-gN` in place, and return them.

    The normalization is that of `dphead extract --normalize group:N`. Other features
    stay unchanged.
    """
    groups = features.partition("-g")[2]
    if not groups:
        return x
    import torch
    from dphead_extract.normalization import RowNorm

    normalize = RowNorm("group", int(groups))
    channels = 243 if x.shape[1] == WIDTHS["cifar10"] else 81
    for i in range(0, len(x), 1024):
        part = x[i : i + 1024]
        part[:] = normalize(
            torch.from_numpy(part).reshape(len(part), channels, -1)
        ).numpy()
    return x
