"""Every number of a preset stands in the table of the paper that the preset names."""

import re
from fractions import Fraction

import pytest
from papers import SPANS, span

from dphead.planning import presets

# Settings that the paper prints elsewhere, or says in words, by what a preset's name
# starts with.
ELSEWHERE = {
    "fc23": {"steps", "intercept"},
    "tb21": {"intercept", "n_channels"},
    "de22": {"momentum", "ema_decay", "intercept"},
    "de22-23": {"clip_norm", "delta"},
    "tan23": {"clip_norm", "delta", "dampening", "search"},
    "tan23-3": {"ema_decay", "momentum", "augmentation_multiplicity"},
    "tan23-5": {"ema_decay", "momentum", "augmentation_multiplicity", "learning_rate"},
}


def spans(source):
    """The text of each table that a source names: "FC23 Algorithms 1-4, Tables 6-9,
    first row".
    """
    paper = source.split()[0]
    first, link, last = re.findall(r"Tables? (\d+)(?:(-| and )(\d+))?", source)[0]
    found = (
        range(int(first), int(last) + 1)
        if link == "-"
        else [int(t) for t in (first, last) if t]
    )
    return "\n".join(span(paper, str(t)) for t in found)


def values(text):
    """Every number in a text, in order and without its sign: 8 \\cdot 10^{-7}, 10-5,
    10⁻⁵, [10−8, 108], ¼, 72K.
    """
    marks = {
        "−": "-",
        "⁻": "-",
        "⁵": "5",
        "⁷": "7",
        ", 108]": ", 1e8]",
        "½": "1/2",
        "¼": "1/4",
    }
    for printed, plain in marks.items():
        text = text.replace(printed, plain)
    text = re.sub(r"\\infty|∞", " inf ", text)
    text = re.sub(
        r"(?:(\d+) ?(?:\\cdot|·) ?)?\b10 ?\^?\{?-(\d+)\}?",
        lambda m: f" {m[1] or 1}e-{m[2]} ",
        text,
    )
    text = re.sub(r"(\d+) ?(?:<b>)?(?:\\mathrm\{|\{\\rm ?)?[Kk]\b", r" \g<1>000 ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    found = re.findall(r"\d+ ?/ ?[1-9]\d*|\d+(?:\.\d+)?(?:e-?\d+)?|inf", text)
    return [float(Fraction(n.replace(" ", "")) if "/" in n else n) for n in found]


def leaves(value, path=()):
    """(names, number) of every number in nested tables and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


@pytest.mark.parametrize("name", presets.names())
def test_every_number_stands_in_the_table_that_the_preset_names(name):
    preset = presets.load(name)
    # the last: TAN23 Table 3's caption
    found = {*values(spans(preset["source"])), 2.5 / 64}
    skipped = set().union(
        *(keys for start, keys in ELSEWHERE.items() if name.startswith(start))
    )
    for path, number in leaves(preset):
        assert abs(number) in found or skipped & set(path), (
            f"{name} {'.'.join(path)} = {number:g}"
        )


@pytest.mark.parametrize(
    "name", [n for n in presets.names() if re.match("de22(?!-23)|tb21-(?!14)", n)]
)
def test_the_numbers_of_a_column_stand_in_the_papers_order(name):
    """One after another in the text, or every second or third, where the text or the
    table has others between.

    Except where rows and columns are exchanged (TB21 Table 14, TAN23) or merged (De22
    Table 23).
    """
    preset = presets.load(name)
    # a delta may stand between two epsilons
    text = [n for n in values(spans(preset["source"])) if n > 1e-4]
    for key, numbers in preset.get("columns", {}).items():
        if key != "delta" and all(isinstance(n, int | float) for n in numbers):
            runs = [
                text[i::step][: len(numbers)]
                for step in (1, 2, 3)
                for i in range(len(text))
            ]
            assert [float(n) for n in numbers] in runs, f"{name} {key} = {numbers}"


def test_the_settings_of_every_table_are_there():
    """TB21 Table 16 is unreadable; FC23's search is Tables 6-9."""
    sources = {presets.load(name)["source"] for name in presets.names()}
    for paper, tables in {
        "De22": range(13, 24),
        "TB21": [10, 12, 13, 14, 17],
        "TAN23": [2, 3],
    }.items():
        for table in tables:
            assert (paper, str(table)) in SPANS
            assert any(
                re.match(rf"{paper} Tables? (\d+ and )?{table}\b", source)
                for source in sources
            ), (paper, table)
    assert {m: list(s) for m, s in presets.load("fc23")["search"].items()} == {
        "dp-fc": ["learning_rate", "ridge", "trials"],
        "dp-ls": ["alpha", "ridge", "trials"],
        "dp-newton": ["learning_rate", "ridge", "trials"],
        "dp-adam": ["learning_rate", "weight_decay", "trials"],
    }


@pytest.mark.parametrize("name", presets.names())
def test_the_columns_of_a_preset_are_of_one_length(name):
    assert (
        len(
            {
                len(values)
                for values in presets.load(name).get("columns", {"": []}).values()
            }
        )
        == 1
    )


def test_what_the_text_has_lost_is_marked():
    assert "text ends" in presets.load("de22-23")["unreadable"]
    assert presets.load("tb21-14")["columns"]["learning_rates"] == ["?", [1, 16], "?"]


def test_a_preset_takes_from_its_base_what_it_does_not_say():
    changed = presets.load("de22-22")
    base = presets.load("de22")
    own = {"left_to_the_user": ["learning_rate", "steps"]}
    assert (
        changed["dp-sgd"]
        == {k: v for k, v in base["dp-sgd"].items() if k != "learning_rate"} | own
    )
    assert changed["delta"] == 8e-7
    assert changed["columns"]["epsilon"][0] == 0.1
    assert presets.load("de22-19")["columns"] == presets.load("de22-16")["columns"]
    assert "base" not in changed
    assert presets.load("de22") == base


def test_a_column_is_found_by_its_values():
    assert presets.column("de22", epsilon=1.0) == {
        "epsilon": 1.0,
        "noise_multiplier": 21.2,
        "steps": 500,
    }
    assert presets.column("tb21-10", dataset="fashion-mnist")["groups"] == 81
    for where in ({"epsilon": 3.0}, {}):
        with pytest.raises(ValueError, match="must have one column"):
            presets.column("de22", **where)
