"""Measure in separate processes, and measure the machine's rates and peak memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np


def alone(
    function: Callable[..., Any],
    *args: str | int,
    timeout: float | None = None,
    env: dict[str, str] | None = None,
) -> Any:
    """Run a module's function in a new process, and return its result as JSON data.

    Raises RuntimeError with the end of its standard error if the process fails, and
    subprocess.TimeoutExpired after `timeout` seconds.
    """
    name = function.__name__
    code = f"from {function.__module__} import {name}\nimport json\n"
    code += f"print(json.dumps({name}(*{args!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | (env or {}),
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:] or "killed")
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory() -> int:
    """Return the peak resident memory of this program in bytes.

    `ru_maxrss` would include its parent's memory at the start.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def machine_rates() -> dict[str, float]:
    """Return the rates of a float32 product, and of reading memory on every core.

    The units are multiplications and additions per second, and bytes per second.
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
