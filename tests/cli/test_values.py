"""What is typed becomes a value, or a sentence that says what to write."""

import click
import pytest
from commands import every_command
from dphead_extract import numerals
from dphead_extract.backbones.families import settings_of_families
from dphead_extract.normalization import RowNorm
from dphead_extract.sources.columns import Columns

from dphead.cli import values

scales = settings_of_families()["scatter_j"].setting.read
READ = [
    (scales, "1,2", (1, 2)),
    (numerals.several_names, "head.*,norm", ("head.*", "norm")),
    (numerals.n_bytes, "1.5mb", 1_500_000),
    (numerals.map_shape, "3,8,8", (3, 8, 8)),
    (numerals.of_colors, "0.48,0.46,0.41", (0.48, 0.46, 0.41)),
    (numerals.input_size, "224", 224),
    (numerals.input_size, "32,64", (32, 64)),
    (
        numerals.python_arguments,
        ("a=1", "b=True", "c=x=y"),
        {"a": 1, "b": True, "c": "x=y"},
    ),
    (
        numerals.named_settings,
        ("batch-size=8", "b=True"),
        {"batch_size": 8, "b": "True"},
    ),
    (Columns.parse, ("image=p", "label=y"), Columns(image="p", label="y")),
    (
        Columns.parse,
        ("features=a,b_*,width=4,group=g",),
        Columns(("a", "b_*"), group="g", width=4),
    ),
    (Columns.parse, (), Columns()),
    (RowNorm.parse, "group:4", RowNorm("group", 4)),
]
UNREAD = [
    (scales, "1.5", "one whole number or several"),
    *((numerals.n_bytes, text, "500MB or 2GB") for text in ("xGB", "1.5", "-1MB")),
    *(
        (numerals.map_shape, text, "CHANNELS,H,W")
        for text in ("3,8,8,8,8", "3,8,0", "1_0,8,8")
    ),
    (numerals.map_shape, "9" * 5000, "CHANNELS,H,W"),
    (numerals.input_size, "1,2,3", "N or H,W in pixels"),
    (numerals.input_size, "99999", "at most 16384 pixels"),
    (numerals.python_arguments, ("a",), "NAME=VALUE"),
    *(
        (Columns.parse, (text,), "ROLE=NAME")
        for text in ("color=x", "a", "label=", "width=0")
    ),
    (Columns.parse, ("encoding=utf-7",), "ROLE=NAME"),
    (RowNorm.parse, "group", "as group:4"),
]


@pytest.mark.parametrize("read, text, value", READ)
def test_a_text_becomes_the_value_of_a_declared_option(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize("read, text, said", UNREAD)
def test_another_text_is_refused_with_what_to_write(read, text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


def test_an_option_takes_the_words_of_any_method():
    """`--ridge stein` is a value of dp-ls, and dp-fc refuses it by itself."""
    fit = every_command()["fit"]
    kinds = {one.name: one.type for one in fit.get_params(click.Context(fit))}
    assert kinds["ridge"].convert("stein", None, None) == "stein"
    assert kinds["ridge"].convert("0.1", None, None) == 0.1
    assert kinds["gram_share"].convert("rule", None, None) == "rule"
    with pytest.raises(click.BadParameter, match=r"a number from .* or stein, got 'x'"):
        kinds["ridge"].convert("x", None, None)


def numbers():
    """(command, option) of every option that is a number, settings of methods too."""
    for words, command in every_command().items():
        for option in command.get_params(click.Context(command)):
            kinds = (click.types.IntParamType, click.types.FloatParamType)
            if isinstance(option.type, (values.Number, *kinds)):
                yield words, option


@pytest.mark.parametrize(
    "value", ["nan", "-inf", "1e30", "9" * 5000, "x", "", True, "1_0", "\uff11"]
)
def test_no_option_takes_what_is_no_number_or_beyond_all_meaning(value):
    for words, option in numbers():
        with pytest.raises(click.BadParameter, match=r"write a (whole )?number from"):
            option.type.convert(value, option, None)
            raise AssertionError((words, option.name))


def test_a_number_is_what_was_typed_and_a_whole_one_is_never_rounded():
    assert values.NUMBER.convert("1e-5", None, None) == 1e-5
    assert values.Whole().convert("12", None, None) == 12
    assert values.Whole().convert(12, None, None) == 12  # of --config
    for value in ("1.5", 1.5, "-1"):
        with pytest.raises(click.BadParameter, match="whole number from 0 to 1e"):
            values.Whole().convert(value, None, None)
