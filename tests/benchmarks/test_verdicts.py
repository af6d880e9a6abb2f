"""The rule of the verdicts, and how claims and rows are rendered."""

import re
import tomllib
from dataclasses import replace

import pytest

from benchmarks import claims, jobs, runner, verdicts
from benchmarks.store import RESULTS


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
    claim = replace(claims.load("TB21")[0], value="98.0", sd=str(sd))
    assert verdicts.verdict(claim, values) == wanted


def test_a_deviation_has_no_floor():
    claim = next(c for c in claims.load("TB21") if c.metric == "MAD")
    assert claim.value == "0.2"
    assert verdicts.verdict(claim, [0.25]) == "reproduced"  # 0.2 by its digits
    assert verdicts.verdict(claim, [0.26]) == "above"


def test_an_order_in_small_is_that_of_the_paper_or_not():
    column = [c for c in claims.load("FC23") if c.table == "3" and c.epsilon == "1.0"]
    column = [c for c in column if jobs.small(c)]
    best = max(column, key=lambda c: float(c.value))

    def rows(scale):
        return {
            job.key: [fake(job, 0.5 + scale * (float(c.value) / 100 - 0.8))]
            for c in column
            if (job := jobs.small(c))
        }

    assert verdicts.in_small(best, {}) == verdicts.NOT_RUN
    agrees, differs, unresolved = verdicts.IN_SMALL
    near, far = rows(0.1), rows(1)
    assert verdicts.in_small(best, near) == unresolved  # 78.2 and 90.4: 1.2 points
    assert verdicts.in_small(best, far) == agrees
    assert verdicts.in_small(best, rows(-1)) == differs


def fake(job, accuracy, seed=0):
    return {
        "key": job.key,
        "seed": seed,
        "accuracy": accuracy,
        "exact_epsilon": 2.9,
        "profiles": {"paper:tb21": 3.01},
    }


def test_a_repeated_fit_is_judged_by_the_spread_of_all_similar_fits():
    """Three draws of one fit may lie close together by chance."""
    close, wide = (
        jobs.Job("mnist", "scatternet", "dp-sgd", 3.0, settings={"steps": steps})
        for steps in (1, 2)
    )

    def rows(job, *accuracies):
        return [
            fake(job, accuracy, seed) | {"job": job.described()}
            for seed, accuracy in enumerate(accuracies)
        ]

    def said(stored, again):
        (line,) = verdicts.compared([(None, close)], stored, again).splitlines()[2:]
        return line.split("| ")[-1]

    three = rows(close, 0.95, 0.9501, 0.9502)
    assert said(three, rows(close, 0.953)) == "differs |"
    # variances 1 and 0.0001: a standard error of 0.82 for three draws and one
    others = rows(wide, 0.94, 0.95, 0.96)
    assert said(three + others, rows(close, 0.953, 0.953)) == "agrees |"
    assert said(three + others, rows(close, 0.98)) == "differs |"
    # no fit at this epsilon has two draws
    others = rows(replace(wide, epsilon=1.0), 0.94, 0.95, 0.96)
    assert said(rows(close, 0.95), rows(close, 0.953)) == "differs |"
    assert said(rows(close, 0.95) + others, rows(close, 0.953)) == "agrees |"
    assert said(rows(close, 0.95) + others, rows(close, 0.995)) == "differs |"


def test_every_below_is_explained_with_evidence():
    notes = tomllib.loads(verdicts.NOTES.read_text())["note"]
    for note in notes:
        assert (verdicts.NOTES.parents[1] / "results" / note["evidence"]).exists()
        for name, values in note["of"].items():
            others = {k: v for k, v in note["of"].items() if k != name}
            for value in values:  # a misspelled one would hide the note
                found = [c for c in claims.load() if getattr(c, name) == value]
                assert any(
                    all(getattr(c, k) in v for k, v in others.items()) for c in found
                ), (note["of"], value)
    by_key = verdicts.by_key_of(runner.stored())
    below = [c for c in claims.load() if verdicts.outcome(c, by_key)[0] == "below"]
    assert below and [c.name for c in below if not verdicts.notes([c])] == []


def test_a_number_has_the_notes_of_its_own_data_set_and_kind():
    table = verdicts.notes(c for c in claims.load("TB21") if c.table == "1")
    (mnist,) = verdicts.notes(jobs.selected("TB21-1-mnist-2.93:2"))
    assert len(table) > 1 and mnist in table and mnist.startswith("MNIST at small")
    search = jobs.selected("TB21-3-fashion-mnist")
    told = {c.metric: verdicts.notes([c]) for c in search if c.features == "ScatterNet"}
    assert len(told["max"]) == len(told["MAD"]) == 1 and not told["min"]


def test_a_number_counts_by_the_papers_settings_and_by_its_best_run():
    claim = next(
        c for c in claims.load("TB21") if c.table == "1" and len(jobs.jobs_of(c)) > 1
    )
    first, second, *_ = jobs.jobs_of(claim)
    printed = float(claim.value) / 100
    rows = {first.key: [fake(first, printed - 0.1)]}
    assert verdicts.outcome(claim, rows) == ("below", "below")
    rows[second.key] = [fake(second, printed)]
    assert verdicts.outcome(claim, rows) == ("below", "reproduced")
    assert verdicts.outcome(claim, {}) == (verdicts.NOT_RUN,) * 2


@pytest.mark.parametrize("by_table", [True, False])
def test_the_summary_gives_each_printed_number_one_verdict(by_table):
    lines = verdicts.summary(runner.stored(), by_table).splitlines()[2:]
    counts = [
        int(cell) for line in lines for cell in line.split("|")[2:-2] if cell.strip()
    ]
    assert sum(counts) == len(claims.load())
    assert len(lines) == (
        len({(c.paper, c.table) for c in claims.load()}) if by_table else 4
    )


def test_tables_show_the_names_and_commands_of_today():
    """A renamed option of `dphead finetune` changes them."""
    page = (RESULTS.parent / "TABLES.md").read_text()
    named = set(re.findall(r"[| ]([\w.-]+:\d+) ", page))
    assert named == {claim.name for claim in claims.load()}
    for claim in claims.load():
        if jobs.standing(claim)[0] not in ("", jobs.ARITHMETIC):
            assert verdicts.shown(claim, "NAME") in page, claim


def test_a_stored_number_is_listed_with_the_command_that_repeats_it():
    by_key = verdicts.by_key_of(runner.stored())
    listed = verdicts.states(jobs.selected("TB21-1-mnist-2.93:2"), by_key)
    again = "reproduce TB21-1-mnist-2.93:2 --images IMAGES --again`"
    assert again in listed
    assert "--again" not in verdicts.states(jobs.selected("TB21-1-mnist-2.93:2"), {})


def test_a_search_by_networks_needs_an_accelerator_and_names_its_statistic():
    """One configuration takes minutes here, 360 of them do not."""
    listed = verdicts.states(jobs.selected("TB21-3-mnist"), {})
    (spread,) = (text for text in listed.split("\n\n") if "86.1" in text)
    assert spread.startswith("needs an accelerator") and "86.1 (CNN, min)" in spread
    (best,) = (text for text in listed.split("\n\n") if "98.2 (CNN, max)" in text)
    assert "a network takes 12 minutes of one core" in best


def test_a_verdict_in_small_is_explained():
    three, four, other = (
        verdicts.about_small(jobs.selected(name))
        for name in ("FC23-3-cifar10-1.0", "FC23-4-cifar100-1.0", "TB21-1-mnist")
    )
    assert three == [verdicts.OWN] and other == []
    assert "half of its training images" in four[0]
