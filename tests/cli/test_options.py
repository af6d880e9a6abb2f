"""Options of several commands are declared once."""

import ast
from collections import Counter
from pathlib import Path

import click
import pytest

import dphead.cli
from dphead.cli.finetune import finetune
from dphead.cli.fit import fit

# what means another thing for a head and for a network
DIFFERENT = {
    "accountant": "it also solves for steps and batch size of a network",
    "classes": "a features file declares them, a folder of images does not",
    "memory": "of all that a fit holds, or of one chunk's gradients",
    "preset": "other papers",
}


def options_of(command: click.Command) -> dict[str | None, dict]:
    """What each option is, by name."""
    found = command.get_params(click.Context(command))
    return {
        one.name: one.to_info_dict() for one in found if isinstance(one, click.Option)
    }


def test_a_head_and_a_network_have_the_same_options_where_they_mean_the_same():
    """Where momentum and the like are a method's setting, its declaration is."""
    heads = options_of(fit)
    networks = options_of(finetune)
    own = {one.name for one in fit.params} & {one.name for one in finetune.params}
    shared = (own & set(heads) & set(networks)) - set(DIFFERENT)
    assert len(shared) >= 18
    assert [name for name in shared if heads[name] != networks[name]] == []


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_what_differs_does(name):
    assert options_of(fit)[name] != options_of(finetune)[name]


def test_no_declaration_with_a_help_text_is_written_twice():
    sources = [p.read_text() for p in Path(dphead.cli.__file__).parent.glob("*.py")]
    nodes = [node for text in sources for node in ast.walk(ast.parse(text))]
    calls = [ast.unparse(node) for node in nodes if isinstance(node, ast.Call)]
    written = Counter(c for c in calls if c[:13] == "click.option(" and "help=" in c)
    assert sum(written.values()) > 100
    assert [text for text, times in written.items() if times > 1] == []
