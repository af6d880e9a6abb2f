"""What the papers claim beside what was measured here: the tables of TABLES.md, one a
table of a paper.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks import arithmetic, claims
from benchmarks.claims import Claim
from benchmarks.jobs import (
    ACCELERATOR,
    ARITHMETIC,
    CITED,
    NOT_PUBLIC,
    NOT_RUN,
    PAPER,
    Job,
    jobs_of,
    own,
    own_de22,
    standing,
)
from benchmarks.prose import table

NOTES = Path(__file__).parent / "claims" / "notes.toml"
# points within which a number counts as reproduced, whatever the noise draws say
FLOOR = 0.3
AGREES, DIFFERS = f"{ARITHMETIC}: agrees", f"{ARITHMETIC}: differs"
RUN = ("reproduced", "above", "below", NOT_RUN)
VERDICTS = (*RUN, AGREES, DIFFERS, ACCELERATOR, NOT_PUBLIC, CITED)
HEADER = ("row", "ε", "claimed", "measured", "settings", "ε exact")
HEADER = (*HEADER, "ε as the paper counts", "verdict")
OWN = """Our own row, not in the paper: CIFAR-10 on MobileNetV2 features (ImageNet-1K,
128 px). Settings: our defaults with the paper's number of epochs, no search, exact
accounting, δ = 1e-5."""
OWN_DE22 = """Our own row, not in the paper: the last layer on MobileNetV2 features (128
px) with the settings of De22's Table 21 (full batches, because 2^18 exceeds the number
of rows; normalized update, learning rate 25.6, EMA). Exact accounting, δ = 1e-5, no
search."""
Row = dict[str, Any]
SPREAD = {"min": min, "max": max, "median": median, "MAD": lambda values: _mad(values)}


def verdict(claimed: float, claimed_sd: float, values: Sequence[float]) -> str:
    """reproduced, above or below.

    values: one measured number a noise draw, in the claim's unit (points).
    """
    sd = stdev(values) if len(values) > 1 else 0.0
    allowed = max(FLOOR, 2 * (sd**2 / len(values) + claimed_sd**2) ** 0.5)
    difference = mean(values) - claimed
    if abs(difference) <= allowed + 1e-9:
        return "reproduced"
    return "above" if difference > 0 else "below"


def paper_section(paper: str, rows: Iterable[Row]) -> str:
    """A paper's tables that were run or computed, in printed order, and then what was
    not, folded away.
    """
    by_key = _by_key(rows)
    parts, folded, count = [f"## {paper}\n"], [], 0
    for name, found in _tables(paper).items():
        title = f"### {paper}, Table {name}\n\n"
        blocks = [claims_table(found, by_key)] if any(map(jobs_of, found)) else []
        if any(standing(c)[0] == ARITHMETIC for c in found):
            blocks.append(arithmetic.printed_table(paper, name))
        if (paper, name) == ("FC23", "3"):
            blocks += [OWN, own_table(own(), by_key)]
        if (paper, name) == ("De22", "5"):
            blocks += [OWN_DE22, own_table(own_de22(), by_key)]
        if blocks := blocks + notes(paper, name):
            parts.append(title + "\n\n".join(blocks) + "\n")
        if left := [c for c in found if standing(c)[0] not in ("", ARITHMETIC)]:
            folded.append(f"{title}{left_table(left)}\n")
            count += len(left)
    if noise := arithmetic.noise_table(paper):
        parts.append(f"### {paper}, noise multipliers\n\n{noise}\n")
    parts.append(
        f"<details><summary>{paper}: {count} printed numbers without a measurement, "
        "and what each needs</summary>\n"
    )
    return "\n".join([*parts, *folded, "</details>\n"])


def claims_table(found: list[Claim], by_key: dict[str, list[Row]]) -> str:
    """Runnable claims, a line for each way they were run."""
    return table(HEADER, _lines(found, by_key))


def summary(rows: Iterable[Row], by_table: bool = True) -> str:
    """Count the printed numbers of each table, or of each paper, by verdict."""
    by_key = _by_key(rows)
    lines = []
    for paper in claims.PAPERS:
        tables = _tables(paper)
        groups = {f"{paper}, Table {name}": found for name, found in tables.items()}
        if not by_table:
            groups = {paper: claims.load(paper)}
        for name, found in groups.items():
            counts = Counter(outcome(claim, by_key) for claim in found)
            numbers = [str(counts[verdict] or "") for verdict in VERDICTS]
            lines.append([name, *numbers])
    return table(["table" if by_table else "paper", *VERDICTS], lines)


def outcome(claim: Claim, by_key: dict[str, list[Row]]) -> str:
    """Return one of VERDICTS; of several runs, the first that one of them has."""
    kind, _ = standing(claim)
    if kind == ARITHMETIC:
        return AGREES if any(map(arithmetic.agrees, arithmetic.of(claim))) else DIFFERS
    found = [cells[-1] for cells in _lines([claim], by_key)]
    return kind or next(name for name in RUN if name in found)


def _by_key(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    return found


def _tables(paper: str) -> dict[str, list[Claim]]:
    """A paper's claims by their tables, in printed order."""
    found: dict[str, list[Claim]] = {}
    for claim in claims.load(paper):
        found.setdefault(claim.table, []).append(claim)
    return found


def _lines(found: list[Claim], by_key: dict[str, list[Row]]) -> list[list[str]]:
    """The cells of the lines of runnable claims; the last is the verdict."""
    lines = []
    for claim in found:
        jobs = jobs_of(claim)
        if claim.metric in SPREAD and len(jobs) > 1:
            lines.append(_spread_line(claim, jobs, by_key))
        else:
            lines += [_line(claim, job, by_key.get(job.key, [])) for job in jobs]
    return lines


def left_table(found: list[Claim]) -> str:
    """What has no run, a line for each printed row, verdict and reason."""
    others = defaultdict(list)
    for claim in found:
        others[claim.row, standing(claim)].append(claim)
    lines = [
        [_name(row), _claimed_list(group), *why] for (row, why), group in others.items()
    ]
    return table(("row", "claimed", "verdict", "what it needs"), lines)


def own_table(jobs: list[Job], by_key: dict[str, list[Row]]) -> str:
    """A row of our own: a line for each label, a column for each epsilon."""
    cells: dict[str, dict[float, str]] = defaultdict(dict)
    for job in jobs:
        values = [100 * r["accuracy"] for r in by_key.get(job.key, [])]
        cells[job.label][job.epsilon] = measured(values) if values else "—"
    epsilons = sorted({job.epsilon for job in jobs})
    lines = [[name, *(values[e] for e in epsilons)] for name, values in cells.items()]
    return table(["method, steps", *columns(epsilons)], lines)


def notes(paper: str, table: str) -> list[str]:
    """What was tested about a table's differences, and the file with the evidence."""
    found = [
        n
        for n in tomllib.loads(NOTES.read_text())["note"]
        if (n["paper"], n["table"]) == (paper, table)
    ]
    return [f"{n['text'].strip()} (`{n['evidence']}`)" for n in found]


def _spread_line(
    claim: Claim, jobs: list[Job], by_key: dict[str, list[Row]]
) -> list[str]:
    """A statistic over the configurations of a search, one draw each."""
    values = [
        100 * by_key[job.key][0]["accuracy"] for job in jobs if by_key.get(job.key)
    ]
    cells = [f"{claim.dataset}, {claim.metric}", claim.epsilon, claim.value]
    if len(values) < len(jobs):
        cells += [f"{len(values)} of {len(jobs)} run", "", "—", "—", NOT_RUN]
    else:
        found = SPREAD[claim.metric](values)
        how = f"{len(jobs)} of 360 configurations, fixed beforehand; {PAPER} accounting"
        exact = max(by_key[job.key][0]["exact_epsilon"] for job in jobs)
        profile = max(
            by_key[job.key][0]["profiles"][f"paper:{claim.paper.lower()}"]
            for job in jobs
        )
        cells += [
            f"{found:.2f}",
            how,
            f"≤ {exact:.3g}",
            f"≤ {profile:.3g}",
            verdict(float(claim.value), 0.0, [found]),
        ]
    return cells


def _mad(values: Sequence[float]) -> float:
    return median(abs(v - median(values)) for v in values)


def _line(claim: Claim, job: Job, rows: list[Row]) -> list[str]:
    values = [100 * r["accuracy"] for r in rows]
    column = claim.settings.get("normalization") or claim.settings.get("sampling") or ""
    name = " ".join(filter(None, [_name(claim.row), str(column)]))
    cells = [name, "∞" if claim.epsilon == "inf" else claim.epsilon, claimed(claim)]
    if not values:
        return [*cells, "—", job.label, "—", "—", NOT_RUN]
    profile = rows[0]["profiles"].get(f"paper:{claim.paper.lower()}")
    exact = rows[0]["exact_epsilon"]
    cells += [
        measured(values),
        job.label,
        f"{exact:.3g}" if exact < float("inf") else "∞",
        f"{profile:.3g}" if profile else "—",
        verdict(float(claim.value), float(claim.sd or 0), values),
    ]
    return cells


def measured(values: Sequence[float]) -> str:
    """Mean ± sd (k draws)."""
    return f"{mean_sd(values)} ({len(values)} draw{'s' if len(values) > 1 else ''})"


def mean_sd(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sd; no sd of one value."""
    return f"{mean(values):.{digits}f}" + (
        f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    )


def columns(epsilons: Iterable[float]) -> list[str]:
    """Name a column for each epsilon."""
    return [f"ε = {e:g}" for e in epsilons]


def _name(row: str) -> str:
    return row.replace(" | ", ", ") or "—"


def claimed(claim: Claim) -> str:
    """What a paper prints."""
    return (
        ("≤ " if claim.at_most else "")
        + claim.value
        + (f" ± {claim.sd}" if claim.sd else "")
    )


def _claimed_list(found: list[Claim]) -> str:
    """The values of a printed row, each with what tells it from the others."""
    told = []
    for claim in (c for c in found if c.value):
        parts = [claim.dataset] if len({c.dataset for c in found}) > 1 else []
        parts += [claim.features] if len({c.features for c in found}) > 1 else []
        if len({c.epsilon for c in found}) > 1:
            parts.append("ε ∞" if claim.epsilon == "inf" else f"ε {claim.epsilon}")
        told.append(claimed(claim) + (f" ({', '.join(parts)})" if parts else ""))
    return "; ".join(told) or "—"
