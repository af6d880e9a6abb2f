"""`PrivateTraining` releases gradients to a loop of one's own, and nothing else."""

import logging
import random
import threading
from functools import partial

import numpy as np
import pytest
import torch
from commands import dphead, report_of, words
from finetune.core import images
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from dphead import PrivateTraining
from dphead.finetune.estimator import DPFinetuneClassifier
from dphead.finetune.rows import ImageRows
from dphead.fit.ledgers import open_ledger
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.noise import NoiseSource

CLIP = 0.5


class Crash(Exception):
    pass


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3, bias=False))


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


def training(model, loss=cross_entropy, rows=None, **more):
    """Of 40 images. Its noise is given, because its calibration takes a second."""
    given = {"classes": range(3), "sampling_prob": 0.5, "steps": 4, "clip_norm": CLIP}
    given |= {"epsilon": 50.0, "delta": 1e-3, "noise_multiplier": 1.0}
    given |= {"accountant": "rdp"} | more
    return PrivateTraining(model, loss, rows or images(), **given)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def taken(private, optimizer, until=None):
    """The gradients of a training, each followed by a step of the optimizer."""
    found = []
    for gradient in private:
        found.append(gradient["1.weight"].clone())
        if private.step == until:
            raise Crash
        optimizer.step()
    return found


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_a_loop_of_ones_own_has_the_weights_of_the_classifier():
    """One private step serves both: the same sample, sum and noise of a seed."""
    x, y = images()
    model = module()
    with training(model, random_state=3) as private:
        taken(private, torch.optim.SGD(model.parameters(), lr=0.5))
    assert not private.privacy.private
    same = DPFinetuneClassifier(
        model=module(),
        classes=range(3),
        epsilon=50.0,
        delta=1e-3,
        noise_multiplier=1.0,
        accountant="rdp",
        batch_size=20,
        steps=4,
        clip_norm=CLIP,
        learning_rate=0.5,
        normalize=False,
        average="last",
        mean=0.0,
        std=1.0,
        random_state=3,
    ).fit(x.transpose(0, 2, 3, 1), y)
    (weight,) = model.parameters()
    found = weight.detach().numpy().ravel()
    # four roundings of weights of at most 1 to float32
    np.testing.assert_allclose(found, same.weights_, atol=4 * 2**-23)


def test_all_steps_are_charged_before_the_first_even_if_the_loop_ends_early(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    with training(module(), ledger=ledger) as private:
        (fit,) = Ledger(ledger).fits()
        assert len(fit["releases"]) == 4
        next(private)
    assert private.privacy.private
    assert Ledger(ledger).spent(1e-3).epsilon == private.privacy.epsilon


def test_one_image_moves_a_gradient_by_at_most_the_clip_norm():
    """A loss may be as large as it likes."""

    def loss(model, x, y):
        return 1e9 * cross_entropy(model, x, y)

    x, y = images()
    found = []
    for labels in (y, np.where(np.arange(40) == 7, -1, y)):
        with training(
            module(), loss, (x, labels), random_state=3, sampling_prob=1.0
        ) as private:
            found.append(next(private)["1.weight"] * 40)
    moved = float((found[0] - found[1]).norm())
    # 576 roundings of float32 to 6e-8 of sums that are below 40 C
    assert CLIP * 0.999 <= moved <= CLIP * 1.001


@pytest.mark.parametrize("kept, again", [(False, 3), (True, 1)])
def test_a_killed_loop_continues_under_its_charge_with_the_same_gradients(
    kept, again, tmp_path
):
    """Without `keep`, three released gradients are repeated; with it, those after the
    checkpoint.
    """
    given = {"ledger": tmp_path / "ledger.sqlite", "folder": tmp_path / "run"}
    model, before, found = module(), [], []
    optimizer = optimizer_of(model)
    given |= {"checkpoint": 2, "keep": [optimizer] if kept else []}
    with pytest.raises(Crash), training(model, **given) as private:
        for gradient in private:
            before.append(gradient["1.weight"].clone())
            if private.step == 3:
                raise Crash
            optimizer.step()
    optimizer = optimizer_of(model := module())
    given |= {"keep": [optimizer] if kept else []}
    with training(model, **given) as private:
        assert private.step == 3 - again
        found = taken(private, optimizer)
    assert len(found) == again + 1
    for old, new in zip(before[-again:], found, strict=False):
        assert torch.equal(old, new)
    # as without a kill: the momentum too
    optimizer = optimizer_of(whole := module())
    (weight,), (resumed,) = whole.parameters(), model.parameters()
    for gradient in [*before, found[-1]]:
        weight.grad = gradient
        optimizer.step()
    assert torch.equal(weight, resumed)
    (fit,) = Ledger(given["ledger"]).fits()
    assert [r["state"] for r in fit["releases"]] == ["committed"] * 4
    assert "the same epsilon" in words(dphead("check", given["folder"]).out)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    given = {"ledger": tmp_path / "ledger.sqlite", "checkpoint": 1}
    for name in ("run", "other"):
        optimizer = optimizer_of(model := module())
        with (
            pytest.raises(Crash),
            training(model, folder=tmp_path / name, keep=[optimizer], **given) as one,
        ):
            taken(one, optimizer, until=2)
    theirs = (tmp_path / "other" / "checkpoint.npz").read_bytes()
    (tmp_path / "run" / "checkpoint.npz").write_bytes(theirs)
    with pytest.raises(ValueError, match="belongs to another fit"):
        training(model, folder=tmp_path / "run", keep=[optimizer], **given).__enter__()


def test_a_loop_in_the_ledger_of_a_data_set_names_its_other_ledgers(tmp_path):
    """The arrays have no data set, and their ledger has one."""
    for book in (open_ledger(None, "ab12"), Ledger(tmp_path / "own.sqlite", "ab12")):
        with training(module(), ledger=book.path):
            pass
    model, given = module(), {"ledger": tmp_path / "own.sqlite", "steps": 1}
    with training(model, folder=tmp_path / "run", **given) as private:
        taken(private, optimizer_of(model))
        assert (
            "ab12.sqlite holds at least 1 fit for single rows"
            in private.privacy.notes[0]
        )
    report = report_of(tmp_path / "run")
    assert [one["fits"] for one in report["ledger"]["elsewhere"]] == [1]


@pytest.fixture
def unread(monkeypatch):
    """Rows that say when they are read."""

    def read(*_):
        raise AssertionError("a row was read")

    monkeypatch.setattr(ImageRows, "blocks", read)


class Remembering(nn.Module):
    """Keeps its input, outside of its attributes."""

    def forward(self, x):
        Remembering.seen = x
        return x


SEEN = []
OUTER = module()


def keeping(model, x, y):
    SEEN.append(x)
    return cross_entropy(model, x, y)


def by_chance(model, x, y):
    return cross_entropy(model, x + random.random(), y)


class Mixing(torch.autograd.Function):
    """A `vmap` rule sees all rows of a chunk."""

    @staticmethod
    def forward(x):
        return x - x.mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return Mixing.apply(x), in_dims[0]


def mixing(model, x, y):
    return cross_entropy(model, Mixing.apply(x), y)


class ByFirst(Mixing):
    """The first row of a chunk changes the others, and no other row does."""

    @staticmethod
    def forward(x):
        return x / x.abs().amax()

    @staticmethod
    def vmap(info, in_dims, x):
        return x / (x.movedim(in_dims[0], 0)[0].flatten()[0] + 0.1), in_dims[0]


def by_first(model, x, y):
    return cross_entropy(model, ByFirst.apply(x), y)


def with_part(part):
    """Return a loss that multiplies by a number of a row and its ranks."""

    def loss(model, x, y):
        flat = x.flatten()
        return cross_entropy(model, x, y) * (1 + part(flat, flat.argsort()).sum())

    return loss


# torch checks no index of a single row, so -1 is the last place of the row before
UNSAFE = {
    "index_fill": lambda row, ranks: row.index_fill(0, ranks[:3] - 1, 0),
    "index_fill_": lambda row, ranks: row.clone().index_fill_(0, ranks[:3] - 1, 0),
    "embedding": lambda row, ranks: F.embedding(weight=row[:, None], input=ranks),
    "ctc_loss": lambda row, ranks: F.ctc_loss(
        row[:12].view(6, 1, 2).log_softmax(2), ranks[None, :2], [6], [2]
    ),
    "segment_reduce": lambda row, ranks: torch.segment_reduce(
        row[:2], "sum", offsets=ranks[:2]
    ),
    "lstsq": lambda row, _: (
        torch.linalg.lstsq(row[:8].reshape(4, 2), row[8:12].reshape(4, 1)).solution
    ),
}


def printing(model, x, y):
    print("loss", found := cross_entropy(model, x, y))
    return found


def formatting(model, x, y):
    found = cross_entropy(model, x, y)
    logging.info(f"{found}")
    return found


def resampled(model, x, y):
    image = model[1].weight.reshape(1, 3, 8, -1)
    grid = x.reshape(1, -1, 2)[:, None]
    sampled = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
    return cross_entropy(model, x, y) * (1 + sampled.sum())


CALLS = []


def counting(model, x, y):
    """A gradient too small for an absolute tolerance, which grows with each call."""
    CALLS.append(0)
    return 1e-9 * cross_entropy(model, x * (1 + len(CALLS)), y)


class Casting(nn.Module):
    """Computes with other weights than float32."""

    def __init__(self, inner, dtype):
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def forward(self, x):
        return self.inner(x.to(self.dtype)).abs().float()


def with_hook():
    model = module()
    model[1].register_forward_hook(lambda *_: None)
    return model


def with_batch_norm():
    return nn.Sequential(nn.BatchNorm2d(3), module())


@pytest.mark.parametrize(
    "made, loss, message",
    [
        (with_hook, cross_entropy, "with forward_hooks"),
        (
            lambda: nn.Sequential(Remembering(), module()),
            cross_entropy,
            "keeps a tensor of an image",
        ),
        (with_batch_norm, cross_entropy, r"Call its `eval\(\)`"),
        (module, keeping, "keeps a tensor of an image"),
        (module, by_chance, "or on chance"),
        (module, counting, "or on chance"),
        (module, mixing, "other images of its chunk"),
        (module, by_first, "other images of its chunk"),
        *((module, with_part(UNSAFE[name]), f"{name} is unsafe") for name in UNSAFE),
        (module, printing, "__repr__ is unsafe"),
        (module, formatting, "__format__ is unsafe"),
        (module, resampled, "grid_sampler_2d_backward is unsafe"),
        (module, lambda _, x, y: F.cross_entropy(OUTER(x), y), "does not depend on"),
        (module, lambda model, x, y: model(x), "scalar"),
    ],
)
def test_code_that_keeps_or_mixes_rows_is_refused_before_the_charge(
    made, loss, message, unread, tmp_path, monkeypatch
):
    # it waits seconds for tensors that other threads use
    monkeypatch.setattr("threading.active_count", lambda: 1)
    SEEN.clear()
    ledger = tmp_path / "ledger.sqlite"
    with pytest.raises(ValueError, match=message):
        training(made(), loss, ledger=ledger).__enter__()
    SEEN.clear()
    assert not ledger.exists()


def test_a_refused_loss_does_not_refuse_the_next_one():
    """A notebook keeps the traceback, with the tensors of the trial."""
    with pytest.raises(ValueError, match="branches") as kept:
        training(module(), lambda m, x, y: m(x) if x.sum() > 0 else 0).__enter__()
    with training(module(), steps=1) as private:
        next(private)
    assert kept.value.__cause__ is not None


class OfNan(nn.Module):
    """Has a mask of NaN, and a buffer that each call replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((2,), torch.nan))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x


def with_spectral_norm():
    return nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(192, 3))
    )


@pytest.mark.parametrize(
    "made", [lambda: nn.Sequential(OfNan(), module()), with_spectral_norm]
)
def test_each_charged_step_accepts_a_module_that_the_charge_accepted(made):
    with training(made(), steps=2) as private:
        assert len(list(private)) == 2


def test_a_module_that_steps_would_refuse_is_not_charged(monkeypatch, tmp_path):
    """The comparison of a step runs before the charge too."""
    monkeypatch.setattr("dphead.finetune.own_loop.bits", lambda _: object())
    own = nn.Sequential(OfNan(), module())
    with pytest.raises(ValueError, match="mask of the module has changed"):
        training(own, ledger=(ledger := tmp_path / "l.sqlite")).__enter__()
    assert not ledger.exists()


def frozen(model):
    model[1].weight.requires_grad_(False)


def replaced(model):
    model[1] = nn.Linear(192, 4, bias=False)


def assigned(model):
    """The optimizer holds the old weight, which alone refuses a backward pass."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def with_a_new_buffer(model):
    model.register_buffer("seen", torch.zeros(1))


@pytest.mark.parametrize(
    "change, message",
    [
        (frozen, "no longer trains the parameters"),
        (replaced, "no longer trains the parameters"),
        (assigned, "load weights without `assign=True`"),
        (with_a_new_buffer, "seen of the module has changed"),
    ],
)
def test_a_module_that_is_not_that_of_the_charge_reads_no_row(change, message, unread):
    with training(model := module()) as private:
        change(model)
        with pytest.raises(ValueError, match=message):
            next(private)
        with pytest.raises(ValueError, match="step 0 failed before"):
            next(private)


def test_the_users_own_passes_over_rows_reach_no_gradient():
    """A frozen batch norm that the user switches on takes statistics of rows."""
    norm = nn.BatchNorm2d(3).eval()
    with training(nn.Sequential(norm, module())) as private:
        next(private)
        norm.train()(torch.from_numpy(images()[0]).float())
        with pytest.raises(ValueError, match=r"0\.running_mean .* could hold rows"):
            next(private)


@pytest.mark.parametrize("kind", ["forward", "buffer_registration"])
def test_a_global_hook_stops_the_loop_before_a_row_is_read(kind, unread):
    register = getattr(nn.modules.module, f"register_module_{kind}_hook")
    with training(module()) as private:
        hook = register(lambda *_: None)
        try:
            with pytest.raises(ValueError, match="global hook"):
                next(private)
        finally:
            hook.remove()


class Seeing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


class SeeingOnDevice(DeviceContext):
    """Of a class of torch's own mode."""

    def __init__(self):
        super().__init__(torch.device("cpu"))


class SeeingMore(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("mode", [Seeing, SeeingOnDevice, SeeingMore])
def test_a_mode_that_sees_every_operation_reads_no_row(mode, unread):
    seen = pytest.raises(ValueError, match=f"mode .{mode.__name__}. that would see")
    with training(module()) as private, mode(), seen:
        next(private)


def test_a_compiled_step_reads_no_row(unread):
    """A compiler that replaces numpy would draw noise of one sign, and tell keys."""
    with training(module()) as private:
        step = torch.compile(lambda: next(private), backend="eager")
        with pytest.raises(RuntimeError, match="A function that torch compiles"):
            step()


def test_a_default_device_hinders_no_step():
    with training(module()) as private, torch.device("cpu"):
        assert next(private)


def test_batches_that_are_expected_to_be_empty_release_noise():
    with training(module(), sampling_prob=1e-3) as private:
        assert next(private)["1.weight"].any()


def test_a_training_releases_only_inside_its_block_and_is_opened_once():
    private = training(module(), steps=1)
    with pytest.raises(ValueError, match="is closed"):
        next(private)
    with private:
        next(private)
        with pytest.raises(StopIteration):
            next(private)
    with pytest.raises(ValueError, match="is closed"):
        next(private)
    with pytest.raises(ValueError, match="opened before"):
        private.__enter__()


def test_a_training_that_a_budget_refused_has_no_guarantee(tmp_path):
    Ledger(tmp_path / "a.sqlite").set_budget(1.0, 1e-3)
    private = training(module(), ledger=tmp_path / "a.sqlite")
    for _ in range(2):
        with pytest.raises(LedgerError, match="exceed the budget"):
            private.__enter__()
        with pytest.raises(ValueError, match="only after its charge"):
            assert private.privacy


def test_a_loss_cannot_take_a_step(monkeypatch):
    """Neither in a trial nor in a step."""
    private = None

    def loss(model, x, y):
        if private is not None and "_fit" in vars(private):
            with pytest.raises(ValueError, match="or another step is running") as error:
                next(private)
            said.add(str(error.value)[:24])
        return cross_entropy(model, x, y)

    said = set()
    private = training(module(), loss, steps=1)
    with private:
        next(private)
    assert said == {"this training is closed,"}


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
def test_another_thread_cannot_step_during_a_step():
    """Nor try a public row, because the trial would use the same copy."""
    private, said, threads, own = None, [], set(), threading.get_ident()

    def other():
        try:
            next(private)
        except ValueError as error:
            said.append(str(error))

    def loss(model, x, y):
        threads.add(current := threading.get_ident())
        if private is not None and "_fit" in vars(private) and current == own:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return cross_entropy(model, x, y)

    private = training(module(), loss, steps=1)
    with private:
        try:
            next(private)
        except ValueError as error:
            raise AssertionError("the other thread ended the step") from error
    assert threads == {own}
    assert said and all("or another step is running" in text for text in said)


def test_no_sample_is_the_same_twice_and_none_is_told(monkeypatch):
    """Two trainings of the same rows have other noise; a step has its own key."""
    keys = []
    generator = NoiseSource.generator

    def seen(self, *asked):
        keys.append(asked)
        return generator(self, *asked)

    monkeypatch.setattr(NoiseSource, "generator", seen)
    model = module()
    with training(model) as private:
        found = taken(private, torch.optim.SGD(model.parameters(), lr=0.0))
    # two gradients in a row, without a step of the weights, are two releases
    assert not torch.equal(found[0], found[1])
    assert keys == [(i, p) for i in range(4) for p in ("sample", "noise")]


@pytest.mark.parametrize(
    "rows, more, message",
    [
        ((np.zeros((9, 2), int), np.zeros(9, int)), {}, r"uint8 or floats .*got int64"),
        ((np.zeros((9, 2)), np.zeros(8, int)), {}, "9 rows and 8 labels"),
        (None, {"steps": 0}, "steps must be"),
        (None, {"sampling_prob": 1.5}, "sampling_prob must be in"),
        (None, {"delta": 0.5}, "delta must be below"),
        (None, {"augment": "crop"}, "need each other"),
    ],
)
def test_wrong_arguments_are_named(rows, more, message):
    with (
        pytest.raises(ValueError, match=message),
        training(module(), rows=rows, **more),
    ):
        pass


def test_processes_of_torchrun_are_refused(monkeypatch):
    """Each would charge and release a training of its own."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    with pytest.raises(ValueError, match="runs in one process"):
        training(module()).__enter__()


def test_processes_of_the_users_own_group_are_refused(monkeypatch):
    """torch.multiprocessing.spawn sets no WORLD_SIZE."""
    for name, value in {"is_initialized": True, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda v=value: v)
    with pytest.raises(ValueError, match="runs in one process"):
        training(module()).__enter__()


def test_a_backward_pass_of_ones_own_adds_nothing_to_a_released_gradient():
    x, y = images()
    with training(model := module()) as private:
        next(private)
        loss = F.cross_entropy(model(torch.from_numpy(x).float()), torch.from_numpy(y))
        with pytest.raises(ValueError, match="backward pass of your own"):
            loss.backward()
        assert model[1].weight.grad is None
    F.cross_entropy(model(torch.ones(1, 3, 8, 8)), torch.zeros(1).long()).backward()
    assert model[1].weight.grad is not None


def test_a_weight_that_the_loop_replaces_gets_no_released_gradient(monkeypatch):
    """Even if the loss replaces it during a step, after the comparison."""
    model, steps = module(), []

    def loss(copy, x, y):
        if steps:  # a trial of each step is before its comparison
            steps.append(copy)
        if len(steps) > 2:
            assigned(model)
        return cross_entropy(copy, x, y)

    with training(model, loss) as private:
        steps.append(before := model[1].weight)
        gradient = next(private)["1.weight"]
        assert before.grad is gradient
        assert model[1].weight is not before
        assert model[1].weight.grad is None


def test_gradients_that_are_cleared_before_their_use_are_named():
    optimizer = optimizer_of(model := module())
    with training(model) as private:
        next(private)
        optimizer.step()
        optimizer.zero_grad()
        next(private)
        optimizer.zero_grad()
        optimizer.param_groups[0]["momentum"] = 0
        optimizer.step()
        with pytest.warns(UserWarning, match="step 2 was charged and changed no"):
            next(private)


def test_a_folder_needs_a_ledger_that_a_resume_finds(tmp_path):
    for ledger in (None, ":memory:"):
        with pytest.raises(ValueError, match="needs a ledger on disk"):
            training(module(), folder=tmp_path / "run", ledger=ledger).__enter__()
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::dphead.PrivacyWarning")
@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("more", [{}, {"groups": np.arange(40) // 4, "group_cap": 4}])
def test_rows_that_the_loop_shuffles_stay_in_their_slots(as_given, more):
    """A person's rows would be in several groups of one charge."""
    found = []
    for shuffled in (False, True):
        x, y = images()
        with training(
            module(), rows=(as_given(x), y), random_state=1, **more
        ) as private:
            next(private)
            if shuffled:
                np.random.default_rng(5).shuffle(x)
            found.append(next(private)["1.weight"].clone())
    assert torch.equal(*found)


def test_a_resume_with_other_groups_is_refused(tmp_path, monkeypatch):
    """Under one charge, each person is in one group only."""
    given = {"ledger": tmp_path / "l.sqlite", "folder": tmp_path / "run"}
    given |= {"group_cap": 4, "groups": torch.arange(40) // 4}
    with pytest.raises(Crash), training(model := module(), **given) as private:
        assert "People are recognized only" in " ".join(private.privacy.notes)
        taken(private, optimizer_of(model), until=2)
    with pytest.raises(ValueError, match="used other rows"):
        training(module(), **(given | {"groups": np.arange(40) % 10})).__enter__()
    with training(module(), **given) as private:
        next(private)
    monkeypatch.setenv("DPHEAD_HOME", "relative")
    with pytest.raises(LedgerError, match="Set DPHEAD_HOME to an absolute path"):
        training(module(), **given).__enter__()


def test_a_resume_with_another_partial_loss_is_refused(tmp_path):
    def other(model, x, y):
        return 2 * cross_entropy(model, x, y)

    given = {"ledger": tmp_path / "l.sqlite", "folder": tmp_path / "run"}
    with training(module(), partial(cross_entropy), **given) as private:
        next(private)
    with pytest.raises(LedgerError, match="with this plan"):
        training(module(), partial(other), **given).__enter__()
    with training(module(), partial(cross_entropy), **given):
        assert len(Ledger(given["ledger"]).fits()) == 1


class Strange:
    """Its state becomes one that no checkpoint can read back."""

    state = 1

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def test_a_checkpoint_that_cannot_be_read_does_not_replace_releases(tmp_path):
    given = {"ledger": tmp_path / "l.sqlite", "folder": tmp_path / "run"}
    given |= {"checkpoint": 1}
    optimizer, strange = optimizer_of(model := module()), Strange()
    before = []
    with (
        pytest.raises(ValueError, match="cannot hold the state of an object"),
        training(model, keep=[optimizer, strange], **given) as private,
    ):
        for gradient in private:
            before.append(gradient["1.weight"].clone())
            # a schedule with np.cos
            optimizer.param_groups[0]["lr"] = np.float64(0.5)
            strange.state = Crash if private.step == 3 else 1
            optimizer.step()
    optimizer = optimizer_of(model := module())
    with training(model, keep=[optimizer, Strange()], **given) as private:
        assert private.step == 2
        assert type(optimizer.param_groups[0]["lr"]) is float
        assert torch.equal(next(private)["1.weight"], before[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_training_predicts_the_declared_classes(dtype, tmp_path):
    """NumPy has no bfloat16."""
    given = {"ledger": tmp_path / "l.sqlite", "folder": tmp_path / "run"}
    model = Casting(module(), dtype)
    with training(model, steps=1, **given) as private:
        next(private)
    loaded = DPFinetuneClassifier.load(given["folder"], model=model)
    found = loaded.predict(images()[0].transpose(0, 2, 3, 1))
    assert set(found.tolist()) <= set(range(3))


def test_a_loss_may_raise_an_error_for_a_row_of_zeros():
    def loss(model, x, y):
        return cross_entropy(model, x @ torch.linalg.inv(x), y)

    with training(module(), loss, steps=1) as private:
        assert next(private)["1.weight"].any()


def test_rows_may_be_tables():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.integers(0, 3, 40)
    with training(model := nn.Linear(5, 3), rows=(x, y)) as private:
        gradient = next(private)
    assert gradient["weight"] is model.weight.grad
    assert gradient["weight"].shape == (3, 5)
