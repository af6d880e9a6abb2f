"""Several devices of one host, here eight that XLA simulates: each has equal rows; sums and heads are the same."""

import json

import numpy as np
import pytest
from core import NAMES, D, M, python, release_one

from dphead.data import ArrayRows
from dphead.privacy.statistics import Gradient, Params
from dphead.privacy.transform import RowTransform
from dphead.run import block_sum
from dphead.sums.cpu import CpuSums
from dphead.sums.jax import JaxSums, jax_block_sum

SCRIPT = """
import json, os, sys
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
import jax, numpy as np
from core import QUERIES, D, M, clipped_sum, one_block, toy
from dphead.data import ArrayRows
from dphead.fit import fit_head
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistics import Params
from dphead.privacy.transform import RowTransform
from dphead.sums.jax import JaxSums, jax_block_sum
from dphead.solvers import DPFC, PublicFacts

assert len(jax.devices()) == int(sys.argv[1])
x, y = toy(4000)
params = Params(RowTransform(append=1.0), np.full((D + 1, M), 0.1, np.float32))
plain = Params(RowTransform(), np.full((D, M), 0.1, np.float32))
sums = {}
for q in QUERIES:
    p = plain if "n_channels=2" in q.name else params
    sums[q.name] = clipped_sum(q, p, x, y, block_rows=2048, block_sum=jax_block_sum).tolist()
devices = {}
for rows in (128, 384, 2048):
    block, keep = one_block(*toy(rows))
    out = jax_block_sum(QUERIES[-1], params, block, keep, 1.0, np.zeros((1, 1)))
    devices[rows] = len(out.parts.sharding.device_set)
facts = PublicFacts(4000, D, M)
head = fit_head(DPFC(steps=4), ArrayRows(x, y), facts, noise=NoiseSource(3), block_sum=JaxSums(1 << 20))
json.dump([sums, devices, head.head.weights.tolist()], sys.stdout)
"""


@pytest.fixture(scope="module")
def results():
    """{devices: (sums by query, devices that blocks of so many rows use, weights of a seeded head)}."""
    found = {}
    for devices in (1, 8):
        process = python(SCRIPT, devices)
        assert process.returncode == 0, process.err
        found[devices] = json.loads(process.out)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_eight_devices_sum_what_one_device_sums(results, name):
    """Blocks of 256 rows a device, not 2,048: other float32 kernels and other orders in a chunk's float32 sum."""
    one = results[1][0][name]
    np.testing.assert_allclose(results[8][0][name], one, rtol=0, atol=1e-6 * np.abs(one).max())


def test_rows_are_spread_over_all_devices_where_each_has_whole_chunks(results):
    assert results[8][1] == {"128": 1, "384": 1, "2048": 8}
    assert set(results[1][1].values()) == {1}


def test_eight_devices_give_the_head_of_one(results):
    """One seed, so one noise, drawn once on the total."""
    weights = np.array(results[1][2])
    assert weights.shape == (D, M)
    np.testing.assert_allclose(results[8][2], weights, rtol=0, atol=1e-5 * np.abs(weights).max())


@pytest.mark.parametrize("memory", [1 << 20, 4 * 256 * 6 * 4])
def test_rows_kept_on_the_devices_serve_no_other_slot_transform_or_fit(memory):
    """Bit for bit, over passes with one transform, a second one, and Poisson samples (the nearly full one begins and
    ends as the full batch does, with gaps between). A transform of equal numbers is another fit's, with other rows."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2000, 6)).astype(np.float32), rng.integers(-1, 3, 2000)
    x[7], x[8] = np.nan, np.inf
    first, second = RowTransform(True), RowTransform()
    passes = [(x, first), (x, first), (x, second), (x + 1, RowTransform())]
    sums = JaxSums(memory)
    for rows, transform in [(ArrayRows(rows, y, 256), transform) for rows, transform in passes]:
        for sampling_prob in (1.0, 0.97, 0.5, 1.0):
            params = Params(transform, rng.standard_normal((6, 3)).astype(np.float32))
            kept, sent = (
                release_one(Gradient(3), params, rows, 3, b, sampling_prob=sampling_prob).value
                for b in (sums, jax_block_sum)
            )
            assert np.array_equal(kept, sent)
        # seven whole blocks; the last one has padding
        assert sum(kept.nbytes for kept in sums.kept._kept[1].values()) == min(memory, 7 * 256 * 6 * 4)


def test_the_backend_keeps_rows_where_it_computes(monkeypatch):
    """On accelerators half of their memory is for rows, whatever the host has."""
    import jax

    assert isinstance(block_sum("numpy", 7), CpuSums)
    assert block_sum("jax", 7).kept.memory == 7

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 100}

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(), Device()])
    assert block_sum("jax", 7).kept.memory == 100
