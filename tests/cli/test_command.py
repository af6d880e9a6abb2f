"""Options in sections, and a configuration from and to TOML."""

import tomllib
from dataclasses import dataclass
from typing import Annotated

import click
import pytest
from click.testing import CliRunner
from commands import (
    every_command,
    features_file,
    fitted,
    refusal,
)
from dphead_extract.declared import Option, Range

import dphead.cli
from dphead.cli.command import PRINTED, WithOptions

SHARE = Range("in (0, 1)", lambda v: 0 < v < 1)


@dataclass
class Options:
    source: Annotated[str, Option("Source.", flags=("SOURCE",))]
    out: Annotated[str | None, Option("Out.", flags=("-o", "--output"))] = None
    count: Annotated[int, Option("Count.", section="Numbers")] = 1
    share: Annotated[float | None, Option("Share.", SHARE, section="Numbers")] = None
    name: Annotated[str | None, Option("Name.")] = None
    on: Annotated[bool, Option("On.")] = False
    config: Annotated[str | None, Option("Configuration.")] = None


@click.command(cls=WithOptions, declared=f"{__name__}:Options")
def example(**given):
    shown = {k: v for k, v in given.items() if k not in ("out", "config")}
    click.echo(repr(sorted(shown.items())))


def run(*arguments):
    return CliRunner().invoke(example, [str(a) for a in arguments])


def test_a_file_gives_defaults_and_what_is_typed_goes_before_it(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('source = "s.h5"\ncount = 3\non = true\nname = "a \\"b\\""\n')
    assert run("--config", path).output == (
        "[('count', 3), ('name', 'a \"b\"'), ('on', True), ('share', None), "
        "('source', 's.h5')]\n"
    )
    typed = run("t.h5", "--config", path, "--count", 4, "--share", 0.5).output
    assert "('count', 4)" in typed and "('share', 0.5)" in typed and "t.h5" in typed


@pytest.mark.parametrize(
    "text, message",
    [("counts = 3", "counts"), ("count = ", "TOML"), ("count = 'many'", "count")],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    (tmp_path / "c.toml").write_text(text)
    done = run("s.h5", "--config", tmp_path / "c.toml")
    assert done.exit_code == 2
    assert message in done.output
    assert run("s.h5", "--config", tmp_path / "missing.toml").exit_code == 2


def test_what_is_of_one_call_alone_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = features_file(tmp_path / "it's.h5")
    options = ("--method", "prototypes", "--epsilon", "inf", "--tuning", "none", "-v")
    confirmed = "--i-know-this-is-not-private"
    options += ("--ledger", "2026.10")  # a text that looks like a number
    fitted("fit", features, "-o", tmp_path / "run", *options, confirmed)
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert written == {
        "features": str(features),
        "method": "prototypes",
        "epsilon": float("inf"),
        "tuning": "none",
        "ledger": "2026.10",
    }
    again = ("--config", tmp_path / "run" / "run.toml", "-o", tmp_path / "again")
    assert confirmed in refusal("fit", *again)


def test_the_help_of_all_commands_shows_at_most_230_options():
    """Settings of a method that was not typed are left out, and what came later."""
    later = {"yes", "per_person", "csv_dialect", "batch_norm"}
    later |= {"axes_from", "axes_count", ("finetune", "group_cap")}
    later |= {("report", "ledger"), ("export", "ledger")}
    shown = {}
    for words, command in every_command().items():
        context = click.Context(command, info_name=words)
        command.get_help(context)  # hides the settings of other methods
        options = command.get_params(context)
        options = [o for o in options if not later & {o.name, (words, o.name)}]
        shown[words] = sum(not getattr(o, "hidden", True) for o in options) - 1
    total = sum(shown.values())
    assert total <= 230, f"{total} options. Remove one, or use --set: {shown}"


@pytest.mark.parametrize("typed, near", [("fti", "fit"), ("extrat", "extract")])
def test_a_mistyped_command_is_told_the_closest_one(typed, near):
    found = CliRunner().invoke(dphead.cli.cli, [typed])
    assert found.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{near}'?" in found.output


def test_the_help_of_every_command_ends_with_an_example():
    for words, command in every_command().items():
        example = command.help.strip().split("\n\n")[-1]
        assert f"dphead {words} " in example, words


SAMPLES = {"SIZE": "2GB", "LOW,HIGH": "0,1", "A,B,C|N|@FILE": "3", "PARTS": "class"}
SAMPLES |= {"NAME=VALUE": "batch_size=4", "ROLE=NAME,...": "label=dx"}
SAMPLES |= {"I/N@HOST:PORT|auto": "auto"}


def typed_of(option):
    """Words that give an option."""
    if option.is_flag:
        return [option.opts[-1]]
    numbers = {"shape": "3,4,4", "mean": "0.5", "std": "0.5"}
    text = SAMPLES.get(option.metavar, numbers.get(option.name, "words"))
    if isinstance(option.type, click.Choice):
        text = option.type.choices[0]
    elif option.type.name in ("integer", "float"):
        text = "2" if option.type.name == "integer" else "0.5"
    elif getattr(option.type, "_existing", ""):
        text = "."
    return [option.opts[-1], text]


@pytest.mark.parametrize("words", ["fit", "finetune"])
def test_every_declared_option_is_in_the_help_and_in_run_toml(words):
    command = every_command()[words]
    context = click.Context(command, info_name=words)
    options = [o for o in command.get_params(context) if isinstance(o, click.Option)]
    options = [o for o in options if o.name != "config" and "help" not in o.name]
    declared = command.options()
    assert {o.name for o in options if o.help} >= {
        name for name, one in declared.items() if one.setting.help.strip()
    } - {"features", "config"}
    given = [word for option in options for word in typed_of(option)]
    made = command.make_context(words, [".", *given])
    left_out = {n for n, one in declared.items() if not getattr(one.setting, "kept", 1)}
    left_out |= {o.name for o in options if o.heading == PRINTED}
    kept = {max(o.opts, key=len)[2:] for o in options if o.name not in left_out}
    written = tomllib.loads(made.params["config"])
    assert set(written) == kept | {"features"}
