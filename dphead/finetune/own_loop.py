"""Release gradients for a training loop that the user writes (`PrivateTraining`).

The caller gets released gradients only. A copy of the module computes the gradients of
rows (dphead/privacy/proofs/finetune.md, "A loop of one's own").
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Self

import numpy as np
import torch
from dphead_extract.backbones.weights import first_line
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dphead.analysis.protected import about_people
from dphead.data.arrays import group_ids
from dphead.estimators.guarantee import Privacy, privacy_of
from dphead.estimators.inputs import (
    as_arrays,
    declared,
    given_labels,
    given_rows,
    require_both,
)
from dphead.estimators.labels import saved_facts
from dphead.finetune.gradients import try_rows
from dphead.finetune.models import (
    RowLoss,
    bits,
    flat,
    name_of,
    trained,
)
from dphead.finetune.network import Network, NetworkSpec, StepParams, TorchSums
from dphead.finetune.processes import refuse_processes
from dphead.finetune.rows import ImageRows
from dphead.finetune.run import group_settings
from dphead.finetune.saved import save_network
from dphead.finetune.settings import (
    AUGMENT,
    VIEWS,
    VOCABULARY,
    Augment,
    ModelSpec,
)
from dphead.finetune.solver import NetworkDescent, TrainingState
from dphead.finetune.sources import source_of_given
from dphead.fit.fit import About, Fit, FitResult, RowSizes, charge_ledger
from dphead.fit.ledgers import open_ledger, people_index
from dphead.fit.options import (
    ACCOUNTANT,
    ALLOW_LARGE_DELTA,
    DELTA,
    EPSILON,
    GROUP_CAP,
    NOMINAL_N,
    RELATION,
    RunOptions,
)
from dphead.fit.report import NOT_TESTED
from dphead.fit.run_folder import (
    CHECKPOINT,
    beside_others,
    charge,
    check_folder,
    locked,
    noted,
    write_report,
)
from dphead.planning.plan import check_delta, make_plan, public_facts
from dphead.privacy.atomic_write import write_atomically
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.privacy.noise import NoiseSource, refuse_compilation
from dphead.privacy.python_values import python_value
from dphead.privacy.release import release
from dphead.privacy.transform import RowTransform
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    CLIP_NORM,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    STEPS,
    Setting,
    check_settings,
)
from dphead.sums.verified import VerifiedSum


@dataclass(eq=False, repr=False)
class PrivateTraining:
    """Release one gradient for each step of your own training loop.

    Use it in a `with` block, which charges the ledger for all steps when it begins.
    Then iterate: each step sets `.grad` of the module's trained parameters to the noisy
    mean of clipped gradients. Any torch optimizer, scheduler or average can follow.

    Parameters
    ----------
    model : nn.Module
        The module to train. Its weights are public. dphead reads them before each step,
        and computes the gradients of rows on a copy without dropout.
    loss : callable
        Function of (model, x, y) that returns the loss of one row. x is a batch (1,
        ...) float32 of this row, or (views, ...) of its views. y has the index of its
        class among the sorted classes, for each view. dphead alone calls it, under
        `torch.func`.
    rows : tuple of (array-like, array-like)
        Features (n, ...), and labels (n,). uint8 features are divided by 255.
        dphead copies both to memory.
    classes : sequence
        The public classes. Rows with any other label add zero. Outputs of the module
        are in the order of the sorted classes.
    sampling_prob : float
        Probability that a row is in the batch of a step.
    steps : int
        Number of steps to charge.
    epsilon : float, default=1.0
        Budget of the training.
    delta : float, default=1e-5
        Failure probability, below 1/n.
    clip_norm : float, default=1.0
        Bound on the norm of a row's gradient.
    noise_multiplier : float, default=None
        Noise multiplier. None computes it from the budget.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation.
    nominal_n : int, default=None
        Public number used in place of n under add_remove.
    accountant : str, default="auto"
        Accountant that calibrates the noise.
    ledger : str or Path, default=None
        Ledger to charge. None means a ledger in memory, for this training only.
    folder : str or Path, default=None
        Run folder, which needs `ledger`. The same program resumes an interrupted
        training in it, without another charge. After the last step, it gets the
        network, report and card.
    keep : sequence, default=()
        Objects with `state_dict` and `load_state_dict` that checkpoints in `folder`
        hold besides the module: optimizer, scheduler, average. Without `keep`, a
        resumed training repeats the released gradients from the first step.
    checkpoint : int, default=20
        Number of steps between checkpoints.
    groups : array-like of shape (n,), default=None
        Group (person) of each row.
    group_cap : int, default=None
        Number of rows used per group: the first ones. The training then protects
        groups, and `sampling_prob` applies to groups. The gradient of a group is the
        mean over its rows.
    vocabulary : int, default=None
        Number of tokens. Features are then integers from 0 to vocabulary - 1, which
        `loss` gets as int64. A row with another number adds zero.
    views, augment : int and str, default=0 and "none"
        As in `DPFinetuneClassifier`, for uint8 features (n, channels, h, w).
    memory : int, default=None
        Memory for a chunk's gradients in bytes.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more.
    random_state : int, default=None
        Seed of the noise, for tests. Such a training is not private.

    Attributes
    ----------
    step : int
        Number of steps whose gradient was released. A resumed training begins at its
        last checkpoint.

    Raises
    ------
    ValueError or LedgerError
        If the training is refused. Nothing is charged then, unless the error is
        LostAnswer.

    Notes
    -----
    A loop that ends early is charged for all steps.
    """

    model: nn.Module
    loss: RowLoss
    rows: tuple[Any, Any]
    _: KW_ONLY
    classes: Any
    sampling_prob: Annotated[float, Setting("Sampling rate.", PROBABILITY)]
    steps: Annotated[int, STEPS]
    epsilon: Annotated[float, EPSILON] = 1.0
    delta: Annotated[float | None, DELTA] = None
    clip_norm: Annotated[float, CLIP_NORM] = 1.0
    noise_multiplier: Annotated[float | None, Setting("Noise.", POSITIVE)] = None
    relation: Annotated[str, RELATION] = "zero_out"
    nominal_n: Annotated[int | None, NOMINAL_N] = None
    accountant: Annotated[str, ACCOUNTANT] = "auto"
    ledger: str | Path | None = None
    folder: str | Path | None = None
    keep: Sequence[Any] = ()
    checkpoint: Annotated[int, Setting("Steps between checkpoints.", AT_LEAST_ONE)] = 20
    groups: Any = None
    group_cap: Annotated[int | None, GROUP_CAP] = None
    vocabulary: Annotated[int | None, VOCABULARY] = None
    views: Annotated[int, VIEWS] = 0
    augment: Annotated[Augment, AUGMENT] = "none"
    memory: Annotated[int | None, Setting("Bytes.", AT_LEAST_ONE)] = None
    allow_large_delta: Annotated[bool, ALLOW_LARGE_DELTA] = False
    random_state: Annotated[int | None, Setting("Seed of the noise.", NOT_NEGATIVE)] = (
        None
    )

    def __post_init__(self) -> None:
        check_settings(self)
        self.step = 0
        self._gradients: Iterator[dict[str, Tensor]] | None = None
        self._idle = Lock()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if "_fit" in vars(self):
            raise ValueError(
                "this training was opened before. Make a new `PrivateTraining`. "
                "Without `folder`, it is charged again."
            )
        refuse_processes()
        if self.folder is not None and self.ledger in (None, IN_MEMORY):
            raise ValueError(
                "`folder` needs a ledger on disk, because a resume continues its "
                "charge. Pass the ledger's path as `ledger`."
            )
        options = RunOptions(
            features=Path(),
            out=Path(self.folder or ""),
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            nominal_n=self.nominal_n,
            accountant=self.accountant,
            ledger=self.ledger,
            allow_large_delta=self.allow_large_delta,
            seed=self.random_state,
        )
        fit = self._prepare(options)
        kept = [self.model, *self.keep] if self.keep else []
        _saved(kept, "", 0)  # raises for a state that a resume cannot read
        with ExitStack() as opened:
            if self.folder is not None:
                stored = min(self.steps, self.checkpoint + 1) if kept else self.steps
                check_folder(options.out, [self._network.statistic.size] * stored)
                opened.enter_context(noted(options))
                opened.enter_context(locked(options.out))
            fit.check()
            if self.folder is None:
                self._charge = charge_ledger(fit, open_ledger(self.ledger))
            else:
                self._charge = charge(fit, options)
            self._fit = fit
            path = options.out / CHECKPOINT
            self._path = path if self.folder is not None and kept else None
            if self._path is not None and path.exists():
                self.step = _restored(path, kept, self._charge.fit_id)
                self._charge.forget(self.step)
            for parameter in self._trained.values():
                added = parameter.register_post_accumulate_grad_hook(_refuse)
                opened.callback(added.remove)
            self._open = opened.pop_all()
        self._gradients = self._released(kept)
        return self

    def _prepare(self, options: RunOptions) -> Fit:
        """Return the fit to charge.

        Values of rows affect only its private digest for a resume (`About.rows`).
        """
        names = declared(self.classes)
        cap = self.group_cap
        require_both(self.groups, cap)
        x, y = self.rows
        # copy, because the loop may shuffle its array
        x = given_rows(x, self.vocabulary).copy()
        _, y = given_labels(y, len(x), names)
        rows = ImageRows(
            x,
            y,
            None if cap is None else group_ids(as_arrays(self.groups)[0], len(x)),
            cap,
        )
        facts = public_facts(rows, len(names), self.relation, self.nominal_n)
        self._network = self._network_for(x, len(names))
        self._trained = dict(trained(self.model))
        self._weights()  # raises for a module that each step would refuse
        spec = self._network.spec
        solver = NetworkDescent(
            self._network.statistic,
            self._network.start,
            steps=self.steps,
            sampling_prob=self.sampling_prob,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
        )
        target = options.target("auto", *((1, True) if cap else ()))
        plan = make_plan(solver, facts, **vars(target))
        large = check_delta(plan, facts, options.allow_large_delta)
        source = source_of_given(spec, names, grouped=cap is not None)
        about = About(
            source=source,
            name=f"finetune {spec.model.model}",
            settings={
                name: getattr(self, name)
                for name in ("steps", "sampling_prob", "clip_norm", "views", "augment")
            }
            | group_settings(cap),
            settings_from="a loop of the user's own",
            space=source.feature_space,
            # A resume compares a keyed digest: one charge covers one partition into
            # groups. DPHEAD_HOME, not the run folder, keeps the key.
            rows=people_index().keyed(rows.digest(), 32).hex()
            if cap and self.folder is not None
            else "",
            warnings=tuple(large),
        )
        about = beside_others(about, options.out, options.ledger, None, charged=True)
        batch = round(facts.n_rows * self.sampling_prob)
        return Fit(
            plan=plan,
            about=about,
            sizes=RowSizes.of(rows),
            rows=lambda: rows,
            summer=VerifiedSum(TorchSums(self._network, self.memory, batch=batch)),
            noise=NoiseSource(self.random_state),
        )

    def _network_for(self, x: np.ndarray, n_classes: int) -> Network:
        """Return dphead's copy of the module, on the module's device."""
        model = self.model
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        if any(norm.training for norm in norms):
            raise ValueError(
                "the module has a batch norm in training mode, which mixes the images "
                "of a batch. Call its `eval()` to use its public statistics, or use "
                "`torch.nn.GroupNorm`."
            )
        spec = ModelSpec(
            name_of(model),
            batch_norm="freeze" if norms else "refuse",
            vocabulary=self.vocabulary,
        )
        pixels = x.dtype == np.uint8 and self.vocabulary is None
        device = next((str(p.device) for p in model.parameters()), "cpu")
        given = NetworkSpec(
            spec,
            x.shape[1:],
            n_classes,
            pixels,
            0.0,
            1.0,
            self.views,
            self.augment,
            self.group_cap or 0,
        )
        return Network(given, device, module=model, row_loss=self.loss)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._gradients = None
        try:
            if error is None and self.folder is not None and self.step == self.steps:
                fit, out = self._fit, Path(self.folder)
                counted = self._charge.ledger, self._charge.fit_id
                state = TrainingState.start(self._weights())
                facts = saved_facts(fit.about, declared(self.classes)) | {"pixels": {}}
                write_report(
                    out,
                    fit.about,
                    FitResult(state, fit.plan, *counted, fit.noise.private, 0.0),
                    tested=NOT_TESTED,
                    tuning="NOT ACCOUNTED",
                    sha256=save_network(out, self._network, state, facts),
                )
        finally:
            del self._charge  # frees its lock, so that this process can resume
            self._open.__exit__(kind, error, trace)

    @cached_property
    def privacy(self) -> Privacy:
        """Return the guarantee of all charged steps.

        Raises
        ------
        ValueError
            If nothing was charged yet.
        """
        if "_fit" not in vars(self):
            raise ValueError(
                "a training has a guarantee only after its charge. Open its `with` "
                "block first."
            )
        fit = self._fit
        notes = [*fit.about.warnings, about_people(vars(fit.about.source))]
        return privacy_of(
            fit.plan,
            n_rows=fit.plan.facts.n_rows,
            seeded=not fit.noise.private,
            counted=self.ledger not in (None, IN_MEMORY),
            classes_seen=False,
            warning=" ".join(f"{note.rstrip('.')}." for note in notes if note),
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Tensor]:
        """Set `.grad` of the trained parameters to the next released gradient.

        The gradient is the noisy sum of the clipped gradients, divided by the expected
        batch size. It replaces `.grad`.

        Returns
        -------
        dict of str to Tensor
            The gradient of each trained parameter by its name.

        Raises
        ------
        ValueError
            If the `with` block has ended, a step failed, or the module changed its
            parameters. If torch has hooks or modes, traces the caller, or has several
            processes. If the loss raises an error for a public random row, for example
            after `train()` of a module that it calls. No row is read.
        RuntimeError
            If torch compiles the caller, or has hooks for saved tensors. No row is
            read.
        LedgerError
            If the ledger refuses or cannot record the release.
        """
        # refuse a step inside the loss, or in another thread
        if self._gradients is None or not self._idle.acquire(blocking=False):
            raise ValueError(
                "this training is closed, or another step is running. Iterate inside "
                "its `with` block, in one thread."
            )
        try:
            # check here, because an error inside `_released` ends the training
            refuse_compilation()
            refuse_processes()
            if self.step < self.steps:
                try_rows(self._network.gradients, self._network.public[:1])
            gradient = next(self._gradients, None)
        finally:
            self._idle.release()
        if gradient is not None:
            return gradient
        if self.step < len(self._fit.plan.specs):
            raise ValueError(
                f"step {self.step} failed before, so this training cannot continue. "
                "Run the program again. With `folder`, it resumes without a charge."
            )
        raise StopIteration

    def _released(self, kept: list[Any]) -> Iterator[dict[str, Tensor]]:
        """Set `.grad` to the gradient of each remaining step, and yield it."""
        fit, specs = self._fit, self._fit.announced.specs
        batch = specs[0].n_rows * specs[0].sampling_prob
        rows, first, before = fit.rows(), self.step, np.empty(0)
        while (step := self.step) < len(specs):
            if self._path is not None and step > first and step % self.checkpoint == 0:
                self._save(kept)
            weights = self._weights().astype(np.float32)
            grads = (p.grad for _, p in trained(self.model))
            cleared = not any(one is not None and one.any() for one in grads)
            if cleared and np.array_equal(before, weights):
                warnings.warn(
                    f"step {step} was charged and changed no weight. Call no "
                    "`zero_grad()` between a gradient and `optimizer.step()`.",
                    stacklevel=3,
                )
            before = weights
            found = release(
                self._network.statistic,
                StepParams(RowTransform(), weights, step),
                rows,
                specs[step],
                ledger=self._charge,
                noise=fit.noise,
                summer=fit.summer,
            )
            self.step += 1
            value = torch.from_numpy(found.value / batch)
            parts = value.split([p.numel() for p in self._trained.values()])
            gradient = {}
            for (name, p), part in zip(self._trained.items(), parts, strict=True):
                p.grad = gradient[name] = part.view_as(p).to(p)
            yield gradient

    def _save(self, kept: list[Any]) -> None:
        """Write a checkpoint, which replaces the stored gradients before it."""
        assert self._path is not None
        state = _saved(kept, self._charge.fit_id, self.step)
        write_atomically(self._path, lambda file: file.write(state))
        self._charge.forget(self.step)

    def _weights(self) -> np.ndarray:
        """Return the module's trained parameters (size,).

        Raises ValueError if other parameters are trained than at the charge, or if a
        buffer or a parameter that is not trained has changed.
        """
        own, given = self._network.model, self.model
        shapes, found = ([(n, p.shape) for n, p in trained(m)] for m in (own, given))
        # only the parameters at the charge have a hook, and are in the optimizer
        if shapes != found or any(
            self._trained.get(n) is not p for n, p in trained(given)
        ):
            raise ValueError(
                "the module no longer trains the parameters that it trained at the "
                "charge. Keep these objects, with their names, shapes and "
                "`requires_grad`, and load weights without `assign=True`."
            )
        before, after = _fixed(own), _fixed(given)
        for name in before | after:
            if before.keys() != after.keys() or bits(before[name]) != bits(
                after[name].to(before[name])
            ):
                raise ValueError(
                    f"{name} of the module has changed since the charge. It is not "
                    "trained, and could hold rows. Call `eval()` before you use the "
                    "module yourself."
                )
        return flat(given).double().cpu().numpy()


def _fixed(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that are not trained, by name."""
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: value.detach() for name, value in every if not value.requires_grad}


def _refuse(parameter: Tensor) -> None:
    """Remove a gradient of the user's own backward pass, and raise ValueError."""
    parameter.grad = None
    raise ValueError(
        "a backward pass of your own added to the released gradient. Remove "
        "`backward()` from the loop. For a loss of public values, add the result of "
        "`torch.autograd.grad` to `.grad`."
    )


def _saved(kept: list[Any], fit_id: str, step: int) -> bytes:
    """Return a checkpoint in torch's format: fit id, step, and the objects' states.

    Raises ValueError for states that `_restored` cannot read.
    """
    file = BytesIO()
    try:
        torch.save((fit_id, step, [_plain(one.state_dict()) for one in kept]), file)
        torch.load(BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:  # torch and pickle raise many types
        raise ValueError(
            "a checkpoint cannot hold the state of an object in `keep` "
            f"({first_line(error)}). Keep numbers, texts and tensors in its "
            "`state_dict`."
        ) from error
    return file.getvalue()


def _plain(value: Any) -> Any:
    """Return a state with NumPy's numbers as Python's: torch would not load NumPy's."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return type(value)((key, _plain(one)) for key, one in value.items())
    return python_value(value) if isinstance(value, np.generic) else value


def _restored(path: Path, kept: list[Any], fit_id: str) -> int:
    """Give objects the states of a checkpoint of this fit, and return its step.

    Raises ValueError if the checkpoint is damaged or belongs to another fit.
    """
    try:
        # `weights_only`: no code in it runs
        found, step, states = torch.load(path, weights_only=True)
        if found == fit_id:
            for one, state in zip(kept, states, strict=True):
                one.load_state_dict(state)
            return step
    except Exception as error:  # torch raises many types for damaged files
        raise ValueError(
            f"{path} is damaged, or `keep` has other objects than before. Pass the "
            "same objects, or another folder. A new run is charged too."
        ) from error
    raise ValueError(
        f"{path} belongs to another fit. Restore the checkpoint of this run, or choose "
        "another folder. A new run is charged too."
    )
