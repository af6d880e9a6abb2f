"""Where the ledger's tests put one."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "ledger.sqlite"
