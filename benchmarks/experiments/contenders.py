"""Build a full-batch step of a linear softmax head with each library, for `peers`.

A library is imported when its step is built.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

TURNS = 31  # largest number of timed steps
Step = Callable[[], Any]


def dphead(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Step:
    """Return a step that makes one `release` of a fit: begin, sum, noise, commit.

    Rows are kept in memory, as a fit keeps them.
    """
    from dphead.data.arrays import ArrayRows
    from dphead.privacy.contract import ReleaseSpec
    from dphead.privacy.ledger import Ledger
    from dphead.privacy.noise import NoiseSource
    from dphead.privacy.release import release
    from dphead.privacy.statistic_base import Params
    from dphead.privacy.statistics import Gradient
    from dphead.sums.cpu import CpuSums
    from dphead.sums.verified import VerifiedSum

    statistic = Gradient(w.shape[1])
    rows = ArrayRows(x, y)
    params = Params(weights=w)
    summer = VerifiedSum(CpuSums(), memory=1 << 30)
    spec = ReleaseSpec("step", statistic.name, 1.0, 1.0, len(x))
    noise = NoiseSource()
    plan = [spec.row()] * (TURNS + 1)
    fit = Ledger().reserve(
        plan,
        epsilon=1.0,
        delta=1e-5,
        description="steps",
        plan_hash="",
        store=None,
    )
    return lambda: release(
        statistic, params, rows, spec, ledger=fit, noise=noise, summer=summer
    )


def jax_plain(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Step:
    """Return a step that computes a jitted gradient without privacy, on the device."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], 1).sum()

    gradient = jax.jit(jax.grad(loss))
    a = [jnp.asarray(v) for v in (w, x, y)]
    return lambda: gradient(*a).block_until_ready()


def jax_privacy(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Step:
    """Return a step of jax_privacy's clipped_grad in parts of 500 rows, with noise."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.clipping import clipped_grad  # pyright: ignore[reportMissingImports]

    def loss(w: Any, x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(x[0] @ w)[y[0]]

    clipped = clipped_grad(
        loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=500
    )
    noisy = jax.jit(
        lambda w, x, y, key: clipped(w, x, y) + jax.random.normal(key, w.shape)
    )
    a = [jnp.asarray(v) for v in (w, x, y, jax.random.key(0))]
    return lambda: noisy(*a).block_until_ready()


def opacus(x: np.ndarray, y: np.ndarray, w: np.ndarray, ghost: bool) -> Step:
    """Return a step of Opacus by ghost clipping or by hooks, with normal noise.

    Ghost clipping computes norms, then a weighted pass. Hooks give per-example
    gradients.
    """
    import torch
    from opacus.grad_sample import (  # pyright: ignore[reportMissingImports]
        GradSampleModule,
        GradSampleModuleFastGradientClipping,
    )
    from torch.nn.functional import cross_entropy

    model: Any = torch.nn.Linear(*w.shape, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(w.T))
    rows = torch.from_numpy(x)
    labels = torch.from_numpy(y)
    if ghost:
        module: Any = GradSampleModuleFastGradientClipping(
            model, loss_reduction="sum", max_grad_norm=1
        )
    else:
        module = GradSampleModule(model, loss_reduction="sum")

    def step() -> None:
        module.zero_grad()
        losses = cross_entropy(module(rows), labels, reduction="none")
        if ghost:
            losses.sum().backward(retain_graph=True)
            factor = module.get_clipping_coef()
            module.zero_grad()
            module.disable_hooks()
            (factor * losses).sum().backward()
            module.enable_hooks()
            total = model.weight.grad
        else:
            losses.sum().backward()
            sample: Any = model.weight.grad_sample
            factor = (1.0 / sample.flatten(1).norm(dim=1)).clamp(max=1.0)
            total = torch.einsum("i,ijk->jk", factor, sample)
            model.weight.grad_sample = None
        total.add_(torch.randn_like(total))

    return step


def sklearn_plain(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Step:
    """Return a call of scikit-learn's L-BFGS without privacy: ten steps (`PART`)."""
    import warnings

    from sklearn.linear_model import LogisticRegression

    warnings.filterwarnings("ignore")
    return lambda: LogisticRegression(max_iter=10, tol=0.0).fit(x, y)


CONTENDERS: dict[str, Callable[..., Step]] = {
    "dphead": dphead,
    "jax, not private": jax_plain,
    "opacus, ghost": lambda *a: opacus(*a, ghost=True),
    "opacus, hooks": lambda *a: opacus(*a, ghost=False),
    "jax_privacy": jax_privacy,
    "scikit-learn, not private": sklearn_plain,
}
PART = {"scikit-learn, not private": 10}  # number of steps in a timed call


def needs(name: str, n: int, d: int, m: int) -> float:
    """Return the bytes that a contender needs at least, or 0 if this is unknown.

    Opacus' hooks hold a gradient for each row.
    """
    return 4.0 * n * d * m * 1.3 if name == "opacus, hooks" else 0.0
