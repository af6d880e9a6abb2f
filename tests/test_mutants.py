"""mutants.toml and slow.txt are not stale: every edit applies to the code as it is, and
every test that they name exists.

That the tests find the defects is checked by `make mutants`, which takes minutes.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from seeded_defects.__main__ import all_skipped, edited, first_failure, load

ROOT = Path(__file__).parents[1]
MUTANTS = load()


def test_there_are_enough_and_all_fifteen_defects_of_published_code_are_among_them():
    assert len(MUTANTS) >= 150
    assert {m["defect"] for m in MUTANTS if "defect" in m} == {
        str(i) for i in range(1, 16)
    }
    assert [
        name for name, count in Counter(m["name"] for m in MUTANTS).items() if count > 1
    ] == []


def test_every_entry_has_its_own_header():
    """An entry whose `[[mutant]]` was lost becomes a part of the edits of the one
    before it, and is never run.
    """
    for mutant in MUTANTS:
        assert set(mutant) - {"defect"} == {"name", "tests", "edit"}, mutant["name"]
        for edit in mutant["edit"]:
            assert set(edit) == {"file", "search", "replace"}, mutant["name"]


def test_every_edit_applies_and_leaves_python():
    for mutant in MUTANTS:
        texts = {}
        for edit in mutant["edit"]:
            text = texts.get(edit["file"]) or (ROOT / edit["file"]).read_text()
            texts[edit["file"]], problem = edited(text, edit)
            assert not problem, mutant["name"]
            assert texts[edit["file"]] != text, mutant["name"]
        for file, text in texts.items():
            if file.endswith(".py"):
                ast.parse(text)


@cache
def functions(file):
    """Names of the functions at the top of a file; kept, since one file is named by
    many mutants.
    """
    tree = ast.parse((ROOT / file).read_text())
    return {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}


def test_every_test_that_should_kill_exists():
    for mutant in MUTANTS:
        assert mutant["tests"], mutant["name"]
        for test in mutant["tests"]:
            file, name = test.split("[")[0].split("::")
            assert name in functions(file), mutant["name"]


def test_every_slow_test_exists():
    """A line that matches no test leaves nothing out."""
    for line in (ROOT / "tests/slow.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, name = line.split("[")[0].split("::")
            assert any(each.startswith(name) for each in functions(file)), line


@pytest.mark.parametrize(
    "tag, message, kills",
    [
        ("failure", "AssertionError: assert 1 == 2", True),
        ("failure", "assert 1 == 2", True),
        ("failure", "Failed: DID NOT RAISE <class 'ValueError'>", True),
        ("failure", "TypeError: no", False),
        ("error", "AssertionError: in a fixture", False),
    ],
)
@pytest.mark.parametrize(
    "where", ["tests.privacy.test_noise", "tests.seeded_defects.alive"]
)
def test_only_an_assertion_of_a_test_kills(tmp_path, where, tag, message, kills):
    report = tmp_path / "report.xml"
    case = (
        f'<testcase classname="{where}" name="test_a"><{tag} '
        f'message="{message.replace("<", "&lt;")}"/></testcase>'
    )
    report.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    killer, reason = first_failure(report)
    assert bool(killer) == (kills and where != "tests.seeded_defects.alive")
    assert bool(killer) != bool(reason)


def test_skipped_tests_are_told_from_tests_that_pass(tmp_path):
    """A machine without a server runs no test of the server's ledger."""
    alive = '<testcase classname="tests.seeded_defects.alive" name="a"/>'
    skipped = '<testcase classname="tests.x" name="b"><skipped/></testcase>'
    passed = '<testcase classname="tests.x" name="c"/>'
    report = tmp_path / "report.xml"
    for cases, expected in ((alive + skipped, True), (skipped + passed, False)):
        report.write_text(f"<testsuite>{cases}</testsuite>")
        assert all_skipped(report) is expected
