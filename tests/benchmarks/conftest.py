"""Tests of benchmarks read stored results, which an sdist does not have."""

import pytest

from benchmarks.store import RESULTS


@pytest.fixture(autouse=True)
def stored_results():
    if not any(RESULTS.glob("*/*.jsonl")):
        pytest.skip("needs the rows of benchmarks/results, which a clone has")
