"""Options of several commands are declared once."""

import ast
from collections import Counter
from collections.abc import Iterable
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
# names that several modules of `cli` declare, and why each has its own
SEVERAL = {
    "--accountant": "of a head, of a network, of a bare noise: other defaults",
    "--augment": "tan's planned runs always have one",
    "--backbone": "a network that runs, or the name of one that did",
    "--batch-size": "expected of a Poisson batch, or images that are held at a time",
    "--classes": "names that a file lacks; a folder's; of a planned run",
    "--clip-norm": "a network's, or of an audit, where it says what it is for",
    "--delta": "required where no fit has a default",
    "--device": "what there is differs; training is on a CPU unless told",
    "--dtype": "default float32, or as the table has it",
    "--epochs": "a network's, or an audited one's",
    "--epsilon": "a fit's budget, an asked one, several, a claim, a ledger's",
    "--features": "a file, or columns of a table",
    "--groups": "of group norms, or of channels",
    "--image-size": "height and width of a frozen network's input, or one side",
    "--json": "what is printed, every release of a ledger, or a file",
    "--learning-rate": "a network's, an audited one's, a planned one's",
    "--ledger": "a run's own, or where check looks for it",
    "--mean": "a frozen network's or a trained one's",
    "--memory": "of all that a fit holds, or of one chunk's gradients",
    "--method": "auto, an audit's default, or none",
    "--model": "tan has the default that finetune's presets decide",
    "--momentum": "a network's, or an audited one's",
    "--n-classes": "of a planned method, or of a synthetic problem",
    "--n-features": "of a planned method, or of a synthetic problem",
    "--n-rows": "of a planned method, private ones, or of a synthetic problem",
    "--noise-multiplier": "asked about, given, or what a run had",
    "--output": "a folder, a file, or standard output",
    "--plot": "of other curves",
    "--preset": "other papers",
    "--sampling": "of a network's batches, or of an audited one's, Poisson by default",
    "--shape": "of a row of an audited network, or of a file's maps",
    "--split": "trained on, measured on, or made",
    "--std": "a frozen network's or a trained one's",
    "--steps": "releases, steps of one run, or several numbers of them",
    "--test-split": "tan's runs are compared on one, so they must have it",
    "--views": "before the clip, or of a frozen network's features",
    "--vote": "while training, or afterwards",
    "--weights": "public ones to start from, or a backbone's",
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


def declared(source: str) -> set[str]:
    """Long names of the options that a module declares."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    options = [call for call in calls if ast.unparse(call.func) == "click.option"]
    given = [arg for call in options for arg in call.args]
    texts = [str(arg.value) for arg in given if isinstance(arg, ast.Constant)]
    return {t.split("/")[0] for t in texts if t.startswith("--")}


def several(sources: Iterable[str]) -> set[str]:
    """Names that more than one module declares."""
    times = Counter(name for source in sources for name in declared(source))
    return {name for name, count in times.items() if count > 1}


def test_an_option_that_two_modules_declare_says_why():
    modules = Path(dphead.cli.__file__).parent.glob("*.py")
    assert several(path.read_text() for path in modules) == set(SEVERAL)


def test_an_option_that_two_modules_declare_is_noticed():
    one = 'A = click.option("--a/--no-a", help="1")\nB = click.option("--b")\n'
    other = '@click.option("-a", "--a", "a", help="2")\ndef f(a): ...\n'
    assert several([one, other]) == {"--a"}
