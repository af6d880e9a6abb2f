"""What is typed becomes a value, or a sentence that says what to write."""

import click
import pytest
from commands import every_command
from dphead_extract import numerals

from dphead.cli import values


@pytest.mark.parametrize(
    "read, text, value",
    [
        (values.numbers_of_colors, "0.48,0.46,0.41", (0.48, 0.46, 0.41)),
        (values.scales, "1,2", (1, 2)),
        (values.image_size, "224", 224),
        (values.image_size, "32,64", (32, 64)),
        (values.arguments, ("a=1", "b=True", "c=x=y"), {"a": 1, "b": True, "c": "x=y"}),
        (values.named_columns, ("image=p", "label=y"), {"image": "p", "label": "y"}),
    ],
)
def test_a_text_becomes_its_value(read, text, value):
    assert read(None, None, text) == value


def test_a_text_becomes_the_value_of_a_declared_option():
    assert numerals.several_names("head.*,norm") == ("head.*", "norm")
    assert numerals.n_bytes("1.5mb") == 1_500_000
    assert numerals.map_shape("3,8,8") == (3, 8, 8)
    settings = {"batch_size": 8, "b": "True"}
    assert numerals.named_settings(("batch-size=8", "b=True")) == settings
    for text in ("xGB", "1.5", "-1MB"):
        with pytest.raises(ValueError, match="500MB or 2GB"):
            numerals.n_bytes(text)
    for text in ("3,8", "3,8,0", "a,b,c", "1_0,8,8", "9" * 5000):
        with pytest.raises(ValueError, match="CHANNELS,H,W"):
            numerals.map_shape(text)


@pytest.mark.parametrize(
    "read, text, said",
    [
        (values.scales, "1.5", "one whole number or several"),
        (values.image_size, "1,2,3", "N or H,W in pixels"),
        (values.arguments, ("a",), "NAME=VALUE"),
        (values.named_columns, ("color=x",), "ROLE=NAME"),
    ],
)
def test_a_text_without_a_value_is_refused_with_what_to_write(read, text, said):
    with pytest.raises(click.BadParameter, match=said):
        read(None, None, text)


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
    assert values.WHOLE.convert("12", None, None) == 12
    assert values.WHOLE.convert(12, None, None) == 12  # of --config
    for value in ("1.5", 1.5, "-1"):
        with pytest.raises(click.BadParameter, match="whole number from 0 to 1e"):
            values.WHOLE.convert(value, None, None)
