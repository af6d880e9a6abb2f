"""Use one torch thread where the order of a sum must not depend on the cores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread in this thread, so that sums do not depend on the cores.

    Threads that start in this context may use more threads (`pool_of`).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pool_of(workers: int) -> ThreadPoolExecutor:
    """Return a pool whose threads have one torch thread each, from the first operation.

    A new thread takes over torch's number of threads only when torch first splits an
    operation. A matrix product before that uses as many threads as there are cores.
    Without this pool, a thread's first batch was rounded differently from later batches
    of the same images.
    """
    return ThreadPoolExecutor(workers, initializer=_alone)


def _alone() -> None:
    """Set one torch thread in a new thread."""
    # torch initializes the thread now; a later initialization would undo the next line
    torch.get_num_threads()
    torch.set_num_threads(1)
