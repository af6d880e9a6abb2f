"""Define the head as a pytree, and its pure functions."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dphead.data.device_rows import is_traced
from dphead.privacy.loss import loss_named
from dphead.privacy.transform import FINE_BITS, SMALLEST_ENTRY
from dphead.solvers.on_device import own_settings

if TYPE_CHECKING:
    from dphead.estimators.classifiers import DPHeadClassifier
    from dphead.estimators.guarantee import Privacy

_LEAVES = ("weights", "intercept", "center", "scale", "axes")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=_LEAVES,
    meta_fields=("unit_norm", "feature_clip", "loss", "model"),
)
@dataclass(frozen=True, eq=False)
class Head:
    """Hold a fitted head: a pytree with arrays as leaves, and the rest static.

    Attributes
    ----------
    weights : array of shape (n_features, n_classes)
        Weights for transformed rows.
    intercept : array of shape (n_classes,)
        Intercepts of the scores.
    center, scale : array of shape (n_features,) or None
        Vector that the transform subtracts, and factor on each feature.
    axes : array of shape (n_features, n_axes) or None
        Public axes that rows are mapped to before the transform. The other arrays then
        have n_axes in the place of n_features.
    unit_norm : bool
        Whether the transform divides each row by its norm.
    feature_clip : float or None
        Clip norm of transformed rows in predictions; None if no row is clipped.
    loss : str
        Name of the training loss.
    model : DPHeadClassifier
        The fitted estimator, which has the guarantee and the ledger.
    """

    weights: Any
    intercept: Any
    center: Any
    scale: Any
    axes: Any
    unit_norm: bool
    feature_clip: float | None
    loss: str
    model: "DPHeadClassifier" = field(repr=False)

    @property
    def privacy(self) -> "Privacy":
        """Return the guarantee of the fit, which covers these arrays as fitted.

        Functions of the arrays alone keep the guarantee. Arrays that were changed with
        private rows, such as by fine-tuning, have no guarantee.
        """
        return self.model.privacy_

    @property
    def classes(self) -> np.ndarray:
        """Return the classes by index."""
        return self.model.classes_

    def save(self, folder: str | Path, tuning: str | None = None) -> None:
        """Write a run folder, which `dphead predict`, `check` and `export` read.

        Parameters
        ----------
        folder : str or Path
            A new folder.
        tuning : str, optional
            As in `DPClassifier.save`.

        Raises
        ------
        ValueError
            If the head was loaded, or its arrays were deleted or differ from the fitted
            arrays. The guarantee covers the fitted arrays only. As in
            `DPClassifier.save`.
        """
        if not hasattr(self.model, "_result"):
            raise ValueError(
                "`save` cannot save a loaded head. Copy the run folder that it came "
                "from."
            )
        for name, fitted in _arrays(self.model).items():
            own: Any = getattr(self, name)
            if getattr(own, "is_deleted", bool)():
                raise ValueError(
                    f"`{name}` was deleted or donated, so it has no values. Save the "
                    "head before that, or save a copy."
                )
            same = own is fitted  # True if both are None
            if not (own is None or fitted is None or is_traced(own)):
                # compare in the precision that jax had at the fit
                own = np.asarray(own)
                theirs = fitted.astype(own.dtype)
                same = own.dtype in (np.float32, np.float64)
                same = same and np.array_equal(own, theirs, equal_nan=True)
            if not same:
                raise ValueError(
                    f"`{name}` differs from the fitted array, and the guarantee covers "
                    "the fitted array only. Save the head that `fit` returned."
                )
        self.model.save(folder, tuning)


def _arrays(model: "DPHeadClassifier") -> dict[str, Any]:
    """Return the arrays of a fitted estimator's head, by the names of the leaves."""
    head = model.head_
    transform = head.transform
    axes = None if head.axes is None else head.axes.values
    given = (head.weights, head.intercept, transform.center, transform.scale, axes)
    return dict(zip(_LEAVES, given, strict=True))


def of_model(model: "DPHeadClassifier") -> Head:
    """Return the head of a fitted estimator, in the default precision of jax."""
    head = model.head_
    kind = jnp.result_type(float)  # float64 only if the process enabled x64
    with own_settings():  # jax's transfer guard could raise, and lose a charged head
        leaves: dict[str, Any] = {
            name: None if value is None else jnp.array(value, kind)
            for name, value in _arrays(model).items()
        }
    return Head(
        **leaves,
        unit_norm=head.transform.unit_norm,
        feature_clip=head.feature_clip,
        loss=head.loss,
        model=model,
    )


@jax.custom_jvp
def scores(head: Head, x: Any) -> Any:
    """Return the scores of rows for every class.

    Parameters
    ----------
    head : Head
        The head.
    x : array of shape (..., n_features)
        Rows before the transform, of any float type.

    Returns
    -------
    array of shape (..., n_classes)
        Scores in the precision of the weights; NaN for rows that are not finite in
        float32, for which training adds zero.

    Notes
    -----
    Rows are transformed as in training, in float64, even if jax has float32 as its
    default. Derivatives ignore the rounding of rows.
    """
    with own_settings():
        return _scores(head, x, jnp.float64).astype(head.weights.dtype)


@scores.defjvp
def _(primals: Any, tangents: Any) -> Any:
    smooth = partial(_scores, kind=primals[0].weights.dtype)
    with own_settings():
        return scores(*primals), jax.jvp(smooth, primals, tangents)[1]


def probabilities(head: Head, x: Any) -> Any:
    """Return class probabilities (..., n_classes); NaN if a score is not finite.

    Arguments are as in `scores`. See also `dphead.analysis.metrics.probabilities`.
    """
    z = scores(head, x)
    z = jnp.where(jnp.isfinite(z).all(-1, keepdims=True), z, jnp.nan)
    if loss_named(head.loss).link == "sigmoid":
        z = z / 2 if z.shape[-1] == 2 else jax.nn.log_sigmoid(z)
    return jax.nn.softmax(z, axis=-1)


def predict(head: Head, x: Any) -> Any:
    """Return the index of the highest score (...); -1 if a score is not finite.

    Arguments are as in `scores`. The first of tied classes wins.
    """
    z = scores(head, x)
    return jnp.where(jnp.isfinite(z).all(-1), z.argmax(-1), -1)


def _scores(head: Head, x: Any, kind: Any) -> Any:
    rows = _transformed(head, jnp.asarray(x), kind)
    return rows @ head.weights.astype(kind) + head.intercept.astype(kind)


def _transformed(head: Head, x: Any, kind: Any) -> Any:
    """Transform rows in type `kind`, as `dphead.solvers.head.float_rows` does.

    Only float64 rows are rounded.
    """
    values, norm = _fine(x.astype(jnp.float32).astype(kind))
    if head.axes is not None:
        # exact in float64, as in training: whole numbers times powers of two
        products = values @ head.axes.astype(kind)
        values, norm = _fine(products.astype(jnp.float32).astype(kind))
    if head.unit_norm:
        values = values / norm
    if head.center is not None or head.scale is not None:
        if head.center is not None:
            values = values - head.center.astype(kind)
        if head.scale is not None:
            values = values * head.scale.astype(kind)
        values, norm = _fine(values)
        if head.unit_norm and head.center is not None:
            values = values / norm
    if head.feature_clip is not None:
        length = jnp.sqrt((values**2).sum(-1, keepdims=True))
        values = values * (head.feature_clip / jnp.maximum(length, head.feature_clip))
    return values


def _fine(values: Any) -> tuple[Any, Any]:
    """Return rows rounded as by `privacy.transform.fine`, and their norms.

    Rows that are not finite become NaN. The norm of a row of zeros is 1.
    """
    largest = jnp.abs(values).max(-1, keepdims=True)
    known = largest >= max(SMALLEST_ENTRY, float(jnp.finfo(values.dtype).tiny))
    values = jnp.where(known, values, 0.0)
    if values.dtype == jnp.float64:
        _, exponent = jnp.frexp(jnp.where(known, largest, 1.0))
        step = jnp.ldexp(jnp.ones_like(largest), exponent - FINE_BITS)
        values = jnp.rint(values / step) * step
    squared = (values**2).sum(-1, keepdims=True)
    norm = jnp.sqrt(jnp.where(known, squared, 1.0))
    return jnp.where(jnp.isfinite(largest), values, jnp.nan), norm
