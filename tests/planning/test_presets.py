"""Each field of a preset is read in its paper's text, where printed.toml says."""

import re
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from commands import words
from papers import PAPERS, span, text_of

from dphead.planning import presets

PRINTED = tomllib.loads((Path(__file__).parent / "printed.toml").read_text())
# what says something about a preset, and is no number of a paper
ABOUT = {"source", "needs", "network"}
# what no paper prints: whether rows stay as they are, and the constant of a bias
UNPRINTED = {"left_to_the_user", "unit_norm", "intercept"}


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


def printed(place):
    """Read the values that stand at a place, or at several, one after another."""
    if isinstance(place, list):
        return [value for part in place for value in printed(part)]
    paper, _, table = place["in"].partition(" ")
    if "words" in place:
        said_in(paper, place["words"])
        found = [place.get("means") or values(place["words"])]
    elif "row" in place:
        label, lines = place["row"], span(paper, table).splitlines()
        rows = [line for line in lines if line.startswith(label)]
        found = [values(line.removeprefix(label)) for line in rows]
    else:
        labels, lines = place["rows"], span(paper, table).splitlines()
        rows = [line for label in labels for line in lines if line.startswith(label)]
        assert len(rows) == len(labels), place
        found = [values(line) for line in rows]
    assert found, place
    at = place.get("at", ":")
    if isinstance(at, str):
        part = slice(*(int(n) if n else None for n in at.split(":")))
        return [n for numbers in found for n in numbers[part]]
    return [numbers[i] for numbers in found for i in at]


def said_in(paper, said):
    """Check that a paper's text has these words."""
    text = words(text_of(paper))
    assert words(said) in text, f"{paper} does not say {said!r}"


def places_of(name):
    """Where each field of a preset stands."""
    own = PRINTED["presets"][name]
    bases = [PRINTED["bases"][base] for base in own["bases"]]
    return {field: place for part in (*bases, own) for field, place in part.items()}


def leaves(value, path=()):
    """(name, list of what stands there) of every field of nested tables."""
    if not isinstance(value, dict):
        yield ".".join(path), value if isinstance(value, list) else [value]
        return
    for key, inner in value.items():
        yield from leaves(inner, (*path, key))


def flat(value):
    """The numbers and truths of nested lists; texts only where there is nothing
    else.
    """
    parts = [v for one in value for v in (one if isinstance(one, list) else [one])]
    numbers = [v for v in parts if not isinstance(v, str)]
    return numbers or parts


def test_every_preset_is_looked_up():
    with pytest.raises(ValueError, match="is unknown") as said:
        presets.load("none")
    _, names, _ = re.split("Choose one of |, or drop", str(said.value))
    assert set(PRINTED["presets"]) == set(names.split(", "))


@pytest.mark.parametrize("name", PRINTED["presets"])
def test_every_field_is_what_the_papers_text_prints(name):
    """In the text's order; one value may stand for a row of equal ones."""
    known = places_of(name)
    for field, value in leaves(presets.load(name)):
        last = field.rpartition(".")[2]
        if field in ABOUT or last in UNPRINTED or field.startswith("network."):
            continue
        if last in ("dataset", "fine_tuning"):  # the heads of columns
            continue
        assert field in known, f"{name} {field}: where does it stand?"
        if not known[field]:  # the paper does not say it
            continue
        theirs, ours = printed(known[field]), flat(value)
        if last == "layers":  # a pattern of names, which no paper has
            assert theirs == [len(ours)]
            continue
        if len(ours) == 1:
            theirs = sorted(set(theirs))
        same = [abs(v) if isinstance(v, float | int) else v for v in ours]
        assert same == theirs, f"{name} {field} = {value}, the text has {theirs}"


@pytest.mark.parametrize("name", PRINTED["presets"])
def test_a_presets_network_is_the_one_that_its_table_is_of(name):
    preset = presets.load(name)
    network = preset.get("network")
    if not isinstance(network, str):
        return
    paper, table = re.match(r"(\w+) \w+ (\d+)", preset["source"]).groups()
    known = PAPERS[paper]["tables"][table]
    assert known["network"] == network
    said_in(paper, known["caption"])


def test_a_column_is_found_by_its_values():
    assert presets.column("de22", epsilon=1.0) == {
        "epsilon": 1.0,
        "noise_multiplier": 21.2,
        "steps": 500,
    }
    assert presets.column("tb21-10", dataset="fashion-mnist")["groups"] == 81
    for where in ({"epsilon": 3.0}, {}):
        with pytest.raises(ValueError, match="Exactly one column"):
            presets.column("de22", **where)


def test_a_delta_is_the_users_then_the_presets_then_ours():
    assert presets.delta_of("de22", 1e-6) == 1e-6
    assert presets.delta_of("de22", None) == presets.load("de22")["delta"]
    assert presets.delta_of("tb21-cnn/mnist", None) == presets.load("tb21")["delta"]
    assert presets.delta_of(None, None) == presets.delta_of("tb21-10", None) == 1e-5
