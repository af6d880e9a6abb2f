"""JSON under a digest of itself; heads are in tests/fit/test_head_file.py."""

import json
from typing import Any

import pytest

from dphead.analysis.sealed import explain_damage, read_json, write_json


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path = tmp_path / "facts.json"
    write_json(path, {"a": [1, 2.5, "ε"], "b": {"c": None}})
    facts, whole = read_json(path, "record"), path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 7)
        path.write_bytes(changed)
        try:
            found = read_json(path, "record")
        except ValueError as error:
            refused += "record" in str(error)
            continue
        assert {found[k] == facts[k] for k in ("a", "b")} == {True}
    assert refused > len(whole) / 2


def test_a_record_without_its_digest_is_refused(tmp_path):
    path = tmp_path / "facts.json"
    write_json(path, {"a": 1})
    facts = read_json(path, "record")
    del facts["sha256"]
    path.write_text(json.dumps(facts | {"a": 2}))
    with pytest.raises(ValueError, match="was changed after dphead wrote it"):
        read_json(path, "record")


def test_another_kind_of_file_is_no_fault_of_a_codec(tmp_path):
    """As the features file that was typed for the run."""
    path = tmp_path / "f.h5"
    path.write_bytes(b"\x89HDF")
    with pytest.raises(
        ValueError, match=r"f\.h5 is not .*because it is not text\. Pass a run"
    ):
        read_json(path, "report")


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, "\udcff"])
def test_what_is_no_record_is_one_line(text, tmp_path):
    (tmp_path / "f.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="is not a record in JSON"):
        read_json(tmp_path / "f.json", "record")


def test_a_missing_record_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"the record .* does not exist"):
        read_json(tmp_path / "missing.json", "record")


def test_records_of_another_form_are_one_line():
    said = "here has no valid thing, because"
    for wrong, key in (({}, "a"), (3, "a"), ([], "a"), ([], 1), (None, 0)):
        held: Any = wrong
        with pytest.raises(ValueError, match=said), explain_damage("thing", "here"):
            held[key]
    with pytest.raises(ZeroDivisionError), explain_damage("thing", "here"):
        raise ZeroDivisionError
