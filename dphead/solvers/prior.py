"""Define the public prior: a head from public data that a descent starts from."""

import hashlib
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dphead.privacy.axes import PublicAxes
from dphead.privacy.transform import RowTransform
from dphead.solvers.settings import typed

# norm of each class's initial weights, which is the largest initial logit of a unit
# row: trials on CIFAR-10's training rows, not stored
_START_LOGITS = 8.0


@dataclass(frozen=True)
class PublicPrior:
    """Hold public weights to start from, such as a backbone's head or text embeddings.

    Parameters
    ----------
    weights : ndarray of shape (n_features, n_classes)
        Weights for rows before any transform, from public data. Only directions matter:
        differences between classes are scaled to length _START_LOGITS.

    Attributes
    ----------
    digest : str
        Hash of the weights for plans and reports.

    Raises
    ------
    ValueError
        If the weights are not a matrix of finite numbers.
    """

    weights: InitVar[np.ndarray]
    _weights: ClassVar[np.ndarray]
    digest: str = field(init=False)

    def __post_init__(self, weights: np.ndarray) -> None:
        weights = _as_numbers(weights)
        if weights.ndim != 2:
            raise ValueError(
                "`prior` must have two dimensions (n_features, n_classes), got shape "
                f"{weights.shape}. Reshape it."
            )
        if wrong := int(np.count_nonzero(~np.isfinite(weights))):
            raise ValueError(
                f"`prior` must contain only finite numbers, got {wrong} NaN or "
                "infinite entries. Replace them, for example by 0."
            )
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(
            self, "digest", hashlib.sha256(weights.tobytes()).hexdigest()[:16]
        )

    def check(self, n_features: int, n_classes: int) -> None:
        """Raise ValueError unless the prior has this number of features and classes."""
        if self._weights.shape != (n_features, n_classes):
            raise ValueError(
                f"`prior` must have shape {(n_features, n_classes)} (features, "
                f"classes), got {self._weights.shape}. Use one row for each feature, "
                "and one column for each class in the order of the classes."
            )

    def on_axes(self, axes: PublicAxes) -> "PublicPrior":
        """Return the prior for rows on public axes.

        Raises ValueError unless the prior has a row for each of the axes' features.
        """
        self.check(axes.n_features, self._weights.shape[1])
        return PublicPrior(axes.values.T @ self._weights)

    def start(self, transform: RowTransform, shape: tuple[int, ...]) -> np.ndarray:
        """Return the initial weights for transformed rows.

        shape is (width, n_classes). The width includes the appended constant, if there
        is one.
        """
        features = shape[0] - (1 if transform.append else 0)
        self.check(features, shape[1])
        # Only differences between classes change a softmax. The scale of public weights
        # does not fit unit rows, so every class gets the length _START_LOGITS.
        between = self._weights - self._weights.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(between, axis=0)
        between = _START_LOGITS * between / np.where(norms > 0, norms, 1)
        start = np.zeros(shape)
        # scores must be those of the prior for unscaled rows: w / s for rows s x
        start[:features] = (
            between if transform.scale is None else between / transform.scale[:, None]
        )
        return start


def _as_numbers(given: Any) -> np.ndarray:
    try:
        return np.ascontiguousarray(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            "`prior` must be an array (n_features, n_classes) of numbers, got "
            f"{typed(given)}. Convert it to float64."
        ) from None


def read_prior(prior: "np.ndarray | str | Path") -> PublicPrior:
    """Return the prior in an array or a .npy file.

    Raises ValueError if the file cannot be read, or if `PublicPrior` refuses the array.
    """
    if not isinstance(prior, str | Path):
        return PublicPrior(prior)
    try:
        if not Path(prior).is_file():  # reading a pipe might never end
            raise OSError("missing, or not a regular file")
        weights = np.load(prior, allow_pickle=False)
    except (OSError, ValueError) as error:
        # numpy's ValueError suggests unpickling, which would run the file's code
        unread = "numpy cannot read it without pickle"
        reason = str(error) if isinstance(error, OSError) else unread
        raise ValueError(
            f"`--prior` (`prior`) must be an .npy file, got {prior} ({reason}). "
            "Correct the path, or write the file with `numpy.save`."
        ) from error
    return PublicPrior(weights)
