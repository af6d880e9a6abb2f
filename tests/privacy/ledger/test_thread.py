"""A ledger's file belongs to the thread that opened it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from core import reserve
from ledgers import specs

from dphead.privacy.ledger import Ledger, LedgerError


@pytest.mark.parametrize("where", [":memory:", "file"])
def test_another_thread_is_told_and_not_sent_to_restore_a_copy(where, tmp_path):
    ledger = Ledger(tmp_path / "l.sqlite" if where == "file" else where)
    with ThreadPoolExecutor() as pool:
        said = pool.submit(reserve, specs(), ledger).exception()
    assert isinstance(said, LedgerError)
    assert "was opened by another thread" in str(said)
    reserve(specs(), ledger)
