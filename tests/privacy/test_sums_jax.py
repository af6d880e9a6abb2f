"""Several devices of one host, here eight that XLA simulates: each has equal rows; sums and heads are the same."""

import json

import numpy as np
import pytest
from core import NAMES, D, M, python

SCRIPT = """
import json, os, sys
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
import jax, numpy as np
from core import QUERIES, D, M, clipped_sum, one_block, toy
from dphead.data import ArrayRows
from dphead.fit import fit_head
from dphead.privacy.noise import NoiseSource
from dphead.privacy.queries import Params, RowTransform
from dphead.privacy.sums_jax import jax_block_sum
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
head = fit_head(DPFC(steps=4), ArrayRows(x, y), PublicFacts(4000, D, M), noise=NoiseSource(3), block_sum=jax_block_sum)
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
