"""How many threads torch uses: one, where a sum's order must not depend on cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread in this thread and those begun after: sums do not depend on the
    machine's cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
