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


@jax.jit
def told(head, x):
    """Everything that a head says of rows."""
    found = (functions.scores, functions.probabilities, functions.predict)
    return [function(head, x) for function in found]


CASES = [("unit", "softmax", 3), ("scaled", "sigmoid", 2), ("all", "sigmoid", 3)]


@pytest.mark.parametrize("name, loss, m", CASES)
def test_scores_probabilities_and_classes_are_those_of_predict(name, loss, m):
    own = linear(name, loss, None if name == "unit" else 0.7, m)
    scores, shares, classes = told(made(own), X)
    wanted = own.scores(X)
    assert scores.dtype == jnp.ones(1).dtype == np.float32
    assert np.array_equal(np.isnan(scores), np.isnan(wanted))
    # Center and scale in float32 change which way 1 in 16 entries is rounded: by 2**-20
    # of the row's largest entry.
    size = np.linalg.norm(own._rows(X), axis=1, keepdims=True) + 1e-30
    size *= np.linalg.norm(own.weights, axis=0).max()
    assert np.nanmax(np.abs(scores - wanted) / size) < 1e-6
    atol = 1e-6 * np.nanmax(size)  # a probability moves by less than its score
    np.testing.assert_allclose(shares, probabilities(wanted, loss), rtol=0, atol=atol)
    assert np.array_equal(classes, predicted_classes(wanted))
    assert classes[0] == -1


def test_rows_and_heads_are_mapped_and_exported():
    head, x = made(linear()), jnp.asarray(X[5:])
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), head)
    by_head = jax.vmap(functions.scores, (0, None))
    rows = jax.jit(jax.vmap(by_head, (None, 0), 1))(two, x)
    np.testing.assert_allclose(rows[0], linear().scores(x), atol=1e-5)
    exported = jax.export.export(jax.jit(functions.scores))(
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), head),
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"n, {D}"), jnp.float32),
    )
    np.testing.assert_allclose(exported.call(head, x), linear().scores(x), atol=1e-5)


def test_gradients_are_those_of_unrounded_rows():
    """By differences of float64 scores: rows are rounded to 20 bits, hence the step."""
    own, step = linear(clip=0.5), 1e-3
    head, x = made(own), jnp.asarray(X[7])
    by_head, found = jax.jit(jax.jacobian(functions.scores, (0, 1)))(head, x)
    up, down = (own.scores(X[7] + s * np.eye(D)) for s in (step, -step))
    np.testing.assert_allclose(found.T, (up - down) / (2 * step), atol=2e-2)
    assert np.array_equal(by_head.intercept, np.eye(M))
    assert jnp.isfinite(by_head.center).all()
    assert by_head.center.any()


def test_a_process_in_float64_and_rows_in_bfloat16_are_scored_as_they_are():
    with jax.enable_x64(True):
        head, x = made(linear("unit")), jnp.asarray(X[5:], jnp.bfloat16)
        found = jax.jit(functions.scores)(head, x)
        assert found.dtype == np.float64
        wanted = linear("unit").scores(np.asarray(x.astype(jnp.float32)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
