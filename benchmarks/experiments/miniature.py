"""Train a small Wide-ResNet with one of De22's ingredients at a time.

`python -m benchmarks miniature` makes the missing runs. A run trains wrn-10-1 on 10,000
CIFAR-10 images of 8 by 8 pixels: 64 steps of 256 expected images, epsilon 8 at delta
1e-5, half a minute of a core. The learning rate of a network is the best of 0.5, 2 and
8, by one further seed and 2,000 other training images. Networks with views take the
rate of the network without views. Accuracy is measured on all 10,000 test images. A
seed fixes the initial weights, the batches and the noise, so runs are paired. Rows name
the commit after a rebase: the runs used the same code on an earlier main branch.
"""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.opening import open_source

from benchmarks import features, prose
from benchmarks.store import RESULTS, append, provenance, read
from dphead.finetune.images import load_images
from dphead.finetune.network import Network, TorchSums
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import make_training, network_spec
from dphead.finetune.settings import Settings
from dphead.finetune.tan import predict_full_run, run_simulations
from dphead.fit.loop import Run, fit_head
from dphead.planning.plan import Target
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.sums.verified import VerifiedSum

OUT = RESULTS / "miniature" / "rows.jsonl"
TAN = RESULTS / "miniature" / "tan.jsonl"
ROWS, HELD, PIXELS = 10_000, 2_000, 8
RATES = (0.5, 2.0, 8.0)
SEEDS, PILOT = (0, 1, 2), 100
BOTH = {"groups": 16, "standardize": True}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {"groups": 0, "standardize": False},
    "group norm": {"groups": 16, "standardize": False},
    "weight standardization": {"groups": 0, "standardize": True},
    "both": BOTH,
    **{f"both, K = {k}": BOTH | {"views": k, "augment": "crop"} for k in (1, 2, 4, 8)},
}
# (what is changed, from, to, De22's direction and where it is printed)
CHANGES = (
    ("group norm", "plain", "group norm", "+, Table 2"),
    ("weight standardization", "group norm", "both", "+, Table 2"),
    (
        "weight standardization, no norm",
        "plain",
        "weight standardization",
        "not measured",
    ),
    ("one view", "both", "both, K = 1", "-, section 3.1 and Figure 3"),
    ("two views for one", "both, K = 1", "both, K = 2", "+, Figure 3"),
    ("four views for two", "both, K = 2", "both, K = 4", "+, Figure 3"),
    ("eight views for four", "both, K = 4", "both, K = 8", "+, Figure 3"),
    ("eight views for none", "both", "both, K = 8", "+, Table 2 and Figure 3"),
)
TITLE = "# De22's ingredients in miniature"
SAID = """A cell has the mean of three seeds and their standard deviation, or the mean
of three paired differences, the differences, and the sign of the mean by Student's t at
95 %. **All of this is in miniature**: De22 train WRN-16-4 and WRN-40-4 on images of 32
pixels, WRN-16-4 for about 200 epochs. These runs take 1.6 epochs.

- *Views* have De22's direction. One random view is worse than none, as in De22's
  section 3.1. Each doubling of K up to 4 adds 2.4 points, as in Figure 3. With the
  moving average, eight views are better than none.
- *Averaging* adds 2.8 to 4.1 points at the rate 8, in all six pairs, and less than 1
  point at the rate 2. De22 add 1.3 points in Table 2. A likely reason is that an
  average removes noise of the last steps, and larger steps have more of it.
- *Weight standardization* adds 3.2 points without group norm (in all pairs, but not
  resolved), and 0.35 points to group norm. De22 add 1.2 points to group norm.
- *Group norm* is not better here, against De22's gain of 15.5 points. De22's network
  has 40 layers and this network has 10. Its first block has one channel in each of the
  16 groups. We did not test which of the two is the reason.

Two rates are at the edge of their grid. The network with both options was equally good
at the rates 2 and 8 (33.50 and 33.45 % of 2,000 images). Its views have the rate 2.

## A prediction by TAN

TB21's CNN on all 60,000 images of Fashion-MNIST: sigma 2, batches of 512, 150 steps,
learning rate 1, three seeds. The table has the accuracy on the 10,000 test images. The
prediction was stored before the full runs, which have k = 1. results/finetune has a
prediction for MNIST.
"""
T_95 = 4.303  # Student's t, two degrees of freedom, two-sided


@cache
def images(dataset: str, split: str, size: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, channels, size, size) and labels (n,) of a split."""
    folder = features.images(dataset, None)
    found, _ = load_images(open_source(folder, Classes.parse("10"), split), size)
    return found.x, found.y


def trained(
    settings: Settings, epsilon: float, seed: int, train: Any, tested: Any
) -> dict[str, Any]:
    """Train on images and labels, and measure both iterates on others."""
    start = time.process_time()
    x, y = train
    network = Network(network_spec(settings, x.shape[1:], 10))
    facts = ProblemInfo(len(x), int(np.prod(x.shape[1:])), 10)
    target = Target(epsilon, 1e-5, accountant="rdp")
    _, plan, found = make_training(settings, target, facts, network)
    sums = VerifiedSum(TorchSums(network, batch=128))
    how = Run(noise=NoiseSource(seed), summer=sums)
    state: Any = fit_head(plan, ImageRows(x, y), how).head
    last, average = (
        float((network.scores(weights, tested[0]).argmax(axis=1) == tested[1]).mean())
        for weights in (state.weights, state.average)
    )
    row = {"seed": seed, "last": last, "ema": average}
    row |= {"sigma": found.noise_multiplier, "seconds": time.process_time() - start}
    return row


def train(name: str, rate: float, seed: int) -> None:
    """Train a network of NETWORKS, and store the accuracy of both its iterates."""
    settings = Settings(
        "wrn-10-1",
        batch_size=256,
        steps=64,
        learning_rate=rate,
        init_seed=seed,
        **NETWORKS[name],
    )
    x, y = images("cifar10", "train", PIXELS)
    tested = images("cifar10", "test", PIXELS)
    if seed == PILOT:
        tested = x[ROWS : ROWS + HELD], y[ROWS : ROWS + HELD]
    row = trained(settings, 8.0, seed, (x[:ROWS], y[:ROWS]), tested)
    row |= {"network": name, "rate": rate}
    append(OUT, row | provenance())
    print(row, flush=True)


def best_rate(name: str) -> float:
    """The rate of a network's best pilot run, after making the missing ones."""
    own = name.split(",")[0]
    for rate in RATES:
        if not any(row["rate"] == rate for row in stored(own, PILOT)):
            train(own, rate, PILOT)
    return max(stored(own, PILOT), key=lambda row: row["last"])["rate"]


def stored(name: str, seed: int) -> list[dict[str, Any]]:
    """The rows of a network and a seed."""
    rows = read(OUT)
    return [row for row in rows if (row["network"], row["seed"]) == (name, seed)]


def run() -> None:
    """Make the missing runs, seed by seed."""
    for seed in SEEDS:
        for name in NETWORKS:
            rate = best_rate(name)
            if not stored(name, seed):
                train(name, rate, seed)


def simulate() -> None:
    """Predict full runs from simulated ones, store the prediction, then make them.

    TB21's CNN on Fashion-MNIST, constant eta [TAN23 section 3.4].
    """
    full = Settings(
        "tb21-mnist",
        noise_multiplier=2.0,
        batch_size=512,
        steps=150,
        learning_rate=1.0,
        average="last",
    )
    sets = [images("fashion-mnist", split, None) for split in ("train", "test")]

    def one(settings: Settings, seed: int) -> float:
        settings = replace(settings, init_seed=seed)
        row = trained(settings, 1e9, seed, *sets)
        append(TAN, row | {"batch_size": settings.batch_size} | provenance())
        return row["last"]

    found = run_simulations(full, (4, 8, 16), SEEDS, one, data_is_public=True)
    append(TAN, {"predicted": predict_full_run(found, 512)._asdict()} | provenance())
    for seed in SEEDS:
        one(full, seed)


def write() -> list[Path]:
    """Write the README; returns its path."""
    path = OUT.parent / "README.md"
    path.write_text(readme(), encoding="utf-8")
    return [path]


def accuracies(name: str, iterate: str = "last") -> np.ndarray:
    """Test accuracy in % of a network's seeds."""
    return 100 * np.array(
        [row[iterate] for seed in SEEDS for row in stored(name, seed)]
    )


def added(differences: np.ndarray) -> str:
    """The mean of paired differences, each of them, and their sign by Student's t."""
    middle = differences.mean()
    half = T_95 * differences.std(ddof=1) / len(differences) ** 0.5
    sign = "not resolved" if abs(middle) <= half else "+" if middle > 0 else "-"
    return f"{middle:+.2f} ({', '.join(f'{d:+.2f}' for d in differences)}): {sign}"


def prediction() -> str:
    """The simulated runs, the prediction and the full runs."""
    runs = [row for row in read(TAN) if "last" in row]
    found = next(row["predicted"] for row in read(TAN) if "predicted" in row)
    low, middle, high = (100 * found[name] for name in ("low", "accuracy", "high"))
    lines = []
    for batch in sorted({row["batch_size"] for row in runs}):
        values = [100 * row["last"] for row in runs if row["batch_size"] == batch]
        every = ", ".join(f"{value:.2f}" for value in values)
        lines.append(
            [f"{512 // batch}", f"{batch}", f"{np.mean(values):.2f} ({every})"]
        )
    lines.append(["predicted at 1", "512", f"{middle:.2f} ({low:.2f} to {high:.2f})"])
    return prose.table(("k", "B", "accuracy"), lines)


def readme() -> str:
    """results/miniature/README.md from the stored rows."""
    parts = (TITLE, __doc__ or "", networks(), SAID, prediction())
    return prose.wrapped("\n\n".join(map(str.strip, parts)) + "\n")


def networks() -> str:
    """A table of networks, and a table of changes."""
    lines = []
    for name in NETWORKS:
        last, ema = accuracies(name), accuracies(name, "ema")
        cells = [f"{v.mean():.2f} ± {v.std(ddof=1):.2f}" for v in (last, ema)]
        rate = f"{stored(name, SEEDS[0])[0]['rate']:g}"
        lines.append([name, rate, *cells, added(ema - last)])
    heads = ("network", "rate", "last iterate", "EMA", "EMA against the last iterate")
    table = prose.table(heads, lines)
    lines = []
    for change, before, after, printed in CHANGES:
        found = (
            added(accuracies(after, iterate) - accuracies(before, iterate))
            for iterate in ("last", "ema")
        )
        lines.append([change, *found, printed])
    heads = ("change", "last iterate", "EMA", "De22")
    return f"{table}\n\n{prose.table(heads, lines)}"
