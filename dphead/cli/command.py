"""Turn declared options into a command's options, and read and write them as TOML.

A command names a dataclass of options (`WithOptions`). Settings of methods become
options too.
"""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from dphead_extract.bounds import read_text
from dphead_extract.declared import Declared, Option, options_of, typed
from dphead_extract.numerals import several_names

from dphead.cli import values

_CONFIG_BYTES = 1 << 20  # size limit of a --config; chosen, not measured
PRINTED = "What is printed"  # heading of the help for options without a heading
_GIVEN = "dphead.given"  # key in a context's meta: options typed or read from --config


def option_group(title: str, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Declare options under one heading of a command's help."""

    def declare(command: Any) -> Any:
        # click lists a function's options from the last to the first
        for option in reversed(options):
            option(command)
            command.__click_params__[-1].heading = title
        return command

    return declare


def _read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use a TOML file's values as the command's defaults, which typed options override.

    Raises BadParameter for a file that cannot be read, is not TOML or has an unknown
    option.
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
            f"them. dphead {ctx.info_name} --help lists the options."
        )
    ctx.default_map = {names[k.replace("-", "_")]: v for k, v in found.items()}


def _toml(value: Any, number: bool) -> str:
    """Return a value as TOML: true or false, a list, a string, or a number as typed.

    `number` is True if the option takes a number. A text such as 2026.10 is a
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


class WithOptions(click.Command):
    """Give a command the options that a dataclass declares.

    The help has a section for each heading. An option without a heading, such as
    --help, comes under "What is printed".

    Parameters
    ----------
    declared : str
        module:class of the dataclass. It is imported when the command runs.
    names : collection of str, optional
        Names of the options to take. None takes all.
    without : str, optional
        Name of an option to leave out.
    texts : mapping, optional
        Help texts that replace the declared ones, by name of the option.
    """

    def __init__(
        self,
        *args: Any,
        declared: str,
        names: Any = None,
        without: str = "",
        texts: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._declared, self._names, self._without = declared, names, without
        self._texts = texts or {}

    def options(self) -> dict[str, Declared]:
        """Return the declared options by name."""
        found = options_of(resolve_name(self._declared))
        names = [n for n in self._names or found if n != self._without]
        return {name: found[name] for name in names}

    def settings(self) -> list[click.Parameter]:
        """Return options to list after the option `preset`; none by default."""
        return []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the declared options, then the command's other options."""
        # Return the same objects in each call: click compares them to find the order
        # of the typed options.
        kept = ctx.meta.setdefault(f"dphead.options of {self.name}", [])
        if not kept:
            for name, one in self.options().items():
                kept.append(option_of(one, self._texts.get(name, "")))
                kept += self.settings() if name == "preset" else ()
            kept.sort(key=lambda one: isinstance(one, click.Option))  # arguments first
        return [*kept, *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and replace the value of `--config` by the text for a run.toml."""
        given: Mapping[str, Any] = {}
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_GIVEN] = given = {
            k: v for k, v in given.items() if isinstance(v, str | bool | list)
        }
        rest = super().parse_args(ctx, args)
        ctx.meta[_GIVEN] = dict(ctx.default_map or {}) | given
        if "config" in ctx.params:
            ctx.params["config"] = self._config_text(ctx)
        return rest

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options by section, in the order of each section's first option."""
        found: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            title = getattr(option, "heading", PRINTED)
            record = option.get_help_record(ctx)
            if isinstance(option, click.Option) and record is not None:
                found.setdefault(title, []).append(record)
        for title, records in found.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def _config_text(self, ctx: click.Context) -> str:
        """Return the given options as text of a run.toml, for a later `--config`.

        The text omits options on printing, options for a single call, and the URL of a
        server.
        """
        from dphead.privacy.ledger.server import is_on_server

        lines = [f"# dphead {ctx.info_name} --config run.toml -o NEW_FOLDER"]
        declared: dict[str, Any] = {**self.options()}
        for option in self.get_params(ctx):
            name, value = option.name or "", ctx.meta[_GIVEN].get(option.name)
            kept = getattr(option, "heading", "") != PRINTED
            kept &= name not in declared or declared[name].setting.kept
            # a server's URL names its host and users
            if value is None or not kept or (name == "ledger" and is_on_server(value)):
                continue
            word = max(option.opts, key=len).lstrip("-")
            number = isinstance(ctx.params.get(name), int | float)
            lines.append(f"{word} = {_toml(value, number)}")
        return "\n".join(lines) + "\n"


def others(command: str) -> Any:
    """Return an argument `rest` that takes the options of another command."""
    metavar = f"[OPTIONS OF dphead {command}]"
    return click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar=metavar)


def values_of(command: click.Command, rest: Sequence[str]) -> dict[str, Any]:
    """Parse `rest`, the typed options of `command`, and return their values.

    Nothing is written, so `--output` gets a dummy path. Raises UsageError for
    `--dry-run`.
    """
    root = click.get_current_context().find_root()
    given = [*rest, "--output", os.devnull]
    found = command.make_context(command.name, given, parent=root).params
    if found.pop("dry_run"):
        raise click.UsageError(
            f"--dry-run is for `dphead {command.name}` only. Drop --dry-run."
        )
    return found


class WithSettings(WithOptions):
    """Add the settings of all methods as options."""

    def settings(self) -> list[click.Parameter]:
        """Return one option per setting that has `option`, with its methods."""
        from dphead.planning.methods import options
        from dphead.planning.registry import OURS

        found: list[click.Parameter] = []
        for declared, methods in options():
            prefix = "" if len(methods) == len(OURS) else f"{', '.join(methods)}: "
            one: Any = option_of(declared, prefix + declared.setting.help)
            one.methods = methods
            found.append(one)
        return found

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the settings of the typed method only, which is auto by default."""
        method = ctx.meta.get(_GIVEN, {}).get("method", "auto")
        option: Any
        for option in self.get_params(ctx):
            if method not in getattr(option, "methods", (method,)):
                option.hidden = True
        super().format_options(ctx, formatter)


def option_of(declared: Declared, text: str = "") -> click.Parameter:
    """Return the command-line option or argument of a declaration.

    `text`, if given, replaces the declared help. A setting has no default here, because
    the method and the preset set it. The solver checks the setting's range.
    """
    option, flag = declared.setting, f"--{declared.name.replace('_', '-')}"
    given: dict[str, Any] = {"help": text or option.help, "type": _kind(declared)}
    if not isinstance(option, Option):
        flags = f"{flag}/--no-{flag[2:]}" if bool in declared.types else flag
        callback = values.read_by(several_names) if tuple in declared.types else None
        found = click.Option([flags], default=None, callback=callback, **given)
        return _under("Settings of methods", found)
    if option.flags and not option.flags[0].startswith("-"):
        (shown,) = option.flags
        return click.Argument([declared.name], metavar=shown, type=given["type"])
    is_config, usual = declared.name == "config", declared.default
    if isinstance(usual, tuple) and not option.repeated:
        usual = ",".join(map(str, usual))
    if not declared.required:  # click 8.3 takes a default of None for a given value
        given["default"] = usual
    found = click.Option(
        [*(option.flags or (flag,)), declared.name],
        required=declared.required,
        multiple=option.repeated,
        metavar=option.metavar,
        is_flag=bool in declared.types,
        is_eager=is_config,
        callback=_read_config if is_config else _reader(declared),
        **given,
    )
    return _under(option.section, found)


def _under(section: str, option: click.Option) -> click.Option:
    option.heading = section  # type: ignore[attr-defined]
    return option


def _kind(declared: Declared) -> Any:
    """Return the click type of a declared option or setting."""
    option, types = declared.setting, declared.types
    if getattr(option, "read", None) is not None:
        return click.STRING
    number = next((t for t in types if t in (int, float)), None)
    if number is int:
        return values.Whole(-values.LARGEST)
    if number is not None:
        infinite = option.valid is not None and declared.holds(float("inf"))
        words = declared.choices
        return values.Number(-values.LARGEST, infinite=infinite, words=words)
    if declared.choices:
        return values.Choice(declared.choices)
    if bool in types:
        return click.BOOL
    if declared.name == "ledger":
        return values.LEDGER
    existing = getattr(option, "existing", "")
    is_path = Path in types or not {str, tuple} & {*types}
    if is_path or existing or declared.name == "config":
        return values.NamedPath(existing)
    return click.STRING


def _reader(declared: Declared) -> Callable[[Any, Any, Any], Any]:
    """Return a callback that reads a typed text and checks the value."""
    option: Any = declared.setting

    def read(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if option.read is not None and (option.repeated or isinstance(value, str)):
            try:
                value = option.read(value)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        if value is not None and not declared.holds(value):
            raise click.BadParameter(f"must be {declared.must_be}, got {typed(value)}.")
        return value

    return read
