"""Compute the numbers of the papers' tables that a formula gives.

No row of data is read. `python -m benchmarks arithmetic` stores them in
results/arithmetic/: what a paper prints (`claims.jsonl`), and the noise multipliers
that FC23 and TB21 calibrate and do not print (`noise.jsonl`).
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any

from benchmarks import claims
from benchmarks.claims import Claim
from benchmarks.prose import table
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.profiles import profile_epsilon
from dphead.analysis.tan import total_amount_of_noise
from dphead.planning import presets
from dphead.planning.calibration import calibrate
from dphead.privacy.accounting import GaussianEvent, compose_epsilon, epsilon_from_mu

OUT = RESULTS / "arithmetic"
BOUND, BY_TAN = "membership advantage upper bound", "epsilon by TAN"
METRICS = ("epsilon", BY_TAN, BOUND)
FORMS = {  # of what is computed
    "training rows": ",d",
    "computed": ".4g",
    "exact (PLD)": ".4g",
    "η_step": ".3e",
    "TAN Σ": ".4g",
    "ε_TAN": ".4g",
    "images": ".3g",
}
FC23_METHODS = (  # and epochs
    ("dp-ls", 1),
    ("dp-newton", 1),
    ("dp-newton", 10),
    ("dp-fc", 1),
    ("dp-fc", 10),
    ("dp-adam", 1),
    ("dp-adam", 10),
    ("dp-adam", 100),
)
FC23_TABLES = {"Tables 3 and 4": 1e-5, "Table 2": 8e-7}  # delta
FC23_EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
TB21_TABLES = {  # preset: table, data set (Table 17's is CIFAR-10) and epsilon
    "tb21-mnist": ("Table 13", "mnist", 3.0),
    "tb21-fashion-mnist": ("Table 13", "fashion-mnist", 3.0),
    "tb21-cifar10": ("Table 13", "cifar10", 3.0),
    "tb21-sn-cnn": ("Table 13", "", 3.0),
    "tb21-cnn": ("Table 13", "", 3.0),
    "tb21-14": ("Table 14", "", 3.0),
    "tb21-resnext": ("Table 17", "cifar10", 2.0),
    "tb21-simclr": ("Table 17", "cifar10", 2.0),
}
NOISE = {
    "FC23": """Computed, not printed by the paper: the noise multiplier of every release
that spends a column's ε by zCDP (ε = ρ + 2 √(ρ ln(1/δ)), the public code's conversion),
and in brackets the ε of the same noise by exact accounting. With m releases of equal
noise ρ = m / (2 σ²), where m is 3 for DP-LS, T + 1 for DP-FC, 2 T for DP-Newton and T
for DP-Adam. The clip norm C is 0.005, and 1 for ViT-G/14 on ImageNet (Tables 6-9). The
noise's standard deviation is σ C on gradients and sums, and σ C² on Gram matrices.""",
    "TB21": """Computed, not printed by the paper: DP-SGD's noise multiplier by the
paper's accountant (RDP, Lemma B.4), after data normalization by two releases with noise
multiplier σ_norm, and in brackets the exact ε (PLD) of both. Poisson batches.
Fashion-MNIST's search is of the same sizes as MNIST's.""",
}
Row = dict[str, Any]


def run() -> None:
    """Compute everything again."""
    noise = chain(fc23_noise(), tb21_noise())
    for name, rows in (("claims", printed()), ("noise", noise)):
        path = OUT / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        for row in rows:
            append(path, row | provenance())


def printed() -> Iterator[Row]:
    """Yield a row for each printed number and number of training rows."""
    for claim in claims.load():
        if claim.metric not in METRICS:
            continue
        place = {name: getattr(claim, name) for name in ("paper", "table", "row")}
        place |= {"metric": claim.metric, "claimed": claim.value}
        if claim.metric == BOUND:
            value = advantage_bound(float(claim.epsilon), float(claim.delta))
            yield place | {"computed": value}
            continue
        sizes = claims.data(claim.dataset)
        counts = [claim.settings.get("training_rows", sizes["train_rows"])]
        if claim.paper == "De22" and "tuning_rows" in sizes:
            counts.append(sizes["tuning_rows"])
        for n_rows in counts:
            yield place | {"training rows": n_rows} | spent(claim, int(n_rows))


def advantage_bound(epsilon: float, delta: float) -> float:
    """Return the largest advantage under (epsilon, delta)-DP [De22, Table 9]."""
    low = math.exp(-epsilon)  # unlike e^eps, this cannot overflow
    return (-math.expm1(-epsilon) + 2 * delta * low) / (1 + low)


def spent(claim: Claim, n_rows: int) -> Row:
    """Return what a run with a claim's settings spends."""
    settings = presets.load(claim.preset)["dp-sgd"] | claim.settings
    sigma, batch_size, steps = (
        settings[name] for name in ("noise_multiplier", "batch_size", "steps")
    )
    sampling_prob = batch_size / n_rows
    delta = float(claim.delta)
    events = [GaussianEvent(sigma, sampling_prob, steps)]
    tan = total_amount_of_noise(sigma, sampling_prob, steps, delta)
    epsilon = profile_epsilon(f"paper:{claim.paper.lower()}", events, delta).epsilon
    found = {"computed": tan.epsilon if claim.metric == BY_TAN else epsilon}
    found["exact (PLD)"] = compose_epsilon(events, delta, "zero_out", "pld")
    if claim.paper == "TAN23":
        found |= {"η_step": tan.eta / math.sqrt(steps), "TAN Σ": tan.total_noise}
        found |= {"ε_TAN": tan.epsilon, "images": batch_size * steps}
    return found


def agrees(row: Row) -> bool:
    """Whether a computed number is the printed one, to the printed digits."""
    digits = len(row["claimed"].partition(".")[2])
    return f"{row['computed']:.{digits}f}" == row["claimed"]


def of(claim: Claim) -> list[Row]:
    """Return the stored rows of a claim."""
    return [
        row
        for row in read(OUT / "claims.jsonl")
        if all(row[k] == getattr(claim, k) for k in ("paper", "table", "row", "metric"))
    ]


def printed_table(paper: str, name: str) -> str:
    """Render a table's computed numbers, a line for each claim and number of rows."""
    rows = read(OUT / "claims.jsonl")
    rows = [row for row in rows if (row["paper"], row["table"]) == (paper, name)]
    shown = {title: form for title, form in FORMS.items() if title in rows[0]}
    lines = []
    for row in rows:
        cells = [row["row"].replace(" | ", ", "), f"{row['metric']} {row['claimed']}"]
        cells += [format(row[title], form) for title, form in shown.items()]
        lines.append([*cells, "agrees" if agrees(row) else "differs"])
    return table(["row", "claimed", *shown, "verdict"], lines)


def noise_table(paper: str) -> str:
    """Render a paper's noise multipliers; exact epsilon in brackets."""
    cells: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for row in read(OUT / "noise.jsonl"):
        if row["paper"] == paper:
            place = row["table"], row["row"]
            value = f"{row['noise_multiplier']:.4g} ({row['exact']:.3g})"
            cells[place][row["column"]] = value
    parts = []
    for name in dict.fromkeys(where for where, _ in cells):
        found = {row: line for (where, row), line in cells.items() if where == name}
        columns = list(dict.fromkeys(c for line in found.values() for c in line))
        lines = [[r, *(line.get(c, "—") for c in columns)] for r, line in found.items()]
        parts.append(table([name, *columns], lines))
    return "\n\n".join([NOISE[paper], *parts]) if parts else ""


def fc23_noise() -> Iterator[Row]:
    """Yield the noise multiplier of each method and epsilon."""
    for (name, delta), epsilon in product(FC23_TABLES.items(), FC23_EPSILONS):
        one = calibrate([GaussianEvent(1.0)], epsilon, delta, accountant="zcdp")
        for method, epochs in FC23_METHODS:
            releases = {"dp-ls": 3, "dp-fc": epochs + 1, "dp-newton": 2 * epochs}
            yield {
                "paper": "FC23",
                "table": name,
                "row": f"{method}, {epochs}",
                "column": f"ε = {epsilon:g}",
                "noise_multiplier": one * math.sqrt(releases.get(method, epochs)),
                "exact": epsilon_from_mu(1 / one, delta),
            }


def tb21_noise() -> Iterator[Row]:
    """Yield the noise multiplier of each printed configuration."""
    names = ("dataset", "batch_size", "epochs", "data_norm")
    for dataset in ("mnist", "cifar10"):
        search = presets.load("tb21")["search"][dataset]
        norms: list[Any] = ["none", *search["normalization"]["noise_multiplier"]]
        sizes: list[Any] = [512 << k for k in range(6)]
        for batch_size, epochs, norm in product(sizes, search["epochs"], norms):
            found = tb21_run(3.0, dataset, batch_size, epochs, norm)
            yield found | {"table": "Table 12", "column": f"σ_norm = {norm}"}
    for name, (where, dataset, epsilon) in TB21_TABLES.items():
        for column in presets.columns(name) or [{}]:
            run: Row = {"dataset": dataset, "data_norm": "none"}
            run |= presets.load(name).get("dp-sgd", {}) | column
            if "normalization" in run:
                run["data_norm"] = run["normalization"]["noise_multiplier"]
            found = tb21_run(epsilon, *(run[key] for key in names))
            row = f"{name}, {found['row']}"
            yield found | {"table": where, "row": row, "column": f"ε = {epsilon:g}"}


def tb21_run(
    epsilon: float, dataset: str, batch_size: int, epochs: int, norm: Any
) -> Row:
    """Return the noise of a DP-SGD run, after two noisy releases of channels' sums."""
    sampling_prob = batch_size / claims.data(dataset)["train_rows"]
    events = [GaussianEvent(1.0, sampling_prob, round(epochs / sampling_prob))]
    if norm != "none":
        events.append(GaussianEvent(float(norm), count=2))
    fixed = range(1, len(events))
    sigma = calibrate(events, epsilon, 1e-5, accountant="rdp-classic", fixed=fixed)
    events[0] = replace(events[0], noise_multiplier=sigma)
    exact = compose_epsilon(events, 1e-5, "zero_out", "pld")
    row = f"{dataset}, B = {batch_size}, {epochs} epochs"
    return {"paper": "TB21", "row": row, "noise_multiplier": sigma, "exact": exact}
