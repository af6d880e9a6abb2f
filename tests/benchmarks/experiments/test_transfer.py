"""Networks pre-trained on public images, on random ones: what they are trained to do,
and that extraction takes their weights.
"""

import json
import shlex
from dataclasses import asdict

import numpy as np
import pytest
from click.testing import CliRunner
from dphead_extract.features.format import open_features

from benchmarks.experiments import transfer
from dphead.cli import cli
from dphead.data.features import FeaturesRows

torch = pytest.importorskip("torch")
pretraining = pytest.importorskip("benchmarks.experiments.pretraining")

SIDE = 32


def recipe(labelled):
    return pretraining.Recipe(
        labelled,
        layers=(1, 1, 1, 1),
        channels=(64, 8, 8, 16),
        sides=(SIDE,),
        epochs=1,
        rate=0.05,
        batch=8,
        views=1 if labelled else 2,
    )


def random_images(n):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(
        0,
        256,
        (n, 3, 32, 32),
        generator=generator,
    )
    y = torch.arange(n) % 4
    return pretraining.Images(x.to(torch.uint8), y)


def test_extraction_takes_the_weights_of_ten_steps(tmp_path):
    how = recipe(True)
    data = random_images(16)
    found = pretraining.train(how, data, seed=0, steps=10)
    assert np.isfinite(found.loss)
    weights = tmp_path / "w.safetensors"
    pretraining.save(found.network, weights)
    source = tmp_path / "images.npz"
    images = data.x.permute(0, 2, 3, 1).numpy()
    np.savez(
        source,
        images=images,
        labels=data.y.numpy(),
    )
    path = tmp_path / "features.h5"
    options = transfer.extract_options(how, weights)
    done = CliRunner().invoke(
        cli,
        ["extract", str(source), "-o", str(path), *shlex.split(options)],
    )
    assert done.exit_code == 0, done.output
    with open_features(path) as file:
        rows = FeaturesRows(file, memory=0)
        x = rows.features()
    own = pretraining.features(
        found.network,
        data.x,
        SIDE,
    )
    assert x.shape == (16, 16)
    # bfloat16 on one side, float16 in the file
    assert x == pytest.approx(own.numpy(), rel=0.05, abs=0.05)


def test_without_labels_a_network_is_trained_too():
    data = random_images(16)
    found = pretraining.train(recipe(False), data, seed=0, steps=10)
    assert np.isfinite(found.loss)
    for value in found.network.parameters():
        assert value.isfinite().all()


def test_a_view_of_the_same_image_is_told_from_the_others():
    z = torch.eye(4)
    near = pretraining.contrast(torch.cat([z, z]), 4)
    far = pretraining.contrast(torch.cat([z, z.roll(1, 0)]), 4)
    assert near < 0.1 < far
    # three other views share what is left of one
    four = pretraining.contrast(z.repeat(4, 1), 4)
    assert four == pytest.approx(np.log(3), abs=0.1)


def test_views_are_within_bounds_and_of_the_wanted_size():
    torch.manual_seed(0)
    x = random_images(8).x.float() / 255
    for labelled in (True, False):
        seen = pretraining.views(x, 24, labelled)
        assert seen.shape == (8, 3, 24, 24)
        assert seen.abs().max() <= 1
    grey = torch.full((64, 3, 4, 4), 0.5)
    changed = pretraining.recoloured(grey)
    # a grey image stays grey, whatever happens to colours
    assert changed.std(dim=1).max() < 1e-5


def test_a_probe_finds_classes_that_can_be_told():
    data = random_images(64)
    data = data._replace(x=(data.y * 60).reshape(-1, 1, 1, 1).expand(64, 3, 32, 32))
    mean = torch.nn.AdaptiveAvgPool2d(1)
    net = torch.nn.Sequential(mean, torch.nn.Flatten(), Powers())
    assert pretraining.probed(net, data, data, 8) == 1.0


class Powers(torch.nn.Module):
    """Of the first column."""

    def forward(self, x):
        first = x[:, :1].float()
        return torch.cat([first, first**2, first**3], 1)


def test_the_three_images_that_cifar10_has_too_are_left_out(tmp_path, monkeypatch):
    n = 8400
    x = np.zeros((n, 1, 1, 3), np.uint8)
    np.savez(
        tmp_path / "cifar100.npz",
        images=x,
        labels=np.arange(n),
        split=np.array(["test"] * n),
    )
    monkeypatch.setattr(pretraining, "images", lambda *_: tmp_path)
    pretraining.cifar100.cache_clear()
    kept = set(pretraining.cifar100("test").y.tolist())
    pretraining.cifar100.cache_clear()
    assert set(range(n)) - kept == set(pretraining.ALSO_IN_CIFAR10)


def test_each_fit_is_run_once_and_shares_its_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "OUT", tmp_path)
    calls = []

    def one(job, seed):
        return {"key": job.key, "seed": seed, "job": job.described(), "accuracy": 0.5}

    def together(jobs, seed):
        calls.append(len(jobs))
        return [one(job, seed) for job in jobs]

    monkeypatch.setattr(transfer.runner, "fit", one)
    monkeypatch.setattr(transfer.runner, "fit_together", together)
    transfer.fit(transfer.LABELLED)
    transfer.fit(transfer.LABELLED)
    n = len(transfer.EPSILONS)
    assert calls == [2 * n] * transfer.DRAWS
    rows = transfer.read(tmp_path / transfer.ROWS)
    assert len(rows) == transfer.DRAWS * 2 * n + transfer.AUTO_DRAWS * n + 2


@pytest.mark.parametrize("name", transfer.PRESETS)
def test_the_stored_fits_are_whole(name):
    assert transfer.missing(name) == []


def test_a_recipe_is_known_again_by_its_row():
    how = recipe(True)
    row = json.loads(json.dumps({"recipe": asdict(how)}))
    assert row["recipe"] == transfer._plain(how)


def test_synthetic_images_are_all_different_and_of_one_class():
    made = pretraining.synthetic(3)
    assert made.x.shape == (3, 3, SIDE, SIDE)
    assert len(made.x.flatten(1).unique(dim=0)) == 3
    spread = made.x.float().std(dim=(1, 2, 3))
    assert spread.min() > 10
    assert not made.y.any()
