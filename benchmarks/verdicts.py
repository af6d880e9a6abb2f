"""Compare the papers' claims with measured numbers: the tables of TABLES.md."""

import shlex
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks import arithmetic, claims, training
from benchmarks.claims import Claim
from benchmarks.jobs import (
    ACCELERATOR,
    ARITHMETIC,
    CITED,
    LICENSED,
    NOT_PUBLIC,
    NOT_RUN,
    PAPER,
    Job,
    commands,
    jobs_of,
    measured_here,
    own_de22,
    run_here,
    small,
    standing,
)
from benchmarks.prose import table

NOTES = Path(__file__).parent / "claims" / "notes.toml"
# a difference up to this many points counts as reproduced, whatever the noise
FLOOR = 0.3
AGREES, DIFFERS = f"{ARITHMETIC}: agrees", f"{ARITHMETIC}: differs"
RUN = ("reproduced", "above", "below", NOT_RUN)
IN_SMALL = ("in small: agrees", "in small: differs", "in small: not resolved")
REASONS = (ACCELERATOR, NOT_PUBLIC, LICENSED, CITED)
VERDICTS = (*RUN, *IN_SMALL, AGREES, DIFFERS, *REASONS)
BEST = "reproduced by any run"
HEADER = ("number", "row", "ε", "claimed", "measured", "settings", "ε exact")
HEADER = (*HEADER, "ε as the paper counts", "verdict")
OWN = """In small, not in the paper: MobileNetV2 features (ImageNet-1K, 128 px) instead
of those of ViT-B/16. Settings: our defaults with the paper's number of epochs, no
search, exact accounting, δ = 1e-5. A cell *agrees* if its order among its column's
methods is the paper's, and *differs* if one order is reversed. An order counts if the
paper's difference and ours both exceed two standard errors (of noise draws and test
images); otherwise the cell is *not resolved*."""
HALF = """Here CIFAR-100 has half of its training images, and DP-Newton, which needs 100
Hessians, was not run."""
OWN_DE22 = """Our own row, not in the paper: the last layer on MobileNetV2 features (128
px) with the settings of De22's Table 21 (full batches, because 2^18 exceeds the number
of rows; normalized update, learning rate 25.6, EMA). Exact accounting, δ = 1e-5, no
search."""
SHOWN = (
    "![Dashed and hollow: the paper's numbers. Filled: ours.](results/figures/{}.png)"
)
PICTURES = {name: SHOWN.format(name.lower()) for name in ("FC23", "TB21", "De22")}
PICTURES["TAN23"] = "![Figures 2 and 3 at ε = 8](results/finetune/tan23-epsilon8.png)"
Row = dict[str, Any]
ByKey = dict[str, list[Row]]  # stored results by their job's key
SPREAD = {"min": min, "max": max, "median": median, "MAD": lambda values: _mad(values)}


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """Return "reproduced", "above" or "below".

    `values` has a measured number for each noise draw, in the claim's unit (points). A
    difference up to FLOOR or two standard errors counts as reproduced. For a median
    absolute deviation, half a unit in the last printed digit replaces FLOOR, because
    FLOOR is larger than the deviation.
    """
    printed, printed_sd = float(claim.value), float(claim.sd or 0)
    sd = stdev(values) if len(values) > 1 else 0.0
    allowed = 2 * (sd**2 / len(values) + printed_sd**2) ** 0.5
    digits = len(claim.value.partition(".")[2])
    floor = 0.5 / 10**digits if claim.metric == "MAD" else FLOOR
    difference = mean(values) - printed
    if abs(difference) <= max(floor, allowed) + 1e-9:
        return "reproduced"
    return "above" if difference > 0 else "below"


def in_small(claim: Claim, by_key: ByKey) -> str:
    """Return whether a smaller network gives the claim's order in its column."""
    found = set()
    n = claims.data(claim.dataset)["test_rows"]

    def sign(difference: float, percent: float, variance: float) -> int:
        variance += 2 * percent * (100 - percent) / n
        if difference**2 <= 4 * variance:
            return 0
        return 1 if difference > 0 else -1

    ours = _small_values(claim, by_key)
    for other in _columns()[_column(claim)]:
        theirs = _small_values(other, by_key)
        seeds = sorted(ours.keys() & theirs.keys())
        # two upper bounds cannot be ordered
        if not seeds or other is claim or (claim.at_most and other.at_most):
            continue
        printed = float(claim.value) - float(other.value)
        sds = sum(float(c.sd or 0) ** 2 for c in (claim, other))
        pairs = [ours[seed] - theirs[seed] for seed in seeds]
        variance = stdev(pairs) ** 2 / len(pairs) if len(pairs) > 1 else 0.0
        wanted = sign(printed, float(claim.value), sds)
        found.add(wanted * sign(mean(pairs), ours[seeds[0]], variance))
    agrees, differs, open_ = IN_SMALL
    if not ours:
        return NOT_RUN
    return differs if -1 in found else agrees if 1 in found else open_


def _small_values(claim: Claim, by_key: ByKey) -> dict[int, float]:
    """Return the accuracy of each noise draw in small, in %."""
    job = small(claim)
    rows = by_key.get(job.key, []) if job else []
    return {row["seed"]: 100 * row["accuracy"] for row in rows}


def _column(claim: Claim) -> tuple[str, ...]:
    return claim.paper, claim.table, claim.features, claim.column


@cache
def _columns() -> dict[tuple[str, ...], list[Claim]]:
    """Return the claims of each column of a table."""
    found: dict[tuple[str, ...], list[Claim]] = defaultdict(list)
    for claim in claims.load():
        found[_column(claim)].append(claim)
    return found


def paper_section(paper: str, rows: Iterable[Row]) -> str:
    """Render a paper's measured and computed tables, then the other numbers, folded."""
    by_key = by_key_of(rows)
    parts, folded, count = [f"## {paper}\n\n{PICTURES[paper]}\n"], [], 0
    for name, found in _tables(paper).items():
        title = f"### {paper}, Table {name}\n\n"
        run = [c for c in found if measured_here(c)]
        blocks = [table(HEADER, _lines(run, by_key))] if run else []
        if any(standing(c)[0] == ARITHMETIC for c in found):
            blocks.append(arithmetic.printed_table(found))
        if shown := [c for c in found if small(c)]:
            blocks += [*about_small(shown), told(shown, by_key)]
        if (paper, name) == ("De22", "5"):
            blocks += [OWN_DE22, own_table(own_de22(), by_key)]
        if blocks := blocks + notes(found):
            parts.append(title + "\n\n".join(blocks) + "\n")
        if left := unmeasured(found):
            folded.append(f"{title}{left_table(left)}\n")
            count += len(left)
    parts.append(
        f"<details><summary>{paper}: {count} printed numbers without a measurement, "
        "and what each needs</summary>\n"
    )
    return "\n".join([*parts, *folded, "</details>\n"])


def about_small(found: Iterable[Claim]) -> list[str]:
    """Return what "in small" means for FC23's claims, if there are any."""
    tables = {c.table for c in found if c.paper == "FC23" and small(c)}
    return [f"{OWN} {HALF}" if "4" in tables else OWN] if tables else []


def told(found: list[Claim], by_key: ByKey, given: bool = False) -> str:
    """Render the paper's numbers, ours and verdicts: a line for each run or formula."""
    lines = [[*cells[:6], cells[-1]] for cells in _lines(found, by_key, given)]
    for claim in (c for c in found if standing(c)[0] == ARITHMETIC):
        for row in arithmetic.computed(claim):
            count = row.get("training rows")
            how = f"formula, {count:,} rows" if count else "formula"
            said = AGREES if arithmetic.agrees(row) else DIFFERS
            cells = [claim.name, _name_of(claim), claim.epsilon, claimed(claim)]
            lines.append([*cells, f"{row['computed']:.4g}", how, said])
    return table((*HEADER[:6], HEADER[-1]), lines) if lines else ""


def unmeasured(found: Iterable[Claim]) -> list[Claim]:
    """Return the claims that neither a run on a CPU nor a formula gives."""
    return [c for c in found if standing(c)[0] not in ("", ARITHMETIC)]


def states(found: Iterable[Claim], by_key: ByKey) -> str:
    """List claims: id, row, paper's number, state and commands."""
    groups = defaultdict(list)
    for claim in found:
        verdict, why = standing(claim)
        if not verdict:
            verdict, why = outcome(claim, by_key)[0], _minutes(claim, by_key)
        groups[verdict, why, shown(claim, "NAME")].append(claim)
    parts = []
    for (verdict, why, how), group in groups.items():
        names = ", ".join(f"{c.name} {claimed(c)} ({_name_of(c)})" for c in group)
        if len(group) == 1:
            how = shown(group[0])
        if why.startswith("stored"):
            how = how.replace("IMAGES`", "IMAGES --again`")
        lines = [f"{verdict}: {why}", how, names.replace(" (—)", "")]
        parts.append("\n".join(filter(None, lines)))
    return "\n\n".join(parts)


def _minutes(claim: Claim, by_key: ByKey) -> str:
    """Return whether a claim is stored, and about how long its jobs take here."""
    jobs = run_here(claim)
    rows = [row for job in jobs for row in by_key.get(job.key, [])]
    if rows:
        seconds = sum(row["seconds"] for row in rows)
        return f"stored (fits: {len(rows)}, minutes: {max(1, round(seconds / 60))})"
    return _takes(claim, jobs[0])


def _takes(claim: Claim, job: Job) -> str:
    """Return a text that the job can run here; for a network, with its minutes."""
    if not job.trains:
        return "runnable here"
    minutes = training.views(job) / claim.needs["here"] / 60
    return f"runnable here; a network takes {minutes:.0f} minutes of one core"


def compared(
    pairs: Iterable[tuple[Claim | None, Job]],
    stored: Iterable[Row],
    again: Iterable[Row],
) -> str:
    """Compare stored and repeated results, with a tolerance of three standard errors.

    The tolerance is at least 0.1 points. Three draws of one fit give an imprecise
    variance. Therefore the variance over noise draws is the mean over all fits of a
    data set, method and epsilon. If these have one draw each, it is the mean over all
    epsilons too. Draw k has the same noise in all fits, so all differences can have the
    same sign.
    """
    before, after = by_key_of(stored), by_key_of(again)
    variances = defaultdict(list)
    for rows in (*before.values(), *after.values()):
        if len(rows) > 1:
            place, variance = _place(rows), stdev(_percents(rows)) ** 2
            variances[place].append(variance)
            variances[place[:2]].append(variance)
    lines = []
    for key, (claim, job) in {pair[1].key: pair for pair in pairs}.items():
        if not after[key]:
            continue
        values = [_percents(of[key]) for of in (before, after)]
        cells = [measured(v) if v else "—" for v in values]
        said = "not stored"
        if values[0]:
            place = _place(after[key])
            variance = mean(variances[place] or variances[place[:2]] or [0.0])
            variance *= sum(1 / len(v) for v in values)
            difference = abs(mean(values[0]) - mean(values[1]))
            same = difference <= max(3 * variance**0.5, 0.1)
            said = "agrees" if same else "differs"
        name = _name_of(claim) if claim else f"{job.dataset}, {job.method}"
        how = [name, f"{job.epsilon:g}", job.label]
        lines.append([*how, *cells, said])
    names = ("job", "ε", "settings", "stored", "again", "within three errors")
    return table(names, lines) if lines else ""


def _percents(rows: Iterable[Row]) -> list[float]:
    return [100 * row["accuracy"] for row in rows]


def _place(rows: list[Row]) -> tuple[str, ...]:
    job = rows[0]["job"]
    return job["dataset"], job["method"], job["epsilon"]


def summary(rows: Iterable[Row], by_table: bool = True) -> str:
    """Count the printed numbers of each table, or of each paper, by verdict.

    The last column counts numbers that some run reproduces, whatever its settings.
    """
    by_key = by_key_of(rows)
    lines = []
    for paper in claims.PAPERS:
        groups = {f"{paper}, Table {name}": c for name, c in _tables(paper).items()}
        if not by_table:
            groups = {paper: claims.load(paper)}
        for name, found in groups.items():
            counts = Counter(outcome(claim, by_key)[0] for claim in found)
            best = sum(outcome(claim, by_key)[1] == RUN[0] for claim in found)
            numbers = [str(counts[verdict] or "") for verdict in VERDICTS]
            lines.append([name, *numbers, str(best or "")])
    return table(["table" if by_table else "paper", *VERDICTS, BEST], lines)


def outcome(claim: Claim, by_key: ByKey) -> tuple[str, str]:
    """Return the verdicts of the run as in the paper, and of the best of all runs.

    The first run has the paper's settings and accounting.
    """
    kind, _ = standing(claim)
    if kind == ARITHMETIC:
        same = any(map(arithmetic.agrees, arithmetic.of(claim)))
        kind = AGREES if same else DIFFERS
    if not kind and not measured_here(claim):
        kind = in_small(claim, by_key)
    if kind:
        return kind, kind
    found = [cells[-1] for cells in _lines([claim], by_key)]
    return found[0], next(name for name in RUN if name in found)


def by_key_of(rows: Iterable[Row]) -> ByKey:
    found: ByKey = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    return found


def _tables(paper: str) -> dict[str, list[Claim]]:
    """Return a paper's claims by table, in printed order."""
    found: dict[str, list[Claim]] = {}
    for claim in claims.load(paper):
        found.setdefault(claim.table, []).append(claim)
    return found


def _lines(found: list[Claim], by_key: ByKey, given: bool = False) -> list[list[str]]:
    """Return the cells of each line of claims that run here; the last is the verdict.

    With `given`, the claims are those of heads on the user's features.
    """
    lines = []
    for claim in found:
        jobs = jobs_of(claim) if given else run_here(claim)
        own = given or measured_here(claim)
        if claim.metric in SPREAD and own and len(jobs) > 1:
            lines.append(_spread_line(claim, jobs, by_key))
            continue
        for job in jobs:
            rows = by_key.get(job.key, [])
            epsilon = claim.epsilon.replace("inf", "∞")
            cells = [claim.name, _name_of(claim), epsilon, claimed(claim)]
            values = _percents(rows)
            if not values:
                how = f"{job.label}; {_takes(claim, job)}"
                lines.append([*cells, "—", how, "—", "—", NOT_RUN])
                continue
            profile = rows[0].get("profiles", {}).get(f"paper:{claim.paper.lower()}")
            exact = rows[0].get("exact_epsilon", float("inf"))
            cells += [
                measured(values),
                job.label,
                f"{exact:.3g}" if exact < float("inf") else "∞",
                f"{profile:.3g}" if profile else "—",
                verdict(claim, values) if own else in_small(claim, by_key),
            ]
            lines.append(cells)
    return lines


def _name_of(claim: Claim) -> str:
    """Return a text that distinguishes a claim from others in its table."""
    named = [claim.settings.get(name) for name in ("normalization", "sampling")]
    if claim.metric in SPREAD:
        named.append(claim.metric)
    if "features=" in claim.column:
        named.append(claim.features)
    return ", ".join(map(str, filter(None, [_name(claim.row), *named])))


def left_table(found: list[Claim]) -> str:
    """Render claims without a run: a line for each row, verdict, reason and command."""
    others = defaultdict(list)
    for claim in found:
        how = shown(claim, "NAME")
        others[claim.row, standing(claim), how].append(claim)
    lines = [
        [_name(row), "; ".join(f"{c.name} {claimed(c)}" for c in group), *why, how]
        for (row, why, how), group in others.items()
    ]
    names = ("row", "numbers", "verdict", "what they need", "commands")
    return table(names, lines)


def shown(claim: Claim, name: str = "") -> str:
    """Return a claim's commands as text.

    With `name`, the text has `name` instead of the claim's name, and E instead of ε.
    """
    text = ", then ".join(f"`{shlex.join(words)}`" for words in commands(claim))
    if name and claim.epsilon not in ("", "inf"):
        printed = f"--epsilon {float(claim.epsilon):g} "
        text = text.replace(printed, "--epsilon E ")
    return text.replace(claim.name, name or claim.name)


def own_table(jobs: list[Job], by_key: ByKey) -> str:
    """Render a table of our own jobs: a line for each label, a column for each ε."""
    cells: dict[str, dict[float, str]] = defaultdict(dict)
    for job in jobs:
        values = _percents(by_key.get(job.key, []))
        cells[job.label][job.epsilon] = mean_sd(values) if values else "—"
    epsilons = sorted({job.epsilon for job in jobs})
    lines = [[name, *(values[e] for e in epsilons)] for name, values in cells.items()]
    return table(["method, steps", *columns(epsilons)], lines)


def notes(found: Iterable[Claim]) -> list[str]:
    """Return notes on what explains claims' differences, with the files of evidence."""
    found = list(found)
    return [
        f"{note['text'].strip()} (`{note['evidence']}`)"
        for note in tomllib.loads(NOTES.read_text())["note"]
        if any(all(getattr(c, k) in v for k, v in note["of"].items()) for c in found)
    ]


def _spread_line(claim: Claim, jobs: list[Job], by_key: ByKey) -> list[str]:
    """Return the cells of a claim about the spread of a search, with one draw a job."""
    every = [by_key[job.key][0] for job in jobs if by_key.get(job.key)]
    name = f"{claim.dataset}, {claim.metric}"
    cells = [claim.name, name, claim.epsilon, claim.value]
    if len(every) < len(jobs):
        cells += [f"{len(every)} of {len(jobs)} run", "", "—", "—", NOT_RUN]
    else:
        found = SPREAD[claim.metric](_percents(every))
        how = f"{len(jobs)} of 360 configurations, fixed beforehand; {PAPER} accounting"
        exact = max(row["exact_epsilon"] for row in every)
        paper = f"paper:{claim.paper.lower()}"
        profile = max(row["profiles"][paper] for row in every)
        spent = [f"≤ {exact:.3g}", f"≤ {profile:.3g}"]
        cells += [f"{found:.2f}", how, *spent, verdict(claim, [found])]
    return cells


def _mad(values: Sequence[float]) -> float:
    return median(abs(v - median(values)) for v in values)


def measured(values: Sequence[float]) -> str:
    """Return "mean ± sd (k draws)"."""
    return f"{mean_sd(values)} ({len(values)} draw{'s' if len(values) > 1 else ''})"


def mean_sd(values: Sequence[float], digits: int = 2) -> str:
    """Return "mean ± sd", or the mean alone for one value."""
    return f"{mean(values):.{digits}f}" + (
        f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    )


def columns(epsilons: Iterable[float]) -> list[str]:
    """Name a column for each epsilon."""
    return [f"ε = {e:g}" for e in epsilons]


def _name(row: str) -> str:
    return row.replace(" | ", ", ") or "—"


def claimed(claim: Claim) -> str:
    """Return a printed number, with its bound sign or standard deviation."""
    return (
        ("≤ " if claim.at_most else "")
        + claim.value
        + (f" ± {claim.sd}" if claim.sd else "")
    )
