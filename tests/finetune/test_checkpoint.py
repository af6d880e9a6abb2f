"""A checkpoint is read as it was written, or refused."""

from dataclasses import replace

import numpy as np
import pytest

from dphead.finetune.checkpoint import load_checkpoint, save_checkpoint
from dphead.finetune.solver import TrainingState

STATE = TrainingState(3, *(np.arange(5.0) + k for k in range(4)))


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    save_checkpoint(tmp_path, "fit", STATE)
    path = tmp_path / "checkpoint.npz"
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        try:
            found = load_checkpoint(tmp_path, "fit")
        except ValueError as error:
            assert "checkpoint" in str(error)
            continue
        assert found is not None
        assert found.step == 3
        assert np.array_equal(found.average, STATE.average)


def test_a_checkpoint_that_was_cut_short_is_refused(tmp_path):
    save_checkpoint(tmp_path, "fit", STATE)
    path = tmp_path / "checkpoint.npz"
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is damaged, so the run cannot resume"):
            load_checkpoint(tmp_path, "fit")


@pytest.mark.parametrize("member", ["center", "scale", "sha256"])
def test_a_checkpoint_without_one_member_is_refused(tmp_path, member):
    """Without center and scale, training would go on with rows of another transform."""
    save_checkpoint(
        tmp_path, "fit", replace(STATE, center=np.ones(5), scale=np.ones(5))
    )
    path = tmp_path / "checkpoint.npz"
    with np.load(path) as file:
        rest = {name: file[name] for name in file if name != member}
    np.savez(path, **rest)
    with pytest.raises(ValueError, match="is damaged, so the run cannot resume"):
        load_checkpoint(tmp_path, "fit")
