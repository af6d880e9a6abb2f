"""Density and width of the code: what a line may carry, so that it can be read aloud.

Tokens are Python's own, without comments and docstrings; a line is one that has any.
Libraries that read well (lineax, optax, jax_privacy, dp_accounting) have 5.8 to 8.7.
"""

import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOKENS_A_LINE = {"dphead": 8.5, "extract": 8.5, "benchmarks": 8.5, "tests": 9.0}
LONG = 30  # tokens
LONG_SHARE = 0.003
WIDTH = 100
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
AFTER_STATEMENT = {tokenize.DEDENT, tokenize.INDENT, tokenize.NEWLINE}


def tokens_of_lines(source: str) -> Counter[int]:
    """Tokens that begin in each line of code, by its number."""
    found: Counter[int] = Counter()
    starts = True  # of a statement
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for i, token in enumerate(tokens):
        if token.type in NOT_CODE:
            starts |= token.type in AFTER_STATEMENT
            continue
        alone = starts and tokens[i + 1].type == tokenize.NEWLINE
        if not (alone and token.type == tokenize.STRING):
            found[token.start[0]] += 1
        starts = False
    return found


@pytest.mark.parametrize("folder", TOKENS_A_LINE)
def test_lines_are_as_dense_as_can_be_read(folder):
    counts = [
        count
        for path in sorted((ROOT / folder).rglob("*.py"))
        for count in tokens_of_lines(path.read_text()).values()
    ]
    assert sum(counts) / len(counts) <= TOKENS_A_LINE[folder]
    long = [count for count in counts if count > LONG]
    assert len(long) / len(counts) <= LONG_SHARE


def test_no_line_of_prose_is_wider_than_a_page():
    """Tables, which Markdown cannot break, aside; ruff holds the width of code."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("dphead/**/*.md")]
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in pages
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDTH and not line.startswith("|")
    ]
    assert wide == []


def test_docstrings_and_comments_do_not_count():
    source = '"""Two words."""\n\n# a comment\nx = f(1)  # why\ny = """text"""\n'
    assert tokens_of_lines(source) == {4: 6, 5: 3}
