"""Fits of jax arrays: the sums and the charge of numpy's, or no charge."""

import json
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from commands import Fork, dphead
from core import toy

import dphead.jax as dpx
from benchmarks.faults.servers import free_port
from dphead import (
    DPPCA,
    DPHeadClassifier,
    DPMultiLabelClassifier,
    cross_validate,
)
from dphead.data import device_rows
from dphead.data.arrays import ArrayRows
from dphead.data.device_rows import DeviceRows
from dphead.estimators.inputs import of_arrays
from dphead.estimators.labels import label_column, numbers
from dphead.estimators.multilabel import indicators
from dphead.jax.head import of_model
from dphead.privacy.ledger import Ledger

X, Y = toy(200, 6, 3)
Device = namedtuple("Device", "process_index id")
GIVEN = {"n_classes": 3, "epsilon": 2.0, "delta": 1e-4, "method": "prototypes"}


def head_of_numpy(x, **more):
    model = DPHeadClassifier(
        method="prototypes", classes=range(3), epsilon=2.0, delta=1e-4, random_state=1
    )
    return model.set_params(**more).fit(x, Y).head_


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_jax_arrays_give_the_head_of_their_numbers(kind):
    x = jnp.asarray(X, kind)
    head = dpx.fit(x, jnp.asarray(Y), random_state=1, **GIVEN)
    wanted = head_of_numpy(np.asarray(x.astype(jnp.float32)))
    assert np.array_equal(head.model.head_.weights, wanted.weights)


def test_a_fit_says_what_it_spent_and_that_nothing_else_is_counted():
    head = dpx.fit(X, Y, **GIVEN)
    assert head.privacy.epsilon <= 2.0
    assert head.privacy.private
    assert "Only this fit is counted" in head.privacy.notes[0]
    ledger = Ledger()
    dpx.fit(X, Y, ledger=ledger, **GIVEN)
    assert "Only this fit" not in dpx.fit(X, Y, ledger=ledger, **GIVEN).privacy.notes[0]
    assert ledger.count_fits() == 2


def test_groups_and_settings_reach_the_fit():
    groups = jnp.arange(200) // 2
    head = dpx.fit(X, Y, groups=groups, group_cap=1, rule="nearest", **GIVEN)
    assert "group" in head.privacy.protected_unit
    assert head.model.settings == {"rule": "nearest"}


class Read(Exception):
    """A row was read."""


def wrong_arrays():
    """What cannot be summed, by the words of its refusal."""
    deleted = jnp.asarray(X)
    deleted.delete()
    yield "deleted", deleted, Y
    yield "ShapeDtypeStruct", jax.ShapeDtypeStruct((200, 6), float), Y
    yield "dim 3", jnp.ones((200, 6, 1)), Y
    yield "Complex data", jnp.asarray(X).astype(complex), Y
    yield "inconsistent numbers", jnp.asarray(X), jnp.asarray(Y[:-1])
    yield "0 sample", jnp.ones((0, 6)), jnp.ones(0, int)
    keys = jax.random.split(jax.random.key(0), 200)
    yield "PRNGKeyArray", jnp.asarray(X), keys


def test_what_cannot_be_summed_is_refused_before_the_charge_and_unread(monkeypatch):
    def read(*_):
        raise Read

    monkeypatch.setattr(DeviceRows, "__getitem__", read)
    ledger = Ledger()
    for words, x, y in wrong_arrays():
        with pytest.raises(ValueError, match=words):
            dpx.fit(x, y, ledger=ledger, **GIVEN)
    assert ledger.count_fits() == 0
    with pytest.raises(Read):  # so that a refusal above is for the array
        dpx.fit(jnp.asarray(X), Y, ledger=ledger, **GIVEN)
    assert ledger.count_fits() == 1


def test_rows_whose_computation_fails_later_are_refused_before_the_charge(monkeypatch):
    """jax gives an array before it is computed, and its error when it is awaited."""
    later, ledger = jnp.asarray(X), Ledger()

    def block_until_ready(parts):
        assert [part.shape for part in parts] == [X.shape]
        raise jax.errors.JaxRuntimeError("INTERNAL: file is truncated")

    monkeypatch.setattr(jax, "block_until_ready", block_until_ready)
    with pytest.raises(ValueError, match=r"could not be computed.*file is truncated"):
        dpx.fit(later, Y, ledger=ledger, **GIVEN)
    assert ledger.count_fits() == 0


@pytest.mark.parametrize("traced", ["features", "labels", "epsilon"])
def test_a_traced_argument_is_refused_before_the_charge(traced):
    ledger = Ledger()

    def fit(value):
        given = {"features": jnp.asarray(X), "labels": Y, **GIVEN, traced: value}
        return dpx.fit(ledger=ledger, **given).weights

    value = {"features": X, "labels": Y, "epsilon": 1.0}[traced]
    with pytest.raises(ValueError, match=r"traced|epsilon"):
        jax.jit(fit)(value)
    assert ledger.count_fits() == 0


@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("x", [X, jnp.asarray(X)])
def test_a_fit_of_known_arrays_is_refused_inside_jit(x, backend):
    """jax traces the solver's algebra there, so a charged fit would fail."""
    ledger, given = Ledger(), GIVEN | {"method": "dp-ls", "backend": backend}
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda: dpx.fit(x, Y, ledger=ledger, **given).weights)()
    assert ledger.count_fits() == 0


def test_no_setting_of_the_process_stops_a_charged_fit(monkeypatch):
    """Rows of an accelerator are sliced by jax, as all rows are here."""
    monkeypatch.setattr(device_rows, "_host", lambda part: part)
    x = np.tile(X, (15, 1))  # more than one block
    x[0, 0] = np.nan
    placed = jnp.asarray(x)
    explicit = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((1,), ("rows",), axis_types=explicit)
    method = dpx.optax_method(optimizer_of_one_key(), steps=2)
    jax.clear_caches()  # so that each operation is traced
    with (
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.debug_key_reuse(True),
        jax.checking_leaks(),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow_explicit"),
        jax.no_tracing(True),
        jax.set_mesh(mesh),
    ):
        dpx.fit(placed, np.tile(Y, 15), **GIVEN | {"method": method})


def optimizer_of_one_key():
    """A transformation that draws with the same key at every step."""
    key = jax.random.key(0)

    def update(gradient, state, _):
        return -gradient * jax.random.uniform(state, (1,)), state

    return optax.GradientTransformation(lambda weights: key, update)


def test_labels_in_a_list_of_jax_scalars_are_those_of_the_array():
    """`for label in labels` gives scalars of jax, and PyTorch's are alike."""
    labels = jnp.asarray(Y)
    one, other = (dpx.fit(X, y, random_state=1, **GIVEN) for y in (Y, list(labels)))
    assert np.array_equal(one.weights, other.weights)
    assert np.array_equal(label_column([*torch.arange(3), 7, None]), [0, 1, 2, 7, None])
    assert np.array_equal(numbers([jnp.bfloat16(0.5), 2]), [0.5, 2.0])
    sets = jax.nn.one_hot(labels[:4], 3)
    for rows in ([*sets], [[*row] for row in sets]):
        assert np.array_equal(indicators(rows), sets)


def test_a_list_of_traced_labels_is_refused_before_the_charge():
    ledger = Ledger()
    model = DPHeadClassifier(
        method="prototypes", classes=range(3), delta=1e-4, ledger=ledger
    )
    with pytest.raises(ValueError, match="traced"):
        jax.jit(lambda y: model.fit(X, [*y]).head_.weights)(jnp.asarray(Y))
    assert ledger.count_fits() == 0


class Shared:
    """An array of 6 rows in a program of 3 processes: who holds each third."""

    shape, ndim, is_fully_addressable, addressable_shards = (6, 6), 2, False, ()

    def __init__(self, *holders):
        self._holders, self.sharding = holders, self

    def __len__(self):
        return 6

    def devices_indices_map(self, _):
        every = slice(None)
        return {
            Device(process, i): (slice(2 * i, 2 * i + 2), every)
            for i, process in enumerate(self._holders)
        }


@pytest.mark.parametrize(
    "holders, wrong",
    [((0, 1, 2), False), ((0, 2, 1), True), ((0, 1, 0), True), ((0, 1, 1), True)],
)
def test_all_processes_refuse_the_same_places_of_rows(monkeypatch, holders, wrong):
    """A process that refused alone would let the others wait."""
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    model = DPHeadClassifier(method="prototypes", classes=range(3), delta=1e-4)
    refused = []
    for index in range(3):
        monkeypatch.setattr(jax, "process_index", lambda i=index: i)
        try:
            rows = DeviceRows(Shared(*holders))
            of_arrays(model, rows, lambda: Y[:6], None, np.arange(3))
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) == 3 * wrong


def test_a_head_is_saved_loaded_and_read_by_commands(tmp_path):
    head = dpx.fit(X, Y, **GIVEN)
    head.save(tmp_path / "run")
    again = dpx.load(tmp_path / "run")
    assert np.array_equal(dpx.scores(again, X), dpx.scores(head, X))
    assert again.privacy.epsilon == head.privacy.epsilon
    assert "epsilon 2 spent" in dphead("check", tmp_path / "run").out
    with pytest.raises(ValueError, match="Copy the run folder"):
        again.save(tmp_path / "copy")


def test_a_head_that_was_changed_is_not_saved_under_the_guarantee(tmp_path):
    """It may have been trained further on the same rows."""
    head = dpx.fit(X, Y, **GIVEN)
    for name in ("weights", "intercept", "center"):
        moved = jax.tree.map(lambda a: a, head)
        object.__setattr__(moved, name, getattr(head, name) + 1)
        with pytest.raises(ValueError, match=f"`{name}` differs"):
            moved.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_head_is_saved_in_another_precision_and_shares_no_memory(tmp_path):
    with jax.enable_x64(True):
        double = dpx.fit(X, Y, **GIVEN)
    fitted = double.model.head_.weights
    assert double.weights.dtype == fitted.dtype == np.float64
    assert not np.shares_memory(np.asarray(double.weights), fitted)
    double.save(tmp_path / "run")
    with jax.enable_x64(True):
        np.testing.assert_array_equal(dpx.load(tmp_path / "run").weights, fitted)
    double.weights.delete()
    with pytest.raises(ValueError, match="deleted or donated"):
        double.save(tmp_path / "again")


def test_a_head_that_is_not_finite_is_saved_as_fitted(tmp_path):
    head = dpx.fit(X, Y, **GIVEN)
    head.model.head_.weights[0, 0] = np.nan
    of_model(head.model).save(tmp_path / "run")


def test_two_fits_are_two_static_parts():
    """A compiled function returns the guarantee of the head that it got."""
    one, other = (dpx.fit(X, Y, **GIVEN | {"epsilon": e}) for e in (1.0, 2.0))
    same = jax.jit(lambda head: head)
    assert same(one).privacy.epsilon < same(other).privacy.epsilon


def test_estimators_take_jax_arrays_too():
    pca = DPPCA(epsilon=2.0, delta=1e-4, random_state=1)
    components = pca.fit(jnp.asarray(X)).components_
    assert np.array_equal(components, pca.fit(X).components_)
    assert pca.transform(jnp.asarray(X)).shape == (200, 2)
    x, y = jnp.asarray(X), jnp.asarray(Y)
    model = DPHeadClassifier(method="prototypes", classes=range(3), delta=1e-4)
    assert len(cross_validate(model, x, y, folds=2).scores) == 2
    several = DPMultiLabelClassifier(method="dp-sgd", settings={"steps": 1}, delta=1e-4)
    sets = jax.nn.one_hot(y, 3)
    assert 0 <= several.fit(x, sets).score(x, sets) <= 1


SHARDED = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from core import toy
import dphead
import dphead.jax as dpx
from dphead.data.arrays import ArrayRows
from dphead.data.device_rows import DeviceRows

x, y = toy(200, 6, 3)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
given = dict(n_classes=3, epsilon=2.0, delta=1e-4, random_state=1, method="prototypes")
found, refused = {}, {}
specs = {"4": P(("a", "b")), "2 of 2 copies": P("b"), "columns": P(None, "a")}
for name, spec in specs.items():
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    try:
        head = dpx.fit(placed, y, **given)
        found[name] = head.model.head_.weights.tobytes().hex()
    except ValueError as error:
        refused[name] = str(error)
placed = jax.device_put(x, NamedSharding(mesh, P(("a", "b"))))
rows = DeviceRows(placed)
chosen = np.array([3, 199, 50, 49, 0])
parts = [(rows[30:120] == x[30:120]).all(), (rows[chosen] == x[chosen]).all()]
scored = jax.jit(dpx.probabilities)(head, placed)
json.dump({"found": found, "refused": refused, "parts": [bool(p) for p in parts],
           "spec": len(scored.sharding.device_set),
           "same": bool(np.abs(scored - head.model.predict_proba(x)).max() < 1e-6)},
          sys.stdout)
"""


def test_sharded_rows_are_summed_as_they_are_on_four_devices(tmp_path):
    flags = "--xla_force_host_platform_device_count=4"
    done = Fork(tmp_path, SHARDED, XLA_FLAGS=flags).wait()
    assert done.code == 0, done.err
    told = json.loads(done.out)
    wanted = head_of_numpy(X).weights.tobytes().hex()
    assert told["found"] == dict.fromkeys(("4", "2 of 2 copies"), wanted)
    assert "Shard the rows only" in told["refused"]["columns"]
    assert told["parts"] == [True, True]
    assert (told["spec"], told["same"]) == (4, True)


PROCESS = """
import json, sys
from pathlib import Path
import jax
index, ledgers = int(sys.argv[2]), Path(sys.argv[3])
jax.distributed.initialize(sys.argv[1], 2, index)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from sklearn.pipeline import make_pipeline
from core import toy
import dphead
import dphead.jax as dpx
from dphead.data.device_rows import DeviceRows
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.sums.hosts import Hosts

x, y = toy(200, 6, 3)
placed = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))
own = slice(100 * index, 100 * index + 100)
features = jax.make_array_from_process_local_data(placed, x[own])
assert not features.is_fully_addressable
given = dict(n_classes=3, epsilon=2.0, delta=1e-4, random_state=1)
seedless = {"random_state": None}
ledger = Ledger()
if index == 0:
    ledger.set_budget(1.0, 1e-4)
try:
    dpx.fit(features, y, method="dp-sgd", steps=2, ledger=ledger, **given | seedless)
except LedgerError:
    small = given | seedless | {"epsilon": 0.5}
    dpx.fit(features, y, method="dp-sgd", steps=2, ledger=ledger, **small)
retried = ledger.count_fits()
head = dpx.fit(features, y, method="dp-sgd", steps=2, backend="numpy", **given)
told = [head.model.head_.weights.tobytes().hex(), hasattr(head.model, "ledger_")]
try:
    dpx.fit(features, y, method="dp-sgd", steps=2 + index, **given)
except ValueError as error:
    told.append(str(error))
copies = jax.make_array_from_process_local_data(NamedSharding(placed.mesh, P()), x)
try:
    dpx.fit(copies, y, method="dp-sgd", steps=2, **given)
except ValueError as error:
    told.append(str(error))
whole = jax.make_array_from_process_local_data(copies.sharding, x.astype(np.int32))
try:
    dpx.fit(whole, y, method="dp-sgd", steps=2, **given)
except ValueError as error:
    told[-1] += str(error)
def regress():
    dphead.DPRegressor(bounds=(0, 2), delta=1e-4).fit(copies, y)
def validate():
    model = dphead.DPAutoClassifier(classes=range(3), delta=1e-4)
    dphead.cross_validate(model, features, y)
def components():
    first = dphead.DPPCA(delta=1e-4, ledger=ledger)
    make_pipeline(first, dphead.DPAutoClassifier()).fit(features, y)
def read_rows():
    DeviceRows(features)[np.array([0, 150])]
for read in (read_rows, regress, validate, components):
    try:
        read()
    except ValueError as error:
        told.append(str(error))
own = dpx.fit(jax.numpy.asarray(x), y, method="prototypes", **given)  # of one process
told.append(hasattr(own.model, "ledger_"))
labels = jax.make_array_from_process_local_data(NamedSharding(placed.mesh, P()), y)
own.model.fit(features, labels)
told.append([retried, ledger.count_fits(), hasattr(own.model, "ledger_")])
out_of_step = ""
try:  # as if this process had skipped a fit
    another = {"random_state": None, "ledger": ledgers / f"{index}/own.db"}
    dpx.fit(features, y, method="dp-sgd", **given | another)
except ValueError as error:
    out_of_step += str(error)
for number in range(2):
    if number * index:
        DeviceRows(features)  # as of a fit that process 0 did not begin
    try:
        dpx.fit(features, (y + (1 - number) * index) % 3, method="dp-sgd", **given)
    except ValueError as error:
        out_of_step += str(error)
told.append(out_of_step)
with jax.disable_jit():
    told.append(Hosts(index, 2).texts(str(index)))
print(json.dumps(told))
"""


def test_two_processes_give_the_head_of_one(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    running = [Fork(tmp_path, PROCESS, address, i, tmp_path) for i in range(2)]
    done = [one.wait() for one in running]
    assert [one.code for one in done] == [0, 0], done
    heads, ledgers, refusals, copies, *reads, fits, again, apart, texts = zip(
        *(json.loads(one.out.splitlines()[-1]) for one in done), strict=True
    )
    model = DPHeadClassifier(
        method="dp-sgd", settings={"steps": 2}, classes=range(3), random_state=1
    )
    model.set_params(epsilon=2.0, delta=1e-4, backend="numpy").fit(X, Y)
    assert heads == (model.head_.weights.tobytes().hex(),) * 2
    assert ledgers == (True, False)
    assert all("differ in settings" in text for text in refusals)
    for text in copies:  # not a fit on each
        assert "an equal part" in text
        assert "type int32. Pass features as float32" in text
    assert fits == (True, True)  # each charged a ledger of its own
    # the second budget only, and only of process 0; no charge for components
    assert again == ([1, 1, True], [0, 0, False])
    assert texts == (["0", "1"],) * 2  # else `agree` would compare nothing
    for text in apart:
        assert "differ in ledger. Use the same" in text
        assert "differ in labels" in text
        assert "differ in the number of shared arrays so far" in text
    assert len(reads) == 4
    assert all("Several processes share" in text for texts in reads for text in texts)


def test_samples_and_group_means_are_read_from_jax_arrays():
    groups = np.arange(200) // 2
    for more in ({}, {"groups": groups, "group_cap": 1, "group_mean": True}):
        one, other = (ArrayRows(x, Y, **more) for x in (X, DeviceRows(jnp.asarray(X))))
        chosen = np.array([1, 5, 150])
        for a, b in zip(one.blocks(chosen), other.blocks(chosen), strict=True):
            assert np.array_equal(a.x, b.x)


@pytest.mark.parametrize(
    "rows", [np.array([-1, 3]), slice(0, 9, 2), slice(None, None, -1)]
)
def test_any_index_of_numpy_gives_its_rows(rows):
    assert np.array_equal(DeviceRows(jnp.asarray(X))[rows], X[rows])


def test_a_row_beyond_the_last_one_is_an_error():
    with pytest.raises(IndexError):
        DeviceRows(jnp.asarray(X))[np.array([0, 200])]
