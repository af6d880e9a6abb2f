"""Heads for other software: they score as dphead does, and carry their guarantee."""

import json
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import (
    fitted,
    report_of,
    rows,
    run_of,
    words,
)
from exports import documented, holds, without_dphead
from numpy.testing import assert_allclose
from safetensors import safe_open

from dphead.analysis.metrics import predicted_classes, probabilities
from dphead.analysis.sealed import write_json
from dphead.export import heads, sklearn_head, torch_head
from dphead.export.exporting import FORMATS, export
from dphead.export.trained import Trained, guarantee_of, tensors_of
from dphead.export.words import example, readme
from dphead.fit.head_file import open_head, save_head
from dphead.fit.ledgers import read_known
from dphead.privacy.axes import PublicAxes
from dphead.privacy.loss import LOSSES
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

RNG = np.random.default_rng(0)
CENTER = RNG.normal(size=12).astype(np.float32)
SCALE = np.append(RNG.random(11), 0).astype(np.float32)  # a feature that is left out
TRANSFORMS = {
    "bare": RowTransform(),
    "unit": RowTransform(unit_norm=True),
    "centered": RowTransform(True, CENTER),
    "scaled": RowTransform(True, CENTER, SCALE),
    "normalized": RowTransform(False, CENTER, SCALE),
    "on axes": RowTransform(True, CENTER[:5]),
}
# formats of a head alone; each has a module `TO_head.py`, which the export copies
HEADS = [to for to, (place, _) in FORMATS.items() if place.startswith(heads.__name__)]
AXES = PublicAxes(np.linalg.qr(RNG.normal(size=(12, 5)))[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder of `auto`, made once; tests read it, or copy it."""
    folder = tmp_path_factory.mktemp("portable")
    return run_of(folder, "--method", "auto", "--epsilon", 2)


def with_head(run, copy, transform, loss, m=3, clip=None):
    """A copy of the run folder with another head."""
    copy.mkdir()
    report = report_of(run)
    names = [f"class {k}" for k in range(m)]
    report["data"]["class_names"] = names
    axes = AXES if transform is TRANSFORMS["on axes"] else None
    width = 12 if axes is None else axes.count
    weights, intercept = RNG.normal(size=(width, m)), RNG.normal(size=m)
    head = LinearHead(weights, intercept, transform, loss, feature_clip=clip, axes=axes)
    facts = open_head(run)[1]
    kept = ("feature_space", "extraction")
    facts = {"class_names": names} | {k: facts[k] for k in kept}
    report["provenance"]["tensors_sha256"] = save_head(copy, head, facts)
    write_json(copy / "report.json", report)
    return head


def hostile_rows():
    x = RNG.normal(size=(40, 12)).astype(np.float32)
    x[0] = 0
    x[1] = 1e-20
    x[2, 3] = np.nan
    x[3, 3] = np.inf
    x[4] *= 1e25
    for row, scale in enumerate((1e-18, 1e-30, 1e-44, 1e18, 1e30), 5):
        x[row] *= scale
    return x


def assert_same_scores(found, expected):
    """Within 1e-4 of a row's largest score, or of one: dphead keeps 20 bits of a row's
    largest entry, which other entries can cancel; others compute in float32. A row
    without a class is NaN in both.
    """
    size = np.maximum(1, np.abs(expected).max(axis=1, keepdims=True))
    assert_allclose(found / size, expected / size, atol=1e-4)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("loss, clip", [("softmax", None), ("sigmoid", 0.5)])
def test_a_torch_head_scores_every_row_as_dphead_does(run, tmp_path, name, loss, clip):
    head = with_head(run, tmp_path / "run", TRANSFORMS[name], loss, clip=clip)
    export(tmp_path / "run", "torch", tmp_path / "out")
    module, classes = torch_head.load_head(tmp_path / "out")
    x = hostile_rows()
    scores = module(torch.from_numpy(x))
    expected = open_head(tmp_path / "run")[0].scores(x)
    assert np.array_equal(expected, head.scores(x), equal_nan=True)
    assert_same_scores(scores.detach(), expected)
    found = module.probabilities(scores).detach()
    none = np.array([2, 3])
    assert np.isnan(found[none]).all()
    assert np.array_equal(module.classes(scores), predicted_classes(expected))
    assert np.flatnonzero(module.classes(scores) < 0).tolist() == none.tolist()
    assert classes == ["class 0", "class 1", "class 2"]
    assert_allclose(found, probabilities(expected, loss), atol=1e-4)
    if clip:
        with pytest.raises(ValueError, match=r"norm of rows to 0\.5\. Use --to torch"):
            export(tmp_path / "run", "sklearn", tmp_path / "pipeline")


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize(
    "name, loss", [*((name, "softmax") for name in TRANSFORMS), ("bare", "sigmoid")]
)
def test_a_sklearn_head_predicts_as_dphead_does(run, tmp_path, name, loss, m):
    head = with_head(run, tmp_path / "run", TRANSFORMS[name], loss, m)
    export(tmp_path / "run", "sklearn", tmp_path / "out")
    classifier = sklearn_head.load_head(tmp_path / "out")
    x = hostile_rows()
    with pytest.raises(ValueError, match="NaN"):
        classifier.predict(x[2:3])
    with pytest.raises(ValueError, match="infinity"), np.errstate(over="ignore"):
        classifier.predict(np.full((1, 12), 1e300))  # no float32
    x = np.delete(x, [2, 3], axis=0)
    z = head.scores(x)
    found = classifier.predict_proba(x)
    # beyond, all of scikit-learn's sigmoids can be zero
    usual = np.abs(z).max(axis=1) < 700
    assert usual.sum() > 30
    assert_allclose(found[usual], probabilities(z, loss)[usual], atol=1e-4)
    assert list(classifier.predict(x)) == [f"class {k}" for k in z.argmax(axis=1)]
    if m == 3:
        assert_same_scores(classifier.decision_function(x), z)


@pytest.mark.parametrize("to", HEADS)
@pytest.mark.parametrize(
    "name, loss", [*((name, "softmax") for name in TRANSFORMS), ("bare", "sigmoid")]
)
def test_each_format_of_a_head_has_its_probabilities(run, tmp_path, to, name, loss):
    """A row that is not finite has none: NaN, or an error of the other software."""
    with_head(run, tmp_path / "run", TRANSFORMS[name], loss)
    export(tmp_path / "run", to, tmp_path / "out")
    assert holds(tmp_path / "out") == []
    trained = Trained(tmp_path / "run", *open_head(tmp_path / "run"), {}, None)
    answer = getattr(heads, to.upper()).load(trained, tmp_path / "out")
    x = hostile_rows()
    for row in (2, 3):
        with suppress(ValueError):
            assert np.isnan(np.asarray(answer(x[row : row + 1]))).all()
    x = np.delete(x, [2, 3], axis=0)
    scores = trained.linear.scores(x)
    usual = np.abs(scores).max(axis=1) < 700  # beyond, all of sigmoids can be zero
    expected = probabilities(scores, loss)
    assert_allclose(np.asarray(answer(x))[usual], expected[usual], atol=1e-4)


@pytest.mark.parametrize("to", HEADS)
def test_an_exported_head_has_every_link_and_refuses_others(run, tmp_path, to):
    """It is copied, and imports no list: a new link would be taken for softmax."""
    module = import_module(f"dphead.export.{to}_head")
    assert set(module.LINKS) == {loss.link for loss in LOSSES.values()}
    export(run, to, tmp_path / "out")
    path = tmp_path / "out/head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"link": "new"}))
    with pytest.raises(ValueError, match="sigmoid, got new"):
        module.load_head(tmp_path / "out")


def test_the_guarantee_goes_with_the_head(run, tmp_path):
    done = export(run, "torch", tmp_path / "out")
    report = report_of(run)
    found = json.loads((tmp_path / "out/guarantee.json").read_text())
    assert found == done.guarantee
    for key in ("private", "epsilon", "delta", "mu", "protected_unit", "group_cap"):
        assert found[key] == report["guarantee"][key]
    assert found["neighboring_relation"] == "zero_out"
    # the ledger's folder may hold a user's name
    path = report["ledger"]["path"]
    stated = report["statement"].replace(path, Path(path).name)
    assert found["statement"] == stated and path not in stated
    for name, key in (("head.safetensors", "head"), ("report.json", "report")):
        digest = sha256((run / name).read_bytes()).hexdigest()
        assert found[f"{key}_sha256"] == digest
    with safe_open(tmp_path / "out/head.safetensors", "numpy") as file:
        assert file.metadata()["dphead.epsilon"] == str(found["epsilon"])
        assert file.metadata()["dphead.statement"] == stated
    about = (tmp_path / "out/README.md").read_text()
    assert "(2, 1e-05)-differentially private" in words(about)


def test_an_export_says_where_decisions_weight_classes_equally(run):
    head, facts = open_head(run)
    finished = read_known(run)
    for balanced, said in ((True, 1), (False, 0), (None, 0)):
        finished.report["balanced"] = balanced
        guarantee = guarantee_of(run, finished, facts)
        assert guarantee["balanced"] is balanced
        text = readme(Trained(run, head, facts, guarantee, None), "features", "code")
        assert words(text).count("assume that classes are equally frequent") == said
    image = "![i](http://evil.example/i.png)"
    named = {**facts, "class_names": ["\x1b[31m", "<img src=x>", image]}
    text = readme(Trained(run, head, named, guarantee, None), "features", "code")
    assert "\\x1b&#91;31m, &lt;img src=x>, !&#91;i&#93;(http" in words(text)
    facts = {**facts, "extraction": {"backbone": "<b>net"}}
    text = readme(Trained(run, head, facts, guarantee, None), "features", "code")
    assert "&lt;b>net" in text


@pytest.mark.parametrize("to", FORMATS)
def test_each_format_has_an_example_of_its_use(run, to):
    """Otherwise `export` fails when the files are written."""
    trained, found = Trained(run, *open_head(run), {}, None), ""
    for takes in ("images", "features"):
        with suppress(KeyError):
            found += example(trained, to, takes, "folder")
    assert '"folder' in found


def test_the_documented_examples_run_where_dphead_cannot_be_imported(run, tmp_path):
    export(run, "torch", tmp_path / "run-torch")
    x = rows(20, seed=7)[0]
    np.save(tmp_path / "x.npy", x)
    ten = documented("torch")
    assert len([line for line in ten.splitlines() if line.strip()]) <= 10
    rand = 'torch.rand(3, facts["n_features"])'
    assert rand in ten
    given = "import numpy\n" + ten.replace(
        rand, "torch.from_numpy(numpy.load('x.npy'))"
    )
    check = "import importlib.util, os\ntry:\n    import dphead\nexcept ImportError:\n"
    check += "    print('no dphead')\n"
    code = check + given + "\nnumpy.save('scores.npy', scores)\n"
    code += documented("module")
    said = without_dphead(tmp_path, code).splitlines()
    assert said[0] == "no dphead"
    head, facts = open_head(run)
    expected = head.scores(x)
    scores = np.load(tmp_path / "scores.npy")
    assert_allclose(scores, expected, atol=1e-4)
    assert said[1] == str([facts["class_names"][k] for k in expected.argmax(axis=1)])
    assert said[2].startswith("tensor(")


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(run, tmp_path):
    with pytest.raises(ValueError, match="is not a format"):
        export(run, "keras", tmp_path / "out")
    with pytest.raises(ValueError, match="run folder of `dphead fit`"):
        export(tmp_path, "torch", tmp_path / "out")
    with pytest.raises(ValueError, match="features of a timm backbone, got"):
        export(run, "timm", tmp_path / "out")
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept").write_text("kept")
    with pytest.raises(ValueError, match="a new or an empty folder"):
        export(run, "torch", full)
    assert [p.name for p in tmp_path.iterdir()] == ["full"]
    network = tmp_path / "network"
    network.mkdir()
    (network / "model.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model\.json"):
        export(network, "torch", tmp_path / "out")


@pytest.mark.parametrize("to", HEADS)
def test_written_files_that_differ_from_the_head_are_refused(
    run, tmp_path, monkeypatch, to
):
    def doubled(head):
        return {k: 2 * v for k, v in tensors_of(head).items()}

    monkeypatch.setattr(heads, "tensors_of", doubled)
    with pytest.raises(ValueError, match="differ from dphead's"):
        export(run, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", HEADS)
def test_a_format_that_writes_other_weights_and_compares_nothing_is_refused(
    run, tmp_path, monkeypatch, to
):
    """The comparison is not the format's own: a new format cannot forget it."""
    from safetensors.numpy import load_file, save_file

    found = getattr(heads, to.upper())

    def doubled(trained, folder):
        written = found.write(trained, folder)
        path = folder / "head.safetensors"
        save_file({k: 2 * v for k, v in load_file(path).items()}, path)
        return written

    monkeypatch.setattr(heads, to.upper(), found._replace(write=doubled))
    with pytest.raises(ValueError, match="differ from dphead's"):
        export(run, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", HEADS)
@pytest.mark.parametrize("name, why", [("bare", ""), ("unit", "too large")])
def test_a_head_of_large_scores_is_exported(run, tmp_path, monkeypatch, to, name, why):
    """Rows of smaller norm are compared, if the norm changes the scores."""
    monkeypatch.setattr(heads, "LARGEST_SCORE", 1e-3)
    copy = tmp_path / "run"
    copy.mkdir()
    weights = RNG.normal(size=(12, 3))
    head = LinearHead(weights, np.zeros(3), TRANSFORMS[name], "softmax")
    facts = open_head(run)[1]
    facts = {k: facts[k] for k in ("class_names", "feature_space", "extraction")}
    report = report_of(run)
    report["provenance"]["tensors_sha256"] = save_head(copy, head, facts)
    write_json(copy / "report.json", report)
    done = export(copy, to, tmp_path / "out")
    assert why in done.not_compared and bool(why) == bool(done.not_compared)


def test_scores_are_compared_row_by_row(run, tmp_path, monkeypatch):
    """A row of large scores hides no error in another row, and infinity none at all."""

    torch_format = heads.TORCH

    def compared(ours, theirs):
        def write(trained, folder):
            return torch_format.write(trained, folder)._replace(answers=ours)

        form = torch_format._replace(write=write, load=lambda *_: lambda x: theirs)
        with monkeypatch.context() as patch:
            patch.setattr(heads, "TORCH", form)
            export(run, "torch", tmp_path / str(len(list(tmp_path.iterdir()))))

    large = np.array([[1e6, 0.0], [1.0, 0.0]])
    compared(large, large)
    for change in ([[0.0, 0.0], [0.0, 1e-3]], [[np.inf, 0.0], [0.0, 0.0]]):
        with pytest.raises(ValueError, match="differ from dphead's"):
            compared(large, large + np.array(change))
    with pytest.raises(ValueError, match="differ from dphead's"):
        compared(np.full((2, 2), np.inf), np.full((2, 2), np.inf))


def test_an_export_says_why_it_was_not_compared(run, tmp_path, monkeypatch):
    def no_torch(trained, folder):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(heads, "TORCH", heads.TORCH._replace(load=no_torch))
    done = fitted("export", run, "--to", "torch", "-o", tmp_path / "out")
    assert "! not compared with dphead: torch is not installed" in done.out
