"""dp-optax: optimizers of optax, on released gradients and weights alone."""

import json
import warnings

import jax
import numpy as np
import pytest
from core import toy
from fits import answered
from jax.experimental.buffer_callback import buffer_callback

from dphead import DPOptaxClassifier, DPSGDClassifier, PrivacyWarning
from dphead.fit.backends import on_device
from dphead.jax import fit, optax_method
from dphead.planning.plan import make_plan
from dphead.privacy.axes import PublicAxes
from dphead.privacy.contract import Released
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.solvers import GradientDescent, ProblemInfo
from dphead.solvers.centering import Centering
from dphead.solvers.on_axes import OnAxes

optax = pytest.importorskip("optax", reason="not installed")

from dphead.solvers.optax_descent import OptaxDescent  # noqa: E402

N, D, M = 200, 6, 3
FACTS = ProblemInfo(N, D, M)
X, Y = toy(N, D, M)
GIVEN = {"classes": range(M), "delta": 1e-4, "epsilon": 2.0}


PLAIN = {"steps": 4, "learning_rate": 0.5, "centering": Centering(share=0)}


def told(ask):
    """A gradient that follows from the weights, as of a quadratic loss."""
    target = np.arange(D * M).reshape(D, M) / 10
    return Released(N * (ask.params.weights - target).astype(np.float64), 1.0)


def head_of(solver):
    return answered(on_device(solver, "numpy"), FACTS, told)[1]


@pytest.mark.parametrize("average", ["last", "ema"])
def test_sgd_of_optax_is_that_of_dp_sgd(average):
    given = PLAIN | {"average": average}
    own = head_of(GradientDescent(momentum=0.0, **given))
    theirs = head_of(OptaxDescent(optimizer="sgd", **given))
    np.testing.assert_allclose(theirs.weights, own.weights, rtol=1e-12)
    assert type(theirs.weights) is np.ndarray


def test_adam_of_optax_differs_from_dp_adam_by_its_epsilon_only():
    """1e-8 is added to the root of the second moment, and 1e-12 by dp-adam."""
    own = head_of(GradientDescent(optimizer="adam", **PLAIN))
    named = OptaxDescent(optimizer="adam", **PLAIN)
    np.testing.assert_allclose(head_of(named).weights, own.weights, rtol=1e-4)
    same = OptaxDescent(**PLAIN | {"optimizer": optax.adam(0.5, eps=1e-12)})
    np.testing.assert_allclose(head_of(same).weights, own.weights, rtol=1e-12)


def test_a_transformation_sees_released_gradients_and_weights_only():
    seen = []

    def update(*given, **more):
        seen.append((given, more))
        return jax.tree.map(lambda g: -g, given[0]), given[1]

    spy = optax.GradientTransformation(lambda weights: (), update)
    with jax.disable_jit():
        head_of(OptaxDescent(**PLAIN | {"optimizer": spy}))
    *_, (last, more) = seen
    assert more == {}
    gradient, state, weights = last
    assert gradient.shape == weights.shape == (D, M)
    assert gradient.dtype == weights.dtype == np.float64
    assert state == ()


def refused():
    """What is no optimizer of one gradient, by the words of its refusal."""
    yield "missing 3 required", optax.lbfgs()
    yield "missing 1 required", optax.polyak_sgd()
    yield (
        "missing 1 required",
        optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau()),
    )
    yield "adds noise, as dphead does", optax.contrib.dpsgd(0.1, 1.0, 1.0, 0)
    yield (
        "it returns",
        optax.GradientTransformation(
            lambda weights: (), lambda g, state, weights: (g[:1], state)
        ),
    )
    yield "missing 3 required", "lbfgs"
    for name in ("nothing", "_src", "clip", "apply_updates"):
        yield "the name of an optimizer", name
    yield (
        "incompatible shapes",  # in the second step
        optax.GradientTransformation(
            lambda weights: 0.0,
            lambda gradient, state, _: (gradient + state, jax.numpy.ones((7, 7))),
        ),
    )
    yield (
        "changes its shape at every step",
        optax.GradientTransformation(
            lambda weights: jax.numpy.zeros(1),
            lambda gradient, state, _: (gradient, jax.numpy.append(state, 0.0)),
        ),
    )
    yield (
        "pure_callback, which jax cannot trace",  # it could fail after the charge
        optax.GradientTransformation(
            lambda weights: (),
            lambda g, state, _: (jax.pure_callback(np.sign, g, g), state),
        ),
    )
    yield (
        "debug_callback, which jax cannot trace",
        optax.GradientTransformation(
            lambda weights: (),
            lambda g, state, _: (jax.debug.callback(int, g[0, 0]), (g, state))[1],
        ),
    )
    yield (
        "buffer_callback, which jax cannot trace",
        optax.GradientTransformation(
            lambda weights: (),
            lambda g, state, _: (buffer_callback(print, g)(g), state),
        ),
    )
    yield (
        "not_a_target",  # traced, and fails when it is compiled
        optax.GradientTransformation(
            lambda weights: (),
            lambda g, state, _: (jax.ffi.ffi_call("not_a_target", g)(g), state),
        ),
    )
    yield "or GradientTransformation", 3


def test_other_transformations_are_refused_before_the_charge():
    ledger = Ledger()
    for words, optimizer in refused():
        model = DPOptaxClassifier(optimizer=optimizer, ledger=ledger, **GIVEN)
        with pytest.raises(ValueError, match=words) as error:
            model.fit(X, Y)
        assert "\n" not in str(error.value)
    assert ledger.count_fits() == 0


def test_a_stateful_optimizer_has_its_state_in_a_resumed_fit():
    """A resume gets the same released values, from the first step on."""
    answers = []

    def kept(ask):
        answers.append(told(ask))
        return answers[-1]

    schedule = optax.cosine_decay_schedule(0.5, 5)
    solver = OptaxDescent(**PLAIN | {"optimizer": optax.adamw(schedule)})
    _, first = answered(on_device(solver, "numpy"), FACTS, kept)
    stored = iter(answers)
    _, again = answered(on_device(solver, "numpy"), FACTS, lambda _: next(stored))
    assert np.array_equal(first.weights, again.weights)


def test_equal_transformations_have_one_digest_and_others_another():
    """Each process of a fit makes a transformation of its own."""
    made = [
        optax.adamw(0.1),
        optax.adamw(0.1),
        optax.adamw(0.2),
        optax.adam(0.1),
        optax.add_noise(0.1, 0.5, 1),
        optax.add_noise(0.1, 0.5, 2),
    ]
    solvers = [OptaxDescent(**PLAIN | {"optimizer": one}) for one in made]
    plans = [make_plan(one, FACTS, epsilon=2.0, delta=1e-4) for one in solvers]
    first, again, *others = [plan.digest("", None) for plan in plans]
    assert first == again
    assert len({first, *others}) == 5


def test_a_fit_takes_an_optimizer_by_name_or_as_an_object(tmp_path):
    model = DPOptaxClassifier(optimizer=optax.lion(0.1), steps=5, **GIVEN).fit(X, Y)
    assert model.score(X, Y) > 0.5
    model.save(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    settings = report["method"]["settings"]
    assert settings["optimizer"] == "GradientTransformationExtraArgs"
    unused = {"learning_rate", "momentum", "beta2", "weight_decay"}
    assert not unused & set(settings)
    method = optax_method("lion", steps=5, learning_rate=0.1)
    head = fit(X, Y, n_classes=M, epsilon=2.0, delta=1e-4, method=method)
    assert head.model.settings == {
        "optimizer": "lion",
        "steps": 5,
        "learning_rate": 0.1,
    }
    assert len(head.model.ledger_.fits()) == 1


def test_other_public_rows_are_another_plan():
    axes, facts = PublicAxes(np.eye(D, 3, dtype=np.float32)), ProblemInfo(N, 3, M)
    for inner in (OptaxDescent(), GradientDescent()):
        plans = [
            make_plan(OnAxes(inner, axes, rows), facts, epsilon=1.0, delta=1e-4)
            for rows in ("one digest", "another digest", "one digest")
        ]
        one, other, again = (plan.digest("space", None) for plan in plans)
        assert one == again != other


@pytest.mark.parametrize("make", [DPSGDClassifier, DPOptaxClassifier])
def test_allocated_batches_use_each_row_once_in_an_epoch(make):
    """The weights hardly move, so the gradients of an epoch add up to the full one's.

    Tolerance: the weights move by 1e-6 of a step, and integers round rows to 1e-3.
    """
    given = {"classes": range(M), "epsilon": np.inf, "learning_rate": 1e-6}
    given |= {"momentum": 0.0} if make is DPSGDClassifier else {"optimizer": "sgd"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        whole, allocated, poisson = (
            make(steps=4, **given, **batches).fit(X, Y).head_.weights
            for batches in ({}, {"epoch_steps": 4}, {"sampling_prob": 0.25})
        )
    np.testing.assert_allclose(allocated, whole, rtol=0.02, atol=1e-3 * whole.max())
    assert np.abs(poisson - whole).max() > 0.02 * whole.max()


def test_allocated_batches_are_charged_as_epochs():
    ledger, given = Ledger(), GIVEN | {"steps": 8, "epoch_steps": 4}
    for make in (DPSGDClassifier, DPOptaxClassifier):
        model = make(ledger=ledger, **given).fit(X, Y)
        gradients = model._result.plan.specs[-8:]
        assert {one.epoch_steps for one in gradients} == {4}
        assert 1.98 < model.privacy_.epsilon <= 2.0
    assert ledger.count_fits() == 2
    for wrong, words in (
        ({"steps": 6}, "a multiple of 4"),
        ({"sampling_prob": 0.5}, "sampling_prob"),
    ):
        with pytest.raises((ValueError, LedgerError), match=words):
            DPOptaxClassifier(ledger=ledger, **given | wrong).fit(X, Y)
    assert ledger.count_fits() == 2
