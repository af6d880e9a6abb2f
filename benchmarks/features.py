"""Images and features for the benchmarks, made once and kept in $DPHEAD_CACHE (default
~/.cache/dphead).

Images come from a folder given by the user, from `../shared/data` (unpacked by its
unpack.py), or, for the digits, from scikit-learn; features from the real `dphead
extract`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.demo import digits
from benchmarks.heads import describe
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features
from dphead.solvers.base import ProblemInfo

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
WEIGHTS = ROOT.parent / "shared" / "weights"
FOLDERS = {
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
}
FACTS = {  # (rows, features) of ScatterNet, so that a dry run needs no data
    "mnist": (60_000, 3_969),
    "fashion-mnist": (60_000, 3_969),
    "cifar10": (50_000, 15_552),
    "digits": (1_347, 144),
}
MOBILENET = (
    "--backbone mobilenetv2_100 --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5 --image-size 128 "
    "--model-arg num_classes=1001 --model-arg pad_type=same --weights "
    f"{shlex.quote(str(WEIGHTS / 'mobilenetv2_100.in1k.safetensors'))}"
)
IMAGENET = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
BLOCK = 256  # rows of a block: it stays in the cache between the two products


class Loaded(NamedTuple):
    """Training rows, held-out features (n, d) and labels (n,), public sizes, and what
    the training file is.
    """

    rows: ArrayRows
    x: np.ndarray
    y: np.ndarray
    facts: ProblemInfo
    described: dict


def cache() -> Path:
    """The folder of images and features."""
    return Path(os.environ.get("DPHEAD_CACHE", Path.home() / ".cache" / "dphead"))


def extract_options(dataset: str, features: str) -> str:
    """Options of `dphead extract` for `mobilenetv2-128` or a ScatterNet.

    TB21's published code scales CIFAR-10's colors by ImageNet's public means and
    deviations before the ScatterNet, which the paper does not say;
    `scatternet-unscaled` does not.
    """
    if features == "mobilenetv2-128":
        return MOBILENET
    if features not in ("scatternet", "scatternet-unscaled"):
        raise ValueError(
            "features must be scatternet, scatternet-unscaled, scatternet-gN or "
            f"mobilenetv2-128, got {features=}. Choose one."
        )
    options = "--backbone scatternet --normalize none"
    if dataset == "digits":
        return f"{options} --scatter-j 1"
    scaled = dataset == "cifar10" and features == "scatternet"
    return f"{options} {IMAGENET}" if scaled else options


def facts_of(dataset: str, features: str) -> ProblemInfo:
    """Public sizes, known without the data."""
    n_rows, n_features = FACTS[dataset]
    return ProblemInfo(
        n_rows, 1280 if features.startswith("mobilenet") else n_features, 10
    )


def images(dataset: str, folder: Path | None) -> Path:
    """Where a data set's images are; unpacked or written to the cache if need be."""
    if dataset == "digits":
        path = cache() / "images" / "digits.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels, labels, split = digits()
            np.savez(path, images=pixels, labels=labels, split=split)
        return path
    name = FOLDERS[dataset]
    source = (folder or cache() / "images") / name
    if folder is None and not source.exists():
        unpack = DATA / "unpack.py"
        if not unpack.exists():
            raise FileNotFoundError(
                f"{unpack} does not exist. Pass --images DIR, a folder that contains "
                f"{name}/."
            )
        partial = cache() / "images.part"
        subprocess.run(
            [sys.executable, str(unpack), str(partial), name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        source.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial / name, source)
        shutil.rmtree(partial, ignore_errors=True)
    return source


def files(
    dataset: str,
    features: str,
    folder: Path | None = None,
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """The train and test features files, extracted if they are missing; `load`
    normalizes groups.
    """
    features = features.partition("-g")[0]
    paths = [
        cache() / "features" / f"{dataset}-{features}-{split}.h5"
        for split in ("train", "test")
    ]
    for path, split in zip(paths, ("train", "test"), strict=True):
        if not path.exists():
            tell(f"extracting {path.name}")
            options = f"--split {split} {extract_options(dataset, features)}"
            extract(images(dataset, folder), path, options)
    return paths


def extract(source: Path, path: Path, options: str) -> None:
    """`dphead extract` of images of ten classes, in a process of its own.

    RuntimeError if it fails; a file that is not complete is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dphead", "extract", str(source), "-o", str(path)]
    command += ["--classes", "10", "--dtype", "float16", *shlex.split(options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        path.unlink(missing_ok=True)
        raise RuntimeError(
            f"{' '.join(command)} must succeed, got: {done.stderr}. Correct its cause."
        )


@lru_cache(maxsize=1)
def load(dataset: str, features: str, held_out: bool = False) -> Loaded:
    """Features in memory, as float32.

    held_out: a fixed fifth of the training rows in place of the test set.
    """
    train, test = (load_features(path, memory=0) for path in files(dataset, features))
    x = grouped(train[0].features(), features)
    y = train[0].labels()
    n_classes = len(train[1].class_names or [])
    described = describe(train[1], ProblemInfo(len(x), x.shape[1], n_classes))
    if held_out:
        kept, held = fifth_apart(len(x))
        test_x = x[held]
        test_y = y[held]
        x = x[kept]
        y = y[kept]
    else:
        test_x = grouped(test[0].features(), features)
        test_y = test[0].labels()
    facts = ProblemInfo(len(x), x.shape[1], n_classes)
    return Loaded(ArrayRows(x, y, BLOCK), test_x, test_y, facts, described)


def fifth_apart(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of n rows that are kept, and of the fixed fifth that is held out."""
    order = np.random.default_rng(0).permutation(n)
    return np.sort(order[n // 5 :]), np.sort(order[: n // 5])


def grouped(x: np.ndarray, features: str) -> np.ndarray:
    """ScatterNet rows (n, d), changed in place by `dphead extract --normalize group
    --groups N` for `scatternet-gN`.
    """
    groups = features.partition("-g")[2]
    if not groups:
        return x
    import torch
    from dphead_extract.normalization import RowNorm

    normalize = RowNorm("group", int(groups))
    channels = 243 if x.shape[1] == FACTS["cifar10"][1] else 81
    for i in range(0, len(x), 1024):
        part = x[i : i + 1024]
        part[:] = normalize(
            torch.from_numpy(part).reshape(len(part), channels, -1)
        ).numpy()
    return x
