"""The audit's table: every method at three epsilons; one JSON line a cell.

`python -m benchmarks audit` runs what is missing in results/audit/audit.jsonl, writes
the table and draws a picture a cell, which git ignores. The number of fits of a cell is
fixed here, before any of them: an audit that stopped when it liked what it saw would
have no confidence level.
"""

import multiprocessing
import os
from pathlib import Path
from typing import Any

from benchmarks.prose import wrapped
from benchmarks.store import RESULTS, append, provenance, read

OUT = RESULTS / "audit"
CONFIDENCE = 0.9999
DELTA = 1e-5
EPSILONS = (0.1, 1.0, 8.0)
SMALL = (64, 4, 2)
USER = (10_000, 512, 10)
# no noisy centre: sums at the zero start are then public numbers
FLAT = {"center_share": 0.0}
# name: (method, settings): the cells that must reach a share of epsilon, the others,
# and those at a user's size.
TIGHT = {
    "dp-ls": ("dp-ls", FLAT),
    "dp-fc, 1 step": ("dp-fc", FLAT | {"steps": 1, "clip_norm": 0.1, "ridge": 10.0}),
    "prototypes": ("prototypes", FLAT),
    "gradient descent, 1 step": ("dp-sgd", FLAT | {"steps": 1, "clip_norm": 0.5}),
}
MORE = {
    "dp-newton, 1 step": ("dp-newton", FLAT),
    "auto": ("auto", {}),
    "dp-ls, centred": ("dp-ls", {}),
    "dp-ls, class Grams": ("dp-ls", FLAT | {"class_grams": True}),
    "prototypes, centred": ("prototypes", {}),
    "dp-fc, 3 steps, centred": ("dp-fc", {"steps": 3, "clip_norm": 0.1}),
    "gradient descent, 3 steps, centred": ("dp-sgd", {"steps": 3, "clip_norm": 0.5}),
    "dp-adam, 3 steps": ("dp-adam", FLAT | {"steps": 3, "clip_norm": 0.5}),
    "dp-sgd, Poisson q = 1/4, 3 steps": (
        "dp-sgd",
        FLAT | {"steps": 3, "clip_norm": 0.5, "batch_size": 16},
    ),
    "dp-adam, Poisson q = 1/4, 3 steps": (
        "dp-adam",
        FLAT | {"steps": 3, "clip_norm": 0.5, "batch_size": 16},
    ),
}
# by method; a fit of auto takes 60 steps
MORE_FITS = {"dp-newton": 20_000, "auto": 200}
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
    """Every cell: name, sizes, method, settings, epsilon and the number of fits in each
    world (0: one run).
    """
    table = []
    for epsilon in (8.0, 1.0):
        table += [_cell(n, SMALL, how, epsilon, 20_000) for n, how in TIGHT.items()]
    for epsilon in EPSILONS:
        for n, how in MORE.items():
            table.append(_cell(n, SMALL, how, epsilon, MORE_FITS.get(how[0], 2_000)))
    table += [_cell("one run", USER, (method, {}), 8.0, 0) for method in ONE_RUN]
    table += [_cell(n, USER, how, 8.0, 200) for n, how in AT_USER_SIZE.items()]
    return table + [_cell(n, SMALL, how, 0.1, 20_000) for n, how in TIGHT.items()]


def _cell(
    name: str,
    sizes: tuple[int, int, int],
    how: tuple[str, dict[str, Any]],
    epsilon: float,
    fits: int,
) -> dict[str, Any]:
    method, settings = how
    return {
        "name": name,
        "sizes": list(sizes),
        "method": method,
        "settings": settings,
        "epsilon": epsilon,
        "fits": fits,
    }


def _key(cell: dict[str, Any]) -> str:
    text = (
        f"{cell['method']} {cell['name']} n{cell['sizes'][0]} eps{cell['epsilon']:g} "
        f"N{cell['fits']}"
    )
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in text)


def _prepare(cell: dict[str, Any]) -> tuple[Any, Any, Any]:
    from dphead.planning.methods import make_method
    from dphead.planning.plan import make_plan
    from dphead.solvers.base import ProblemInfo

    facts = ProblemInfo(*cell["sizes"])
    solver = make_method(cell["method"], facts, dict(cell["settings"])).solver
    return solver, make_plan(solver, facts, epsilon=cell["epsilon"], delta=DELTA), facts


def work(cell: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Audit a cell; returns it, and what is stored of it."""
    from dphead.analysis import audit
    from dphead.analysis.audit_transcript import worst_cases

    solver, plan, facts = _prepare(cell)
    fits = cell["fits"]
    if fits == 0:
        found = audit.one_run(solver, plan, facts, facts.n_features, CONFIDENCE)
    else:
        problems = worst_cases(facts, plan, fits)
        found = audit.attack(solver, plan, problems, fits, confidence=CONFIDENCE)
    return cell, {"solver": repr(solver)} | found


HEAD = """# Audit

`python -m benchmarks audit` writes this from `audit.jsonl`. Each cell: as many fits
with a worst-case canary as without it, through `release` and its own noise; the score
is the log-likelihood ratio of the whole transcript. The number of fits and the
thresholds were fixed before any fit. Bounds hold at 99.99 % in each cell, both together
(a correct method fails a cell with odds of at most 1e-4); "95 %" is the bound that
papers print, on which no verdict rests. After a slash stands what a perfect attack on a
mechanism that just keeps the claim is expected to reach with as many draws. delta =
1e-5, zero-out.

- *canary*: the canary's own mu as a share of the claim's, from its actual
  contributions (none with Poisson batches). DP-Newton's gradient reaches its
  sensitivity only at infinite weights: at the zero start the canary shows 63 %.
- *ε of μ*: from the lower bound on mu, as epsilon at delta (full batches only), and its
  share of the claim.
- *AUC*, *advantage*: estimates / the largest that the releases allow / the largest
  advantage under (ε, δ) alone, as in De22's Table 9. With Poisson batches the largest
  AUC is that of the worse of both directions at each rate; no single attack reaches it.
- Cells of 2,000,000 fits are those of the sums before integers (their commit stands
  below): not run again, since they take six hours.

"""


def table(rows: list[dict[str, Any]]) -> str:
    """The stored cells as Markdown, worst-case problems first."""
    head = (
        (
            "| method | ε | fits | canary | ε ≥ | ε ≥ (95 %) | μ ≥ | ε of μ | AUC | "
            "advantage | passed |\n"
        )
        + "|---" * 11
        + "|"
    )
    parts = [HEAD]
    for sizes, title in ((SMALL, "Small problems"), (USER, "At a user's size")):
        parts.append(
            f"## {title}: n = {sizes[0]:,}, d = {sizes[1]}, m = {sizes[2]}\n\n{head}\n"
        )
        cells = [r for r in rows if tuple(r["sizes"]) == sizes and r["fits"]]
        order = [*TIGHT, *MORE, *AT_USER_SIZE]
        for r in sorted(cells, key=lambda r: (r["epsilon"], order.index(r["name"]))):
            parts.append(_line(r) + "\n")
        parts.append("\n")
    parts.append(
        f"## One run with {USER[1]} canaries (Steinke, Nasr, Jagielski 2023): n = "
        f"{USER[0]:,}, defaults\n\n"
    )
    parts.append(
        "| method | ε | right / guesses | ε ≥ | right / guesses (95 %) | ε ≥ (95 %) |\n"
        + "|---" * 6
        + "|\n"
    )
    for r in (r for r in rows if not r["fits"]):
        parts.append(
            f"| {r['method']} | {r['epsilon']:g} | {r['correct']} / {r['guesses']} | "
            f"{r['epsilon_lower_bound']:.2f} / {r['ceiling']:.2f} | {r['correct_95']} "
            f"/ {r['guesses_95']} | {r['epsilon_lower_bound_95']:.2f} / "
            f"{r['ceiling_95']:.2f} |\n"
        )
    commits = ", ".join(sorted({r["commit"] for r in rows}))
    return "".join(parts) + f"\nCommit {commits}; {rows[0]['machine']}.\n"


def summary(rows: list[dict[str, Any]]) -> str:
    """The README's table: the methods whose canary reaches its bound, and a line on the
    rest.
    """
    head = (
        "| method | ε | fits in each world | ε ≥ (99.99 %) | ε from μ ≥ | advantage / "
        "ceiling |"
    )
    lines = [head, "|---" * 6 + "|"]
    tight = [r for r in rows if r["name"] in TIGHT and tuple(r["sizes"]) == SMALL]
    for r in sorted(
        tight,
        key=lambda r: (list(TIGHT).index(r["name"]), r["epsilon"]),
    ):
        c = r["ceilings"]
        lines.append(
            f"| {r['name']} | {r['epsilon']:g} | {r['fits']:,} | "
            f"{r['epsilon_lower_bound']:.3g} of {c['epsilon_lower_bound']:.3g} | "
            f"{r['epsilon_from_mu']:.3g} of {c['epsilon_from_mu']:.3g} | "
            f"{r['advantage']:.4f} / {c['advantage']:.4f} |"
        )
    failed = sum(not r["passed"] for r in rows)
    commits = ", ".join(sorted({r["commit"] for r in rows}))
    return (
        "\n".join(lines)
        + (
            '\n\n"of": what a perfect attack on the claimed noise is expected to show '
            "with as many fits. "
        )
        + (
            "2,000,000 fits (six hours) are those of the float32 sums before, not run "
            "again. "
        )
        + f"A bound exceeded its claim in {failed} of {len(rows)} cells of all methods "
        + (
            "([table](benchmarks/results/audit/README.md)). Commit "
            f"{commits}; {rows[0]['machine']}."
        )
    )


def _line(r: dict[str, Any]) -> str:
    c = r["ceilings"]
    share = "—" if r["canary_share"] is None else f"{r['canary_share']:.1%}"
    mu = of_mu = "—"
    if r["epsilon_from_mu"] is not None:
        mu = f"{r['mu_lower_bound']:.4f} / {c['mu_lower_bound']:.4f}"
        of_mu = (
            f"{r['epsilon_from_mu']:.3g} / {c['epsilon_from_mu']:.3g} "
            f"({r['epsilon_from_mu'] / r['epsilon']:.0%})"
        )
    return (
        f"| {r['name']} | {r['epsilon']:g} | {r['fits']:,} | {share} | "
        f"{r['epsilon_lower_bound']:.3g} / {c['epsilon_lower_bound']:.3g} | "
        f"{r['epsilon_lower_bound_95']:.3g} / {c['epsilon_lower_bound_95']:.3g} | {mu} "
        f"| {of_mu} | {r['auc']:.4f} / {c['auc']:.4f} | {r['advantage']:.4f} / "
        f"{c['advantage']:.4f} / {c['advantage_of_epsilon_delta']:.3f} | "
        f"{'yes' if r['passed'] else '**NO**'} |"
    )


def run(processes: int = 2, only: str = "") -> None:
    """Run what is missing, several processes at a time.

    only: cells whose key contains this.
    """
    source = provenance()
    done = {_key(row) for row in read(OUT / "audit.jsonl")}
    missing = [c for c in cells() if _key(c) not in done and only in _key(c)]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # two processes share two cores
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for cell, found in pool.imap_unordered(work, missing):
            append(OUT / "audit.jsonl", cell | found | source)
            bound = found["epsilon_lower_bound"]
            print(f"{_key(cell)} passed {found['passed']} {bound:.4g}", flush=True)


def readme() -> str:
    """results/audit/README.md from the stored rows."""
    return wrapped(table(read(OUT / "audit.jsonl")))


def write() -> list[Path]:
    """Write it, and draw the pictures beside it; returns their paths."""
    path = OUT / "README.md"
    path.write_text(readme(), encoding="utf-8")
    return [path, *draw()]


def draw(folder: Path = OUT) -> list[Path]:
    """A picture of each stored cell of many fits, its scores and its trade-off."""
    from dphead.analysis import audit, audit_plot

    paths = []
    for row in read(OUT / "audit.jsonl"):
        if row["fits"]:
            _, plan, _ = _prepare(row)
            title = f"{row['name']}, epsilon = {plan.epsilon:g}"
            path = folder / f"{_key(row)}.png"
            audit_plot.plot_audit(row, audit.claim_of(plan), path, title)
            paths.append(path)
    return paths
