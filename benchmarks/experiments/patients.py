"""First rows or means of groups, on groups of near images of CIFAR-10."""

import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.data.features import load_features
from dphead.fit.loop import Run, fit_head
from dphead.planning.methods import make_method
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo

WAYS = (("first", 1), ("mean", 2), ("first", 4), ("first", 2))
EPSILONS = (1.0, 3.0, 8.0)
DRAWS = 4
TASKS = {  # classes, groups (a fifth is held out), whether they are of near images
    "cats and dogs, 160 groups": ((3, 5), 200, True),
    "cats and dogs, 160 random groups": ((3, 5), 200, False),
    "cats and dogs, 800 random groups": ((3, 5), 1000, False),
    "cats and dogs, 800 groups": ((3, 5), 1000, True),
}


def task(data, classes, n_groups, near):
    """Rows of k-means clusters, or of random groups; a fifth of them is held out."""
    x, y = data
    kept = np.isin(y, classes)
    x, y = x[kept], np.searchsorted(classes, y[kept])
    groups = np.random.default_rng(1).integers(0, n_groups, len(x))
    if near:
        parts = PCA(50, random_state=0).fit_transform(
            x / np.linalg.norm(x, axis=1, keepdims=True)
        )
        means = KMeans(n_groups, n_init=1, max_iter=50, random_state=0)
        groups = means.fit_predict(parts)
    order = np.random.default_rng(0).permutation(n_groups)
    held = np.isin(groups, order[: n_groups // 5])
    return (x[~held], y[~held], groups[~held]), (x[held], y[held])


def main(folder, names, out):
    rows, _ = load_features(Path(folder) / "cifar10-mobilenetv2-128-train.h5", memory=0)
    data = rows.features(), rows.labels()
    for name in names:
        classes, n_groups, near = TASKS[name]
        (x, y, groups), (tx, ty) = task(data, classes, n_groups, near)
        facts = ProblemInfo(len(x), x.shape[1], len(classes))
        sizes = np.bincount(groups)[np.unique(groups)]
        both = np.mean([len(set(y[groups == g])) for g in np.unique(groups)])
        print(
            name,
            len(x),
            len(tx),
            "median size",
            np.median(sizes),
            "classes",
            both,
            flush=True,
        )
        done = {(r["task"], r["model"], r["epsilon"]) for r in read(out)}
        for kind, cap in WAYS:
            given = ArrayRows(x, y, None, groups, cap, kind == "mean")
            for epsilon in EPSILONS:
                if (name, f"{kind} {cap}", epsilon) in done:
                    continue
                solver = make_method("auto", facts, {"estimate": False}).solver
                plan = make_plan(
                    solver,
                    facts,
                    epsilon=epsilon,
                    delta=1e-5,
                    group_cap=cap,
                    group_mean=kind == "mean",
                )
                scores = []
                for seed in range(DRAWS):
                    run = Run(noise=NoiseSource(seed))
                    head = fit_head(solver, given, facts, plan, run).head
                    scores.append(float(np.mean(head.scores(tx).argmax(1) == ty)))
                row = {
                    "task": name,
                    "model": f"{kind} {cap}",
                    "epsilon": epsilon,
                    "scores": scores,
                    "n_rows": len(x),
                    "n_groups": len(sizes),
                    "median_group": float(np.median(sizes)),
                    "classes_a_group": float(both),
                    "n_test": len(tx),
                }
                append(out, row | provenance())
                print(
                    name,
                    kind,
                    cap,
                    epsilon,
                    np.round([np.mean(scores), np.std(scores)], 4),
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or tuple(TASKS), RESULTS / "patients" / "rows.jsonl")
