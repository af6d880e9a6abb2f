"""Rows that are no images: tokens, tables and series, from arrays and files."""

import json

import numpy as np
import pytest
import torch
from commands import dphead, refused
from exports import documented
from finetune.core import images_file
from safetensors.numpy import save_file
from torch import nn

from dphead import DPFinetuneClassifier, PrivateTraining
from dphead.export.trained import Trained
from dphead.export.words import example, input_in_words
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.rows import ImageRows
from dphead.finetune.settings import ModelSpec
from dphead.privacy.contract import SumTask
from dphead.privacy.ledger import Ledger
from dphead.privacy.transform import RowTransform

WORDS = 20
MODULES = f"""
from torch import nn
def text(n_classes):
    layers = (nn.Embedding({WORDS}, 4), nn.Flatten(), nn.Linear(20, n_classes))
    return nn.Sequential(*layers)
def series(n_classes):
    layers = (nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, n_classes))
    return nn.Sequential(*layers)
"""


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(20, 2))


def texts(n=40):
    """Tokens (n, 5), whose class is seen in each of them, and the classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    return rng.integers(0, WORDS // 2, (n, 5)) + WORDS // 2 * y[:, None], y


def classifier(**more):
    given = {"model": module(), "classes": [0, 1], "epsilon": 50.0, "delta": 1e-3}
    given |= {"noise_multiplier": 1.0, "accountant": "rdp", "batch_size": 20}
    return DPFinetuneClassifier(**given | {"steps": 2, "vocabulary": WORDS} | more)


def test_the_programs_of_the_page_learn_a_text_a_table_and_a_series(capsys):
    code = documented("rows", "networks.md")
    exec(compile(code, "networks.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == "True\n" * 3


def test_a_row_with_an_unknown_token_adds_zero_and_stops_nothing():
    """An error at a private row would tell of it after the charge."""
    spec = NetworkSpec(ModelSpec("own:text", vocabulary=WORDS), (5,), 2, pixels=False)
    network = Network(spec, module=module())
    weights = network.start.astype(np.float32)
    task = SumTask(network.statistic, StepParams(RowTransform(), weights), 1.0)
    sums = TorchSums(network, chunk=4)

    def summed(x, y):
        total = np.zeros(network.statistic.size, int)
        for block in ImageRows(x, y).blocks():
            sums.add(task, block, block.y, block.index >= 0, total)
        return total

    x, y = texts(9)
    alone = summed(x, np.where(np.arange(9) == 3, -1, y))
    assert (summed(x, y) != alone).any()
    # a file may have halves and numbers that are not finite
    for token in (-1, WORDS, 2**24 + 1, 2**62, -(2**62), 0.5, np.nan, np.inf):
        wrong = x.astype(np.float64 if isinstance(token, float) else np.int64)
        wrong[3, 2] = token
        assert (summed(wrong, y) == alone).all(), token


def test_a_fit_with_unknown_tokens_is_made_and_no_class_is_made_up():
    x, y = texts()
    x[7] = WORDS
    model = classifier().fit(x, y)
    assert model.predict(x[:7]).shape == (7,)
    with pytest.raises(ValueError, match=r"1 rows have no scores .* row 7"):
        model.predict(x)


@pytest.mark.parametrize(
    "given, rows, said",
    [
        ({"vocabulary": WORDS + 1}, texts()[0], "index out of range"),
        ({"vocabulary": None}, texts()[0], "Tokens need `vocabulary`"),
        ({}, texts()[0].astype(float), "must be integer tokens"),
        ({"views": 2, "augment": "crop"}, texts()[0], "--augment applies to images"),
    ],
)
def test_rows_that_a_module_cannot_read_are_refused_before_the_charge(
    given, rows, said, tmp_path
):
    book = tmp_path / "ledger.sqlite"
    with pytest.raises(ValueError, match=said):
        classifier(ledger=book, **given).fit(rows, texts()[1])
    if given.keys() == {"vocabulary"}:
        loop = PrivateTraining(
            module(),
            lambda model, x, y: nn.functional.cross_entropy(model(x), y),
            (rows, texts()[1]),
            classes=[0, 1],
            sampling_prob=0.5,
            steps=2,
            ledger=book,
            noise_multiplier=1.0,
            **given,
        )
        with pytest.raises(ValueError, match=said), loop:
            pass
    assert not book.exists() or not Ledger(book).fits()


def test_a_loop_of_ones_own_gets_a_gradient_of_tokens():
    model = module()
    kinds = set()

    def loss(model, x, y):
        kinds.add(x.dtype)
        return nn.functional.cross_entropy(model(x), y)

    given = {"classes": [0, 1], "sampling_prob": 0.5, "steps": 1, "epsilon": 50.0}
    given |= {"delta": 1e-3, "noise_multiplier": 1.0, "accountant": "rdp"}
    with PrivateTraining(
        model, loss, map(torch.from_numpy, texts()), vocabulary=WORDS, **given
    ) as training:
        assert next(training)["0.weight"].shape == (WORDS, 4)
    assert kinds == {torch.int64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tokens in safetensors, and series of shape (2, 6) in a folder of .npy."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows_of_files.py").write_text(MODULES)
    x, y = texts()
    save_file({"features": x, "label": y}, folder / "texts.safetensors")
    waves = np.random.default_rng(0).normal(size=(40, 2, 6))
    (folder / "waves").mkdir()
    for name, values in (("features", waves), ("label", y)):
        np.save(folder / "waves" / f"{name}.npy", values)
    for source in ("texts.safetensors", "waves"):
        output = folder / f"{source.removesuffix('.safetensors')}.h5"
        dphead("features", "import", folder / source, "-o", output, "--classes", "2")
    return folder


@pytest.mark.parametrize(
    "name, more",
    [
        ("texts", ["--vocabulary", WORDS, "--model", "rows_of_files:text"]),
        ("waves", ["--shape", "2,6", "--model", "rows_of_files:series"]),
    ],
)
def test_the_command_trains_on_arrays_of_files(name, more, folder, monkeypatch):
    monkeypatch.chdir(folder)
    source, run = f"{name}.h5", f"{name}-run"
    words = ["--epsilon", "50", "--noise-multiplier", "1", "--batch-size", "20"]
    words += ["--steps", "2", "--delta", "1e-3", "--accountant", "rdp", "-o", run]
    done = dphead("finetune", source, *words, *more, "--ledger", f"{name}.sqlite")
    assert done.code == 0, done.err
    made = json.loads((folder / run / "model.json").read_text())["network"]
    assert made["shape"] == ([5] if name == "texts" else [2, 6])
    if name == "texts":
        model = more[-2:]
        done = dphead("predict", run, source, *model, "-o", "predicted.csv")
        assert done.code == 0, done.err
        assert len((folder / "predicted.csv").read_text().splitlines()) == 41
        # the export compares its scores
        done = dphead("export", run, "--to", "torch", "-o", "exported", *model)
        assert done.code == 0, done.err


def test_a_vocabulary_of_images_is_refused(tmp_path):
    source = images_file(tmp_path / "images.npz", test=0)
    words = ["--classes", "3", "--vocabulary", "9", "--steps", "2"]
    words += ["--batch-size", "20", "--model", "wrn-10-1", "-o", tmp_path / "run"]
    said = refused(dphead("finetune", source, *words))
    assert "--vocabulary 9 applies to tokens, not to images" in said


def test_a_recurrent_network_is_trained():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    x = np.random.default_rng(0).normal(size=(40, 6, 3))
    classifier(model=Last(), vocabulary=None).fit(x, texts()[1])


@pytest.mark.parametrize("vocabulary", [None, WORDS])
@pytest.mark.parametrize("group", [0, 3])
def test_the_random_rows_of_trials_all_count(vocabulary, group):
    """Otherwise a trial before the charge would compare sums of zeros."""
    model = ModelSpec("own:text", vocabulary=vocabulary)
    spec = NetworkSpec(model, (5,), 2, pixels=vocabulary is None, images=group)
    x = spec.random(np.random.default_rng(0), 50)
    rows, labels = spec.unpacked(x, np.zeros(50, int))
    assert spec.readable(rows).all()
    # of groups, labels of every class
    assert set(labels.ravel()) == ({0, 1} if group else {0})
    assert len(np.unique(rows)) >= WORDS


@pytest.mark.parametrize(
    "rows, said",
    [
        (np.ma.masked_equal(texts()[0], 3), "cannot be a masked array"),
        ([[1, 2], [3]], "all rows must have the same shape"),
        (np.zeros((9, 3, 0), int), r"got int64 of shape \(9, 3, 0\)"),
    ],
)
def test_rows_with_hidden_values_or_without_one_shape_are_refused(rows, said):
    with pytest.raises(ValueError, match=said):
        classifier().fit(rows, texts(len(rows))[1])


class Counting(nn.Module):
    """Divides by the number of all tokens of a batch that are no padding."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        mask = (tokens != 0).float()
        words = (self.words(tokens) * mask.unsqueeze(-1)).sum(dim=1)
        return self.head(words / mask.sum())


def test_a_mask_that_couples_rows_is_refused():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="head with an output that depends on other"):
        classifier(model=Counting()).fit(*texts())


def test_the_examples_of_exports_have_tokens(tmp_path):
    spec = {"model": "own:text", "vocabulary": WORDS}
    facts = {"network": {"shape": [5], "model": spec}, "extraction": {}}
    trained = Trained(tmp_path, None, facts, {}, None, model=module())
    assert input_in_words(trained, "features") == "5 tokens per row, from 0 to 19"
    for to in ("torch", "onnx"):
        code = example(trained, to, "features", "out")
        (line,) = (one for one in code.splitlines() if one.startswith("features ="))
        found = {"np": np, "torch": torch}
        exec(line, found)
        assert module()(torch.as_tensor(found["features"]).long()).shape == (3, 2)
