"""The accuracy that `auto` expects on long tails and on groups:

    python -m benchmarks.experiments.uneven IMAGES

IMAGES is the folder of results/calibration. A fit is a line of
results/expected/uneven.jsonl: the estimate that it releases, and the accuracy on other
rows. For long tails, each class weighs as in the training rows. For groups, the other
rows are those of other groups.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA

from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo

OUT = RESULTS / "expected" / "uneven.jsonl"
FILES = ("cifar10", "mnist", "fashion_mnist", "cifar100")
EPSILONS = (1.0, 3.0, 8.0)
Arrays = tuple[np.ndarray, np.ndarray]


def rows_of(path: Path) -> Arrays:
    """All rows of a set."""
    file = np.load(path)
    x = np.concatenate([file["xtrain"], file["xtest"]]).astype(np.float32)
    return x, np.concatenate([file["ytrain"], file["ytest"]])


def classes(name: str, y: np.ndarray, m: int, seed: int) -> np.ndarray:
    """Each row's class among m, or -1: single classes, by chance; two halves."""
    order = np.random.default_rng(100 + seed).permutation(int(y.max()) + 1)
    position = np.full(len(order), -1)
    if m == 2:
        position[order] = np.arange(len(order)) % 2
    else:
        position[order[:m]] = np.arange(m)
    return position[y]


def tails(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Long tails: sizes fall as a power of the rank, or two classes are uneven."""
    rng = np.random.default_rng(seed)
    for name in FILES:
        x, y = rows_of(folder / f"{name}.npz")
        kinds = [(2, (9, 1), "9:1"), (2, (20, 1), "20:1")]
        m = 20 if name == "cifar100" else 10
        for power in (1.0, 1.5):
            shape = tuple(np.arange(1, m + 1) ** -power)
            kinds.append((m, shape, f"rank^-{power:g}"))
        for (m, shape, kind), n in itertools.product(kinds, (300, 1000)):
            label = classes(name, y, m, seed)
            sizes = np.maximum(2, np.round(n * np.array(shape) / sum(shape)))
            pools = [rng.permutation(np.flatnonzero(label == k)) for k in range(m)]
            # a fifth of each class is left for the accuracy
            sizes = [
                int(min(s, 0.8 * len(p))) for s, p in zip(sizes, pools, strict=True)
            ]
            own = np.concatenate([p[:s] for p, s in zip(pools, sizes, strict=True)])
            other = np.concatenate([p[s:] for p, s in zip(pools, sizes, strict=True)])
            weight = np.array(sizes) / sum(sizes)
            other = rng.permutation(other)[:2500]
            yield {
                "set": name,
                "kind": kind,
                "size": n,
                "n_classes": m,
                "own": (x[np.sort(own)], label[np.sort(own)]),
                "other": (x[other], label[other]),
                "weight": weight,
            }


def people(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Groups of about six rows of one class, near each other or by chance."""
    for name, m in itertools.product(FILES[:3], (2, 10)):
        x, y = rows_of(folder / f"{name}.npz")
        x, y = x[:4000], y[:4000]
        label = classes(name, y, m, seed)
        low = PCA(20, random_state=0).fit_transform(x)
        for kind in ("near", "one class"):
            rng = np.random.default_rng(seed)
            group, first = np.zeros(len(x), int), 0
            for k in range(m):
                members = np.flatnonzero(label == k)
                count = len(members) // 6
                found = rng.integers(0, count, len(members))
                if kind == "near":
                    means = MiniBatchKMeans(count, random_state=seed)
                    found = means.fit_predict(low[members])
                group[members] = first + found
                first += count
            order = rng.permutation(first)
            for n, cap in itertools.product((100, 300), (1, 4)):
                inside = np.isin(group, order[:n])
                outside = rng.permutation(np.flatnonzero(~inside))[:2000]
                yield {
                    "set": name,
                    "kind": kind,
                    "size": n,
                    "n_classes": m,
                    "group_cap": cap,
                    "own": (x[inside], label[inside]),
                    "groups": group[inside],
                    "other": (x[outside], label[outside]),
                    "weight": np.bincount(label[outside], minlength=m) / len(outside),
                }


def measure(task: dict[str, Any], epsilon: float, seed: int) -> None:
    """Fit once, and append a line."""
    arrays = ("own", "other", "weight", "groups")
    line = {k: v for k, v in task.items() if k not in arrays}
    (x, y), (new, label) = task["own"], task["other"]
    cap, m = task.get("group_cap"), task["n_classes"]
    facts = ProblemInfo(len(x), x.shape[1], m)
    plan = make_plan(Auto(), facts, epsilon=epsilon, delta=1e-5, group_cap=cap)
    rows = ArrayRows(x, y, groups=task.get("groups"), group_cap=cap)
    head = fit_rows(plan, rows, noise=NoiseSource(seed)).trained
    chosen = head.scores(new).argmax(axis=1)
    parts = [
        (w, (chosen[label == k] == k).mean(), int((label == k).sum()))
        for k, w in enumerate(task["weight"])
        if w
    ]
    found = head.estimate
    line |= {"epsilon": epsilon, "seed": seed, "n_rows": len(x), "n_test": len(new)}
    line |= {key: round(getattr(found, key), 5) for key in ("accuracy", "low", "high")}
    line["measured"] = round(float(sum(w * r for w, r, _ in parts)), 5)
    error = float(sum(w * w * r * (1 - r) / n for w, r, n in parts)) ** 0.5
    line |= {"measured_se": round(error, 5), "missed": m - len(np.unique(chosen))}
    append(OUT, line | provenance())


def main(folder: Path) -> None:
    """Run what is missing."""
    keys = ("set", "kind", "size", "n_classes", "group_cap", "epsilon", "seed")
    done = {tuple(r.get(k) for k in keys) for r in read(OUT)}
    for seed in range(2):
        both = itertools.zip_longest(people(folder, seed), tails(folder, seed))
        for task in filter(None, itertools.chain.from_iterable(both)):
            for epsilon in EPSILONS[:: 2 if "groups" in task else 1]:
                own = task | {"epsilon": epsilon, "seed": seed}
                if tuple(own.get(k) for k in keys) not in done:
                    measure(task, epsilon, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
