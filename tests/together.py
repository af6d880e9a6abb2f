"""Processes of one run: threads that are joined as `Hosts` joins processes, and where
real processes listen.
"""

import os
import threading

import numpy as np

from dphead.sums.hosts import Hosts


class Threads(Hosts):
    """Join threads as `Hosts` joins processes. `sent` has each thread's sums."""

    def __init__(self, index, count, places, barrier, sent):
        super().__init__(index, count)
        self._places, self._barrier, self.sent = places, barrier, sent

    def everywhere(self, value, combine):
        self._places[self.index] = value
        self._barrier.wait(600)
        found = combine(np.stack(self._places))
        self._barrier.wait(600)
        return found

    def wait(self):
        self._barrier.wait(600)

    def total(self, value):
        self.sent.append((self.index, value))
        return super().total(value)


def together(count, work):
    """Run work(hosts) on `count` threads; return its results and all that was sent.

    Raises the first thread's error, or else another's.
    """
    places, barrier, sent = [None] * count, threading.Barrier(count), []
    found, errors = [None] * count, {}

    def run(i):
        try:
            found[i] = work(Threads(i, count, places, barrier, sent))
        except threading.BrokenBarrierError:
            pass
        except Exception as error:
            errors[i] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    if errors:
        raise errors[min(errors)]
    return found, sent


def listening():
    """Addresses, in hexadecimal as Linux says them, that this process listens on."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    mine = {os.readlink(link) for link in links if os.path.exists(link)}
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                    yield fields[1].split(":")[0]


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
