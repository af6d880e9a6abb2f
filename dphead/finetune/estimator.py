"""`DPFinetuneClassifier`: a network trained with a guarantee, as a scikit-learn
classifier of images.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dphead.analysis.metrics import probabilities
from dphead.data.arrays import declared_dtype
from dphead.estimators.fitting import PrivateClassifier
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    declared,
    refuse_weights,
)
from dphead.estimators.labels import (
    column,
    positions,
    require_same_kind,
    unmatched_labels,
)
from dphead.finetune.models import Scale
from dphead.finetune.network import Network, TorchSums
from dphead.finetune.processes import usable_device
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import make_training, network_spec
from dphead.finetune.settings import LAYERS, NAMES, Settings, make_settings
from dphead.fit.loop import Planned, check_fit
from dphead.fit.run_folder import public_facts
from dphead.planning.plan import Target, check_unit
from dphead.privacy.contract import Rows
from dphead.solvers.base import ProblemInfo
from dphead.solvers.settings import AT_LEAST_ONE, Setting, check_settings
from dphead.sums.verified import VerifiedSum

_MEMORY = Setting("Bytes of a chunk's gradients.", AT_LEAST_ONE)


@dataclass(kw_only=True, eq=False, repr=False)
class DPFinetuneClassifier(PrivateClassifier):
    """A network on images, trained from `weights` or from nothing by DP-SGD or DP-Adam
    [De22].

    X is uint8 (n, h, w) or (n, h, w, channels). classes are public and needed for a
    guarantee; a row with another label counts zero. model, layers, weights, norm,
    groups: `ModelSpec`. Of noise_multiplier, batch_size and steps the one that is None
    is what (epsilon, delta) allows; delta None is the preset's, else 1e-5. mean, std:
    of pixels in [0, 1], public; None takes the model's own.
    ledger, preset, relation, nominal_n, random_state, allow_large_delta: as for
    `DPClassifier`. protect: "image" confirms that each image is protected for itself
    alone although `fit` is given groups. The rest:
    `dphead.finetune.settings.Settings`.

    After `fit`: classes_, network_, weights_ (flat, averaged), privacy_ (`Privacy`) and
    ledger_ (`Ledger`).
    """

    model: str = "wrn-16-4"
    noise_multiplier: float | None = None
    batch_size: int | None = None
    sampling: Literal["poisson", "allocation"] = "poisson"
    steps: int | None = None
    epochs: float | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    clip_norm: float | None = None
    weight_decay: float | None = None
    average: Literal["last", "ema"] | None = None
    ema_decay: float | None = None
    views: int | None = None
    augment: str | None = None
    weights: str | None = None
    layers: Annotated[tuple[str, ...] | list[str], LAYERS] = ()
    norm: Literal["before", "after"] | None = None
    groups: int = 16
    mean: Scale | None = None
    std: Scale | None = None
    memory: Annotated[int, _MEMORY] = 2 << 30
    device: Annotated[str, Setting("cpu, cuda, cuda:1.")] = "cpu"
    bf16: Annotated[bool, Setting("Forward and backward in it.")] = False

    def fit(
        self, X: Any, y: Any, groups: Any = None, **refused: Any
    ) -> "DPFinetuneClassifier":
        """Charge the ledger, then train.

        Parameters
        ----------
        X : array-like of shape (n, h, w) or (n, h, w, channels), uint8
            Images; a PyTorch tensor of that shape too.
        y : array-like of shape (n,)
            Labels; one that is no declared class counts zero.
        groups : array-like of shape (n,), default=None
            Which images belong together (people).
        **refused
            sample_weight is refused.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            With nothing charged, for what cannot be used; also for groups, which a
            network does not protect, unless protect="image" confirms it.
        """
        refuse_weights(refused)
        check_settings(self)
        X, y = as_arrays(X, y)
        if self.classes is None:
            raise ValueError(
                "classes must be declared, got classes=None. Pass the public list of "
                "classes."
            )
        names = declared(self.classes)
        require_same_kind(declared_dtype(y), names)
        given_labels = column(y)
        x = _images(X)
        # each label by itself: none decides anything before the charge
        rows = ImageRows(x, positions(given_labels, names))
        # From here on the number of rows is facts.n_rows: under add_remove len(x) is
        # private.
        facts = public_facts(rows, len(names), self.relation, self.nominal_n)
        ungrouped = check_unit(
            groups is not None,
            self.protect,
            self.epsilon,
            confirm="protect='image'",
            instead="a head on features with group_cap=",
        )
        settings = self._settings()
        network = self._network(settings, x.shape[1:], len(names))
        trained: Any = self._carry_out(
            TrainingData(
                lambda: rows,
                facts,
                names,
                notice=lambda: unmatched_labels(given_labels, names),
            ),
            lambda: self._plan(settings, network, rows, facts),
            description=f"finetune {settings.model}",
            notes=ungrouped,
        ).head
        self.classes_, self.network_ = names, network
        self.weights_ = trained.average
        return self

    def _settings(self) -> Settings:
        """Return the preset's settings, with the given parameters in their place."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name in NAMES}
        default = next(f.default for f in fields(self) if f.name == "model")
        given["model"] = None if self.preset and self.model == default else self.model
        given["layers"] = tuple(self.layers) or None
        settings, _ = make_settings(given, self.preset, self.epsilon)
        return settings

    def _network(self, settings: Settings, shape: Any, n_classes: int) -> Network:
        """shape: of an image, channels first."""
        given = {"groups": self.groups, "weights": self.weights}
        given |= {"mean": self.mean, "std": self.std}
        spec = network_spec(settings, shape, n_classes, **given)
        return Network(spec, usable_device(self.device), self.bf16)

    def _plan(
        self, settings: Settings, network: Network, rows: Rows, facts: ProblemInfo
    ) -> Planned:
        """The training, and its sums once they were tried."""
        target = Target(self.epsilon, self._delta(), self.relation, self.accountant)
        method, plan, _ = make_training(settings, target, facts, network)
        solver: Any = method.solver
        batch = settings.batch_size or facts.n_rows
        verified = VerifiedSum(TorchSums(network, self.memory, batch=batch))
        check_fit(verified, solver, rows, plan, facts)
        return Planned(solver, plan, verified)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores: (n, n_classes), or (n,) for two classes: the second's minus the
        first's.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score, (n,)."""
        return self.classes_[self._scores(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, n_classes), by softmax."""
        return probabilities(self._scores(X))

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "weights_")
        return self.network_.scores(self.weights_, _images(X))


def _images(x: Any) -> np.ndarray:
    """(n, channels, h, w) uint8 of images (n, h, w) or (n, h, w, channels) uint8."""
    x = np.asarray(*as_arrays(x))
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise ValueError(
            f"images must be uint8 (n, h, w) or (n, h, w, channels), got {x.shape=}, "
            f"{x.dtype=}. Convert."
        )
    if x.ndim == 3:
        return x[:, None]
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
