"""A job's network is trained by the command that its claim shows."""

from dataclasses import replace

import numpy as np

from benchmarks import features, jobs, shuffled, training


def test_a_network_is_trained_and_its_row_has_what_it_spent(
    tmp_path, monkeypatch, capsys
):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 8, 8, 3), np.uint8)
    split = np.repeat(["train", "test"], [48, 12])
    np.savez(tmp_path / "i.npz", images=images, labels=np.arange(60) % 10, split=split)
    monkeypatch.setattr(features, "files", lambda *_: [tmp_path / "i.npz"] * 2)
    job = jobs.small(jobs.selected("De22-2-cifar10-8")[0])
    assert job is not None
    small = {"model": "wrn-10-1", "batch_size": 16, "steps": 1}
    job = replace(job, rows=48, settings=job.settings | small)
    row = training.train(job, 3, None)
    assert (row["key"], row["seed"]) == (job.key, 3)
    assert capsys.readouterr().out == ""  # of a folder that is removed
    # the job's accountant, RDP, bounds what the noise spends exactly
    assert 0 < row["exact_epsilon"] <= row["profiles"]["rdp"] <= 8.0
    assert row["accuracy"] * 12 == round(row["accuracy"] * 12)
    drawn = []
    random = shuffled._Batch.random
    monkeypatch.setattr(
        shuffled._Batch,
        "random",
        lambda *given: drawn.append(random(*given)) or drawn[-1],
    )
    row = training.train(replace(job, sampling="shuffle"), 3, None)
    assert [batch.tolist().count(0.0) for batch in drawn] == [16]
    # one step is one use of a third of the rows, without amplification
    assert row["exact_epsilon"] > row["profiles"]["pld"]
