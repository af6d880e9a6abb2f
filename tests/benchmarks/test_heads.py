"""What a row of a head says of its features."""

import numpy as np
from dphead_extract.features.format import open_features, write_features

from benchmarks.heads import describe
from dphead.solvers.base import ProblemInfo


def test_equal_features_have_equal_digests_in_every_file(tmp_path):
    x, y = np.random.default_rng(0).random((20, 3), np.float32), np.arange(20) % 2
    other = x.copy()
    other[19, 2] += 1
    found, blocks = [], set()
    for i, (features, labels) in enumerate([(x, y), (x, y), (other, y), (x, 1 - y)]):
        write_features(tmp_path / f"{i}.h5", features, labels, ["a", "b"])
        with open_features(tmp_path / f"{i}.h5") as file:
            found.append(describe(file, ProblemInfo(20, 3, 2))["digest"])
            blocks.add(file.block_digest.tobytes())
    assert found[0] == found[1] and len(set(found)) == 3
    assert len(blocks) == 4  # digests of blocks are salted
