"""A row's bits are the same at every place of a chunk, however many threads torch has.

Tried in a process whose number of threads nobody has set but `found`: the rest of the
tests run with one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from finetune.core import ImageRows, images, tiny
from torch import nn

from dphead.finetune.gradients import PerExample
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.settings import ModelSpec
from dphead.privacy.contract import SumTask
from dphead.privacy.transform import RowTransform
from dphead.sums.passes import checked_sum

ROOT = Path(__file__).parents[2]
# on two threads the last row of this chunk had other bits where the last layer is ten
# columns wide, and not where it is three
THREADS, CHUNK, CLASSES = 2, 5, 10


def total(sums, x, y):
    """The sum over all rows at the network's first weights."""
    network = sums.network
    params = StepParams(RowTransform(), network.start.astype(np.float32), 0)
    ask = SumTask(network.statistic, params, 1e-3, ImageRows(x, y))
    return checked_sum([ask], sums)[0]


def tried():
    """Places of a chunk at which a row adds other integers than at the first, and how
    far a row that counts zero moves the sum by leaving, in units of the sum.
    """
    network, (x, y) = tiny(classes=CLASSES), images(n=11, classes=CLASSES)
    torch.set_num_threads(THREADS)
    sums = TorchSums(network, chunk=CHUNK)
    y[0] = -1
    far = np.abs(total(sums, x, y) - total(sums, x[1:], y[1:])).max()
    found = []
    for place in range(CHUNK):
        alone = np.where(np.arange(CHUNK) == place, 1, -1)
        found.append(total(sums, np.roll(x[:CHUNK], place, axis=0), alone))
    assert found[0].any()
    return [k for k, one in enumerate(found) if (one != found[0]).any()], int(far)


def test_a_row_has_the_same_bits_at_every_place_on_any_number_of_threads():
    """A row alone adds the same integers at each place. Under add_remove the rows after
    one that goes move up a place, and add what they added before.
    """
    free = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import *; print(json.dumps(tried()))"],
        check=True,
        capture_output=True,
        text=True,
        env=free | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[], 0]


def test_gradients_are_made_on_one_thread_whatever_number_torch_has(monkeypatch):
    """Also where the processor's products happen to have the same bits on two."""
    parts_of = PerExample.parts
    seen = []

    def noted(self, inputs, labels):
        seen.append(torch.get_num_threads())
        return parts_of(self, inputs, labels)

    monkeypatch.setattr(PerExample, "parts", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x, y = images(n=25, classes=CLASSES)
        total(TorchSums(tiny(classes=CLASSES), chunk=5), x, y)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 5
    assert set(seen) == {1}


class Counting(nn.Module):
    threads: ClassVar[set[int]] = set()

    def forward(self, x):
        self.threads.add(torch.get_num_threads())
        return x


def test_trials_of_a_network_use_one_thread():
    """Several threads waited for each other: 0.6 s for MobileNetV2."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        layers = Counting(), nn.Flatten(), nn.Linear(192, 3)
        spec = NetworkSpec(ModelSpec("own"), (3, 8, 8), 3)
        TorchSums(Network(spec, module=nn.Sequential(*layers)))
    finally:
        torch.set_num_threads(before)
    assert Counting.threads == {1}
