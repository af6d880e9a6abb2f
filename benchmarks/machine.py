"""What this machine can do, and what this process held: rates and bytes to set beside
measured seconds.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np


def peak_memory() -> int:
    """Bytes that this program has held at most (`ru_maxrss` counts what its parent held
    when it was started).
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def machine_rates() -> dict[str, float]:
    """Multiplications and additions a second of a float32 product; bytes a second read
    from memory on every core.
    """
    a = np.random.default_rng(0).standard_normal((4096, 4096), np.float32)
    x = np.ones((1 << 28,), np.float32)
    cores = len(os.sched_getaffinity(0))
    flops, read_rate = 0.0, 0.0
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(3):
            start = time.perf_counter()
            np.matmul(a, a)
            flops = max(flops, 2 * 4096**3 / (time.perf_counter() - start))
            start = time.perf_counter()
            list(pool.map(np.max, np.array_split(x, cores)))
            read_rate = max(read_rate, x.nbytes / (time.perf_counter() - start))
    return {"flops": flops, "bytes": read_rate}
