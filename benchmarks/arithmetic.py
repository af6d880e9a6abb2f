"""Compute the numbers of the papers' tables that a formula gives.

No row of data is read. `python -m benchmarks arithmetic` stores them in
results/arithmetic/claims.jsonl.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import claims
from benchmarks.claims import Claim
from benchmarks.prose import table
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.profiles import profile_epsilon
from dphead.analysis.tan import total_amount_of_noise
from dphead.planning import presets
from dphead.privacy.accounting import GaussianEvent, compose_epsilon

OUT = RESULTS / "arithmetic"
BOUND, BY_TAN = "membership advantage upper bound", "epsilon by TAN"
METRICS = ("epsilon", BY_TAN, BOUND)
FORMS = {  # format of each computed number
    "training rows": ",d",
    "computed": ".4g",
    "exact (PLD)": ".4g",
    "η_step": ".3e",
    "TAN Σ": ".4g",
    "ε_TAN": ".4g",
    "images": ".3g",
}
Row = dict[str, Any]


def run() -> None:
    """Compute all numbers again, and store them."""
    path = OUT / "claims.jsonl"
    path.unlink(missing_ok=True)
    for row in printed():
        append(path, row | provenance())


def printed() -> Iterator[Row]:
    """Yield a row for each printed number and number of training rows."""
    for claim in claims.load():
        if claim.metric in METRICS:
            yield from computed(claim)


def computed(claim: Claim) -> Iterator[Row]:
    """Yield a row for each number of training rows that a claim may refer to."""
    place = {name: getattr(claim, name) for name in ("paper", "table", "row")}
    place |= {"metric": claim.metric, "claimed": claim.value}
    if claim.metric == BOUND:
        value = advantage_bound(float(claim.epsilon), float(claim.delta))
        yield place | {"computed": value}
        return
    sizes = claims.data(claim.dataset)
    counts = [claim.n_rows]
    if claim.paper == "De22" and "tuning_rows" in sizes:
        counts.append(sizes["tuning_rows"])
    for n_rows in counts:
        yield place | {"training rows": n_rows} | spent(claim, n_rows)


def advantage_bound(epsilon: float, delta: float) -> float:
    """Return the largest advantage under (epsilon, delta)-DP [De22, Table 9]."""
    low = math.exp(-epsilon)  # unlike e^eps, this cannot overflow
    return (-math.expm1(-epsilon) + 2 * delta * low) / (1 + low)


def spent(claim: Claim, n_rows: int) -> Row:
    """Return the epsilons of a run with a claim's settings, and TAN23's quantities."""
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
    """Return whether a computed number equals the printed one, to its digits."""
    digits = len(row["claimed"].partition(".")[2])
    return f"{row['computed']:.{digits}f}" == row["claimed"]


def of(claim: Claim) -> list[Row]:
    """Return the stored numbers of a claim."""
    return [
        row
        for row in read(OUT / "claims.jsonl")
        if all(row[k] == getattr(claim, k) for k in ("paper", "table", "row", "metric"))
    ]


def printed_table(found: Iterable[Claim]) -> str:
    """Render claims' computed numbers, a line for each claim and number of rows."""
    pairs = [(claim.name, row) for claim in found for row in of(claim)]
    shown = {title: form for title, form in FORMS.items() if title in pairs[0][1]}
    lines = []
    for name, row in pairs:
        cells = [row["row"].replace(" | ", ", "), f"{row['metric']} {row['claimed']}"]
        cells += [format(row[title], form) for title, form in shown.items()]
        lines.append([name, *cells, "agrees" if agrees(row) else "differs"])
    return table(["number", "row", "claimed", *shown, "verdict"], lines)
