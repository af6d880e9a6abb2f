"""Provide a scikit-learn classifier that trains a network on images."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dphead.analysis.metrics import probabilities
from dphead.data.arrays import group_ids
from dphead.estimators.docstrings import documented
from dphead.estimators.fitting import PrivateClassifier
from dphead.estimators.inputs import (
    TrainingData,
    as_arrays,
    declared,
    given_labels,
    given_rows,
    require_both,
)
from dphead.estimators.labels import named_as_given, unmatched_labels
from dphead.finetune.adapters import merged
from dphead.finetune.models import loss_of, name_of
from dphead.finetune.network import Network, TorchSums
from dphead.finetune.options import Scale
from dphead.finetune.processes import usable_device
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import group_settings, make_training, network_spec
from dphead.finetune.saved import read_network, save_network
from dphead.finetune.settings import NAMES, ModelSpec, Settings, make_settings
from dphead.finetune.sources import source_of_given
from dphead.fit.fit import About, RowSizes
from dphead.fit.options import GROUP_CAP
from dphead.planning.plan import Target, check_unit, public_facts
from dphead.solvers.settings import AT_LEAST_ONE, Setting, check_settings, settings_of
from dphead.sums.verified import VerifiedSum

if TYPE_CHECKING:
    from dphead.export.exporting import Exported

_MEMORY = Setting("Memory for a chunk's gradients in bytes.", AT_LEAST_ONE)


@documented(settings_of(Settings))
@dataclass(kw_only=True, eq=False, repr=False)
class DPFinetuneClassifier(PrivateClassifier):
    """Train a network on images or other rows with DP-SGD or DP-Adam [De22].

    `X` holds uint8 images, (n, h, w) or (n, h, w, channels), or other rows (n, ...).
    Floats become float32. With `vocabulary`, rows are integer tokens and become int64.
    `mean` and `std` apply to images only. Rows with an undeclared label add zero to
    every sum. A parameter that is None has the preset's value, or else its default. If
    one of `noise_multiplier`, `batch_size` and `steps` is None, it follows from epsilon
    and delta.

    Parameters
    ----------
    model : str or nn.Module, default="wrn-16-4"
        A name as in `ModelSpec`, or a module of your own. The module is copied. Its
        weights are the public start of the training.
    loss : callable, default=None
        Loss of scores (k, n_classes) and labels (k,), such as
        `torch.nn.CrossEntropyLoss(label_smoothing=0.1)`. It is called for each image
        separately. None means cross entropy.
    mean : float or tuple of float, default=None
        Public mean of pixels in [0, 1]. None means the model's.
    std : float or tuple of float, default=None
        Public standard deviation of pixels in [0, 1]. None means the model's.
    memory : int, default=None
        Memory for a chunk's gradients in bytes, as in `TorchSums`.
    device : str, default="cpu"
        Device: "cpu", "cuda", or "cuda:1" for the second GPU.
    bf16 : bool, default=False
        Whether gradients are computed in bfloat16.
    group_cap : int, default=None
        Number of images used per group (patient): the first images of the group. The
        training then protects groups. A group counts once in a batch, with the mean
        gradient of its images, and `batch_size` counts groups. None protects each
        image.
    protect : {"image"}, default=None
        "image" protects single images even if `fit` gets groups.
    classes : sequence of shape (n_classes,)
        Public classes, always required. Rows with any other label add zero to every
        sum.
    preset : str, default=None
        Name of a paper's settings, such as "de22-16". They replace the defaults of
        parameters that are None.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. This is the order of the columns of `predict_proba`.
    network_ : Network
        The network.
    weights_ : ndarray of shape (size,)
        Weights of the trained parameters: the last, or the moving average (`average`).
    """

    model: str | nn.Module = "wrn-16-4"
    loss: Annotated[Callable[..., Any] | None, Setting("Training loss.")] = None
    weights: str | None = None
    layers: tuple[str, ...] | list[str] = ()
    norm: Literal["before", "after"] | None = None
    groups: int | None = None
    standardize: bool | None = None
    batch_norm: Literal["refuse", "freeze", "group"] | None = None
    init_seed: int | None = None
    adapter: Literal["none", "lora", "bias"] | None = None
    rank: int | None = None
    vocabulary: int | None = None
    noise_multiplier: float | None = None
    batch_size: int | None = None
    sampling: Literal["poisson", "allocation"] | None = None
    steps: int | None = None
    epochs: float | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    learning_rate: float | None = None
    learning_rate_schedule: str | Callable[[int, int], float] | None = None
    base_learning_rate: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    beta2: float | None = None
    clip_norm: float | None = None
    normalize: bool | None = None
    weight_decay: float | None = None
    decoupled: bool | None = None
    average: Literal["last", "ema"] | None = None
    ema_decay: float | None = None
    views: int | None = None
    augment: str | None = None
    mean: Scale | None = None
    std: Scale | None = None
    group_cap: Annotated[int | None, GROUP_CAP] = None
    memory: Annotated[int | None, _MEMORY] = None
    device: Annotated[str, Setting("Device: cpu, cuda or cuda:1.")] = "cpu"
    bf16: Annotated[bool, Setting("Compute gradients in bfloat16.")] = False

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Charge the ledger, then train.

        Parameters
        ----------
        X : array-like of shape (n, h, w) or (n, h, w, channels), uint8; or (n, ...)
            Images, floats or tokens, also as a PyTorch tensor. dphead copies them to
            memory.
        y : array-like of shape (n,)
            Labels. Rows with an undeclared label add zero to every sum.
        groups : array-like of shape (n,), default=None
            Group (person) of each image.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the input is unusable, or groups are given without `group_cap` or
            protect="image". Raised before anything is charged.
        LedgerError
            If the ledger refuses the fit, for example because it would exceed the
            budget. After the charge, if the ledger cannot be written.
        """
        check_settings(self)
        names = declared(self.classes)
        # copy, because other code may change the array before the last step
        x = _rows(X, self.vocabulary).copy()
        # labels are read one by one, so that none affects the charge
        labels, y = given_labels(y, len(x), names)
        cap = self.group_cap
        if cap is not None:
            require_both(groups, cap)
        rows = ImageRows(
            x,
            y,
            None if groups is None else group_ids(as_arrays(groups)[0], len(x)),
            cap,
        )
        # Use facts.n_rows from here on: under add_remove len(x) is private.
        facts = public_facts(rows, len(names), self.relation, self.nominal_n)
        ungrouped = check_unit(
            groups is not None,
            self.protect,
            self.epsilon,
            confirm="protect='image'",
            instead="group_cap=",
            group_cap=cap,
        )
        settings, settings_from = self._settings()
        network = self._network(settings, x, len(names))
        target = Target(
            self.epsilon,
            self._delta(),
            self.relation,
            self.accountant,
            1 if cap else None,
            bool(cap),
        )
        solver, plan, _ = make_training(settings, target, facts, network)
        source = source_of_given(network.spec, names, grouped=groups is not None)
        about = About(
            source=source,
            name=f"finetune {settings.model}",
            preset=self.preset,
            settings=settings.record() | group_settings(cap),
            settings_from=settings_from,
            space=source.feature_space,
            warnings=tuple(ungrouped),
        )
        batch = round(facts.n_rows * solver.sampling_prob / solver.epoch_steps)
        result = self._carry_out(
            TrainingData(
                lambda: rows,
                facts,
                names,
                source,
                RowSizes.of(rows),
                notice=lambda: unmatched_labels(labels, names),
            ),
            about,
            lambda: (plan, VerifiedSum(TorchSums(network, self.memory, batch=batch))),
        )
        self.classes_, self.network_ = names, network
        self.weights_ = result.trained.average
        self._keep_run(result, about)
        return self

    def _settings(self) -> tuple[Settings, str]:
        """Return (settings, source): the preset's, overridden by the parameters."""
        given = {name: getattr(self, name, None) for name in NAMES}
        given["layers"] = tuple(self.layers) or None
        if isinstance(self.model, nn.Module):
            given["model"] = name_of(self.model)
        elif self.preset and self.model == ModelSpec.model:
            given["model"] = None
        settings, source = make_settings(given, self.preset, self.epsilon)
        settings.check_complete()
        return settings, source

    def _network(self, settings: Settings, x: np.ndarray, n_classes: int) -> Network:
        """Return the network for the rows x. Images have channels first."""
        pixels = x.dtype == np.uint8 and self.vocabulary is None
        if not pixels and not settings.of_user:
            raise ValueError(
                f"images must have dtype uint8, got {x.dtype}. Convert images in [0, "
                "1] with (255 * x).astype(np.uint8). Other rows need your own module."
            )
        spec = network_spec(
            settings,
            x.shape[1:],
            n_classes,
            self.group_cap,
            pixels,
            self.mean,
            self.std,
        )
        return Network(
            spec,
            usable_device(self.device),
            self.bf16,
            self.model if isinstance(self.model, nn.Module) else None,
            self.loss or loss_of,
        )

    def save(self, folder: str | Path, tuning: str | None = None) -> None:
        """Write a run folder, as `dphead finetune` does.

        `dphead check`, `predict`, `evaluate`, `report` and `export` accept the folder.

        Parameters
        ----------
        folder : str or Path
            A new folder.
        tuning : str, default=None
            How the settings were chosen, for the report: a value of
            `dphead.fit.options.TUNING`. None means "NOT ACCOUNTED".

        Raises
        ------
        ValueError
            If `tuning` is invalid, or "none" although the fit is a search's or a ledger
            has earlier fits of the data. If the folder is a file or holds a finished
            run.
        LedgerError
            If the fit's ledger is unavailable, does not have this fit, or does not
            count all fits (`ledger_`).
        """
        check_is_fitted(self, "weights_")

        self._write_run(
            folder,
            tuning,
            "NOT ACCOUNTED",
            lambda out, *trained: save_network(out, self.network_, *trained),
            {"pixels": {}},
        )

    @classmethod
    def load(
        cls, folder: str | Path, model: str | nn.Module | None = None
    ) -> "DPFinetuneClassifier":
        """Load the classifier of a folder that `save` or `dphead finetune` wrote.

        Parameters
        ----------
        folder : str or Path
            The run folder.
        model : str or nn.Module, default=None
            A network of your own, as in training.

        Returns
        -------
        DPFinetuneClassifier
            A classifier that predicts. It can be neither saved nor exported.

        Raises
        ------
        ValueError
            If the folder holds no usable network, or `model` is missing or differs from
            the network in the folder.
        """
        network, state, facts = read_network(folder, model=model)
        of = network.spec.model
        found = cls(model=of.model, vocabulary=of.vocabulary)
        found.classes_ = named_as_given(facts)
        found.network_, found.weights_ = network, state.average
        return found

    def export(self, to: str, folder: str | Path) -> "Exported":
        """Write the network for other software, as `dphead export` does.

        Parameters
        ----------
        to : str
            Format of the export, as in `dphead export --to`. "timm" needs a timm model.
        folder : str or Path
            A new or empty folder.

        Returns
        -------
        Exported
            The written files, and code that loads them.
        """
        from dphead.export.exporting import export

        own = self.model
        if not isinstance(own, nn.Module):
            own = merged(self.network_.model)
        with TemporaryDirectory() as made:
            self.save(run := Path(made) / "run")
            return export(run, to, folder, model=own)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores (n, n_classes), or (n,) for two classes.

        For two classes, the result is the score of the second class minus the score of
        the first. Raises ValueError for a row that is not finite or has unknown tokens.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the highest score, (n,).

        Raises ValueError for a row that is not finite or has unknown tokens.
        """
        return self.classes_[self._scores(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the softmax (n, n_classes) of each row's scores.

        Raises ValueError for a row that is not finite or has unknown tokens.
        """
        return probabilities(self._scores(X))

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "weights_")
        found = self.network_.scores(self.weights_, _rows(X, self.vocabulary))
        if (bad := np.flatnonzero(np.isnan(found).any(axis=1))).size:
            raise ValueError(
                f"{bad.size} rows have no scores (the first is row {bad[0]}). Pass "
                "finite rows, with tokens of the vocabulary."
            )
        return found


def _rows(x: Any, vocabulary: int | None) -> np.ndarray:
    """Return uint8 images as (n, channels, h, w), and other rows as `given_rows`."""
    x = given_rows(x, vocabulary)
    if x.dtype != np.uint8 or vocabulary is not None:
        return x
    if x.ndim not in (3, 4):
        raise ValueError(
            "images must have shape (n, h, w) or (n, h, w, channels), got shape "
            f"{x.shape}. Reshape them."
        )
    return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
