"""Prose of the tables' files is wrapped, and nothing else is changed."""

from pathlib import Path

from benchmarks.prose import WIDTH, wrapped

ROOT = Path(__file__).resolve().parents[2]
TEXT = f"""# A heading {"long " * 30}

A paragraph of {"many words " * 20}
and a second line.
| a | table {"wide " * 30}|

- an item {"with words " * 15}
- another

    code {"as it is " * 20}

```
fenced {"code " * 30}
```
"""


def test_prose_is_wrapped_and_all_else_stays():
    lines = wrapped(TEXT).split("\n")
    for line in TEXT.split("\n"):
        if line.startswith(("#", "|", "    ", "- another", "fenced")):
            assert line in lines
    assert all(
        len(line) <= WIDTH or line.startswith(("#", "|", "    ", "fenced"))
        for line in lines
    )
    assert "  with words" in "\n".join(line[:12] for line in lines)  # below its item
    assert wrapped(TEXT).split() == TEXT.split()
    assert wrapped(wrapped(TEXT)) == wrapped(TEXT)


def test_paragraphs_are_filled_however_they_were_wrapped():
    for text in ("", "\n", "one two\n\n- three four\n"):
        assert wrapped(text) == text
    assert wrapped("one\ntwo\n\n- three\n  four\n") == "one two\n\n- three four\n"


def test_the_written_tables_are_wrapped():
    """`make tables` writes both, whoever edits them."""
    for path in ("README.md", "docs/results.md", "benchmarks/TABLES.md"):
        text = (ROOT / path).read_text()
        assert wrapped(text) == text
