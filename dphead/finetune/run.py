"""Train a network and write its run folder, for `dphead finetune`.

Process 0 leads the run and writes the folder. Under torchrun, other processes sum the
gradients of their images, as for a head (`dphead.fit.run`).
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dphead.analysis.protected import name_unit
from dphead.finetune.checkpoint import (
    load_checkpoint,
    save_checkpoint,
    share_checkpoint,
)
from dphead.finetune.choose import Schedule, schedule
from dphead.finetune.images import Opened
from dphead.finetune.models import build_network, pixel_scale
from dphead.finetune.network import Network, NetworkSpec, TorchSums
from dphead.finetune.options import FinetuneOptions, Scale
from dphead.finetune.processes import usable_device
from dphead.finetune.saved import measure_network, save_network
from dphead.finetune.settings import ModelSpec, Settings, Step
from dphead.finetune.solver import NetworkDescent, TrainingState
from dphead.finetune.sources import (
    Data,
    identified,
    index_for,
    load_data,
    load_test,
)
from dphead.fit.fit import About, Fit, FitResult, RowSizes
from dphead.fit.processes import agree, given_options, joined, software
from dphead.fit.report import NOT_TESTED, Tested
from dphead.fit.run_folder import (
    beside_others,
    charge,
    check_folder,
    interrupted,
    locked,
    resumed_at,
    write_report,
)
from dphead.planning.plan import (
    FitPlan,
    Target,
    check_delta,
    check_unit,
    make_plan,
    public_facts,
)
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.noise import NoiseSource
from dphead.solvers.base import ProblemInfo
from dphead.solvers.normalization import ChannelNormalization
from dphead.sums.hosts import Hosts, SumOfParts
from dphead.sums.verified import VerifiedSum

_SLACK_RELEASES = 12  # extra stored releases between two checkpoints; chosen

_Announce = Callable[[Fit[TrainingState], Schedule], None]
_Told = Callable[[int, int, str], None]


def finetune(
    options: FinetuneOptions,
    announce: _Announce | None = None,
    progress: _Told | None = None,
    begin: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """Train a network and write its run folder.

    Parameters
    ----------
    options : FinetuneOptions
        Options of the training.
    announce : callable, optional
        Called with the prepared fit and its schedule, before the charge.
    progress : callable, optional
        Called with (releases made, releases planned, label).
    begin : callable, optional
        Called with the name of each long phase without a count.

    Returns
    -------
    dict or None
        {"report", "test", "seconds"}, as in `fit_files`. With several processes, each
        process calls this function, and all but the first get None. None also for a dry
        run, which ends after `announce`.

    Raises
    ------
    ValueError or OSError
        If the input is unusable or the ledger refuses the fit, before any budget is
        spent. After the charge, if the disk or the ledger fails.

    Notes
    -----
    The folder holds model.safetensors, model.json, report.json, report.html and
    ledger.json, and run.toml if `options.config` has its text. Call the function again
    to resume an interrupted run under its charge.
    """
    start = time.perf_counter()
    tell = begin or (lambda _: None)
    # raises for an unsuitable model before any image is read
    build_network(replace(options.settings, weights=None), 2)
    hosts = index = None
    with ExitStack() as opened:
        if options.processes is not None:
            # the processes exchange sums that are on the CPU
            hosts = opened.enter_context(joined(options.processes, only_cpu=True))
        first = hosts is None or hosts.first
        if first:
            check_folder(options.out, [])
            index = index_for(options)
        data = load_data(options, options.features, options.split, index, hosts)
        ungrouped = check_unit(
            data.source.grouped,
            options.protect,
            options.epsilon,
            confirm="--protect image",
            instead="--group-cap",
            group_cap=options.group_cap,
            thing=name_unit(data.source.extraction),
        )
        n_classes = len(data.source.class_names)
        facts = public_facts(data.rows, n_classes, options.relation, options.nominal_n)
        network = _network(options, data)
        if hosts is not None:
            hosts.wait()  # process 0 reads all images, which may take hours
            agree(
                hosts,
                {
                    **software("torch", "timm"),
                    **given_options(options),
                    **data.facts,
                    "inputs": str(
                        {k: v for k, v in vars(network.spec).items() if k != "model"}
                    ),
                    "weights": network.digest(),
                    "device": network.device_name(),
                },
            )
        tell("computing the omitted setting from the budget")
        # plan first, because the checks of the sums take up to a minute
        target = options.target("auto", *options.groups)
        solver, plan, found = make_training(options.settings, target, facts, network)
        warnings = [*check_delta(plan, facts, options.allow_large_delta), *ungrouped]
        tell(
            "checking, before the charge, that a gradient does not depend on an "
            "image's position"
        )
        sums = _sums(options, network, facts, hosts)
        if not first:
            fit = _prepare(options, data, plan, sums, warnings, hosts)

            def resume(hosts: Hosts) -> tuple[NetworkDescent, int]:
                """Return the solver at the last checkpoint, and its releases so far."""
                resumed = share_checkpoint(hosts, options.out)
                return replace(solver, resumed=resumed), _releases(solver, resumed)

            fit.serve(resume)
            return None
        data = identified(options, data, index)
        fit = _prepare(options, data, plan, sums, warnings, hosts)
        about = beside_others(
            fit.about, options.out, options.ledger, options.tuning, known=data.known
        )
        fit = replace(fit, about=about)
        training = _Training(options, solver, found, network, load_test(options, data))
        stored = options.checkpoint + _SLACK_RELEASES
        check_folder(options.out, [sums.network.statistic.size] * stored)
        with locked(options.out):
            result = training.carry_out(fit, announce, progress)
            if result is None:
                return None
            tell("measuring, and computing epsilon by every accountant")
            tested = training.measure(result)
            about = replace(about, warnings=(*about.warnings, *training.warnings))
            report = _write(options, about, result, sums.network, tested)
    return {
        "report": report,
        "test": tested.metrics,
        "seconds": time.perf_counter() - start,
    }


def _network(options: FinetuneOptions, data: Data) -> Network:
    """Return the network on this process's device.

    Under torchrun, "cuda" means the process's own GPU. Raises ValueError if torch
    cannot use the device.
    """
    spec = network_spec(
        options.settings,
        data.shape,
        len(data.source.class_names),
        options.group_cap,
        data.pixels,
        options.mean,
        options.std,
    )
    device, local = options.device, os.environ.get("LOCAL_RANK")
    if device == "cuda" and local is not None:
        device = f"cuda:{local}"
    return Network(spec, usable_device(device), options.bf16)


def _sums(
    options: FinetuneOptions,
    network: Network,
    facts: ProblemInfo,
    hosts: Hosts | None,
) -> TorchSums:
    """Return the `TorchSums` of this process, with the chunk size of process 0."""
    sums, chunk = None, 0
    if hosts is None or hosts.first:
        batch = options.settings.batch_size or facts.n_rows
        sums = TorchSums(network, options.memory, batch=batch)
        chunk = sums.chunk
    if hosts is not None:
        chunk = int(hosts.from_first(np.array([chunk]))[0])
    return sums or TorchSums(network, chunk=chunk)


def _prepare(
    options: FinetuneOptions,
    data: Data,
    plan: FitPlan[TrainingState],
    sums: TorchSums,
    warnings: list[str],
    hosts: Hosts | None,
) -> Fit[TrainingState]:
    """Return the fit of the planned releases."""
    settings = options.settings
    about = About(
        source=data.source,
        name=f"finetune {settings.model}",
        preset=options.preset,
        settings=settings.record() | group_settings(options.group_cap),
        settings_from=options.source,
        space=data.source.feature_space,
        rows=data.digest,
        warnings=tuple(warnings),
    )
    parts = None if hosts is None else SumOfParts(hosts, data.own)
    fit = Fit(
        plan=plan,
        about=about,
        sizes=RowSizes.of(data.rows),
        rows=lambda: data.rows,
        summer=VerifiedSum(sums, parts=parts),
        noise=NoiseSource(options.seed),
        hosts=hosts,
        groups=data.charged,
    )
    if hosts is None:
        return fit
    return replace(
        fit,
        agreed={"settings": fit.digest(), "gradients of random images": sums.probe()},
    )


def _releases(solver: NetworkDescent, resumed: TrainingState | None) -> int:
    """Return the number of releases before a checkpoint, or 0 without one."""
    return 0 if resumed is None else solver.before() + resumed.step


@dataclass
class _Training:
    """Train on process 0: resume, write checkpoints, and measure on test rows.

    Attributes
    ----------
    warnings : list of str
        Warnings for the report, on interruptions.
    history : list of dict
        The accuracy on public test rows during the training.
    """

    options: FinetuneOptions
    solver: NetworkDescent
    schedule: Schedule
    network: Network
    test: tuple[Opened, str] | None
    warnings: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def carry_out(
        self,
        fit: Fit[TrainingState],
        announce: _Announce | None,
        progress: _Told | None,
    ) -> FitResult[TrainingState] | None:
        """Carry out the fit, from its last checkpoint. A dry run ends uncharged."""
        options, out = self.options, self.options.out
        # raises for a checkpoint of another fit
        load_checkpoint(out, interrupted(out) or "")

        def announced(fit: Fit[TrainingState], seconds: float) -> None:
            if announce is not None:
                announce(fit, self.schedule)

        def told(made: int, planned: int, label: str) -> None:
            if self.history:
                last = self.history[-1]
                share = f"{100 * last['accuracy']:.1f} %"
                label += f", accuracy {share} after step {last['step']}"
            if progress is not None:
                progress(made, planned, label)

        if options.dry_run:
            announced(fit, fit.check())
            return None
        return fit.carry_out(
            lambda fit: charge(fit, options),
            announce=announced,
            progress=told,
            resume=lambda charged: self._resume(fit, charged),
        )

    def _resume(
        self, fit: Fit[TrainingState], charged: Charge
    ) -> tuple[NetworkDescent, int]:
        """Return the solver at the last checkpoint, and its number of releases."""
        options, out, solver = self.options, self.options.out, self.solver
        self.warnings.extend(
            _about_lost_steps(out, charged, self.schedule, solver.before())
        )
        resumed = load_checkpoint(out, charged.fit_id)
        if fit.hosts is not None:
            share_checkpoint(fit.hosts, out)
        done = _releases(solver, resumed)
        if resumed is not None:
            if options.evaluate_every and self.test is not None:
                self.warnings.append(
                    "the run was resumed, so the accuracies during the training begin "
                    f"after step {resumed.step}."
                )
            charged.forget(done)

        def after(state: TrainingState) -> None:
            if fit.plan.private and state.step % options.checkpoint == 0:
                save_checkpoint(out, charged.fit_id, state)
                charged.forget(_releases(solver, state))
            every = options.evaluate_every
            if every and self.test is not None and state.step % every == 0:
                metrics = measure_network(self.network, state, self.test[0])
                self.history.append(
                    {"step": state.step, "accuracy": metrics["accuracy"]}
                )

        return replace(solver, resumed=resumed, after=after), done

    def measure(self, result: FitResult[TrainingState]) -> Tested:
        """Return the network's metrics on the test rows, if there are any."""
        if self.test is None:
            return NOT_TESTED
        rows, origin = self.test
        metrics = measure_network(self.network, result.trained, rows)
        metrics |= {"history": self.history} if self.history else {}
        return Tested(metrics, self.options.test_is, origin)


def _about_lost_steps(
    out: Path, charged: Charge, found: Schedule, before: int
) -> list[str]:
    """Return a warning if the run was interrupted within epochs of random allocation.

    The remaining steps of such epochs use no images
    (dphead/privacy/proofs/allocation.md).

    Parameters
    ----------
    out : Path
        The run folder.
    charged : Charge
        The fit's entry in the ledger.
    found : Schedule
        The run's schedule.
    before : int
        Number of releases before the first step.

    Returns
    -------
    list of str
        One warning, or none.
    """
    if found.epoch_steps == 1:
        return []
    (fit,) = (f for f in charged.ledger.fits() if f["fit_id"] == charged.fit_id)
    lost: set[int] = set()
    for releases in resumed_at(
        out, sum(r["state"] == "committed" for r in fit["releases"])
    ):
        done = max(0, releases - before)
        lost.update(range(done, done + -done % found.epoch_steps))
    if not lost:
        return []
    return [
        f"the run was interrupted within epochs: {len(lost)} of its {found.steps} "
        "steps used no images and released noise alone."
    ]


def _write(
    options: FinetuneOptions,
    about: About,
    result: FitResult[TrainingState],
    network: Network,
    tested: Tested,
) -> dict[str, Any]:
    """Write the network, the report and the ledger's copy, and return the report."""
    facts = {
        "class_names": about.source.class_names,
        "feature_space": about.source.feature_space,
        "pixels": options.pixels.record(),
    }
    return write_report(
        options.out,
        about,
        result,
        tested=tested,
        declared=options.tuning,
        tuning="NOT ACCOUNTED",
        sha256=save_network(options.out, network, result.trained, facts),
        config=options.config,
    )


def network_spec(
    settings: Settings,
    shape: tuple[int, ...],
    n_classes: int,
    group_cap: int | None,
    pixels: bool,
    mean: Scale | None,
    std: Scale | None,
) -> NetworkSpec:
    """Return the network that the settings describe, and its inputs."""
    model = ModelSpec(**settings.of(ModelSpec))
    if not pixels and (mean, std) != (None, None):
        raise ValueError("`mean` and `std` are for images of dtype uint8. Drop them.")
    # unused without pixels
    scale = pixel_scale(model, shape[0], mean, std) if pixels else (0.5, 0.25)
    return NetworkSpec(
        model,
        shape,
        n_classes,
        pixels,
        *scale,
        settings.views,
        settings.augment,
        group_cap or 0,
    )


def group_settings(group_cap: int | None) -> dict[str, int]:
    """Return the report's setting of a training that protects groups, else {}."""
    return {} if group_cap is None else {"images_of_a_group": group_cap}


def make_training(
    settings: Settings,
    target: Target,
    facts: ProblemInfo,
    network: Network,
) -> tuple[NetworkDescent, FitPlan[TrainingState], Schedule]:
    """Return the solver, its plan and the schedule.

    Parameters
    ----------
    settings : Settings
        The training's settings.
    target : Target
        The budget.
    facts : ProblemInfo
        Public sizes of the rows.
    network : Network
        The network to train.

    Returns
    -------
    tuple of (NetworkDescent, FitPlan, Schedule)
        The solver, the planned releases, and noise, batch size and steps.

    Raises
    ------
    ValueError
        If the settings exceed the budget or contradict each other.
    """
    s = settings.resolved(facts.n_rows)
    if s.normalization and network.spec.pixels:
        raise ValueError(
            "`normalization` applies to feature maps, not to images. Drop it. --mean "
            "and --std scale images."
        )
    normalization = ChannelNormalization(**s.normalization) if s.normalization else None
    others = []
    if normalization is not None:
        others = [GaussianEvent(normalization.noise_multiplier, 1.0, 2)]
    found = schedule(
        facts.n_rows,
        target,
        noise_multiplier=s.noise_multiplier,
        batch_size=s.batch_size,
        steps=s.steps,
        others=others,
        epoch_steps=s.epoch_steps(facts.n_rows) if s.sampling != "poisson" else None,
    )
    solver = NetworkDescent(
        network.statistic,
        network.start,
        steps=found.steps,
        sampling_prob=found.sampling_prob,
        epoch_steps=found.epoch_steps,
        noise_multiplier=found.noise_multiplier or None,
        normalization=normalization,
        **s.of(Step),
    )
    return solver, make_plan(solver, facts, **vars(target)), found
