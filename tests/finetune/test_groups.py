"""A network that protects groups: a group is one row, with the mean of its images."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import dphead, id_of, report_of
from dphead_extract.sources.classes import Classes
from finetune.core import OWN, images, images_file
from numpy.testing import assert_array_equal
from torch import nn

from dphead.finetune.estimator import DPFinetuneClassifier
from dphead.finetune.gradients import CLIP_INTEGERS, PerExample
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.options import FinetuneOptions
from dphead.finetune.own_loop import PrivateTraining
from dphead.finetune.rows import ImageRows, group_places
from dphead.finetune.settings import ModelSpec, Settings
from dphead.finetune.sources import identified, load_data
from dphead.fit.ledgers import counted_in, image_index
from dphead.fit.people import declare_people
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import SumTask
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.sampling import NO_GROUP
from dphead.privacy.transform import RowTransform
from dphead.sums.hosts import bounds
from dphead.sums.passes import checked_sum

CAP, CLIP = 3, 1e-2  # every gradient is clipped


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def network(cap=CAP, **options):
    spec = NetworkSpec(ModelSpec("a:b"), (3, 8, 8), 3, images=cap, **options)
    return Network(spec, module=module())


def people(n=24, seed=0):
    """Images (n, 3, 8, 8), labels with some missing, and groups of 1 to 5 images."""
    rng = np.random.default_rng(seed)
    x, y = images(n)
    y[rng.random(n) < 0.2] = -1
    groups = rng.integers(0, n // 3, n) * 10**12
    groups[[2, 9]] = NO_GROUP
    return x, y, groups


def rows_of(x, y, groups):
    return ImageRows(x, y, groups, CAP)


def total(net, rows, clip_norm=CLIP, chunk=4):
    params = StepParams(RowTransform(), net.start.astype(np.float32), 0)
    ask = SumTask(net.statistic, params, clip_norm, rows)
    return checked_sum([ask], TorchSums(net, chunk=chunk))[0]


def by_hand(net, x, y, groups, clip_norm):
    """The sum by a loop: groups in any order, images in the order of the source."""
    gradients = PerExample(net.model)
    gradients.set(torch.from_numpy(net.start))
    units = {}
    for i, group in enumerate(groups.tolist()):
        units.setdefault(f"alone {i}" if group == NO_GROUP else group, []).append(i)
    found = np.zeros(net.statistic.size)
    for places in units.values():
        used = [i for i in places[:CAP] if y[i] >= 0]
        if used:
            each = gradients.parts(
                net.spec.inputs(x[used].astype(np.float32).reshape(len(used), -1), 0),
                torch.from_numpy(y[used]),
            )
            flat = torch.cat([torch.cat(part.columns, 1) for part in each], 1)
            mean = flat.double().mean(dim=0)
            found += (mean * min(1, clip_norm / float(mean.norm()))).numpy()
    return found


@pytest.mark.parametrize("clip_norm", [CLIP, 1e3])
def test_the_sum_is_that_of_the_clipped_mean_of_each_groups_first_images(clip_norm):
    net, (x, y, groups) = network(), people()
    unit = clip_norm / CLIP_INTEGERS
    found = total(net, rows_of(x, y, groups), clip_norm) * unit
    # truncation of each of 15 groups, and float32 gradients of up to 3
    np.testing.assert_allclose(
        found, by_hand(net, x, y, groups, clip_norm), rtol=1e-5, atol=30 * unit + 2e-5
    )


def neighbors(x, y, groups, group):
    """The data without a group, with its contribution zeroed, and with another's."""
    own = groups == group
    yield "add_remove", (x[~own], y[~own], groups[~own])
    yield "zero_out", (x, np.where(own, -1, y), groups)
    other = x.copy()
    other[own] = 255 - x[own]
    yield "replace_one", (other, np.where(own, (y + 1) % 3, y), groups)


def test_a_group_moves_the_sum_by_at_most_the_clip_norm_over_all_neighbors():
    """In whole numbers, for each group: no rounding is granted."""
    net, data = network(), people()
    whole, farthest = total(net, rows_of(*data)), 0.0
    for group in np.unique(data[2][data[2] != NO_GROUP]):
        for relation, other in neighbors(*data, group):
            moved = int(
                ((total(net, rows_of(*other)) - whole).astype(object) ** 2).sum()
            )
            squared = net.statistic.sensitivity_sq(relation, CLIP)
            assert moved <= squared
            farthest = max(farthest, moved / squared)
    assert farthest > 0.99


def test_what_is_used_of_a_group_does_not_depend_on_other_groups():
    _, _, groups = people(60)
    places = group_places(len(groups), groups, CAP)
    assert len(places) == len(set(groups.tolist()) - {NO_GROUP}) + 2
    for row in places:
        used = row[row >= 0]
        group = groups[used[0]]
        own = used[:1] if group == NO_GROUP else np.flatnonzero(groups == group)
        assert_array_equal(used, own[:CAP])
    for group in np.unique(groups[groups != NO_GROUP])[:3]:
        kept = np.flatnonzero(groups != group)
        again = group_places(len(kept), groups[kept], CAP)
        again = np.where(again >= 0, kept[again], -1)
        without = places[~np.isin(places, np.flatnonzero(groups == group)).any(axis=1)]
        assert {tuple(r) for r in again} == {tuple(r) for r in without}


def test_parts_and_chunks_add_to_the_sum_of_all_groups():
    net, data = network(views=2, augment="crop"), people()
    rows = rows_of(*data)
    half = rows.n_rows // 2
    parts = [rows.part(0, half), rows.part(half, rows.n_rows)]
    found = sum(total(net, part, chunk=1) for part in parts)
    # other kernels for a chunk of one group: a few of a million parts for each group
    np.testing.assert_allclose(found, total(net, rows), rtol=0, atol=100)
    assert rows.part(0, rows.n_rows).digest() == rows.digest() != parts[0].digest()


def test_an_image_that_is_not_finite_leaves_its_group_the_others():
    net, (x, y, groups) = network(pixels=False), people()
    x = x.astype(np.float32)
    own = np.flatnonzero((groups == groups[0]) & (y >= 0))[:1]
    x[own, 0, 0, 0] = np.nan
    expected = total(net, rows_of(x, np.where(np.arange(24) == own, -1, y), groups))
    assert_array_equal(total(net, rows_of(x, y, groups)), expected)


class Standardized(nn.Module):
    """Each image by its own mean and deviation: zeros give NaN."""

    def forward(self, x):
        x = x.flatten(1)
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def test_places_that_a_group_does_not_use_do_not_change_its_gradient():
    x, y = images(20)
    module = nn.Sequential(Standardized(), nn.Linear(192, 3))
    found = []
    for cap in (2, 3):
        spec = NetworkSpec(ModelSpec("a:b"), (3, 8, 8), 3, images=cap)
        rows = ImageRows(x, y, np.arange(20) // 2, cap)
        found.append(total(Network(spec, module=module), rows))
    assert found[0].any()
    # other kernels for 3 images: a few of a million parts for each of 10 groups
    np.testing.assert_allclose(*found, rtol=0, atol=100)


def classifier(**more):
    given = {"model": module(), "classes": range(3), "epsilon": 20.0, "delta": 1e-3}
    given |= {"batch_size": 5, "steps": 4, "accountant": "rdp"}
    given |= {"noise_multiplier": 1.0, "group_cap": CAP}
    return DPFinetuneClassifier(**(given | more))


def test_a_group_is_sampled_and_charged_once_whatever_its_number_of_images(
    tmp_path, monkeypatch
):
    x, y, groups = people(60)
    sampled, blocks = [], ImageRows.blocks

    def seen(self, indices=None, known=None):
        sampled.append((self.n_rows, indices))
        return blocks(self, indices, known)

    monkeypatch.setattr(ImageRows, "blocks", seen)
    ledger = tmp_path / "ledger.sqlite"
    model = classifier(ledger=ledger).fit(x.transpose(0, 2, 3, 1), y, groups=groups)
    n = len(set(groups.tolist()))  # -1 is the name of a group
    assert [rows for rows, _ in sampled] == [n] * 4
    assert all(set(i.tolist()) <= set(range(n)) for _, i in sampled)
    event = GaussianEvent(1.0, 5 / n, 4)
    assert model.privacy_.epsilon == accounting.compose_epsilon([event], 1e-3)
    assert "at most one mean counts" in model.privacy_.protected_unit
    assert model.privacy_.n_rows == n
    with pytest.raises(ValueError, match="group"):  # the ledger's unit is a group
        alone = classifier(ledger=ledger, group_cap=None, protect="image")
        alone.fit(x.transpose(0, 2, 3, 1), y, groups=groups)
    with pytest.raises(ValueError, match="got group_cap=3 without groups"):
        classifier().fit(x.transpose(0, 2, 3, 1), y)


def options(folder, **more):
    settings = Settings("wrn-10-1", batch_size=5, steps=1, noise_multiplier=2.0)
    given = {"features": folder / "images.npz", "out": folder / "run", "split": "train"}
    given |= {"settings": settings, "group_cap": 2, "delta": 1e-3}
    given |= {"classes": Classes(["0", "1", "2"])}
    return FinetuneOptions(**(given | more))


def test_the_command_protects_groups_and_says_so(tmp_path):
    images_file(tmp_path / "images.npz", group=np.arange(60) // 3)
    ledger = tmp_path / "l.sqlite"
    command = (
        f"finetune {tmp_path / 'images.npz'} -o {tmp_path / 'run'} --classes 3 --split "
        "train --model wrn-10-1 --groups 4 --delta 1e-3 --accountant rdp --epsilon 20 "
        f"--batch-size 7 --steps 2 --noise-multiplier 1 --ledger {ledger}"
    ).split()
    assert "Use --group-cap to protect each group" in dphead(*command).err
    done = dphead(*command, "--group-cap", "2", "--test-split", "test")
    assert done.code == 0, done.err
    assert "on 14 groups" in done.out and "the number of groups" in done.out
    report = report_of(tmp_path / "run")
    assert report["data"]["n_rows"] == 14  # of 40 images
    assert report["method"]["settings"]["images_of_a_group"] == 2
    assert "The number of training groups, 14, is public" in report["statement"]
    assert "one person (group)" in dphead("check", tmp_path / "run").out
    (fit,) = Ledger(ledger).fits()
    assert {r["group_cap"] for r in fit["releases"]} == {1}


def test_groups_without_a_home_are_refused_before_the_charge(tmp_path, monkeypatch):
    """Without its key, later fits could group the same images in other ways."""
    images_file(tmp_path / "images.npz", group=np.arange(60) // 3)
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    asked = options(tmp_path, ledger=tmp_path / "l.sqlite")
    data = load_data(asked, asked.features, "train")
    with pytest.raises(LedgerError, match="needs DPHEAD_HOME"):
        identified(asked, data, None)


@pytest.mark.parametrize("split", [None, "train"])
def test_images_of_a_file_whose_ledger_was_merged_share_its_ledger(tmp_path, split):
    """The file says that its people are new, and they no longer are."""
    groups, one = np.arange(40) // 3, tmp_path / "one.h5"
    splits = {"split": np.where(np.arange(40) % 4, "train", "test")} if split else {}
    images_file(tmp_path / "images.npz", n=40, test=0, group=groups, **splits)
    rows = {"features": np.eye(40, 3), "label": groups % 3, "group": groups, **splits}
    np.savez(tmp_path / "rows.npz", **rows)
    command = ("features", "import", tmp_path / "rows.npz", "-o", one, "--classes", 3)
    assert dphead(*command, "--people", "clinic", "--new-people").code == 0
    declare_people(one, "clinic", False)
    asked = options(tmp_path, split=split, ledger=None, same_data_as=one)
    data = load_data(asked, asked.features, split)
    found = identified(asked, data, image_index())
    assert found.charged.dataset_id == id_of(one)
    assert found.source.dataset_id == counted_in(id_of(one)) != id_of(one)
    assert found.source.people == {"system": "clinic", "new": False}


def test_each_process_reads_the_images_of_its_own_groups(tmp_path):
    rng = np.random.default_rng(0)
    images_file(tmp_path / "images.npz", test=0, group=rng.integers(0, 20, 60))
    asked = options(tmp_path, split=None)
    first, second = (
        load_data(
            asked,
            asked.features,
            None,
            None,
            SimpleNamespace(
                first=i == 0,
                index=i,
                count=2,
                part=lambda n, i=i: bounds(n, 2)[i : i + 2],
            ),
        )
        for i in (0, 1)
    )
    assert first.rows.n_rows == second.rows.n_rows
    assert first.facts["images"][1] == second.facts["images"][1] == second.own.digest()
    (block,) = second.own.blocks()
    assert (block.x[block.index >= 0].reshape(-1, 2, 193)[:, 0, :-1] > 0).any()


def test_sources_without_groups_and_maps_are_refused(tmp_path):
    images_file(tmp_path / "images.npz")
    asked = options(tmp_path)
    with pytest.raises(ValueError, match="--group-cap needs groups"):
        load_data(asked, asked.features, "train")


@pytest.mark.parametrize("batch_size", [20, 5])
def test_groups_of_a_network_are_audited(batch_size, tmp_path, monkeypatch):
    """Their rows hold two images; a sampled group counts once."""
    (tmp_path / "of_groups.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = "audit --sizes 20,192,2 --fits 4 --epsilon 8 --delta 1e-3 --group-cap 2"
    words += " --network of_groups:network --shape 3,8,8 --clip-norm 0.001 -o ."
    words += f" --accountant rdp --noise-multiplier 2 --batch-size {batch_size}"
    words += " --confidence 0.999999"  # odds of a false alarm of at most 2e-6
    done = dphead(*words.split())
    assert done.code == 0, done.err + done.out
    found = json.loads((tmp_path / "audit.json").read_text())
    assert (found["group_cap"], found["n_features"]) == (1, 2 * 193)


def test_a_loop_of_ones_own_protects_groups():
    x, y, groups = people(60)
    found = []
    for labels in (y, np.where(groups == groups[0], -1, y)):
        with PrivateTraining(
            module(),
            lambda model, x, y: nn.functional.cross_entropy(model(x), y),
            (x, labels),
            groups=groups,
            group_cap=CAP,
            classes=range(3),
            sampling_prob=1.0,
            steps=1,
            epsilon=20.0,
            clip_norm=CLIP,
            random_state=0,
            allow_large_delta=True,
        ) as private:
            found.append(next(private)["1.weight"] * private.privacy.n_rows)
    moved = float((found[0] - found[1]).norm())
    assert 0.5 * CLIP <= moved <= CLIP * 1.001  # without the bias; float32
    with pytest.raises(ValueError, match="need each other"):
        replace(private, groups=None).__enter__()
