"""Networks on several processes, which are threads here: the network of one process,
or a refusal before the charge. `test_run` has a test with real processes.
"""

import gc
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from dphead_extract.sources.image import Source
from finetune.core import CLIPS
from finetune.test_run import (
    SETTINGS,
    Crash,
    allocated,
    crash_at,
    maps,
    options,
    source,
)
from safetensors.torch import save_file
from together import together

from dphead.finetune.models import build_network
from dphead.finetune.processes import torchrun_place
from dphead.finetune.run import finetune
from dphead.finetune.saved import read_network
from dphead.finetune.settings import ModelSpec
from dphead.fit.processes import agree
from dphead.privacy.ledger import Ledger


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads are joined already, and the papers' accountants take seconds."""

    @contextmanager
    def joined(place, only_cpu):
        yield place

    lock = threading.Lock()

    def built(*arguments):
        with lock:  # torch's generator of weights is one for all threads
            return build_network(*arguments)

    monkeypatch.setattr("dphead.finetune.run.joined", joined)
    for name in ("run", "network"):
        monkeypatch.setattr(f"dphead.finetune.{name}.build_network", built)
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})


def trained(*asked, progress=None, prepare=lambda hosts: None):
    """Train with the options of each process; return what each raised, or ""."""

    def work(hosts):
        prepare(hosts)
        try:
            told = progress if hosts.first else None
            finetune(replace(asked[hosts.index], processes=hosts), progress=told)
        except ValueError as error:
            if "process 0 differ" not in str(error):
                raise
            return str(error)
        return ""

    return together(len(asked), work)[0]


def same_networks(one, two):
    """Whether two run folders have equal weights, to the last bit."""
    a, b = (read_network(folder)[1].average for folder in (one, two))
    return a.tobytes() == b.tobytes()


def test_allocation_on_three_processes_gives_the_network_of_one(tmp_path):
    source(tmp_path)
    finetune(allocated(tmp_path, "one", ledger=tmp_path / "one.sqlite"))
    asked = allocated(tmp_path, "three")
    assert trained(asked, asked, asked) == [""] * 3
    assert same_networks(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize("epsilon", [4.0, np.inf])
def test_maps_with_private_normalization_give_the_network_of_one(epsilon, tmp_path):
    """Without noise the processes find the clip norm together."""
    asked = replace(
        maps(tmp_path, normalization=CLIPS), seed=1, not_private=True, epsilon=epsilon
    )
    asked = replace(asked, ledger=tmp_path / "ledger.sqlite")
    finetune(replace(asked, out=tmp_path / "one"))
    assert trained(asked, asked) == [""] * 2
    assert same_networks(tmp_path / "one", tmp_path / "run")


def test_maps_larger_than_the_memory_of_a_chunk_are_trained_on(tmp_path):
    finetune(replace(maps(tmp_path), memory=100_000))


def test_an_interrupted_run_continues_on_several_processes_from_its_checkpoint(
    tmp_path,
):
    """Of which only process 0 has the folder."""
    source(tmp_path)
    finetune(options(tmp_path, "whole", ledger=tmp_path / "other.sqlite"))
    asked = options(tmp_path, "run")
    elsewhere = replace(asked, out=tmp_path / "none")
    with pytest.raises(Crash):  # after the checkpoint at step 2
        trained(asked, elsewhere, progress=crash_at(3))
    gc.collect()  # the frames of the crash hold the folder's lock
    assert trained(asked, elsewhere) == [""] * 2
    assert same_networks(tmp_path / "whole", tmp_path / "run")
    (charged,) = Ledger(tmp_path / "ledger.sqlite").fits()
    assert [r["state"] for r in charged["releases"]] == ["committed"] * 5
    assert not (tmp_path / "none").exists()


def test_each_process_reads_its_own_images(tmp_path, monkeypatch):
    """Process 0 reads all, to know them again."""
    source(tmp_path)
    read = []
    raw = Source.raw
    monkeypatch.setattr(
        Source, "raw", lambda self, row: read.append(row) or raw(self, row)
    )
    asked = replace(options(tmp_path, "run"), test_split=None, test_is="private")
    assert trained(asked, asked, asked) == [""] * 3
    # process 0 reads its test rows later; parts of 40 rows begin at 0, 13 and 26
    assert sorted(read) == sorted([*range(40), *range(13, 26), *range(26, 40)])


def weights(folder, seed):
    """A file of public weights."""
    path = folder / f"{seed}.safetensors"
    network = build_network(ModelSpec("wrn-10-1", groups=4, init_seed=seed), 3)
    save_file(network.state_dict(), path)
    return str(path)


def other_file(folder, change):
    """The images with a change of the arrays of the npz, in another folder."""
    (folder / "other").mkdir()
    with np.load(source(folder)) as file:
        arrays = change(dict(file))
    np.savez(folder / "other" / "images.npz", **arrays)
    return {"features": folder / "other" / "images.npz"}


def moved(at):
    """A change of one pixel or label of a row."""

    def change(arrays):
        name, row = at
        if name == "labels":
            arrays[name][row] = "b" if arrays[name][row] == "a" else "a"
        else:
            arrays[name][row, 0, 0, 0] ^= 1
        return arrays

    return change


def swapped(arrays):
    """Two training rows of the second part in the other order."""
    order = np.arange(len(arrays["images"]))
    order[[30, 31]] = 31, 30
    return {name: values[order] for name, values in arrays.items()}


def fewer(arrays):
    """The images without the first one."""
    return {name: values[1:] for name, values in arrays.items()}


def setting(**changes):
    return lambda folder: {"settings": replace(SETTINGS, **changes)}


DIFFERENCES = [
    ("settings: --clip-norm (2.0 and 1.0)", setting(clip_norm=2.0)),
    ("settings: --learning-rate (0.25 and 0.5)", setting(learning_rate=0.25)),
    ("settings: --init-seed (1 and 0)", setting(init_seed=1)),
    ("settings: --mean (0.4 and None)", lambda _: {"mean": 0.4}),
    ("settings: --std ((0.1, 0.2, 0.3) and None)", lambda _: {"std": (0.1, 0.2, 0.3)}),
    ("settings: --bf16 (True and False)", lambda _: {"bf16": True}),
    ("settings: --epsilon (2.0 and 4.0)", lambda _: {"epsilon": 2.0}),
    ("settings: --seed (4 and 3)", lambda _: {"seed": 4}),
    ("settings: --split (test and train)", lambda _: {"split": "test"}),
    ("weights", lambda folder: setting(weights=weights(folder, 1))(folder)),
    ("images", lambda folder: other_file(folder, moved(("images", 39)))),
    ("images", lambda folder: other_file(folder, moved(("labels", 20)))),
    ("images", lambda folder: other_file(folder, swapped)),
    ("n_rows", lambda folder: other_file(folder, fewer)),
]


@pytest.mark.parametrize("name, change", DIFFERENCES)
def test_a_process_that_differs_is_refused_on_all_before_the_charge(
    name, change, tmp_path
):
    source(tmp_path)
    asked = options(tmp_path, "run")
    public = replace(SETTINGS, weights=weights(tmp_path, 0))
    asked = replace(asked, settings=public if name == "weights" else SETTINGS)
    said = trained(asked, replace(asked, **change(tmp_path)))
    for text in said:
        assert f"process 1 and process 0 differ in {name}." in text
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()


def test_files_of_equal_content_and_own_folders_are_accepted(tmp_path):
    source(tmp_path)
    asked = options(tmp_path, "run")
    own = {"out": tmp_path / "none", "ledger": None, "test_split": None}
    own |= other_file(tmp_path, lambda arrays: arrays)
    own |= {"memory": 10**9, "test_is": "private", "evaluate_every": 0}
    assert trained(asked, replace(asked, **own)) == [""] * 2
    assert not (tmp_path / "none").exists()


# one's own network: its code, which no digest of weights covers, depends on the thread
OWN = """
import threading
from torch import nn

class Scaled(nn.Linear):
    def forward(self, x):
        return self.factor * super().forward(x)

def network(n_classes):
    layer = Scaled(192, n_classes)
    layer.factor = threading.current_thread().factor
    return nn.Sequential(nn.Flatten(), layer)
"""


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_process_that_computes_other_gradients_is_refused_before_the_charge(
    factor, tmp_path, monkeypatch
):
    source(tmp_path)
    (tmp_path / "threads_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = replace(SETTINGS, model="threads_own:network")
    asked = replace(options(tmp_path, "run"), settings=own)

    def prepare(hosts):
        threading.current_thread().factor = 1.0 if hosts.first else factor

    said = trained(asked, asked, prepare=prepare)
    if factor == 1.0:
        assert said == ["", ""]
        return
    for text in said:
        assert "process 1 and process 0 differ in gradients of random images" in text
    assert not Ledger(tmp_path / "ledger.sqlite").fits()


@pytest.mark.parametrize(
    "other, name",
    [
        ({"version": "torch 2.6"}, r"version \(torch 2.6 and torch 2.7\)"),
        ({"version": "torch 2.7", "more": "1"}, "more"),
        ({}, "version"),
    ],
)
def test_another_version_is_refused_whatever_it_compares(other, name):
    facts = [{"version": "torch 2.7"}, {"version": "torch 2.7"}, other]

    def work(hosts):
        with pytest.raises(
            ValueError, match=f"process 2 and process 0 differ in {name}"
        ):
            agree(hosts, facts[hosts.index])
        return True

    assert together(3, work)[0] == [True] * 3


TORCHRUN = {"WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


def set_environment(monkeypatch, **values):
    for name in ("RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_processes_find_process_0_where_torchrun_says(monkeypatch):
    set_environment(monkeypatch, WORLD_SIZE="1")
    assert torchrun_place() is None
    set_environment(monkeypatch, **TORCHRUN, RANK="1")
    place = torchrun_place()
    assert (place.coordinator, place.count, place.index) == ("node7:29500", 2, 1)
    assert not place.local
    set_environment(monkeypatch, **TORCHRUN)
    with pytest.raises(ValueError, match="RANK is not set, but WORLD_SIZE is 2"):
        torchrun_place()


@pytest.mark.parametrize(
    "one_host, address",
    [(True, "127.0.0.1"), (False, "127.0.0.1"), (False, "0.0.0.0")],
)
def test_torchruns_own_store_gives_the_port_of_process_0(
    one_host, address, monkeypatch
):
    """On one host it cannot send a process elsewhere: other hosts reach that store.

    Two torchrun commands with a loopback address are on one host.
    """
    agent = torch.distributed.TCPStore(
        address, 0, is_master=True, wait_for_workers=False
    )
    given = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "1"}
    given |= {"MASTER_ADDR": address, "MASTER_PORT": str(agent.port)}
    given |= {"LOCAL_WORLD_SIZE": "2" if one_host else "1"}
    set_environment(monkeypatch, **given)
    agent.set("dphead 0", "192.0.2.1:4444")
    place = torchrun_place()
    local = one_host or address == "127.0.0.1"
    expected = "127.0.0.1:4444" if local else "192.0.2.1:4444"
    assert place.coordinator == expected
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    ours = torchrun_place()
    assert ours.local and ours.coordinator == agent.get("dphead 0").decode()
    assert ours.coordinator != f"127.0.0.1:{agent.port}"
