"""README and docs/: short, explained, and true where a test can say so."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import click
import pytest
from dphead_extract.backbones.families import TRAITS

from dphead.analysis.tradeoff import REPORTED_RATES, true_positive_rates
from dphead.cli import cli
from dphead.export.exporting import FORMATS
from dphead.planning.calibration import mu_from_epsilon
from dphead.planning.registry import OURS
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.rounding import percent_up

ROOT = Path(__file__).parents[1]
OUTSIDE = sorted(ROOT.glob("*.md"))  # links within docs/ are mkdocs's to check
PAGES = [*OUTSIDE, *sorted(ROOT.glob("docs/*.md"))]
LINK = re.compile(r"\]\(([^)\s#]+)")


def commands(text, lead="    "):
    """`dphead` commands in a page's blocks of code, continued lines joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if line.startswith(f"{lead}dphead ")]
    return [line.removeprefix(lead).split(" #")[0].strip() for line in lines]


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_page_has_options_that_exist(page):
    text = page.read_text()
    for line in [*commands(text), *commands(text, "$ ")]:
        command: click.Command = cli
        words = shlex.split(line)[1:]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, line
            command = found
        known = {"--help"}
        options = command.get_params(click.Context(command))
        if "rest" in {one.name for one in options}:  # takes options of others too
            for name in ("fit", "finetune"):
                other = cli.get_command(click.Context(cli), name)
                options += other.get_params(click.Context(other))
        for option in options:
            known |= {*option.opts, *option.secondary_opts}
        typed = {word for word in words if word.startswith("-") and len(word) > 1}
        assert typed <= known, (line, typed - known)


@pytest.mark.parametrize(
    "page, names",
    [("methods", OURS), ("extraction", TRAITS), ("export", FORMATS)],
)
def test_each_name_that_can_be_typed_has_its_line_on_a_page(page, names):
    """It is in the first cell of a table's row, or in an item of a list."""
    text = (ROOT / f"docs/{page}.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith(("| `", "- `"))]
    first = " ".join(line.removeprefix("| ").partition(" |")[0] for line in lines)
    assert set(names) <= set(re.findall(r"`([\w-]+)`", first))


def test_the_limits_on_an_attacker_are_those_of_the_exact_curve():
    text = (ROOT / "docs/epsilon.md").read_text()
    for epsilon in (0.1, 1, 3, 8):
        events = [GaussianEvent(1 / mu_from_epsilon(epsilon, 1e-5))]
        for replaced in (True, False):
            limits = true_positive_rates(events, REPORTED_RATES, replaced=replaced)
            cells = " | ".join(percent_up(limit) for limit in limits)
            assert f"| {epsilon:g} | {cells} |" in text


@pytest.mark.parametrize("name", ["accounting", "audit-mechanism", "jax", "opacus"])
def test_the_python_of_a_page_prints_what_it_shows(name):
    """Blocks run one after another, and a block of text is what the last one printed.

    Generators have fixed seeds. Blocks of `py`, for another library, do not run.
    """
    text = (ROOT / f"docs/{name}.md").read_text()
    printed, names = "", {}
    for kind, block in re.findall(r"^```(python|text)\n(.*?)^```", text, re.S | re.M):
        if kind == "text":
            assert block == printed
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(block, names)
        printed = out.getvalue()
    assert printed


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/notebooks/*.ipynb")))
def test_a_notebook_stores_its_outputs_without_warnings(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs and not any(output.get("name") == "stderr" for output in outputs)
    assert "/tmp/" not in json.dumps(outputs)
