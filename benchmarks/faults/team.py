"""Kill fits that charge a team's server, cut their connections, or stop the server.

Each fit must be charged once, and the same command must then finish correctly.
"""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults import cases, kills
from benchmarks.faults.processes import ended, run_to_end, started
from benchmarks.faults.servers import CLIENT, GRANTS, Cutter, Server


@contextmanager
def served() -> Iterator[Server]:
    """Run a server that the commands started in this block charge."""
    from dphead.privacy.ledger import server as ledgers

    with Server() as server:
        ledgers.init(server.url())
        for statement in GRANTS:
            server.run(statement)
        os.environ["DPHEAD_LEDGER"] = server.url(CLIENT)
        try:
            yield server
        finally:
            del os.environ["DPHEAD_LEDGER"]


def points(every: int = 1) -> Iterator[list[str]]:
    """Yield the problems of a fit that is killed at each `every`-th event."""
    with served():
        for count, found in kills.points(kills.CASES["dp-ls"], every):
            yield [f"event {count}: {text}" for text in found]


def cuts(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield the problems of fits with a connection that breaks at a COMMIT.

    The COMMIT reaches the server in about half of the tries.
    """
    rng = random.Random(seed)
    with served() as server:
        for _ in range(tries):
            cutter = Cutter(server.port, answered=rng.random() < 0.5)
            arm = threading.Timer(rng.random(), setattr, (cutter, "armed", True))
            arm.start()
            url = server.url(CLIENT, cutter.port)
            yield _broken("connection cut", url, arm.join, cutter.close)


def drops(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield the problems of fits with connections that break after 20 to 350 ms."""
    rng = random.Random(seed)
    with served() as server:
        for _ in range(tries):
            cutter = Cutter(server.port, seconds=rng.uniform(0.02, 0.35))
            url = server.url(CLIENT, cutter.port)
            yield _broken("connections cut", url, lambda: None, cutter.close)


def stops(tries: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield the problems of fits with a server that fails at a random moment."""
    rng = random.Random(seed)
    with served() as server:
        for _ in range(tries):
            wait = rng.random()

            def stop(wait: float = wait) -> None:
                time.sleep(wait)
                server.stop(signal.SIGQUIT)

            yield _broken("server stopped", server.url(CLIENT), stop, server.start)


def budget(rounds: int, processes: int = 32, room: int = 10) -> Iterator[list[str]]:
    """Yield the problems of fits at once on a server's budget for `room` of them."""
    with served():
        yield from kills.one_budget(rounds, processes, room)


def _broken(
    what: str, url: str, strike: Callable[[], object], mend: Callable[[], object]
) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case = cases.fit(folder, "run", "dp-fc")
        process = started(folder, case.arguments, env={"DPHEAD_LEDGER": url})
        strike()
        first = ended(process)
        mend()
        if first.code not in (0, 2) or "Traceback" in first.said:
            return [f"{what}: exit code {first.code}: {first.said[-3000:]}"]
        if "othing was charged" in first.said and cases.fits_of(folder):
            return [f"{what}: a charge is denied: {first.said[-3000:]}"]
        return [f"{what}: {text}" for text in cases.again(folder, case, run_to_end)]
