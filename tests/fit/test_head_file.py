"""Heads on disk."""

import numpy as np
import pytest

from dphead.fit.head_file import open_head, save_head
from dphead.privacy.axes import PublicAxes
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

FACTS = {"class_names": ["a", "b", "c"], "feature_space": "space"}
RNG = np.random.default_rng(0)
CENTER = RNG.normal(size=4).astype(np.float32)
SCALE = RNG.random(4, np.float32)
HEADS = {
    "bare": RowTransform(),
    "unit": RowTransform(unit_norm=True),
    "centered": RowTransform(True, CENTER),
    # the appended constant is in the intercept by then
    "normalized": RowTransform(False, CENTER, SCALE, 1.0),
}


def head(transform, loss="softmax", axes=None):
    width = 4 if axes is None else axes.count
    weights = RNG.normal(size=(width, 3))
    return LinearHead(weights, RNG.normal(size=3), transform, loss, axes=axes)


def test_a_head_on_axes_comes_back_and_scores_the_same(tmp_path):
    axes = PublicAxes(np.linalg.qr(RNG.normal(size=(4, 2)))[0])
    saved = head(HEADS["unit"], axes=axes)
    save_head(tmp_path, saved, FACTS)
    loaded, _ = open_head(tmp_path)
    x = RNG.normal(size=(20, 4)).astype(np.float32)
    assert loaded.n_features == 4 and len(loaded.weights) == 2
    assert np.array_equal(loaded.scores(x), saved.scores(x))
    wrong = LinearHead(np.zeros((3, 3)), np.zeros(3), axes=axes)
    save_head(tmp_path, wrong, FACTS)
    with pytest.raises(ValueError, match="one row per axis"):
        open_head(tmp_path)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_a_head_comes_back_and_scores_the_same(tmp_path, name, loss):
    saved = head(HEADS[name], loss)
    save_head(tmp_path, saved, FACTS)
    loaded, facts = open_head(tmp_path)
    x = RNG.normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(loaded.scores(x), saved.scores(x))
    assert loaded.weights.dtype == np.float64
    assert np.array_equal(loaded.weights, saved.weights)
    assert loaded.loss == loss
    assert facts["class_names"] == FACTS["class_names"]
    assert facts["feature_space"] == "space"


@pytest.mark.parametrize(
    "name, change",
    [
        ("head.json", lambda data: None),
        ("head.safetensors", lambda data: None),
        ("head.safetensors", lambda data: data[:-8]),
        ("head.json", lambda data: data.replace(b'"format": 1', b'"format": 2')),
        ("head.json", lambda data: data.replace(b'"softmax"', b'"newloss"')),
    ],
)
def test_what_is_no_head_is_refused(tmp_path, name, change):
    save_head(tmp_path, head(HEADS["unit"]), FACTS)
    path = tmp_path / name
    whole = path.read_bytes()
    path.unlink()
    if (data := change(whole)) is not None:
        assert data != whole
        path.write_bytes(data)
    with pytest.raises(
        ValueError, match=r"Restore|Use the version|Pass a run folder|must be"
    ):
        open_head(tmp_path)


@pytest.mark.parametrize("name", ["head.json", "head.safetensors"])
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(tmp_path, name):
    """57 of 250 flips changed predictions unseen, and a class got another name."""
    save_head(tmp_path, head(HEADS["centered"]), FACTS)
    saved, facts = open_head(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for i in range(len(whole)):
        flipped = bytearray(whole)
        flipped[i] ^= 1 << (i % 8)
        (tmp_path / name).write_bytes(flipped)
        try:
            loaded, others = open_head(tmp_path)
        except ValueError:
            continue
        assert others == facts
        assert np.array_equal(loaded.weights, saved.weights)
        assert np.array_equal(loaded.transform.center, CENTER)
