"""One torch thread a worker: what a row's bits are does not depend on its batch."""

import torch
from dphead_extract.threads import pool_of


def test_no_other_thread_sets_a_workers_number():
    """A thread that is new to torch would take the number that was set last."""
    before = torch.get_num_threads()
    try:
        with pool_of(1) as pool:
            pool.submit(int).result()
            torch.set_num_threads(before + 1)
            assert pool.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(before)
