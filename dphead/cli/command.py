"""Group a command's options, and read and write them as a TOML file.

Settings of methods become options.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from dphead_extract.bounds import read_text

from dphead.cli import values

_CONFIG_BYTES = 1 << 20  # size limit of a --config; chosen, not measured
_GIVEN = "dphead.given"  # in a context's meta: what was typed or read from --config
# options for one process or one call only
_NOT_KEPT = {
    "config",
    "out",
    "dry_run",
    "verbose",
    "not_private",
    "coordinator",
    "num_processes",
    "process_id",
    "connect_timeout",
}


def option_group(title: str, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Declare options under one heading of a command's help."""

    def declare(command: Any) -> Any:
        # click lists a function's options from the last to the first
        for option in reversed(options):
            option(command)
            command.__click_params__[-1].heading = title
        return command

    return declare


class Sectioned(click.Command):
    """Group the options of a command's help by their `option_group`.

    An option without a heading comes with the options before it.
    """

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options by section, in the sections' order."""
        found: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for option in self.get_params(ctx):
            title = getattr(option, "heading", title)
            record = option.get_help_record(ctx)
            if isinstance(option, click.Option) and record is not None:
                found.setdefault(title, []).append(record)
        for title, records in found.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and keep the given options for `config_text`."""
        given: Mapping[str, Any] = {}
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        typed = {k: v for k, v in given.items() if isinstance(v, str | bool | list)}
        ctx.meta[_GIVEN] = dict(ctx.default_map or {}) | typed
        return rest


def _read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use a TOML file's values as the command's defaults, which typed options override.

    Raises UsageError for an unknown option.
    """
    if path is None:
        return
    try:
        found = tomllib.loads(read_text(path, _CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise click.BadParameter(
            f"--config must be a TOML file, got {str(path)!r} ({error}). Type the path "
            "of such a file, for example a run folder's run.toml."
        ) from error
    names = {}
    for option in ctx.command.get_params(ctx):
        words = [word.lstrip("-").replace("-", "_") for word in option.opts]
        names |= dict.fromkeys([*words, option.name], option.name)
    unknown = sorted(key for key in found if key.replace("-", "_") not in names)
    if unknown:
        raise click.BadParameter(
            f"{path} has unknown options: {', '.join(unknown)}. Correct or remove "
            f"them. dphead {ctx.info_name} --help lists all options."
        )
    ctx.default_map = {names[k.replace("-", "_")]: v for k, v in found.items()}


CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file of options, such as a run's run.toml. Typed options override it.",
)


def config_text() -> str:
    """Return the given options as text of a run.toml, for `--config`.

    The text omits the output and the options that affect only one call.
    """
    from dphead.privacy.ledger.server import is_on_server

    ctx = click.get_current_context()
    lines = [f"# dphead {ctx.info_name} --config run.toml -o NEW_FOLDER"]
    for name, value in ctx.meta[_GIVEN].items():
        # a server's URL names its host and users
        if name not in _NOT_KEPT and not (name == "ledger" and is_on_server(value)):
            number = isinstance(ctx.params.get(name), int | float)
            lines.append(f"{name.replace('_', '-')} = {_toml(value, number)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any, number: bool) -> str:
    """Return a value as TOML: true or false, a list, a string, or a number as typed.

    `number` tells whether the option takes a number. A text such as 2026.10 is a
    string.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(json.dumps(text, ensure_ascii=False) for text in value)}]"
    text = str(value)
    if number:
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(f"x = {text}")
            return text
    return json.dumps(text, ensure_ascii=False)


class WithSettings(Sectioned):
    """Add the settings of all methods as options, after `--preset`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's options, with the settings after `--preset`."""
        own = super().get_params(ctx)
        at = 1 + next(i for i, option in enumerate(own) if option.name == "preset")
        return [*own[:at], *self.setting_options(), *own[at:]]

    def setting_options(self) -> list[click.Parameter]:
        """Return one option per setting that has `option`, with its methods."""
        from dphead.planning.methods import options
        from dphead.planning.registry import OURS

        found: list[click.Parameter] = []
        for declared, methods in options():
            whose = "" if len(methods) == len(OURS) else f"{', '.join(methods)}: "
            found.append(setting_option(declared, whose + declared.setting.help))
        found[0].heading = "Settings of methods"  # type: ignore[attr-defined]
        return found


def setting_option(declared: Any, text: str, kind: Any = values.PATH) -> click.Option:
    """Return the command-line option of a setting. It does not check the range.

    `text` is the option's help. `kind` is the option's type if the setting is a text.
    """
    name = f"--{declared.name.replace('_', '-')}"
    if bool in declared.types:
        return click.Option([f"{name}/--no-{name[2:]}"], default=None, help=text)
    callback = values.several_names if tuple in declared.types else None
    number = next((t for t in declared.types if t in (int, float)), None)
    if number is not None:
        kind = (
            values.Whole(-values.LARGEST)
            if number is int
            else values.Number(-values.LARGEST, words=declared.choices)
        )
    elif declared.choices:
        kind = click.Choice(declared.choices)
    return click.Option([name], type=kind, default=None, help=text, callback=callback)
