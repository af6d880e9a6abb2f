"""The rule of the verdicts, and how claims and rows are rendered."""

import tomllib

import pytest

from benchmarks import claims, jobs, runner, verdicts


@pytest.mark.parametrize(
    "values, sd, wanted",
    [
        ([98.0], 0.0, "reproduced"),
        ([98.3], 0.0, "reproduced"),  # the floor
        ([98.31], 0.0, "above"),
        ([97.69], 0.0, "below"),
        ([97.5], 0.25, "reproduced"),  # two standard deviations of the claim
        ([97.0, 98.0], 0.0, "reproduced"),  # 2 √(0.5/2) = 1
        ([96.0, 96.0], 0.0, "below"),
    ],
)
def test_the_rule(values, sd, wanted):
    assert verdicts.verdict(98.0, sd, values) == wanted


def fake(job, accuracy, seed=0):
    return {
        "key": job.key,
        "seed": seed,
        "accuracy": accuracy,
        "exact_epsilon": 2.9,
        "profiles": {"paper:tb21": 3.01},
    }


def test_every_below_is_explained_with_evidence():
    tables = {(c.paper, c.table) for c in claims.load()}
    notes = tomllib.loads(verdicts.NOTES.read_text())["note"]
    assert {(n["paper"], n["table"]) for n in notes} <= tables
    assert all(
        (verdicts.NOTES.parents[1] / "results" / n["evidence"]).exists() for n in notes
    )
    for paper in claims.PAPERS:
        for section in verdicts.paper_section(paper, runner.stored()).split("### ")[1:]:
            table = section.split("\n")[0].removeprefix(f"{paper}, Table ")
            below = [
                line for line in section.splitlines() if line.endswith("| below |")
            ]
            named = " ".join(verdicts.notes(paper, table))
            missing = [
                line
                for line in below
                if line.split("|")[1].split(",")[0].split()[0].lower()
                not in named.lower()
            ]
            assert not missing, f"explain in notes.toml: {missing}"


def test_a_number_counts_once_by_its_best_run():
    claim = next(
        c for c in claims.load("TB21") if c.table == "1" and len(jobs.jobs_of(c)) > 1
    )
    first, second, *_ = jobs.jobs_of(claim)
    printed = float(claim.value) / 100
    rows = {first.key: [fake(first, printed - 0.1)]}
    assert verdicts.outcome(claim, rows) == "below"
    rows[second.key] = [fake(second, printed)]
    assert verdicts.outcome(claim, rows) == "reproduced"
    assert verdicts.outcome(claim, {}) == verdicts.NOT_RUN


@pytest.mark.parametrize("by_table", [True, False])
def test_the_summary_gives_each_printed_number_one_verdict(by_table):
    lines = verdicts.summary(runner.stored(), by_table).splitlines()[2:]
    counts = [
        int(cell) for line in lines for cell in line.split("|")[2:] if cell.strip()
    ]
    assert sum(counts) == len(claims.load())
    assert len(lines) == (
        len({(c.paper, c.table) for c in claims.load()}) if by_table else 4
    )
