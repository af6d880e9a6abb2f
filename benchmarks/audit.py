"""The audit's table: every method at three epsilons, in chunks that a killed run resumes; one JSON line a cell.

`python -m benchmarks.audit` runs what is missing in results/audit/audit.jsonl, draws the plots and writes the table.
The number of fits of a cell is fixed here, before any of them: an audit that stopped when it liked what it saw would
have no confidence level.
"""

import argparse
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

from benchmarks.heads import RESULTS, append, provenance, read

OUT = RESULTS / "audit"
CONFIDENCE, DELTA, CHUNK = 0.9999, 1e-5, 20_000
EPSILONS = (0.1, 1.0, 8.0)
SMALL, USER = (64, 4, 2), (10_000, 512, 10)
FLAT = {"center_share": 0.0}  # no noisy centre: sums at the zero start are then public numbers
# name: (method, settings): the cells that must reach a share of epsilon, the others, and those at a user's size.
TIGHT = {
    "dp-ls": ("dp-ls", FLAT),
    "dp-fc, 1 step": ("dp-fc", FLAT | {"steps": 1, "clip_norm": 0.1, "ridge": 10.0}),
    "prototypes": ("prototypes", FLAT),
    "gradient descent, 1 step": ("dp-sgd", FLAT | {"steps": 1, "clip_norm": 0.5}),
}
MORE = {
    "dp-newton, 1 step": ("dp-newton", FLAT),
    "dp-ls, centred": ("dp-ls", {}),
    "dp-ls, class Grams": ("dp-ls", FLAT | {"class_grams": True}),
    "prototypes, centred": ("prototypes", {}),
    "dp-fc, 3 steps, centred": ("dp-fc", {"steps": 3, "clip_norm": 0.1}),
    "gradient descent, 3 steps, centred": ("dp-sgd", {"steps": 3, "clip_norm": 0.5}),
    "dp-adam, 3 steps": ("dp-adam", FLAT | {"steps": 3, "clip_norm": 0.5}),
    "dp-sgd, Poisson q = 1/4, 3 steps": ("dp-sgd", FLAT | {"steps": 3, "clip_norm": 0.5, "batch_size": 16}),
    "dp-adam, Poisson q = 1/4, 3 steps": ("dp-adam", FLAT | {"steps": 3, "clip_norm": 0.5, "batch_size": 16}),
}
AT_USER_SIZE = {
    "prototypes": ("prototypes", {}),
    "dp-ls": ("dp-ls", {}),
    "dp-fc, 1 step": ("dp-fc", {"steps": 1, "ridge": 1.0}),
    "gradient descent, 3 steps": ("dp-sgd", {"steps": 3}),
    "dp-adam, 3 steps": ("dp-adam", {"steps": 3}),
    "dp-sgd, Poisson q = 0.02, 3 steps": ("dp-sgd", {"steps": 3, "batch_size": 1000}),
}
ONE_RUN = ("dp-newton", "dp-fc", "dp-ls", "dp-adam", "dp-sgd", "prototypes")


def cells() -> list[dict[str, Any]]:
    """Every cell: name, sizes, method, settings, epsilon and the number of fits in each world (0: one run)."""
    table = []
    for epsilon in (8.0, 1.0):
        table += [_cell(n, SMALL, how, epsilon, 100_000) for n, how in TIGHT.items()]
    for epsilon in EPSILONS:
        table += [_cell(n, SMALL, how, epsilon, 5_000) for n, how in MORE.items()]
    table += [_cell("one run", USER, (method, {}), 8.0, 0) for method in ONE_RUN]
    table += [_cell(n, USER, how, 8.0, 1_000) for n, how in AT_USER_SIZE.items()]
    return table + [_cell(n, SMALL, how, 0.1, 2_000_000) for n, how in TIGHT.items()]


def _cell(
    name: str, sizes: tuple[int, int, int], how: tuple[str, dict[str, Any]], epsilon: float, fits: int
) -> dict[str, Any]:
    method, settings = how
    return {
        "name": name, "sizes": list(sizes), "method": method, "settings": settings, "epsilon": epsilon,
        "fits": fits, "chunks": [min(CHUNK, fits - i) for i in range(0, fits, CHUNK)] or [0],
    }  # fmt: skip


def _key(cell: dict[str, Any]) -> str:
    text = f"{cell['method']} {cell['name']} n{cell['sizes'][0]} eps{cell['epsilon']:g} N{cell['fits']}"
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in text)


def _prepare(cell: dict[str, Any]) -> tuple[Any, Any, Any]:
    from dphead.methods import make_method
    from dphead.plan import make_plan
    from dphead.solvers.base import PublicFacts

    facts = PublicFacts(*cell["sizes"])
    solver = make_method(cell["method"], facts, dict(cell["settings"])).solver
    return solver, make_plan(solver, facts, epsilon=cell["epsilon"], delta=DELTA), facts


def work(task: tuple[dict[str, Any], int, str]) -> str:
    """One chunk of a cell, kept in a file of the work folder; returns the cell's key."""
    from dphead.analysis import audit

    cell, chunk, folder = task
    path = Path(folder) / f"{_key(cell)}.{chunk}.pkl"
    if not path.exists():
        solver, plan, facts = _prepare(cell)
        if cell["fits"] == 0:
            found: Any = audit.one_run(solver, plan, facts, facts.n_features, CONFIDENCE)
        else:
            cuts = audit.claim_of(plan).thresholds(cell["fits"], CONFIDENCE)
            problem = audit.worst_case(facts, plan)
            found = audit.count(solver, plan, problem, cell["chunks"][chunk], thresholds=cuts)
        path.with_suffix(".part").write_bytes(pickle.dumps(found))
        path.with_suffix(".part").rename(path)
    return _key(cell)


def finish(cell: dict[str, Any], folder: str, source: dict[str, Any]) -> None:
    """Add a cell's chunks up, and store its row and its plot."""
    from dphead.analysis import audit, audit_plot
    from dphead.analysis.audit_bounds import statements

    solver, plan, _ = _prepare(cell)
    parts = [pickle.loads((Path(folder) / f"{_key(cell)}.{i}.pkl").read_bytes()) for i in range(len(cell["chunks"]))]
    result = parts[0]
    if cell["fits"]:
        for part in parts[1:]:
            parts[0] = parts[0] + part
        claim = audit.claim_of(plan)
        result = statements(parts[0], claim, CONFIDENCE)
        audit_plot.plot_audit(result, claim, OUT / f"{_key(cell)}.png", f"{cell['name']}, epsilon = {plan.epsilon:g}")
    row = {k: v for k, v in cell.items() if k != "chunks"} | {"solver": repr(solver)} | result | source
    append(OUT / "audit.jsonl", row)
    print(f"{_key(cell)} passed {result['passed']} {result['epsilon_lower_bound']:.4g}", flush=True)


def main() -> None:
    """Run what is missing, two processes at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="/tmp/dphead-audit", help="Folder for the chunks of unfinished cells.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="Cells whose key contains this.")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    Path(options.work).mkdir(parents=True, exist_ok=True)
    source = provenance()
    done = {_key(row) for row in read(OUT / "audit.jsonl")}
    missing = {_key(c): c for c in cells() if _key(c) not in done and options.only in _key(c)}
    left = {key: len(cell["chunks"]) for key, cell in missing.items()}
    tasks = [(cell, i, options.work) for cell in missing.values() for i in range(len(cell["chunks"]))]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # two processes share two cores
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for key in pool.imap_unordered(work, tasks):
            left[key] -= 1
            if left[key] == 0:
                finish(missing[key], options.work, source)


if __name__ == "__main__":
    main()
