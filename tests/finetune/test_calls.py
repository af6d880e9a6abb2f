"""Nobody but dphead sees the rows of a call, and a call leaves nothing of them."""

import threading
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from finetune.test_own_loop import CLIP, Casting, cross_entropy, module, training
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from dphead import DPFinetuneClassifier
from dphead.estimators.inputs import as_arrays, given_rows
from dphead.finetune.gradients import PerExample, refuse_memory
from dphead.finetune.models import build_network
from dphead.finetune.rows import ImageRows
from dphead.finetune.settings import ModelSpec

CRITERION = nn.CrossEntropyLoss()
SCRIPT = torch.jit.trace(nn.Flatten(), torch.ones(1, 3, 8, 8))
COPIED: list[Any] = []


@pytest.fixture
def unread(monkeypatch):
    """Rows that say when they are read."""

    def read(*_):
        raise AssertionError("a row was read")

    monkeypatch.setattr(ImageRows, "blocks", read)


class Own(nn.BatchNorm1d):
    """Its copy is itself."""

    def __deepcopy__(self, memo):
        return self


class OwnTensor(nn.BatchNorm1d):
    """Its copy has its own buffer."""

    def __deepcopy__(self, memo):
        copied = OwnTensor(192)
        copied.running_mean = self.running_mean
        return copied.eval()


def sharing(kind):
    return nn.Sequential(nn.Flatten(), kind(192).eval(), nn.Linear(192, 3))


def with_a_lock():
    vars(model := module())["lock"] = threading.Lock()
    return model


class Activating(nn.Module):
    """Stores a function that uses the layer: its mode, its weight, or its method."""

    def __init__(self, kind):
        super().__init__()
        self.inner = nn.Linear(192, 3)
        if kind == "mode":
            self.act = lambda x: F.dropout(x, 0.3, self.training)
        elif kind == "weight":
            self.act = lambda x: F.linear(x, self.inner.weight)
        else:
            inner = self.inner.forward
            self.inner.forward = lambda x: x[:, :3] + inner(x)
            self.act = self.inner

    def forward(self, x):
        return self.act(x.flatten(1))[:, :3] + self.inner(x.flatten(1))


def own_layers():
    """A module, and a loss that calls it beside the copy."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    return model, lambda copy, x, y: cross_entropy(copy, x, y) + model(x).sum()


OWN_MODULE, OWN_LOSS = own_layers()


def by_chance(model, x, y):
    return cross_entropy(model, x + 1e-4 * torch.rand_like(x), y)


def by_criterion(model, x, y):
    return CRITERION(model(x), y)


@pytest.mark.parametrize(
    "made, loss, message",
    [
        (lambda: sharing(Own), cross_entropy, "shares layers or tensors"),
        (lambda: sharing(OwnTensor), cross_entropy, "shares layers or tensors"),
        (with_a_lock, cross_entropy, "cannot copy the module .*cannot pickle"),
        (lambda: torch.jit.script(module()), cross_entropy, "torch compiled"),
        (lambda: torch.compile(module()), cross_entropy, "torch compiled"),
        (module, lambda m, x, y: SCRIPT(x).sum() + cross_entropy(m, x, y), "compiled"),
        (lambda: Activating("mode"), cross_entropy, "Replace functions"),
        (lambda: Activating("weight"), cross_entropy, "Replace functions"),
        (lambda: Activating("method"), cross_entropy, "Replace functions"),
        (lambda: OWN_MODULE, OWN_LOSS, "calls layers of your own module"),
        (module, by_chance, "Remove random numbers"),
    ],
    ids=[
        *("layer", "tensor", "lock", "script", "compiled", "script in loss"),
        *("mode", "weight", "method", "own module", "chance"),
    ],
)
def test_code_that_could_see_rows_is_refused_before_the_charge(
    made, loss, message, unread, tmp_path
):
    ledger = tmp_path / "ledger.sqlite"
    with pytest.raises(ValueError, match=message):
        training(made(), loss, ledger=ledger).__enter__()
    assert not ledger.exists()


def on_meta():
    with torch.device("meta"):
        return module()


def with_edges(**more):
    model = module()
    model.register_buffer("edges", torch.eye(2).to_sparse(), **more)
    return model


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda: Casting(module(), torch.complex64), r"1\.weight, .* torch.complex64"),
        (on_meta, "weight, .* on meta"),
        (with_edges, "edges, a torch.sparse_coo tensor"),
    ],
    ids=["complex", "meta", "sparse"],
)
def test_tensors_that_cannot_be_trained_or_saved_are_refused(made, message, tmp_path):
    """The gradient of a complex weight would lose its imaginary part."""
    with pytest.raises(ValueError, match=message):
        training(made(), ledger=tmp_path / "l.sqlite").__enter__()
    assert not (tmp_path / "l.sqlite").exists()


def test_a_compiled_loss_is_refused_with_its_reason(tmp_path):
    loss = torch.compile(cross_entropy, backend="eager")
    with pytest.raises(ValueError, match=r"Remove .* `torch\.compile`"):
        training(module(), loss, ledger=tmp_path / "l.sqlite").__enter__()
    assert not (tmp_path / "l.sqlite").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda hook: CRITERION.register_forward_hook(hook), "a CrossEntropyLoss with"),
        (lambda hook: COPIED[0][0].register_forward_pre_hook(hook), "a Flatten with"),
    ],
    ids=["loss", "copy"],
)
def test_a_hook_on_a_module_that_the_loss_calls_reads_no_row(given, message, unread):
    """The hook is newer than the charge."""

    def loss(model, x, y):
        COPIED[:] = [model]
        return by_criterion(model, x, y)

    with training(module(), loss) as private:
        hook = given(lambda *_: None)
        try:
            with pytest.raises(ValueError, match=message):
                next(private)
        finally:
            hook.remove()


def test_a_hook_on_the_loss_is_refused_before_the_charge(tmp_path):
    hook = CRITERION.register_forward_hook(lambda *_: None)
    try:
        with pytest.raises(ValueError, match="a CrossEntropyLoss with forward_hooks"):
            training(module(), by_criterion, ledger=tmp_path / "l.sqlite").__enter__()
    finally:
        hook.remove()
    assert not (tmp_path / "l.sqlite").exists()


def test_hooks_of_saved_tensors_read_no_row(unread):
    """torch.func would refuse each row, and leave the noise alone."""
    with training(module()) as private:
        with (
            torch.autograd.graph.save_on_cpu(),
            pytest.raises(RuntimeError, match="has hooks for saved tensors"),
        ):
            next(private)
        # torch's own state is as before
        with torch.autograd.graph.save_on_cpu():
            (module()(torch.ones(1, 3, 8, 8)).sum() * 2).backward()


def test_a_traced_step_reads_no_row(unread):
    """A trace keeps tensors as constants of its graph."""
    said = []
    with training(module()) as private:

        def step(x):
            try:
                next(private)
            except Exception as error:
                said.append(str(error))
            return x

        torch.jit.trace(step, torch.ones(1))
    assert "torch.jit traces the caller" in said[0]


@contextmanager
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_settings_of_torch_at_a_step_change_no_gradient():
    """Such as an autocast, under which no trial compared places of rows."""
    found = []
    for within in (nullcontext, lambda: torch.autocast("cpu", torch.bfloat16), doubles):
        with training(module(), random_state=3) as private, within():
            found.append(next(private)["1.weight"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Same(nn.Module):
    def forward(self, weight):
        return weight * 1.0


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize("within", [nullcontext, parametrize.cached])
def test_cached_parametrizations_keep_no_weight_between_chunks(within):
    """A removed row moves a later one, of the opposite gradient, to the first chunk."""
    x, y = np.random.default_rng(0).normal(size=(100, 9)), np.arange(100) % 2
    x[32] = x[0] = 100 * x[0]
    y[[0, 32]] = 0, 1
    given = {"classes": range(2), "sampling_prob": 1.0, "noise_multiplier": 1e-2}
    given |= {"relation": "add_remove", "nominal_n": 100, "epsilon": 1e9, "steps": 1}
    found = []
    for start in (0, 1):
        layer = nn.Linear(9, 2, bias=False)
        nn.init.zeros_(layer.weight)
        parametrize.register_parametrization(layer, "weight", Same())
        model, rows = nn.Sequential(layer), (x[start:], y[start:])
        with training(model, rows=rows, random_state=1, **given) as private, within():
            (gradient,) = next(private).values()
            found.append(gradient * 100)
    assert float((found[0] - found[1]).norm()) == pytest.approx(CLIP, rel=1e-3)


def test_an_optimizer_with_a_closure_gets_one_gradient_a_step():
    """Its closure returns a public loss. Or each call of it takes a charged step."""
    (weight,) = (model := module()).parameters()
    optimizer = torch.optim.LBFGS([weight], max_iter=1)
    before = weight.detach().clone()
    with training(model) as private:
        for gradient in private:
            optimizer.step(lambda: torch.zeros(()))
            if private.step == 1:
                share = min(1.0, float(1 / gradient["1.weight"].abs().sum()))
                moved = before - weight.detach()
                torch.testing.assert_close(moved, share * gradient["1.weight"])
    (weight,) = (model := module()).parameters()
    optimizer = torch.optim.LBFGS([weight], max_iter=4)
    with training(model, steps=9) as private:

        def closure():
            next(private)
            return weight.sum()

        optimizer.step(closure)
        assert private.step == 4


def test_a_process_group_that_begins_after_the_charge_stops_the_loop(
    unread, monkeypatch
):
    with training(module()) as private:
        for name, value in {"is_initialized": True, "get_world_size": 2}.items():
            monkeypatch.setattr(torch.distributed, name, lambda v=value: v)
        with pytest.raises(ValueError, match="runs in one process"):
            next(private)


def test_a_layer_of_two_names_keeps_its_parameters():
    """torch would leave the tensors of a call in it, with values of rows."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    layer.register_buffer("seen", torch.zeros(1))
    head = nn.Linear(48, 3)
    model = nn.Sequential(nn.Flatten(2), layer, layer, nn.Flatten(), head)
    x, y = torch.randn(5, 1, 3, 4, 4), torch.arange(5) % 3
    before = [*layer.parameters(), *layer.buffers()]
    found = [PerExample(model).parts(x, y) for _ in range(2)]
    after = [*layer.parameters(), *layer.buffers()]
    assert all(a is b for a, b in zip(after, before, strict=True))
    by_row = []
    for row, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(row), label[None])
        by_row.append(torch.autograd.grad(loss, [*model.parameters()]))
    wanted = [torch.stack(one).flatten(1) for one in zip(*by_row, strict=True)]
    for parts in found:
        for part, one in zip(parts, wanted, strict=True):
            torch.testing.assert_close(torch.cat(part.columns, dim=1), one)


def test_a_module_with_a_sparse_buffer_is_copied():
    model = with_edges(persistent=False)
    copied = build_network(ModelSpec("own:module"), 3, module=model)
    edges = dict(copied.named_buffers())["edges"]
    assert edges is not dict(model.named_buffers())["edges"]
    with training(model) as private:
        assert next(private)


def tokens():
    return np.random.default_rng(0).integers(0, 20, (9, 5))


@pytest.mark.parametrize("vocabulary", [None, 20])
@pytest.mark.parametrize("other", [1.5, 2**63, 2**80, -1, None, np.nan, True])
def test_an_item_of_a_list_changes_and_refuses_no_other_row(other, vocabulary):
    x: list[Any] = tokens().tolist()
    before = given_rows(x, vocabulary)
    x[4][2] = other
    try:
        after = given_rows(x, vocabulary)
    except ValueError as error:
        raise AssertionError("the item refused the call") from error
    assert before.dtype == after.dtype == np.float64
    assert (np.delete(before, 4, axis=0) == np.delete(after, 4, axis=0)).all()


def test_a_list_of_arrays_is_refused():
    with pytest.raises(ValueError, match="must be one array, got a list of arrays"):
        given_rows([*np.zeros((9, 5), np.uint8)], None)


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.filterwarnings("ignore:No released number")
def test_lists_of_tokens_train_as_arrays_do():
    x, y = tokens(), np.arange(9) % 2
    layers = nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2)
    given: dict[str, Any] = {"model": nn.Sequential(*layers), "vocabulary": 20}
    given |= {"classes": [0, 1], "epsilon": 50.0, "delta": 1e-3, "batch_size": 5}
    given |= {"noise_multiplier": 1.0, "steps": 2, "random_state": 1}
    arrays, lists = (DPFinetuneClassifier(**given).fit(x, y) for x in (x, x.tolist()))
    assert (arrays.weights_ == lists.weights_).all()


class Labels(torch.Tensor):
    """A tensor of another library's type."""


def test_a_tensor_of_a_subclass_is_read_as_a_tensor():
    (found,) = as_arrays(torch.arange(3).as_subclass(Labels))
    assert type(found) is np.ndarray
    assert found.tolist() == [0, 1, 2]


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.BatchNorm1d(3)])
def test_a_mode_that_the_loop_changes_reads_no_row(layer, unread):
    """Masks by slot would let one row move all others. Errors would leave noise alone.

    The step can be taken again after a repair.
    """
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(192, 3), layer).eval()

    def loss(model, x, y):
        return cross_entropy(model, x, y) + F.mse_loss(model(x), teacher(x).detach())

    with training(module(), loss) as private:
        teacher.train()
        with pytest.raises(ValueError, match=r"Call `eval\(\)` on the other modules"):
            next(private)
        teacher.eval()
        with pytest.raises(AssertionError, match="a row was read"):
            next(private)


class Clamped(nn.Module):
    """Shrinks and clamps its weight in place, after its use."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 12) * 0.3)

    def forward(self, x):
        found = F.linear(x, self.weight)
        with torch.no_grad():
            self.weight.data.mul_(0.5).clamp_(-1, 1)
        return found


class Signed(nn.Module):
    def forward(self, x):
        return x if self.training else -x


def raising(x):
    """Raise an error for a row that begins with 7."""
    return torch.linalg.inv(torch.diag_embed((x[:, :2] - 7).abs())).sum() * 0


def clamped():
    """A module, its loss, and what the loop changes before a step."""

    def grow():
        with torch.no_grad():
            model.weight.mul_(20)

    model = Clamped()
    return model, lambda m, x, y: cross_entropy(m, x, y) + raising(x), grow


def switched():
    def loss(copy, x, y):
        one = cross_entropy(copy, x, y)
        copy.eval()
        two = 0.01 * copy(x).square().sum() + raising(x)
        copy.train()
        return one + two

    return nn.Sequential(nn.Linear(12, 8), Signed(), nn.Linear(8, 2)), loss, None


def normed():
    """A teacher that updates buffers, with weights that the loop moves."""
    norm = parametrizations.spectral_norm
    teacher = nn.Sequential(norm(nn.Linear(12, 64)), nn.ReLU(), norm(nn.Linear(64, 2)))
    for _ in range(100):
        teacher(torch.zeros(1, 12))  # until its buffers are constant, up to the loop

    def loss(copy, x, y):
        apart = F.mse_loss(copy(x), teacher(x).detach() * 50)
        return cross_entropy(copy, x, y) + raising(x) + apart

    def move():
        with torch.no_grad():
            for one in teacher.parameters():
                one.add_(0.3 * torch.randn(one.shape))

    return nn.Linear(12, 2), loss, move


class Headed(nn.Module):
    """Has attributes that a loss may change for a while."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, 2)
        self.scales = [1.0]
        self.factors = {self.body.weight: 1.0}
        self.frozen = [[self.body.weight]]
        self.config = SimpleNamespace(gain=1.0, nested={"a": [{"gain": 1.0}]})
        self.config.default = defaultdict(float, gain=1.0)
        self.config.recent = deque([1.0])
        self.config.flags = set()

    def forward(self, x):
        (factor,) = self.factors.values()
        config = self.config
        factor *= config.gain * config.nested["a"][0]["gain"] * config.default["gain"]
        factor *= config.recent[-1] * (30.0 if config.flags else 1.0)
        return self.head(torch.tanh(self.body(x))) * self.scales[0] * factor


def beside(change, restore):
    """A module, and a loss that changes it beside a part that raises an error."""

    def loss(copy, x, y):
        kept = change(copy)
        features = copy(x)
        extra = 0.01 * features.square().mean() + raising(x)
        restore(copy, kept)
        return cross_entropy(copy, x, y) + extra

    return lambda: (Headed(), loss, None)


def without_a_head(copy):
    head, copy.head = copy.head, nn.Identity()
    return head


def hooked(copy):
    return copy.body.register_forward_hook(lambda _, __, found: 5 * found)


def scaled(copy):
    kept, copy.scales[0] = copy.scales[0], 30.0
    return kept


def unscaled(copy, kept):
    copy.scales[0] = kept


def gained(place):
    """Change the gain in a dict, which `place` returns."""

    def change(copy):
        kept, place(copy)["gain"] = place(copy)["gain"], 30.0
        return kept

    return beside(change, lambda copy, kept: place(copy).update(gain=kept))


def keyed(copy):
    kept = dict(copy.factors)
    copy.factors.clear()
    copy.factors[torch.zeros(3)] = 30.0
    return kept


def keyed_again(copy, kept):
    copy.factors.clear()
    copy.factors.update(kept)


def frozen(copy):
    copy.frozen[0][0].requires_grad = False


def trained_again(copy, _):
    copy.frozen[0][0].requires_grad = True


CHANGES = {
    "layer": beside(without_a_head, lambda copy, head: setattr(copy, "head", head)),
    "hook": beside(hooked, lambda _, hook: hook.remove()),
    "list": beside(scaled, unscaled),
    "keys": beside(keyed, keyed_again),
    "frozen": beside(frozen, trained_again),
    "field": gained(lambda copy: vars(copy.config)),
    "nested": gained(lambda copy: copy.config.nested["a"][0]),
    "default": gained(lambda copy: copy.config.default),
    "deque": beside(
        lambda copy: copy.config.recent.append(30.0),
        lambda copy, _: copy.config.recent.pop(),
    ),
    "set": beside(
        lambda copy: copy.config.flags.add("off"),
        lambda copy, _: copy.config.flags.clear(),
    ),
}


def released(model, loss, rows, change=None, **more):
    """Return the gradients (size,) of two steps, which no row may end."""
    given: dict[str, Any] = {"classes": range(2), "sampling_prob": 1.0, "steps": 2}
    given |= {"noise_multiplier": 1e-3, "epsilon": 1e12, "random_state": 1} | more
    found = []
    try:
        with training(model, loss, rows, **given) as private:
            for gradient in private:
                found.append(torch.cat([v.flatten() for v in gradient.values()]))
                if change is not None:
                    change()
    except (Exception, SystemExit) as error:
        raise AssertionError("a row ended a charged training") from error
    return found


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize(
    "made",
    [clamped, switched, normed, *CHANGES.values()],
    ids=["clamped", "switched", "normed", *CHANGES],
)
def test_what_a_call_changes_does_not_reach_the_next_chunk(made):
    """A row that raises an error adds zero, although its chunk is computed again."""
    found = []
    for value in (7.0, np.nan):
        torch.manual_seed(0)
        model, loss, change = made()
        x, y = np.random.default_rng(0).normal(size=(100, 12)), np.arange(100) % 2
        x[0] = value
        found += released(model, loss, (x, y), change)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


class Frozen(OrderedDict):
    """A config as some libraries have it."""

    def update(self, *_, **__):
        raise TypeError("frozen")


class Weighted(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.counts = nn.Linear(12, 2), kind([(0, 1), (1, 3)])

    def forward(self, x):
        return self.body(x) * torch.tensor([float(self.counts[k]) for k in (0, 1)])


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize("kind", [lambda pairs: Counter(dict(pairs)), Frozen])
def test_a_dict_of_another_type_stays_as_it_is(kind):
    """`Counter.update` adds, so the number of calls would change a gradient."""
    rows = np.random.default_rng(0).normal(size=(40, 12)), np.arange(40) % 2
    found = []
    for one in (dict, kind):
        torch.manual_seed(0)
        found.append(released(Weighted(one), cross_entropy, rows))
    assert all(map(torch.equal, *found))


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_a_loss_may_change_its_input_in_place():
    def in_place(model, x, y):
        return cross_entropy(model, x.sub_(0.5).div_(0.25), y)

    def fresh(model, x, y):
        return cross_entropy(model, (x - 0.5) / 0.25, y)

    found = []
    for loss in (in_place, fresh):
        with training(module(), loss, random_state=3) as private:
            found += [next(private)["1.weight"], next(private)["1.weight"]]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_checks_of_two_threads_do_not_see_tensors_of_an_earlier_one():
    """A traceback may hold them."""
    earlier, inside, other = [], threading.Event(), threading.Event()
    views = torch.randn(3, 1, 3, 8, 8)

    def keeps(model, x, y):
        earlier.append(x)
        return cross_entropy(model, x, y)

    def waits(model, x, y):
        inside.set()
        # the other check ends meanwhile, unless it waits for this one
        other.wait(timeout=0.2)
        return cross_entropy(model, x, y)

    def checked():
        inside.wait()
        refuse_memory(PerExample(module()), views)
        other.set()

    PerExample(module(), keeps).parts(views, torch.zeros(3, dtype=torch.int64))
    thread = threading.Thread(target=checked)
    thread.start()
    refuse_memory(PerExample(module(), waits), views)
    thread.join()
    assert earlier and other.is_set()
