"""What the papers claim beside what was measured here: the tables of TABLES.md, one a
table of a paper.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks import claims
from benchmarks.claims import Claim
from benchmarks.jobs import OWN_EPSILONS, PAPER, Job, jobs_of, own, own_de22, why_not

NOTES = Path(__file__).parent / "claims" / "notes.toml"
# points within which a number counts as reproduced, whatever the noise draws say
FLOOR = 0.3
NOT_RUN = "not run yet"
VERDICTS = ("reproduced", "above", "below", NOT_RUN)
HEADER = (
    "| row | ε | claimed | measured | settings | ε exact | ε as the paper counts | "
    "verdict |"
)
OWN = """A row of our own, with a public network that is at hand: CIFAR-10 from
MobileNetV2 of ImageNet-1K at 128 px. Our defaults with the paper's number of epochs, no
search, exact accounting, δ = 1e-5; the paper has no such row."""
OWN_DE22 = """A row of our own, MobileNetV2 at 128 px: the last layer by De22's Table 21
(full batches, since 2^18 is more than all rows, normalised update, learning rate 25.6,
EMA), exact accounting, δ = 1e-5, no search."""
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
    """A paper's tables that can be measured here, in printed order, and then what
    cannot, folded away.
    """
    by_key = _by_key(rows)
    tables = _tables(paper)
    parts = [f"## {paper}\n"]
    for table, found in tables.items():
        ours = (
            f"{OWN}\n\n{own_table(by_key)}\n\n"
            if (paper, table) == ("FC23", "3")
            else ""
        )
        if (paper, table) == ("De22", "5"):
            ours = f"{OWN_DE22}\n\n{own_de22_table(by_key)}\n\n"
        text = (
            claims_table(found, by_key) + "\n\n"
            if any(jobs_of(c) for c in found)
            else ""
        )
        if text or ours:
            explained = "".join(f"{note}\n\n" for note in notes(paper, table))
            parts.append(
                f"### {paper}, Table {table}\n\n{text}{ours}{explained}".rstrip() + "\n"
            )
    left = {table: [c for c in found if why_not(c)] for table, found in tables.items()}
    count = sum(map(len, left.values()))
    parts.append(
        f"<details><summary>{paper}: {count} printed numbers that cannot be measured "
        "here, and why</summary>\n"
    )
    parts += [
        f"### {paper}, Table {table}\n\n{left_table(found)}\n"
        for table, found in left.items()
        if found
    ]
    return "\n".join([*parts, "</details>\n"])


def claims_table(found: list[Claim], by_key: dict[str, list[Row]]) -> str:
    """Runnable claims, a line for each way they were run."""
    lines = [_joined(cells) for cells in _lines(found, by_key)]
    return "\n".join([HEADER, "|---" * 8 + "|", *lines])


def summary(rows: Iterable[Row]) -> str:
    """A line a table of a paper: how many of its lines have which verdict, and how many
    printed numbers cannot be measured here.
    """
    by_key = _by_key(rows)
    lines = [_joined(["table", *VERDICTS, "not measurable here"]), "|---" * 6 + "|"]
    for paper in claims.PAPERS:
        for table, found in _tables(paper).items():
            verdicts = Counter(cells[-1] for cells in _lines(found, by_key))
            counts = [verdicts[name] for name in VERDICTS]
            left = sum(1 for claim in found if why_not(claim))
            numbers = [str(n) if n else "" for n in (*counts, left)]
            lines.append(_joined([f"{paper}, Table {table}", *numbers]))
    return "\n".join(lines)


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
    for claim in (c for c in found if not why_not(c)):
        jobs = jobs_of(claim)
        if claim.metric in SPREAD:
            lines.append(_spread_line(claim, jobs, by_key))
        else:
            lines += [_line(claim, job, by_key.get(job.key, [])) for job in jobs]
    return lines


def _joined(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def left_table(found: list[Claim]) -> str:
    """What cannot be run here, a line for each printed row and reason."""
    others = defaultdict(list)
    for claim in found:
        others[claim.row, why_not(claim)].append(claim)
    lines = [
        f"| {_name(row)} | {_claimed_list(group)} | {why} |"
        for (row, why), group in others.items()
    ]
    return "\n".join(["| row | claimed | not runnable here |", "|---|---|---|", *lines])


def own_table(by_key: dict[str, list[Row]]) -> str:
    """Our row of FC23's Table 3: a line for each method and number of epochs, a column
    for each epsilon.
    """
    cells: dict[str, list[str]] = defaultdict(list)
    for job in own():
        values = [100 * r["accuracy"] for r in by_key.get(job.key, [])]
        cells[job.label].append(measured(values) if values else "—")
    lines = [
        "| method, epochs | " + " | ".join(f"ε = {e:g}" for e in OWN_EPSILONS) + " |"
    ]
    lines.append("|---" * (len(OWN_EPSILONS) + 1) + "|")
    return "\n".join(
        lines
        + [f"| {name} | " + " | ".join(values) + " |" for name, values in cells.items()]
    )


def own_de22_table(by_key: dict[str, list[Row]]) -> str:
    """Our row of De22's Table 5."""
    lines = ["| ε | steps | measured |", "|---|---|---|"]
    for job in own_de22():
        values = [100 * r["accuracy"] for r in by_key.get(job.key, [])]
        lines.append(
            f"| {job.epsilon:g} | {job.settings['steps']} | "
            f"{measured(values) if values else '—'} |"
        )
    return "\n".join(lines)


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


def header(epsilons: Sequence[float], *first: str) -> list[str]:
    """The two lines above a table: columns that say what is measured, and one for each
    epsilon.
    """
    names = [*first, *(f"ε = {e:g}" for e in epsilons)]
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


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
