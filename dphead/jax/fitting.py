"""Fit heads on jax arrays with `DPHeadClassifier`."""

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dphead.data.device_rows import refuse_traced
from dphead.estimators.classifiers import DPHeadClassifier
from dphead.jax.head import Head, of_model

# parameters of `DPHeadClassifier` that `fit` sets itself or does not take
_SET = {"method", "settings", "classes", "split"}
_PARAMETERS = {one.name for one in fields(DPHeadClassifier)} - _SET


class Method(NamedTuple):
    """Hold the name of a method, and its settings."""

    name: str
    settings: dict[str, Any]


def fit(
    features: Any,
    labels: Any,
    *,
    n_classes: int,
    epsilon: float,
    delta: float,
    method: str | Method = "auto",
    groups: Any = None,
    **settings: Any,
) -> Head:
    """Charge the ledger, then fit a private head.

    Arguments are checked before the charge.

    Parameters
    ----------
    features : array of shape (n_rows, n_features)
        NumPy array of float16, float32 or float64, or a jax array, which can also have
        bfloat16. A jax array can be sharded by rows over several devices and processes.
        Rows are rounded to float32.
    labels : array of shape (n_rows,)
        Class indices of all rows, on each process. A row with any other label adds zero
        to every sum.
    n_classes : int
        Public number of classes.
    epsilon, delta : float
        Budget of this fit.
    method : str or Method, default "auto"
        Name of the method, as for `dphead fit --method`, or an `optax_method`.
    groups : array of shape (n_rows,), optional
        Group (patient) of each row, for use with `group_cap`.
    **settings
        Settings of the method, and parameters of `dphead.DPHeadClassifier`: `group_cap`
        (protects groups), `relation`, `nominal_n`, `ledger`, `preset`, `backend` and
        others. The default backend is "jax". Without `ledger`, a new ledger in memory
        counts only this fit, and `head.privacy.notes` says so.

    Returns
    -------
    Head
        The head, with its guarantee as `privacy`.

    Raises
    ------
    ValueError
        If an argument is invalid, or jax traces an array or the call. Nothing is
        charged then.
    LedgerError
        If the ledger refuses the fit, for example because it would exceed the budget:
        all processes raise this error. If the ledger cannot be written, even after the
        charge.
    """
    refuse_traced()  # also with the numpy backend, because jax would trace the head
    own: dict[str, Any] = {"backend": "jax"}
    own |= {name: settings.pop(name) for name in _PARAMETERS & settings.keys()}
    if isinstance(method, Method):
        method, settings = method.name, method.settings | settings
    model = DPHeadClassifier(
        method=method,
        settings=settings,
        classes=range(n_classes),
        epsilon=epsilon,
        delta=delta,
        **own,
    )
    return of_model(model.fit(features, labels, groups))


def load(folder: str | Path) -> Head:
    """Read the head of a run folder, as `DPHeadClassifier.load` does."""
    return of_model(DPHeadClassifier.load(folder))


def optax_method(optimizer: Any, **settings: Any) -> Method:
    """Return the method "dp-optax" with an optimizer, for `fit`.

    Parameters
    ----------
    optimizer : str or optax.GradientTransformation
        Name of an optimizer of optax, or a transformation. It gets released gradients
        and weights only.
    **settings
        Settings of dp-optax, such as `steps`.
    """
    return Method("dp-optax", {"optimizer": optimizer, **settings})
