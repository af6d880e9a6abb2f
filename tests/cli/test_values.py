"""What is typed becomes a value, or a sentence that says what to write."""

import click
import pytest

from dphead.cli import values


@pytest.mark.parametrize(
    "read, text, value",
    [
        (values.numbers_of_colours, "0.48,0.46,0.41", (0.48, 0.46, 0.41)),
        (values.numbers_of_colours, None, None),
        (values.whole_numbers, "1,2", (1, 2)),
        (values.parts, "head.*,norm", ("head.*", "norm")),
        (values.parts, None, ()),
        (values.names, "a,b", ("a", "b")),
        (values.names, None, None),
        (values.image_size, "224", 224),
        (values.image_size, "32,64", (32, 64)),
        (values.image_size, None, None),
        (values.map_shape, "3,8,9", (3, 8, 9)),
        (values.map_shape, None, None),
        (values.n_bytes, "2GB", 2 * 10**9),
        (values.n_bytes, "1.5mb", 1_500_000),
        (values.n_bytes, None, None),
        (values.arguments, ("a=1", "b=True", "c=x=y"), {"a": 1, "b": True, "c": "x=y"}),
        (values.settings, ("batch-size=8", "b=True"), {"batch_size": 8, "b": "True"}),
        (
            values.columns,
            ("image=pixels", "label=y"),
            {"image": "pixels", "label": "y"},
        ),
    ],
)
def test_a_text_becomes_its_value(read, text, value):
    assert read(None, None, text) == value


@pytest.mark.parametrize(
    "read, text, said",
    [
        (values.numbers_of_colours, "a", "one number, or one for each colour"),
        (values.whole_numbers, "1.5", "one whole number or several"),
        (values.image_size, "0", "N or H,W in pixels"),
        (values.image_size, "1,2,3", "N or H,W in pixels"),
        (values.map_shape, "3,8", "CHANNELS,H,W"),
        (values.map_shape, "a,b,c", "CHANNELS,H,W"),
        (values.n_bytes, "2", "500MB or 2GB"),
        (values.n_bytes, "xGB", "500MB or 2GB"),
        (values.arguments, ("a",), "NAME=VALUE"),
        (values.settings, ("=1",), "NAME=VALUE"),
        (values.columns, ("color=x",), "image=NAME"),
        (values.columns, ("image=",), "image=NAME"),
    ],
)
def test_a_text_without_a_value_is_refused_with_what_to_write(read, text, said):
    with pytest.raises(click.BadParameter, match=said):
        read(None, None, text)
