"""Training a network from files to files: what `dphead finetune` does, as a
function.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dphead.endtoend import processes
from dphead.endtoend.choose import Schedule, schedule
from dphead.endtoend.gradients import Engine
from dphead.endtoend.images import load_images
from dphead.endtoend.models import ModelSpec, Scale, pixel_scale
from dphead.endtoend.network import Network, NetworkSpec, TorchSums
from dphead.endtoend.rows import ImageRows
from dphead.endtoend.saved import evaluate, labelled, save_network
from dphead.endtoend.settings import Settings
from dphead.endtoend.solver import NetworkDescent, Progress, Step
from dphead.planning.methods import Method
from dphead.planning.plan import Plan, make_plan
from dphead.privacy.accounting import GaussianEvent
from dphead.privacy.contract import Rows
from dphead.privacy.ledger import write_durably
from dphead.privacy.noise import NoiseSource
from dphead.rows.features import check_views, load_features
from dphead.runs import files
from dphead.runs import fit as heads
from dphead.runs import report as reports
from dphead.runs.fit import FitOptions
from dphead.runs.ledgers import open_ledger
from dphead.runs.loop import FitResult, Run, check_fit, fit_head
from dphead.runs.memory import DEFAULT_BYTES
from dphead.solvers.base import PublicFacts
from dphead.solvers.normalization import ChannelNormalization
from dphead.sums.door import Door
from extract.format import open_features
from extract.images import Classes


@dataclass(frozen=True)
class FinetuneOptions:
    """Everything that decides a training.

    fit: the source (`features`), the guarantee and the files, as for a head.

    classes: how they are declared public (images). layout: what the folders of image
    files are (`extract.layout`), of the test's too; None is split/class with a split,
    else class. shape: (channels, h, w) of the rows of a features file. layers: regular
    expressions for the names of the parameters to train; () trains all. same_data_as: a
    features file of the same images, whose ledger counts. mean, std: of pixels in [0,
    1], of all channels or one each; public numbers; None takes the model's own. vote:
    augmented views of each test image that vote. protect: "image" confirms that each
    image is protected for itself alone although the source has groups; None refuses
    such a source.
    checkpoint: steps between checkpoints.
    """

    fit: FitOptions
    settings: Settings
    classes: Classes = field(default_factory=Classes)
    layout: str | None = None
    source: str = "dphead's defaults"
    weights: str | None = None
    layers: tuple[str, ...] = ()
    norm: str = "before"
    groups: int = 16
    standardise: bool = True
    image_size: int | None = None
    shape: tuple[int, int, int] | None = None
    mean: Scale | None = None
    std: Scale | None = None
    same_data_as: Path | None = None
    protect: str | None = None
    init_seed: int = 0
    vote: int = 0
    device: str = "cpu"
    bf16: bool = False
    engine: Engine | None = None
    checkpoint: int = 20

    def __post_init__(self) -> None:
        if self.checkpoint < 1:
            raise ValueError(
                "there must be a step or more between checkpoints, got "
                f"checkpoint={self.checkpoint}. Use 1 or more."
            )


@dataclass(frozen=True)
class Data:
    """Rows of one source.

    rows: private rows; x, y: the same as arrays; pixels: 8-bit images, not feature
    maps.

    split: the one that the rows are, "all" of a source without. extraction: how a row
    was made of its image, for the report. grouped: whether the source says which images
    belong together.
    """

    rows: Rows
    x: np.ndarray
    y: np.ndarray
    split: str
    shape: tuple[int, int, int]
    classes: list[str]
    declared: str
    pixels: bool
    dataset_id: str | None
    space: str
    extraction: dict[str, Any]
    grouped: bool


Announce = Callable[[Plan, Method, Schedule], None]


def finetune(
    options: FinetuneOptions,
    announce: Announce | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any] | None:
    """Train and write model.safetensors, model.json, report.json and ledger.json; the
    keys are those of `fit_files`.

    Raises ValueError or OSError, before any budget is spent, for unusable input. An
    interrupted run continues under the same charge when the same command is given
    again. Under torchrun every process calls it; all but the first get None.
    """
    start = time.perf_counter()
    rank = processes.join()
    data = load_data(options, options.fit.features, options.fit.split)
    ungrouped = check_protection(
        data.grouped,
        options.protect,
        options.fit.epsilon,
        "a group column",
        "--protect image",
    )
    facts = heads.public_facts(options.fit, data.rows, len(data.classes))
    network = Network(
        network_spec(options, data),
        processes.local_device(options.device),
        options.bf16,
    )
    batch = options.settings.batch_size or facts.n_rows
    own = (
        None
        if rank
        else TorchSums(
            network, options.fit.memory or DEFAULT_BYTES, options.engine, batch=batch
        )
    )
    engine, chunk = processes.agreed(None if own is None else (own.engine, own.chunk))
    sums = own or TorchSums(network, engine=engine, chunk=chunk)
    if rank:
        processes.serve(sums)
        return None
    try:
        return _first(options, data, facts, ungrouped, sums, announce, progress, start)
    finally:
        processes.finish()


def _first(
    options: FinetuneOptions,
    data: Data,
    facts: PublicFacts,
    ungrouped: list[str],
    sums: TorchSums,
    announce: Announce | None,
    progress: Callable[[int, int, str], None] | None,
    start: float,
) -> dict[str, Any]:
    fit, network = options.fit, sums.network
    method, plan, found = make_training(options, facts, network)
    test, origin = load_test(options, data)
    network.spec.check_vote(options.vote)
    warnings = heads.check_delta(fit, facts) + ungrouped
    heads.check_folder(fit.out, [network.query.size] * (options.checkpoint + 12))
    if announce is not None:
        announce(plan, method, found)
    if not (fit.out / "fit.json").exists():  # no fit that it could be of
        load_checkpoint(fit.out, "")
    ledger = open_ledger(fit.ledger, data.dataset_id)
    solver: Any = method.solver
    check_fit(Door(sums), solver, data.rows, plan, facts)
    charged = heads.charge(fit, method, plan, ledger, data.space)
    resumed = load_checkpoint(fit.out, charged.fit_id)
    done = solver.before() + resumed.step if resumed is not None else 0
    if resumed is not None:
        charged.forget(done)

    def after(state: Progress) -> None:
        if plan.private and (state.step % options.checkpoint == 0):
            save_checkpoint(fit.out, charged.fit_id, state)
            charged.forget(solver.before() + state.step)

    run = Run(
        charged=charged,
        noise=NoiseSource(fit.seed),
        summer=Door(
            processes.SharedSums(sums) if processes.dist.is_initialized() else sums
        ),
        progress=progress,
        done=done,
    )
    result = fit_head(
        replace(solver, resumed=resumed, after=after), data.rows, facts, plan, run
    )
    state: Any = result.head
    metrics = None if test is None else evaluate(network, state, *test, options.vote)
    report = make_report(
        options, data, facts, method, result, metrics, origin, warnings
    )
    save_network(
        fit.out,
        network,
        state,
        {"class_names": data.classes, "feature_space": data.space},
    )
    heads.write_records(fit.out, report, result)
    (fit.out / "checkpoint.npz").unlink(missing_ok=True)
    return {
        "report": report,
        "test": metrics,
        "seconds": time.perf_counter() - start,
        "engine": sums.engine,
    }


def check_protection(
    grouped: bool, protect: str | None, epsilon: float, found: str, confirm: str
) -> list[str]:
    """A network protects images, not groups of them (people): where the source knows
    groups this must be confirmed, and then it is a warning in the report.

    found: what knows groups. confirm: what to type. Whether there are groups is a
        public
    fact of the source; no group is looked at. ValueError unless confirmed.
    """
    if protect not in (None, "image"):
        raise ValueError(
            f"a training of a network protects each image for itself, got {protect=}. "
            f"Use {confirm}, or protect groups with `dphead fit --group-cap` on "
            "features."
        )
    if not grouped or np.isinf(epsilon):
        return []
    if protect is None:
        raise ValueError(
            "a training of a network protects each image for itself and no group of "
            f"them (a person with several images has less), got {found}. Confirm with "
            f"{confirm}, or protect groups with `dphead fit --group-cap` on features."
        )
    return [
        (
            "the source has groups (people with several images), and each image is "
            f"protected for itself alone, as {confirm} confirms."
        )
    ]


def load_data(options: FinetuneOptions, path: Path, split: str | None) -> Data:
    """Images, or the maps of a features file."""
    if files.is_features_file(path):
        files.check_layout(options.layout, path)
        rows, file = load_features(path, split, options.fit.memory or DEFAULT_BYTES)
        with file:
            check_views(file, options.fit.relation)
            if options.shape is None or int(np.prod(options.shape)) != rows.n_features:
                raise ValueError(
                    f"feature maps need their shape, got shape={options.shape} for "
                    f"n_features={rows.n_features}. Pass --shape CHANNELS,H,W."
                )
            classes = files.class_names(
                file, tuple(options.classes.names or ()) or None
            )
            declared = files.classes_declared(file)
            space = file.feature_space
            x = rows.features()
            y = rows.labels()
            made = files.extraction(file)
            grouped = file.group is not None
            part = split or file.split_names[0]
            return Data(
                rows,
                x,
                y,
                part,
                options.shape,
                classes,
                declared,
                False,
                file.dataset_id,
                space,
                made,
                grouped,
            )
    channels = 1 if options.settings.model == "tb21-mnist" else None
    images = load_images(
        path, options.classes, split, options.image_size, channels, options.layout
    )
    dataset_id = None
    if options.same_data_as is not None:
        with open_features(options.same_data_as) as file:
            dataset_id = file.dataset_id
    elif options.fit.ledger is None and np.isfinite(options.fit.epsilon):
        raise ValueError(
            "a private training on images must name its ledger, got none. Pass "
            "--ledger FILE, or --same-data-as with a features file of the same images."
        )
    shape: Any = images.x.shape[1:]
    rows = ImageRows(images.x, images.y)
    space = f"images {shape}"
    mean, std = pixel_scale(options.settings.model, shape[0], options.mean, options.std)
    transform = {
        "mean": np.broadcast_to(mean, 3).tolist(),
        "std": np.broadcast_to(std, 3).tolist(),
    }
    made = {
        "backbone": "pixels",
        "transform": transform | {"image_size": shape[1:]},
        "normalization": {"kind": "none"},
    }
    return Data(
        rows,
        images.x,
        images.y,
        images.splits[0],
        shape,
        images.classes,
        images.declared,
        True,
        dataset_id,
        space,
        made,
        images.grouped,
    )


def network_spec(options: FinetuneOptions, data: Data) -> NetworkSpec:
    """The network for these rows."""
    norm: Any = options.norm
    model = ModelSpec(
        options.settings.model,
        data.shape[0],
        norm,
        options.groups,
        options.standardise,
        options.init_seed,
        options.layers,
        options.weights,
    )
    s = options.settings
    mean, std = pixel_scale(s.model, data.shape[0], options.mean, options.std)
    return NetworkSpec(
        model, data.shape, len(data.classes), data.pixels, mean, std, s.views, s.augment
    )


def make_training(
    options: FinetuneOptions, facts: PublicFacts, network: Network
) -> tuple[Method, Plan, Schedule]:
    """The solver, its plan, and the schedule with what was left out."""
    s = options.settings.resolved(facts.n_rows)
    fit = options.fit
    normalization = ChannelNormalization(**s.normalization) if s.normalization else None
    others = (
        [GaussianEvent(normalization.noise_multiplier, 1.0, 2)] if normalization else []
    )
    accountant = fit.accountant or "auto"
    found = schedule(
        facts.n_rows,
        epsilon=fit.epsilon,
        delta=fit.delta,
        noise_multiplier=s.noise_multiplier,
        batch_size=s.batch_size,
        steps=s.steps,
        relation=fit.relation,
        accountant=accountant,
        others=others,
    )
    solver: Any = NetworkDescent(
        network.query,
        network.start,
        steps=found.steps,
        sampling_prob=found.batch_size / facts.n_rows,
        noise_multiplier=found.noise_multiplier or None,
        normalization=normalization,
        **{f.name: getattr(s, f.name) for f in fields(Step)},
    )
    made = {
        "epsilon": fit.epsilon,
        "delta": fit.delta,
        "relation": fit.relation,
        "accountant": accountant,
    }
    return (
        Method(solver, accountant, options.source),
        make_plan(solver, facts, **made),
        found,
    )


def load_test(
    options: FinetuneOptions, train: Data
) -> tuple[tuple[np.ndarray, np.ndarray] | None, str | None]:
    """Test rows (x, y) from --test or another split of the source, those with a class,
    and their origin, or None.

    Images are the training's own where path and split are; maps where the data set's id
    and the split are.
    """
    fit = options.fit
    if fit.test is None and fit.test_split is None:
        return None, None
    path = fit.test or fit.features
    data = load_data(
        replace(options, same_data_as=None, fit=replace(fit, epsilon=np.inf)),
        path,
        fit.test_split,
    )
    same = (
        path.samefile(fit.features)
        if data.dataset_id is None
        else data.dataset_id == train.dataset_id
    )
    origin = files.test_origin(same, train.split, data.split)
    files.check_public(origin, fit.test_is)
    if (
        data.shape != train.shape
        or data.classes != train.classes
        or data.space != train.space
    ):
        raise ValueError(
            "test rows must have the training rows' shape, classes and features, got "
            f"{data.shape} for {train.shape}. Give the same options."
        )
    return labelled(data.x, data.y, len(data.classes), path), origin


def make_report(
    options: FinetuneOptions,
    data: Data,
    facts: PublicFacts,
    method: Method,
    result: FitResult,
    metrics: Any,
    origin: str | None,
    warnings: list[str],
) -> dict[str, Any]:
    """The report of a head, with a network's words.

    metrics, origin: of the test rows, None without any.
    """
    fit = options.fit
    spec = asdict(options.settings)
    report = reports.build(
        result,
        method={
            "name": f"finetune {options.settings.model}",
            "preset": fit.preset,
            "source": method.source,
        }
        | {"settings": spec | {"layers": options.layers, "weights": options.weights}},
        data={
            "n_rows": facts.n_rows,
            "n_features": int(np.prod(data.shape)),
            "n_classes": facts.n_classes,
        }
        | {
            "class_names": data.classes,
            "dataset_id": data.dataset_id,
            "feature_space": data.space,
        }
        | {"classes_declared": data.declared, "extraction": data.extraction},
        tuning=fit.tuning or "NOT ACCOUNTED",
        warnings=warnings,
        test=metrics,
        test_is=fit.test_is if metrics is not None else None,
        test_rows=origin,
    )
    words = {
        "The head": "The network",
        "the head": "the network",
        "this head": "this network",
        "frozen network": "initial weights",
    }
    words |= {
        "of the features file": "of the source",
        "features, row digests": "images, row digests",
        ", head": ", network",
    }
    for theirs, ours in words.items():
        report["statement"] = report["statement"].replace(theirs, ours)
    return report


def save_checkpoint(out: Path, fit_id: str, state: Progress) -> None:
    """Durably, and whole or not at all.

    Everything in it was computed from noisy releases.
    """
    kept = {k: v for k, v in vars(state).items() if v is not None}
    write_durably(
        out / "checkpoint.npz",
        lambda file: np.savez(file, fit_id=np.array(fit_id), **kept),
    )


def load_checkpoint(out: Path, fit_id: str) -> Progress | None:
    """The last checkpoint of this fit, or None. ValueError for another fit's."""
    path = out / "checkpoint.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        values = dict(file)
    if str(values.pop("fit_id")) != fit_id:
        raise ValueError(
            f"a checkpoint must be this fit's, got {path} of another. Choose another "
            "folder."
        )
    step = int(values.pop("step"))
    return Progress(step, **values)
