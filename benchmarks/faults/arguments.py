"""Every option of every command with values that nobody should give."""

import random
from collections.abc import Iterator
from typing import Any

import click

from benchmarks.faults.cases import NETWORK, SCATTERING

# of each command one that works, in the folder of `damage.made`
BASES: dict[str, tuple[str, ...]] = {
    "extract": ("images.npz", "-o", "x.h5", *SCATTERING, "--classes", "3"),
    "features join": ("s.shard-0-of-2.h5", "s.shard-1-of-2.h5", "-o", "x.h5"),
    "features import": ("e.npz", "-o", "x.h5", "--classes", "3"),
    "verify": ("f.h5",),
    "plan": (
        *("f.h5", "--public-rows", "--n-rows", "100", "--draws", "1", "--epsilon", "1"),
        *("--delta", "1e-3"),
    ),
    "fit": (
        *("f.h5", "--protect", "image", "-o", "x", "--method", "dp-fc"),
        *("--delta", "1e-3"),
    ),
    "finetune": (
        *("images.npz", "-o", "x", "--ledger", "x.sqlite", *NETWORK, "--steps", "1"),
        *("--epsilon", "8", "--delta", "1e-3"),
    ),
    "evaluate": ("head", "f.h5"),
    "predict": ("head", "f.h5"),
    "export": ("head", "--to", "torch", "-o", "x"),
    "report": ("head", "-o", "x"),
    "account": ("--delta", "1e-3", "--epsilon", "1"),
    "tan plan": (
        *("--n-rows", "100", "--epsilon", "1", "--delta", "1e-3", "--steps", "2"),
    ),
    "tan show": (
        *("--n-rows", "100", "--batch-size", "10", "--noise-multiplier", "3"),
        *("--steps", "5", "--delta", "1e-3"),
    ),
    "tan simulate": (
        *("images.npz", "--classes", "3", "--test-split", "test", "--steps", "1"),
        *("--batch-size", "10", "--noise-multiplier", "3", "--factors", "2"),
    ),
    "check": ("head",),
    "audit": (
        *("--method", "dp-ls", "--fits", "20", "--n-rows", "8", "--n-features", "2"),
        *("--n-classes", "2"),
    ),
    "ledger budget": ("t.h5", "--epsilon", "1", "--delta", "1e-3"),
    "ledger show": ("f.h5",),
    "ledger verify": ("f.h5",),
}
# what was seen to break programs: no value, no number, too large, too long, other files
VALUES = (
    *("", " ", "0", "-1", "1", "nan", "inf", "-inf", "1e9", "1e-300", "1e308", "10**9"),
    *("999999999999999999999", "9" * 5000, "1000000", "infGB", "-1GB", "nanMB", "1KB"),
    *("é", "\U0001f600", "a\nb", "\x1b[31m", "\udcff", "A" * 100_000, "a,b", "a,a"),
    *(",", "1,2", "0,0,0", "1,1,1", "-1,2,3", "100000,100000,100000", "x=1", "=", "x="),
    *("true", "null", "[1]", "{}", "(((", "[a-", "../../../../etc/passwd", "/", "."),
    *(
        "/dev/null",
        "/dev/zero",
        "pipe",
        "f.h5",
        "head",
        "images.npz",
        "missing",
        "@f.h5",
    ),
    *("@/dev/zero", "@missing", "@pipe", "hf-hub:a/b", "http://127.0.0.1:1/", "0/0"),
    *("127.0.0.1:1", "auto", "cuda", "cuda:7", "meta", "mps"),
)


def commands() -> dict[str, click.Command]:
    """Every command of `dphead`, by its words."""
    from dphead.cli import cli

    found = {}

    def add(command: click.Command, words: str) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                add(inner, f"{words} {name}".strip())
        else:
            found[words] = command

    add(cli, "")
    return found


def tries(count: int, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """Commands with one or two options that have a value of VALUES, or with a wrong
    word in the place of an argument; options one after another, values at random.
    """
    rng = random.Random(seed)
    every: list[tuple[str, Any]] = []
    for words, command in commands().items():
        for parameter in command.get_params(click.Context(command)):
            if parameter.name not in ("help", "i_know"):
                every.append((words, parameter))
    for number in range(count):
        words, parameter = every[number % len(every)]
        value = rng.choice(VALUES)
        arguments = list(BASES[words])
        if isinstance(parameter, click.Argument):
            arguments[0] = value
        else:
            arguments += _given(parameter, value, rng)
        if rng.random() < 0.2:
            options = [
                p for w, p in every if w == words and isinstance(p, click.Option)
            ]
            if options:
                arguments += _given(rng.choice(options), rng.choice(VALUES), rng)
        yield (*words.split(), *arguments)


def _given(option: Any, value: str, rng: random.Random) -> list[str]:
    """An option and its value; of a choice mostly one that there is."""
    word = rng.choice([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return [word]
    choices = getattr(option.type, "choices", None)
    if choices and rng.random() < 0.7:
        value = rng.choice(list(choices))
    return [word, value]
