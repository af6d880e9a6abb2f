"""docs/settings.md is what the solvers declare."""

from dphead.planning.settings_page import PAGE, page


def test_the_page_is_the_codes():
    """`python -m dphead.planning.settings_page` writes it."""
    assert PAGE.read_text() == page()
