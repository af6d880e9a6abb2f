"""Public axes of a fit: what is refused, and that a head on axes is what it says."""

import shutil
from contextlib import ExitStack

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from commands import (
    CLASSES,
    LS,
    NOT_PRIVATE,
    OF_IMAGES,
    charges,
    dphead,
    features_file,
    fit,
    fitted,
    id_of,
    ledger_of,
    refusal,
    report_of,
    rows,
    words,
)
from core import reserve
from dphead_extract.features.format import open_features, write_features
from dphead_extract.index import ImageIndex
from dphead_extract.run import extract
from dphead_extract.shards import Shard, blocks_of, join_shards
from ledgers import specs
from numpy.testing import assert_array_equal

from dphead import DPAutoClassifier, PrivateNotice
from dphead import DPLeastSquaresClassifier as LeastSquares
from dphead.data.features import load_features
from dphead.data.on_axes import RowsOnAxes, principal_axes
from dphead.fit.files import source_of_arrays
from dphead.fit.head_file import open_head
from dphead.fit.ledgers import image_index, shared_images
from dphead.fit.public_axes import choose_axes
from dphead.jax import head as functions
from dphead.privacy.axes import PublicAxes
from dphead.privacy.ledger import Ledger
from dphead.privacy.ledger.charge import Charge
from dphead.solvers import Auto, ProblemInfo
from dphead.solvers.on_axes import OnAxes, number_of_axes
from tests.extract.test_run import options

X, Y = rows()
PUBLIC = rows(seed=1)[0]
SEEDED = ("--seed", 3, NOT_PRIVATE)


@pytest.fixture
def private(tmp_path):
    return features_file(tmp_path / "private.h5", **OF_IMAGES)


@pytest.fixture
def public(tmp_path):
    return features_file(tmp_path / "public.h5", seed=1, **OF_IMAGES)


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_a_head_on_axes_is_the_head_of_the_mapped_rows(private, public, tmp_path):
    """To the byte, by command and estimator, and in jax."""
    given = ("--axes-from", public, "--axes-count", 4)
    fitted("fit", private, "-o", tmp_path / "run", *given, *SEEDED)
    head, _ = open_head(tmp_path / "run")
    axes = principal_axes(PUBLIC, 4)
    assert_array_equal(head.axes.values, axes.values)
    own = {"epsilon": 1.0, "classes": range(3), "random_state": 3}
    bare = DPAutoClassifier(**own).fit(axes.rows(X), Y)
    assert_array_equal(head.weights, bare.head_.weights)
    assert_array_equal(head.transform.center, bare.head_.transform.center)
    model = DPAutoClassifier(axes_from=PUBLIC, axes_count=4, **own).fit(X, Y)
    assert_array_equal(model.head_.weights, head.weights)
    assert model.n_features_in_ == 12 and model.coef_.shape == (3, 4)
    assert_array_equal(model.decision_function(X), head.scores(X))
    assert_array_equal(head.scores(X), bare.decision_function(axes.rows(X)))
    found = functions.scores(functions.of_model(model), X)
    scale = np.abs(head.scores(X)).max()
    assert np.abs(found - head.scores(X)).max() < 1e-5 * scale


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_a_prior_has_a_row_for_each_feature_and_is_mapped_too():
    prior = np.random.default_rng(0).normal(size=(12, 3))
    own = {"epsilon": 1.0, "classes": range(3), "random_state": 3}
    on_axes = {"axes_from": PUBLIC, "axes_count": 4, **own}
    axes = principal_axes(PUBLIC, 4)
    model = DPAutoClassifier(prior=prior, **on_axes).fit(X, Y)
    bare = DPAutoClassifier(prior=axes.values.T @ prior, **own).fit(axes.rows(X), Y)
    assert_array_equal(model.head_.weights, bare.head_.weights)
    with pytest.raises(ValueError, match=r"must have shape \(12, 3\)"):
        DPAutoClassifier(prior=prior[:4], **on_axes).fit(X, Y)


def test_report_and_statement_declare_the_public_rows(private, public, tmp_path):
    given = ("--axes-from", public, "--axes-count", 4)
    said = fit(private, tmp_path / "run", *given).out
    report = report_of(tmp_path / "run")
    assert report["data"]["axes"] == {
        "count": 4,
        "n_rows": 240,
        "dataset_id": id_of(public),
    }
    assert report["data"]["n_features"] == 12
    assert "4 public axes" in words(said)
    assert report["tuning"] == "NOT ACCOUNTED"  # a typed number may follow a result
    stated = "4 principal axes of 240 other images, which were declared public"
    assert stated in words(report["statement"])
    assert (
        "240 images for axes of the head" in (tmp_path / "run/report.html").read_text()
    )
    few = tmp_path / "few.h5"
    x, usable = np.zeros((240, 12), np.float32), np.arange(240) < 90
    x[:80] = PUBLIC[:80]  # ten rows that are zero, and 150 that are masked
    write_features(few, x, Y, CLASSES, valid=usable, **OF_IMAGES)
    fit(private, tmp_path / "few", "--axes-from", few, "--axes-count", 4)
    assert report_of(tmp_path / "few")["data"]["axes"]["n_rows"] == 80
    for path, image in ((private, 1), (public, 2)):
        know(path, image)
    charged = "has fits on these public images"
    assert charged not in words(said)
    reserve(specs(1, 8.0), ledger_of(public))
    assert charged in words(fit(private, tmp_path / "again", *given).out)
    again = report_of(tmp_path / "again")["data"]["axes"]
    assert again == report["data"]["axes"]  # published: nothing of the comparison
    fitted("predict", tmp_path / "run", public, "-o", tmp_path / "p.csv")


def know(path, *images):
    """Add images of a file to the index, as if these were all."""
    with open_features(path) as file:
        found = np.array(images, np.uint64) << np.uint64(8)
        image_index().add(file.dataset_id, found)
        image_index().mark_blocks(file.dataset_id, file.salt, blocks_of(file))


def test_rows_that_could_not_be_compared_are_named_before_the_charge(
    private, public, tmp_path
):
    given = {"axes_from": public, "axes_count": 4}
    command = ("fit", private, *LS, "--axes-from", public, "--axes-count", 4, "-o")
    doubt = "dphead could not compare the public images of `--axes-from`"
    for known in ((), (private,), (private, public)):
        for path in known:
            know(path, known.index(path))
        before = dphead(*command, tmp_path / "run", "--dry-run")
        assert before.code == 0 and charges() == len(known)
        done = fitted(*command, tmp_path / f"run {len(known)}", *SEEDED)
        with pytest.warns(UserWarning) as told:
            LeastSquares(ledger=Ledger(), delta=1e-4, **given).fit(private)
        notices = [str(one.message) for one in told if one.category is PrivateNotice]
        whole = len(known) == 2
        for text in (before.out, done.out, " ".join(notices)):
            assert (doubt in words(text)) is not whole
    with pytest.warns(PrivateNotice, match="could not compare the public rows"):
        LeastSquares(classes=range(3), axes_from=PUBLIC, axes_count=4).fit(X, Y)


def test_images_of_a_shard_of_another_machine_are_not_compared(digits, tmp_path):
    """The index has the images of the first of two shards only, until the second one
    is extracted here too.
    """
    images, labels = digits

    def extracted(name, rows, index, *shard):
        source = tmp_path / f"{name}.npz"
        np.savez(source, images=images[rows], labels=labels[rows])
        own = {"index": index, "shard": Shard(*shard)}
        return extract(options(source, tmp_path / f"{name}.h5", **own)).path

    here, there = image_index(), ImageIndex(tmp_path / "there")
    train = slice(128)
    shards = [extracted("f", train, one, i, 2) for i, one in enumerate((here, there))]
    join_shards(shards, tmp_path / "f.h5")
    whole = [tmp_path / "f.h5", extracted("p", slice(64, 128), here)]
    with ExitStack() as stack:
        one, other = (stack.enter_context(open_features(path)) for path in whole)
        files = [stack.enter_context(open_features(path)) for path in shards]
        assert shared_images(files[0], other) == 0
        for file in (files[1], one):
            assert shared_images(file, other) is shared_images(other, file) is None
        extracted("f", train, here, 1, 2)
        assert shared_images(one, other) == shared_images(files[1], other) == 64


def test_more_rows_need_no_axes():
    facts = ProblemInfo(500, 1280, 10, mu=0.27)  # 50 rows of a class at epsilon 1
    assert number_of_axes(facts) == 60
    assert number_of_axes(ProblemInfo(1500, 1280, 10, mu=0.27)) == 200
    assert number_of_axes(ProblemInfo(5000, 1280, 10, mu=0.27)) == 0
    assert number_of_axes(ProblemInfo(500, 128, 10, mu=0.27)) == 0


def test_a_fit_that_axes_do_not_help_has_none_and_says_so(private, public, tmp_path):
    """12 columns are few, whatever the noise."""
    said = fit(private, tmp_path / "run", "--axes-from", public, *SEEDED).out
    fit(private, tmp_path / "bare", *SEEDED)
    heads = [open_head(tmp_path / name)[0] for name in ("run", "bare")]
    assert heads[0].axes is None
    assert_array_equal(heads[0].weights, heads[1].weights)
    assert "no public axes" in words(said)
    assert report_of(tmp_path / "run")["data"]["axes"]["count"] == 0


def shares_an_image(private, public):
    for path, more in ((private, 7), (public, 8)):
        found = np.array([1, 2, 3, more], np.uint64) << np.uint64(8)
        image_index().add(id_of(path), found)


def renamed(private, public):
    shutil.copyfile(private, public)


def of_the_same_data_set(private, public):
    public.unlink()
    features_file(public, n=200, dataset_id=id_of(private), **OF_IMAGES)


def of_another_backbone(private, public):
    public.unlink()
    features_file(public, backbone="resnet34", transform={"mean": None})


def of_bad_rows(private, public):
    public.unlink()
    x, valid = np.zeros((240, 12), np.float32), np.arange(240) < 9
    write_features(public, x, Y, CLASSES, valid=valid, **OF_IMAGES)


def of_few_directions(private, public):
    public.unlink()
    x = np.random.default_rng(0).normal(size=(240, 3)) @ np.eye(3, 12)
    write_features(public, x.astype(np.float32), Y, CLASSES, **OF_IMAGES)


@pytest.mark.parametrize(
    "change, said",
    [
        (renamed, "shares the data set with the training rows"),
        (of_the_same_data_set, "shares the data set with the training rows"),
        (shares_an_image, "shares 3 images with the training rows"),
        (of_another_backbone, "has different features"),
        (of_bad_rows, "got 0 usable rows"),
        (of_few_directions, "do not span 4 axes"),
    ],
)
def test_rows_that_are_not_public_or_give_no_axes_are_refused(
    private, public, tmp_path, change, said
):
    """A renamed file, rows extracted again and a subset among them; nothing is
    charged.
    """
    change(private, public)
    given = ("--axes-from", public, "--axes-count", 4)
    assert said in words(refusal("fit", private, "-o", tmp_path / "run", *given))
    with pytest.raises(ValueError, match=said.split()[0]):
        DPAutoClassifier(axes_from=public, axes_count=4).fit(private)
    assert charges() == 0


@pytest.mark.parametrize(
    "given, said",
    [
        ({"axes_count": 4}, "needs public images"),
        ({"axes_from": PUBLIC, "axes_count": 12}, "must be below the 12 columns"),
        ({"axes_from": PUBLIC[:, :5], "axes_count": 4}, "must have the 12 columns"),
        ({"axes_from": PUBLIC[:4], "axes_count": 4}, "at least 5 usable public rows"),
        ({"axes_from": X[:50], "axes_count": 4}, "shares memory with `X`"),
        (
            {"axes_from": pd.DataFrame(X, copy=False)[9:], "axes_count": 4},
            "shares memory with `X`",
        ),
    ],
)
def test_wrong_arrays_of_public_rows_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        DPAutoClassifier(classes=range(3), **given).fit(X, Y)


def test_a_view_of_a_jax_arrays_memory_is_no_public_rows():
    x = jnp.asarray(X)
    for own, public in ((x, np.asarray(x)[:50]), (np.asarray(x)[:], x)):
        model = DPAutoClassifier(axes_from=public, axes_count=4, classes=range(3))
        with pytest.raises(ValueError, match="shares memory with `X`"):
            model.fit(own, Y)


@pytest.mark.parametrize("given", [X, X.tolist(), pd.DataFrame(X), jnp.asarray(X), 0])
def test_training_rows_of_any_type_are_no_public_rows(given, tmp_path):
    """0 means a features file. Other values than the training rows are accepted."""
    makers = (np.float64, np.ndarray.tolist, pd.DataFrame, jnp.asarray)
    copies = [make(X.copy()) for make in makers]
    copies.append(features_file(tmp_path / "imported.h5"))
    own = {"axes_count": 4, "ledger": Ledger(), "classes": range(3), "delta": 1e-4}
    labels = (Y,)
    if isinstance(given, int):
        given, labels = features_file(tmp_path / "private.h5"), ()
        own["classes"] = None
        command = ("fit", given, "--axes-from", copies[-1], "--axes-count", 4)
        assert "has the training rows" in words(refusal(*command, "-o", tmp_path / "r"))
    for public in (given, *copies):
        with pytest.raises(ValueError, match="training rows"):
            DPAutoClassifier(axes_from=public, **own).fit(given, *labels)
    assert own["ledger"].count_fits() == charges() == 0
    other = X.copy()
    other[-1, -1] += 1
    DPAutoClassifier(axes_from=other, **own).fit(given, *labels)


def test_bad_public_rows_are_left_out_and_lengths_do_not_matter():
    hostile = np.vstack([PUBLIC * 3, np.zeros((2, 12)), np.full((2, 12), np.nan)])
    found, wanted = principal_axes(hostile, 4), principal_axes(PUBLIC, 4)
    # rounding to float32 of rows three times as long moves an axis by less than 1e-5
    np.testing.assert_allclose(found.values, wanted.values, atol=1e-5)
    spread = np.var(PUBLIC / np.linalg.norm(PUBLIC, axis=1)[:, None] @ found.values, 0)
    assert np.all(np.diff(spread) < 0)


def test_streamed_rows_on_axes_are_those_in_memory_and_keep_their_groups(tmp_path):
    groups = np.arange(240) // 3
    path = features_file(tmp_path / "f.h5", group=groups)
    axes = principal_axes(PUBLIC, 4)
    parts = []
    for memory in (0, 2**30):
        source, file = load_features(path, None, memory, 2)
        with file:
            mapped = RowsOnAxes(source, axes)
            assert mapped.group_cap == 2 and mapped.within.sum() == 160
            blocks = list(mapped.blocks(np.arange(0, 240, 7)))
            blocks += mapped.blocks()
            known = [b.x.shape[1] for b in mapped.blocks(known=lambda slots: True)]
            assert memory or set(known) == {0}
        used = [(b.index[b.index >= 0], b.x[b.index >= 0]) for b in blocks]
        parts.append([np.concatenate(one) for one in zip(*used, strict=True)])
    for one, other in zip(*parts, strict=True):
        assert_array_equal(one, other)


def test_all_processes_use_the_axes_of_the_first_one():
    class Hosts:
        sent = PublicAxes(np.eye(12, 4)).values.tobytes()

        def bytes_from_first(self, own):
            return self.sent

        def gathered(self, value):
            return value[None]

        def wait(self):
            pass

    facts, source = ProblemInfo(240, 12, 3, mu=0.3), source_of_arrays(12, CLASSES)
    found = choose_axes(PUBLIC, 4, facts, source, X, Hosts())
    assert_array_equal(found.axes.values, np.eye(12, 4))
    # `agree` refuses these plans
    found = choose_axes(PUBLIC, 3, facts, source, X, Hosts())
    assert_array_equal(found.axes.values, principal_axes(PUBLIC, 3).values)
    assert choose_axes(None, None, facts, source, X, Hosts()) is None


def test_a_resume_finds_axes_of_other_public_rows(
    private, public, tmp_path, monkeypatch
):
    """By the digest of the rows, not by bits of the axes."""
    run = ("fit", private, "-o", tmp_path / "run", "--axes-count", 4, "--axes-from")
    with monkeypatch.context() as patch:
        patch.setattr(Charge, "commit", None)  # ends the fit at its first release
        with pytest.raises(TypeError):
            dphead(*run, public)
    other = features_file(tmp_path / "other.h5", seed=2, **OF_IMAGES)
    assert "used other rows" in refusal(*run, other)
    fitted(*run, public)
    assert charges() == 1
    made = [OnAxes(Auto(), PublicAxes(np.eye(12, 4)), name) for name in ("a", "b")]
    again = OnAxes(Auto(), principal_axes(PUBLIC, 4), "a")
    assert repr(made[0]) == repr(again) != repr(made[1])
