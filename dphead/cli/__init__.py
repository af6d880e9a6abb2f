"""Run the `dphead` command. Each subcommand is a module, imported when it runs.

This file imports no heavy library, to keep `dphead --help` at a tenth of a second.
Commands must not have logic that the library lacks.
"""

import resource
import sys
from difflib import get_close_matches
from importlib import import_module

import click

COMMANDS = {  # texts of `dphead --help`
    "extract": "Turn images into a features file with a frozen backbone.",
    "features": "Import embeddings, or join features files of shards or backbones.",
    "verify": "Check a features file (prints private values).",
    "plan": "Forecast accuracy for each epsilon from similar public images.",
    "fit": "Train a private head from a features file.",
    "finetune": "Train all or some layers of a network privately.",
    "evaluate": "Measure a head or a network on labeled images.",
    "predict": "Predict classes for a features file or images.",
    "export": "Write a head for PyTorch, timm, ONNX or scikit-learn.",
    "account": "Compute noise for a budget, or epsilon for given noise.",
    "tan": "Plan or simulate end-to-end training by its total amount of noise.",
    "report": "Write a run's privacy card, model card or DPIA annex.",
    "check": "List what a run's guarantee does not cover.",
    "audit": "Attack a method on synthetic rows to bound epsilon from below.",
    "ledger": "Set a data set's budget, or show what was spent and what remains.",
}

# modules of commands, if their names differ
_MODULES = {"predict": "evaluate", "verify": "features"}

# optional dependencies: extra: (its packages, their modules)
_EXTRAS = {
    "extract": ("PyTorch, timm and pillow", ("torch", "timm", "PIL")),
    "onnx": ("onnx and onnxruntime", ("onnx", "onnxruntime", "onnxscript")),
}


# Limits of a process, chosen: with 180 MB the import of scipy never ended, and a fit
# had up to 10 files open.
_LEAST_BYTES, _LEAST_FILES = 512 << 20, 64

# aliases of options and choices, with the declared name of each
_ALIASES = {
    "eps": "epsilon",
    "lr": "learning-rate",
    "dpsgd": "dp-sgd",
    "dpadam": "dp-adam",
    "dpfc": "dp-fc",
    "dpls": "dp-ls",
    "pytorch": "torch",
    "scikit-learn": "sklearn",
}


def _named(token: str) -> str:
    """Return the declared name of an option or a choice from a typed variant."""
    token = token.lower().replace("_", "-")
    return _ALIASES.get(token, token)


class _Lazy(click.Group):
    """List the commands without importing them, and import the one that runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but refuse arguments that are not UTF-8.

        No report, file or screen can show such text.
        """
        for text in args:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise click.UsageError(
                    f"arguments must be UTF-8 text, got {text!a}. Type it again, or "
                    "rename the file or folder if it is a path."
                ) from error
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        return getattr(import_module(f"dphead.cli.{module}"), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but name the closest command if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, 1)
            if not near or "Did you mean" in error.message:
                raise
            message = f"{error.message} Did you mean '{near[0]}'?"
            raise click.UsageError(message, ctx) from None

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Lazy,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "token_normalize_func": _named,
    },
)
@click.version_option(package_name="dphead")
def cli() -> None:
    """Train differentially private heads on features of a frozen backbone."""


def main() -> None:
    """Run the command line.

    Invalid input, a missing optional package or a lack of memory prints an error with
    an action, and exits with code 2.
    """
    try:
        _check_limits()
        cli()
    except ModuleNotFoundError as error:
        text = missing(error.name or "")
        if text is None:
            raise
        _refuse(text)
    except (ValueError, OSError) as error:
        _refuse(" ".join(str(error).split()))
    except (MemoryError, RuntimeError, ImportError) as error:
        if not _out_of_memory(error):
            raise
        said = " ".join(str(error).split())[:200] or type(error).__name__
        _refuse(
            f"memory ran out ({said!r}). Use less data, smaller sizes or fewer views, "
            "or a larger `ulimit -v`."
        )


def _check_limits() -> None:
    """Refuse limits of the shell under which libraries crash or wait forever."""
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= memory < _LEAST_BYTES:
        _refuse(
            f"`ulimit -v` allows {memory >> 20} MB of memory, and dphead's libraries "
            f"need {_LEAST_BYTES >> 20} MB. Type `ulimit -v unlimited`, or ask your "
            "administrator."
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _LEAST_FILES:
        _refuse(
            f"`ulimit -n` allows {files} open files, and dphead needs {_LEAST_FILES}. "
            f"Type `ulimit -n {_LEAST_FILES}`, or ask your administrator."
        )


def _refuse(text: str) -> None:
    """Print the error and exit with code 2."""
    click.echo(f"Error: {text}", err=True)
    sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """Return whether numpy, Python or torch ran out of memory.

    torch has no error class for this on a CPU.
    """
    said = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or ("memory" in said and "alloc" in said)
        or "failed to map segment" in said  # an error of a library during its import
    )


def missing(module: str) -> str | None:
    """Return an error that names the extra of a missing module; None if none has it."""
    name = module.split(".")[0]
    for extra, (packages, modules) in _EXTRAS.items():
        if name in modules:
            return (
                f"this command needs {packages}, but {name} is not installed. Type "
                f"pip install 'dphead[{extra}]'."
            )
    return None
