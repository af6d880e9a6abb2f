"""The pure functions of a head: the numbers of `dphead predict`, under every transform
of jax.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dphead.analysis.metrics import predicted_classes, probabilities
from dphead.jax import head as functions
from dphead.jax.head import of_model
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import LinearHead

D, M = 12, 3
RNG = np.random.default_rng(0)
CENTER = RNG.normal(size=D) / 6
SCALE = RNG.uniform(0.5, 2, D)
TRANSFORMS = {
    "unit": RowTransform(unit_norm=True),
    "scaled": RowTransform(False, None, SCALE),
    "all": RowTransform(True, CENTER, SCALE, 0.3),
}
X = RNG.normal(size=(40, D)).astype(np.float32)
X[0, 3] = np.nan
X[1, 2] = np.inf
X[2] = 0
X[3] *= np.float32(1e-30)
X[4] *= np.float32(1e30)


def linear(name="all", loss="softmax", clip=None, m=M):
    weights = np.random.default_rng(1).normal(size=(D, m))
    own = (np.arange(m) / 4, TRANSFORMS[name], loss)
    return LinearHead(weights, *own, feature_clip=clip)


def made(head):
    return of_model(SimpleNamespace(head_=head))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_scores_are_those_of_predict(name):
    own = linear(name, clip=None if name == "unit" else 0.7)
    found, wanted = jax.jit(functions.scores)(made(own), X), own.scores(X)
    assert found.dtype == np.float32
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    # Center and scale in float32 change which way 1 in 16 entries is rounded: by 2**-20
    # of the row's largest entry.
    size = np.linalg.norm(own._rows(X), axis=1, keepdims=True) + 1e-30
    size *= np.linalg.norm(own.weights, axis=0).max()
    assert np.nanmax(np.abs(found - wanted) / size) < 1e-6


@pytest.mark.parametrize("loss, m", [("softmax", 3), ("sigmoid", 3), ("sigmoid", 2)])
def test_probabilities_and_classes_are_those_of_predict(loss, m):
    own = linear("unit", loss, m=m)
    wanted = probabilities(own.scores(X), loss)
    found = jax.jit(functions.probabilities)(made(own), X)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    classes = jax.jit(functions.predict)(made(own), X)
    assert np.array_equal(classes, predicted_classes(own.scores(X)))
    assert classes[0] == -1


def test_short_floats_are_rows_of_their_own_numbers():
    own, x = linear("unit"), jnp.asarray(X[5:], jnp.bfloat16)
    wanted = own.scores(np.asarray(x.astype(jnp.float32)))
    found = jax.jit(functions.scores)(made(own), x)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_rows_and_heads_are_mapped_and_exported():
    head, x = made(linear()), jnp.asarray(X[5:])
    wanted = linear().scores(x)
    rows = jax.jit(jax.vmap(functions.scores, (None, 0)))(head, x)
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), head)
    both = jax.jit(jax.vmap(functions.scores, (0, None)))(two, x)
    np.testing.assert_allclose(both[0], wanted, atol=1e-5)
    shape = jax.export.symbolic_shape(f"n, {D}")
    exported = jax.export.export(jax.jit(functions.scores))(
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), head),
        jax.ShapeDtypeStruct(shape, jnp.float32),
    )
    np.testing.assert_allclose(exported.call(head, x), wanted, atol=1e-5)


def test_gradients_are_those_of_unrounded_rows():
    """By differences of float64 scores: rows are rounded to 20 bits, hence the step."""
    own, step = linear(clip=0.5), 1e-3
    head, x = made(own), jnp.asarray(X[7])
    found = jax.jit(jax.jacobian(functions.scores, 1))(head, x)
    up, down = (own.scores(X[7] + s * np.eye(D)) for s in (step, -step))
    np.testing.assert_allclose(found.T, (up - down) / (2 * step), atol=2e-2)
    by_head = jax.jit(jax.grad(lambda h: functions.scores(h, x)[0]))(head)
    assert by_head.intercept.tolist() == [1, 0, 0]
    assert jnp.isfinite(by_head.center).all()
    assert by_head.center.any()


def test_the_process_keeps_its_own_precision():
    jax.jit(functions.scores)(made(linear("unit")), X)
    assert jnp.ones(1).dtype == np.float32
    with jax.enable_x64(True):
        found = jax.jit(functions.scores)(made(linear("unit")), X[5:])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, linear("unit").scores(X[5:]), rtol=1e-12)
