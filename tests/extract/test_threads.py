"""One torch thread a worker: what a row's bits are does not depend on its batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from dphead_extract.features.format import open_features
from dphead_extract.threads import pool_of

ROOT = Path(__file__).parents[2]


def test_the_first_batch_has_the_bits_of_later_ones(tmp_path):
    """Equal images, in a process whose number of threads nobody has set: the rest of
    the tests run with one. The images are small, so that torch splits nothing.
    ScatterNet's pieces, which fill cache lines, no longer show another number of
    threads; the test below does.
    """
    image = np.random.default_rng(7).integers(0, 256, (1, 6, 6, 3)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=np.repeat(image, 32, 0))
    free = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    command = "extract images.npz -o f.h5 --backbone scatternet --scatter-j 1"
    subprocess.run(
        [
            *(sys.executable, "-m", "dphead", *command.split()),
            *("--scatter-l", "2", "--block-rows", "8", "--workers", "2"),
        ],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=free | {"PYTHONPATH": str(ROOT)},
    )
    with open_features(tmp_path / "f.h5") as file:
        rows = file.features[:]
    np.testing.assert_array_equal(rows, np.repeat(rows[:1], 32, 0))


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
