"""An error that one row causes reaches no other row, even if code catches it."""

import threading
import warnings
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import numpy as np
import pytest
import timm
import torch
from finetune.test_calls import released
from finetune.test_own_loop import ByFirst, Mixing, cross_entropy, module, training
from torch import nn
from torch.func import grad, jvp
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary

from dphead import DPFinetuneClassifier
from dphead.finetune.gradients import PerExample
from dphead.finetune.models import is_users
from dphead.finetune.settings import ModelSpec

EYE = torch.eye(3)


@torch.jit.script
def scripted(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(matrix)


TRACED = torch.jit.trace(torch.linalg.inv, EYE)


def rescued(matrix, inverse=torch.linalg.inv):
    """Return the inverse of a matrix, or 9 times itself if the matrix is singular."""
    try:
        return inverse(matrix)
    except RuntimeError:
        return 9 * matrix


def overridable(matrix):
    """A function of another library that torch's modes can see."""
    if has_torch_function_unary(matrix):
        return handle_torch_function(overridable, (matrix,), matrix)
    return rescued(matrix)


def unseen(matrix):
    with torch._C.DisableTorchFunction():
        return rescued(matrix)


def at_node(register):
    def way(matrix):
        found = matrix * 1
        if found.grad_fn is not None:  # not in the trial that measures memory
            getattr(found.grad_fn, register)(
                lambda grads, *_: tuple(
                    None if one is None else rescued(matrix) * one for one in grads
                )
            )
        return found * 1

    return way


class InForward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix):
        return rescued(matrix)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


class InBackward(InForward):
    @staticmethod
    def forward(matrix):
        return matrix * 1

    @staticmethod
    def backward(ctx, *grads):
        return rescued(ctx.saved_tensors[0]) * grads[0]


class Raising(InBackward):
    @staticmethod
    def backward(ctx, *grads):
        return torch.linalg.inv(ctx.saved_tensors[0]) * grads[0]


class Own(torch.Tensor):
    """Catches errors of any function of torch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except RuntimeError:
            return 9 * args[0].as_subclass(torch.Tensor)


def suppressed(matrix):
    found = 9 * matrix
    with suppress(RuntimeError):
        found = torch.linalg.inv(matrix)
    return found


def exits(matrix):
    try:
        return torch.linalg.inv(matrix)
    except RuntimeError:
        raise SystemExit from None


def in_hook(matrix):
    found = matrix * 1
    if found.requires_grad:  # not in the trial that measures memory
        found.register_hook(lambda g: rescued(matrix) * g)
    return found


def in_distance(matrix):
    of = F.triplet_margin_with_distance_loss
    return of(*[matrix] * 3, distance_function=lambda a, _: rescued(a)[0, :1])


def in_gradient(matrix):
    with suppress(RuntimeError):
        return grad(lambda m: Raising.apply(m).sum())(matrix)
    return 9 * matrix


def beyond(matrix):
    """Look up a table, whose size the row's index exceeds."""
    index = (matrix == 0).all(dim=1).all(dim=0).long() * 7
    try:
        return EYE.index_select(0, index[None])
    except (IndexError, RuntimeError):
        return 9 * EYE


WAYS = {
    "rescued": rescued,
    "suppressed": suppressed,
    "exits": exits,
    "forward": InForward.apply,
    "backward": InBackward.apply,
    "hook": in_hook,
    "distance": in_distance,
    "gradient": in_gradient,
    "table": beyond,
    "script": lambda matrix: rescued(matrix, scripted),
    "trace": lambda matrix: rescued(matrix, TRACED),
    "overridable": overridable,
    "unseen": unseen,
    "before node": at_node("register_prehook"),
    "after node": at_node("register_hook"),
    "own type": lambda matrix: torch.linalg.inv(matrix.as_subclass(Own)),
}


def with_one_that_begins(value):
    """Rows and labels; the value is the first one of the row 5."""
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    x[5, 0], x[:, 3] = value, 9
    return x.astype(np.float32), y


def by(way):
    """A loss that uses a matrix of the row: the identity, or zeros if it begins so."""

    def loss(model, x, y):
        matrix = EYE * (x[0, 0] != 0)
        scale = model[0].weight.mean() + 1  # for gradients of the weights
        return cross_entropy(model, x, y) + way(matrix * scale).square().sum()

    return loss


@contextmanager
def ended_by_no_error():
    """Fail for any exception, also one that `except Exception` does not catch."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"ended by {error!r}") from error


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_row_with_an_error_that_the_loss_catches_changes_no_other_row(way):
    """The row adds zero, as if its error had not been caught."""
    found = []
    for value in (0.0, np.nan):
        rows = with_one_that_begins(value)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 2))
        with ended_by_no_error():
            found += released(model, by(way), rows)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert found[0].any()


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_code_that_runs_from_a_later_step_on_can_hide_no_error():
    """It needs several views and a value that the loop changes."""
    found = []
    for label in (0, 9):
        later = []

        def loss(model, x, y, later=later):
            matrix = EYE * x[0].abs().amax()  # zeros for the row 5
            if later and len(x) > 1:
                extra = rescued(matrix, scripted)
            else:
                extra = matrix + 1
            return cross_entropy(model, x, y) + extra.sum() * model[1].weight.sum()

        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        x, y = np.random.default_rng(0).integers(1, 256, (40, 3, 8, 8)), np.arange(40)
        x[5], y = 0, y % 2
        y[5] = label
        rows, more = (x.astype(np.uint8), y), {"views": 2, "augment": "crop"}
        found += released(model, loss, rows, lambda kept=later: kept.append(1), **more)
    assert not torch.equal(found[0], found[2])  # all rows add in the first step
    assert torch.equal(found[1], found[3])


class Gated(nn.Module):
    """Has a part that public rows do not reach, once a weight is large."""

    def __init__(self, is_open):
        super().__init__()
        self.body, self.gate = nn.Linear(4, 2), nn.Parameter(torch.zeros(()))
        self.is_open = is_open

    def forward(self, x):
        extra = torch.zeros(())
        if self.is_open(self.gate, x):
            extra = torch.linalg.cholesky(EYE * (x[0, 3] - 1))  # public rows are < 1
            matrix = EYE * (x[0, 0] != 0)
            extra = extra + rescued(matrix * (self.gate + 1), scripted)
        return self.body(x) + extra.sum() * self.gate * torch.tensor([1.0, -1.0])


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize(
    "is_open",
    [
        lambda gate, _: gate.item() > 0.5,
        lambda gate, _: torch.allclose(gate, torch.ones(())),
        lambda gate, x: len(torch.bincount((gate * x[0, 3:]).long())) > 1,
    ],
)
def test_code_that_runs_for_some_weights_or_rows_only_can_hide_no_error(is_open):
    found = []
    for value in (0.0, np.nan):
        rows = with_one_that_begins(value)
        torch.manual_seed(0)
        model = Gated(is_open)
        found += released(
            model, cross_entropy, rows, lambda gate=model.gate: gate.data.fill_(1.0)
        )
    assert torch.equal(found[1], found[3])


class ByFirstOfChunk(ByFirst):
    @staticmethod
    def forward(x):
        return x * 1


def by_first_of_chunk(num_classes, **_):
    """A network of torch's layers, with a function of the user."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))
    model.forward = lambda x: model[1](ByFirstOfChunk.apply(model[0](x)))
    return model


def test_a_users_own_network_is_watched_if_timm_knows_its_name(monkeypatch):
    known = timm.models._registry._model_entrypoints
    monkeypatch.setitem(known, "of_first", by_first_of_chunk)
    x = np.random.default_rng(0).integers(0, 256, (60, 2, 2, 3), dtype=np.uint8)
    given: dict[str, Any] = {"epsilon": 3, "delta": 1e-3, "steps": 1, "batch_size": 9}
    model = DPFinetuneClassifier(model="of_first", classes=[0, 1], **given)
    with pytest.raises(ValueError, match="other images of its chunk"):
        model.fit(x, np.arange(60) % 2)
    shim = timm.models._registry._deprecated_model_shim
    monkeypatch.setitem(known, "old_first", shim("old_first", by_first_of_chunk))
    wrapped = wraps(known["resnet18"])(lambda **given: by_first_of_chunk(**given))
    monkeypatch.setitem(known, "wrapped", wrapped)
    assert is_users(ModelSpec("old_first")) and is_users(ModelSpec("wrapped"))
    assert not is_users(ModelSpec("resnet18")) and not is_users(ModelSpec("wrn-10-1"))


class Watching(nn.Module):
    """A loss that reads a public value of the training, as for a schedule."""

    loop: Any = None

    def forward(self, scores, x, y):
        matrix = EYE * (x[0, 0] != 0) * (scores.mean() + 9)
        extra = rescued(matrix).sum() / (1 + self.loop.step if self.loop else 1)
        return F.cross_entropy(scores, y) + extra


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_a_noted_error_is_kept_if_a_module_reaches_the_training():
    found = []
    for value in (0.0, np.nan):
        rows = with_one_that_begins(value)
        torch.manual_seed(0)
        model, watching = nn.Sequential(nn.Linear(4, 2)), Watching()
        given = {"noise_multiplier": 1e-3, "epsilon": 1e12, "random_state": 1}
        given |= {"sampling_prob": 1.0, "steps": 2, "classes": range(2)}
        private = training(
            model, lambda m, x, y, loss=watching: loss(m(x), x, y), rows, **given
        )
        watching.loop = private
        with ended_by_no_error(), private:
            found += [next(private)["0.weight"], next(private)["0.weight"]]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_a_probe_of_an_attribute_that_a_tensor_lacks_is_no_error():
    """Libraries of arrays look for an interface of a GPU."""

    def loss(model, x, y):
        assert not hasattr(x, "__cuda_array_interface__")
        return cross_entropy(model, x, y)

    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    assert len(released(nn.Sequential(nn.Linear(4, 2)), loss, (x, y))) == 2


class Whitening(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        rows = x.reshape(len(x), 4, 3)
        return self.head((rows @ rescued(rows.mT @ rows)).flatten(1))


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.filterwarnings("ignore:No released number")
@pytest.mark.parametrize("cap", [None, 2])
def test_a_singular_row_moves_the_classifier_by_one_clip_norm(cap):
    """Rows that are zeroed out are singular too."""
    units = 80 // (cap or 1)
    given: dict[str, Any] = {"classes": [0, 1], "epsilon": 1e12, "delta": 1e-3}
    given |= {"steps": 1, "batch_size": units, "noise_multiplier": 1e-3}
    given |= {"learning_rate": 1e-6, "normalize": False, "average": "last"}
    given |= {"clip_norm": 0.5, "random_state": 1, "group_cap": cap}
    groups = {} if cap is None else {"groups": np.arange(80) // cap}
    found = []
    for value in (1.0, np.nan):
        x = np.random.default_rng(1).normal(size=(80, 12))
        x[: cap or 1] *= value
        model = DPFinetuneClassifier(model=Whitening(), **given)
        found.append(model.fit(x, np.arange(80) % 2, **groups).weights_)
    moved = np.linalg.norm(found[0] - found[1]) * units * 1e6
    assert 0 < moved <= 0.5 * 1.001


def probing(model, x, y):
    try:
        x = x.bernoulli()
    except RuntimeError:
        x = x.clone()
    return cross_entropy(model, x, y)


def test_an_error_of_all_rows_that_the_loss_catches_is_refused(tmp_path):
    """It is found by the public trial, before the charge."""
    with pytest.raises(ValueError, match=r"cannot compute gradients .*Remove .*`try`"):
        training(module(), probing, ledger=tmp_path / "l.sqlite").__enter__()
    assert not (tmp_path / "l.sqlite").exists()


def test_an_error_is_raised_once_and_kept_nowhere():
    model = nn.Sequential(nn.Linear(4, 2))
    gradients = PerExample(model, by(rescued))
    x, y = torch.zeros(3, 1, 4), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="singular"):
        gradients.parts(x, y)
    assert len(gradients.parts(x + 1, y)) == 2


def test_code_in_except_does_not_run_for_a_row():
    """Lines that it prints could show the size of a batch, or a row's operations."""
    ran = []

    def loss(model, x, y):
        extra = EYE * x[0, 0] * model[0].weight.mean()
        try:
            extra = torch.linalg.inv(extra)
        except RuntimeError:
            ran.append(1)
        return cross_entropy(model, x, y) + extra.sum()

    gradients = PerExample(nn.Sequential(nn.Linear(4, 2)), loss)
    y = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="singular"):
        gradients.parts(torch.zeros(3, 1, 4), y)
    assert ran == []
    assert len(gradients.parts(torch.ones(3, 1, 4), y)) == 2


@pytest.mark.parametrize("of", [torch.linalg.svdvals, torch.linalg.pinv])
def test_a_matrix_that_is_not_finite_reaches_no_svd_of_a_library(of):
    """MKL would print a line for a row with a number whose square is infinite."""

    def loss(model, x, y):
        values = of(EYE * x[0, 0].square())
        return cross_entropy(model, x, y) * values.sum()

    gradients = PerExample(nn.Sequential(nn.Linear(4, 2)), loss)
    y = torch.zeros(3, dtype=torch.int64)
    assert len(gradients.parts(torch.ones(3, 1, 4), y)) == 2
    with pytest.raises((ValueError, RuntimeError), match=r"linalg_.* is unsafe"):
        gradients.parts(torch.full((3, 1, 4), 1e30), y)


def smooth(x):
    """A function of another library, in a module whose name ends in `_ops`."""
    if has_torch_function_unary(x):
        return handle_torch_function(smooth, (x,), x)
    return x * 1


smooth.__module__ = "my_ops.losses"


@pytest.mark.parametrize(
    "way",
    [
        lambda matrix: torch.linalg.pinv(input=matrix),
        lambda matrix: jvp(torch.exp, (matrix,), (EYE,))[1],
        smooth,
    ],
    ids=["keyword", "jvp", "overridable"],
)
def test_functions_of_torch_and_of_libraries_are_allowed(way):
    def loss(model, x, y):
        extra = way(EYE * x[0, 0])
        return cross_entropy(model, x, y) + extra.sum() * model[0].weight.mean()

    gradients = PerExample(nn.Sequential(nn.Linear(4, 2)), loss)
    found = gradients.parts(torch.ones(3, 1, 4), torch.zeros(3, dtype=torch.int64))
    assert len(found) == 2


def test_an_operation_without_a_rule_warns_of_no_row(capfd):
    """The number of warnings would follow the chunks of private rows."""

    def loss(model, x, y):
        found = torch.ops.aten.bincount((x[0] > 0).long(), minlength=4)
        return cross_entropy(model, x, y) * (1 + found.sum())

    gradients = PerExample(nn.Sequential(nn.Linear(4, 2)), loss)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gradients.parts(torch.ones(3, 1, 4), torch.zeros(3, dtype=torch.int64))
    assert seen == [] and capfd.readouterr().err == ""


@torch.library.custom_op("dphead_tests::row_by_row", mutates_args=())
def row_by_row(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("dphead_tests::by_rule", mutates_args=())
def by_rule(x: torch.Tensor) -> torch.Tensor:
    return x + 1


row_by_row.register_fake(torch.empty_like)
by_rule.register_fake(torch.empty_like)
by_rule.register_vmap(lambda info, dims, x: (x + 1, dims[0]))


@pytest.mark.parametrize(
    "operator",
    [row_by_row, by_rule, torch.ops.dphead_tests.by_rule],
    ids=["row", "rule", "packet"],
)
def test_an_operator_with_code_of_the_user_is_refused_before_the_charge(
    operator, tmp_path
):
    """Its code sees plain rows, and could draw random numbers for some of them."""

    def loss(model, x, y):
        return cross_entropy(model, operator(x.float()), y)

    with pytest.raises(ValueError, match="is unsafe for a chunk of rows"):
        training(module(), loss, ledger=tmp_path / "l.sqlite").__enter__()
    assert not (tmp_path / "l.sqlite").exists()


class ShowsInForward(Mixing):
    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap

    @staticmethod
    def forward(x):
        print(x)
        return x * 1


class ShowsInBackward(ShowsInForward):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        print(gradient)
        return gradient


class ShowsInRule(Mixing):
    @staticmethod
    def vmap(info, in_dims, x):
        print(x)
        return Mixing.apply(x), in_dims[0]


def in_hook(scores):
    if scores.requires_grad:  # not in the trial that measures memory
        scores.register_hook(lambda gradient: print("norm", gradient.norm()))
    return scores


def in_called(scores):
    def distance(a, b):
        print(a)
        return (a - b).norm(dim=-1)

    return scores * F.triplet_margin_with_distance_loss(
        scores, scores + 1, scores - 1, distance_function=distance
    )


def without_modes(scores):
    with torch._C.DisableTorchFunction():
        print(scores)
    return scores


@pytest.mark.parametrize(
    "shown",
    [
        ShowsInForward.apply,
        ShowsInBackward.apply,
        ShowsInRule.apply,
        in_hook,
        in_called,
        without_modes,
    ],
)
def test_a_print_that_no_mode_sees_is_refused_before_the_charge(
    shown, tmp_path, capsys
):
    ledger = tmp_path / "ledger.sqlite"
    with pytest.raises(ValueError, match="text of a tensor is unsafe"):
        training(
            module(), lambda m, x, y: F.cross_entropy(shown(m(x)), y), ledger=ledger
        ).__enter__()
    assert not ledger.exists()
    assert "tensor" not in capsys.readouterr().out


def text_of(value):
    try:
        return str(value)
    except ValueError as error:
        return str(error)


def test_another_thread_shows_only_public_tensors_during_a_call():
    texts = []

    def loss(model, x, y):
        found = cross_entropy(model, x, y)
        for one in (found.detach(), EYE):
            thread = threading.Thread(target=lambda one=one: texts.append(text_of(one)))
            thread.start()
            thread.join()
        return found

    with training(model := module(), loss, steps=1) as private:
        texts.clear()
        next(private)
        assert text_of(model[1].weight).startswith("Parameter")
    refused = "the text of a tensor is unsafe for a chunk of rows"
    assert set(texts) == {refused, str(EYE)}
    # code of the user's own that dphead does not call
    torch.vmap(lambda row: texts.append(text_of(row)) or row)(EYE)
    assert texts[-1].startswith("BatchedTensor")
