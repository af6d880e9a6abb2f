"""How many threads torch uses: one, where a sum's order must not depend on cores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread in this thread: sums do not depend on the machine's cores.

    Threads that are begun within it are not sure to be so: see `pool_of`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pool_of(workers: int) -> ThreadPoolExecutor:
    """A pool whose threads have one torch thread each, from their first operation on.

    A new thread takes over torch's number only when torch first splits an operation. A
    product before that adds on as many threads as there are cores, so a thread's first
    batch had other last bits than the same images later
    (`extract/threads::the_first_batch_has_the_bits_of_later_ones`).
    """
    return ThreadPoolExecutor(workers, initializer=_alone)


def _alone() -> None:
    torch.get_num_threads()  # sets a new thread up, which would undo the next line
    torch.set_num_threads(1)
