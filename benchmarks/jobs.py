"""Find the jobs that measure a claim, or the reason why none was run."""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import claims
from benchmarks.arithmetic import METRICS
from benchmarks.claims import Claim
from benchmarks.features import MAPS, SMALL, facts_of
from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.privacy.accounting import GaussianEvent, compose_epsilon
from dphead.solvers.base import Solver
from dphead.solvers.settings import MOST_RELEASES

CHOSEN = Path(__file__).parent / "claims" / "chosen.toml"
PAPER, EXACT = "the paper's", "exact"  # accountings
TB21_ACCOUNTANT = "rdp-classic"
DRAWS = 5
# verdicts of claims without a stored result
NOT_RUN, ARITHMETIC, CITED = "not run yet", "arithmetic", "cited or not printed"
ACCELERATOR, NOT_PUBLIC = "needs an accelerator", "needs weights that are not public"
LICENSED = "needs data under a license"
PIXELS, NETWORK = "CNN on pixels", "mobilenetv2-128"
ABLATION = "WRN-40-4, ablation"
Settings = dict[str, Any]
BEST = {MAPS: "tb21-sn-cnn", PIXELS: "tb21-cnn"}  # presets of TB21's best runs
SPREAD = ("min", "median", "MAD")  # statistics over all runs of a search
SEARCHED = 360  # configurations of TB21's search for each kind of features


@dataclass(frozen=True)
class Job:
    """Describe one fit, repeated over noise draws. Draw k uses seed k in every job.

    features: a name of `features.extract_options`. settings: overrides of the preset's.
    accountant: accountant that calibrates the noise ("auto": exact for full batches,
    PLD for Poisson batches). clip_only: whether gradients are clipped without noise.
    sampling: "poisson", or "shuffle" (`benchmarks.shuffled`; the noise is calibrated as
    for Poisson batches). rows: number of training rows, if not all. label: text in
    tables.
    """

    dataset: str
    features: str
    method: str
    epsilon: float
    delta: float = 1e-5
    preset: str | None = None
    settings: Settings = field(default_factory=dict)
    accountant: str = "auto"
    clip_only: bool = False
    sampling: str = "poisson"
    rows: int | None = None
    draws: int = field(default=DRAWS, compare=False)
    label: str = field(default="", compare=False)

    def described(self) -> Settings:
        """Return everything that decides the result, as JSON data."""
        data = asdict(self) | {"epsilon": str(float(self.epsilon)), "held_out": False}
        left_out = {"draws", "label"}
        # leave out defaults, because the oldest stored results lack these two fields
        left_out |= {"sampling"} if self.sampling == "poisson" else set()
        left_out |= {"rows"} if self.rows is None else set()
        return {k: v for k, v in data.items() if k not in left_out}

    @property
    def trains(self) -> bool:
        """Return whether `dphead finetune` trains a network."""
        return self.method == "end-to-end"

    @property
    def here(self) -> bool:
        """Return whether a CPU can run the job in minutes, with public inputs."""
        if self.features in (MAPS, PIXELS):
            return self.dataset != "cifar10"
        return self.features.startswith(("scatternet", NETWORK, SMALL))

    @property
    def key(self) -> str:
        """Return the job's key in stored results."""
        return hashlib.sha256(
            json.dumps(self.described(), sort_keys=True).encode()
        ).hexdigest()[:12]

    def solver(self) -> Solver:
        """Return the solver for the data set's public sizes."""
        facts = facts_of(self.dataset, self.features)
        return make_method(self.method, facts, dict(self.settings), self.preset).solver


def standing(claim: Claim) -> tuple[str, str]:
    """Return the verdict of an unmeasured claim and its reason, else ("", "")."""
    if claim.metric in METRICS:
        return ARITHMETIC, "a formula gives it"
    if claim.source:
        return CITED, f"cited by the paper from {claim.source}"
    if claim.unreadable:
        return CITED, f"the paper's text is damaged: {claim.unreadable}"
    if run_here(claim):
        return "", ""
    jobs = jobs_of(claim)
    if not jobs and claim.features == "LeNet":
        many = "for a million networks; no command trains them"
        return ACCELERATOR, f"{hours(claim)} {many}"
    if not jobs:
        return CITED, "the paper prints no settings, or no number of epochs"
    if claim.needs["weights"] == "not public":
        return NOT_PUBLIC, claim.features
    if license := claims.data(claim.dataset).get("license"):
        return LICENSED, f"{license}; {hours(claim)}"
    reasons = [hours(claim)]
    if claim.metric in SPREAD:
        reasons.append(f"a search of {SEARCHED} configurations")
    if claim.needs["weights"] != "none":
        reasons.append(f"weights: {claim.needs['weights']}")
    reasons += claims.tried(claim)
    return ACCELERATOR, "; ".join(reasons)


def measured_here(claim: Claim) -> bool:
    """Return whether a CPU can run jobs that decide a claim."""
    decides = claim.features == "ScatterNet" or claim.metric not in SPREAD
    return decides and any(job.here for job in jobs_of(claim))


def run_here(claim: Claim) -> list[Job]:
    """Return the jobs of a claim that run here, or the job of a smaller network."""
    if measured_here(claim):
        return jobs_of(claim)
    job = small(claim)
    return [] if job is None else [job]


def hours(claim: Claim) -> str:
    """Return about how long a claim takes on one accelerator (an H100 or H200)."""
    from benchmarks import training

    jobs, rate = jobs_of(claim), claim.needs["rate"]
    if not jobs:  # De22's Table 9: a million networks, each with at least these steps
        count = 1e6 * (500 * 4096 if claim.n_rows > 100 else 50 * 64)
    elif jobs[0].trains:
        count = training.views(jobs[0])
    else:
        count = sum(claims.data(claim.dataset)[k] for k in ("train_rows", "test_rows"))
    count *= SEARCHED if claim.metric in SPREAD else 1
    found = max(0.01, count / rate / 3600)
    number = f"{found:,.0f}" if found >= 10 else f"{found:.1g}"
    return f"about {number} accelerator-hours"


def commands(claim: Claim) -> list[list[str]]:
    """Return the commands that measure a claim, each as its arguments.

    IMAGES, WEIGHTS, FEATURES.h5 and RUN are placeholders for the user's files.
    """
    from benchmarks import training

    jobs = jobs_of(claim)
    run = ["python", "-m", "benchmarks", "reproduce", claim.name]
    if run_here(claim):
        return [[*run, "--images", "IMAGES"]]
    if claim.metric in METRICS:
        return [run]
    if not jobs:
        return []
    if jobs[0].trains:
        return [training.arguments(jobs[0])]
    found = [[*run, "--features", "FEATURES.h5"]]
    if "extract" in claim.needs:
        n_classes = claims.data(claim.dataset)["classes"]
        extract = ["dphead", "extract", "IMAGES", "-o", "FEATURES.h5"]
        extract += ["--classes", str(n_classes), *claim.needs["extract"]]
        found.insert(0, extract)
    return found


def jobs_of(claim: Claim) -> list[Job]:
    """Return the jobs that measure a claim, the paper's settings and accounting first.

    The list is empty for a number that is cited, unreadable or given by a formula.
    """
    if claim.metric in METRICS or claim.source or claim.unreadable or not claim.value:
        return []
    if claim.features == "ScatterNet":
        return list(_scatternet(claim))
    if claim.features == ABLATION:
        return [_ablation(claim, "options")]
    preset = BEST.get(claim.features, "") if claim.preset == "tb21" else claim.preset
    if not preset:
        return []
    data = presets.load(preset)
    return [_network(claim, preset) if "network" in data else _head(claim, preset)]


def small(claim: Claim) -> Job | None:
    """Return a job like a claim's on a smaller network, or None if there is none."""
    if claim.features == ABLATION and "validation" in claim.metric:
        return _ablation(claim, "small")
    if claim.paper == "FC23" and claim.features == "ViT-B/16, ImageNet-1k":
        dataset, method, epochs = claim.dataset, claim.method, claim.settings["epochs"]
        # 100 Hessians of 1,280 features take hours
        if (dataset, method) == ("cifar100", "dp-newton"):
            return None
        # a cell of Table 3 or 4 on an available network: MobileNetV2 of ImageNet-1K,
        # our defaults, no search
        return Job(
            dataset,
            NETWORK,
            method,
            float(claim.epsilon),
            settings={} if method == "dp-ls" else {"steps": int(epochs)},
            label=f"{method}, {epochs}",
            draws=1 if method == "dp-newton" else DRAWS if dataset == "cifar10" else 2,
        )
    return None


def _sampling(claim: Claim) -> str:
    return str(claim.settings.get("sampling", "poisson"))


def _network(claim: Claim, preset: str) -> Job:
    """Return an end-to-end training with a claim's preset."""
    settings: Settings = dict(claim.needs.get("options", {}))
    if claim.needs["weights"] != "none":
        settings["weights"] = "WEIGHTS"
    if claim.method == "dp-sgd" and preset == "de22-23":
        # the paper's 1,374,116 steps are more than a plan may hold
        preset, settings["steps"] = "de22-23-last", MOST_RELEASES
    names = ("batch_size", "steps", "learning_rate")
    settings |= {k: claim.settings[k] for k in names if k in claim.settings}
    epsilon, delta = float(claim.epsilon), float(claim.delta or 1e-5)
    if epsilon == float("inf"):  # Table 23 without noise: all layers, or the last layer
        column = presets.columns("de22-23-no-noise")[claim.method == "dp-sgd"]
        settings |= {k: column[k] for k in names}
        layers = {"layers": "^head[.]"} if claim.method == "dp-sgd" else {}
        settings |= {"model": "nf_resnet50", **layers}
        preset = ""
    if preset.startswith("tan23"):
        known = presets.load(preset)["dp-sgd"] | settings
        if claim.settings.get("batch_size") == 256:  # a simulated run at factor 64
            settings["noise_multiplier"] = known["noise_multiplier"] / 64
            known |= settings
        sigma, batch_size = known["noise_multiplier"], known["batch_size"]
        events = [GaussianEvent(sigma, batch_size / claim.n_rows, known["steps"])]
        spent = compose_epsilon(events, delta, accountant="rdp")
        # the printed epsilon can be for another number of rows (Tables 4 to 6)
        epsilon = max(epsilon, math.ceil(1e4 * spent) / 1e4)
    if claim.settings.get("parameters") == 168_000:
        settings["model"] = "tb21-cifar10-small"
    return Job(
        claim.dataset,
        claim.features,
        "end-to-end",
        epsilon,
        delta,
        preset or None,
        settings,
        {"TB21": TB21_ACCOUNTANT, "TAN23": "rdp"}.get(claim.paper, "auto"),
        sampling=_sampling(claim),
        rows=int(claim.settings.get("training_rows", 0)) or None,
        draws=1,
        label=f"settings of Table 13, {PAPER} accounting"
        if claim.paper == "TB21"
        else "",
    )


def _head(claim: Claim, preset: str) -> Job:
    """Return a head's job with a claim's preset, and our values of missing settings."""
    settings = dict(claims.needs("searched").get(claim.method, {}))
    if "epochs" in claim.settings and claim.method != "dp-ls":
        settings["steps"] = int(claim.settings["epochs"])
    if columns := presets.columns(preset):
        # a fit without noise takes the settings of the largest epsilon
        epsilon = min(float(claim.epsilon), columns[-1]["epsilon"])
        column = presets.column(preset, epsilon=epsilon)
        settings = {k: column[k] for k in ("learning_rate", "steps")}
    accountant = "zcdp" if claim.paper == "FC23" else "rdp"
    epsilon, delta = float(claim.epsilon), float(claim.delta or 1e-5)
    place = claim.dataset, claim.features, claim.method
    return Job(*place, epsilon, delta, preset, settings, accountant)


def _ablation(claim: Claim, size: str) -> Job:
    """Return the job of a claim's line in De22's Table 2, of the full or small size.

    A line adds its settings to those of the lines above.
    """
    settings: Settings = {"model": "wrn-40-4" if size == "options" else "wrn-16-1"}
    for line, adds in claims.needs("ablation").items():
        settings |= adds[size]
        if line == claim.row:
            break
    if size == "options":
        return Job(
            "cifar10", ABLATION, "end-to-end", 8.0, settings=settings, rows=45_000
        )
    return Job(
        "cifar10",
        SMALL,
        "end-to-end",
        8.0,
        settings=settings,
        accountant="rdp",
        rows=8000,
        label=claim.row,
    )


def _scatternet(claim: Claim) -> Iterator[Job]:
    """Yield the jobs of TB21's linear heads on ScatterNet features.

    They measure Table 2 without noise, Tables 1 and 19 under both accountings, and a
    part of Table 3's search.
    """
    if claim.table == "2" and "normalization" in claim.settings:
        yield from _table2(claim)
    if claim.table == "3":
        yield from sweep(claim.dataset)
    if claim.table in ("1", "19"):
        features = (
            "scatternet-g27" if claim.dataset == "fashion-mnist" else "scatternet"
        )
        delta = float(claim.delta)
        epsilon = float(claim.epsilon)
        table13: Settings = {
            "features": features,
            "preset": f"tb21-{claim.dataset}",
            "label": "settings of Table 13",
        }
        chosen: list[Settings] = [
            {**c, "preset": "tb21"} for c in _chosen(claim.dataset, epsilon)
        ]
        for accounting, accountant in ((PAPER, TB21_ACCOUNTANT), (EXACT, "auto")):
            for how in (table13, *chosen):
                yield Job(
                    claim.dataset,
                    how["features"],
                    "dp-sgd",
                    epsilon,
                    delta,
                    how["preset"],
                    how.get("settings", {}),
                    accountant,
                    sampling=_sampling(claim),
                    label=f"{how['label']}, {accounting} accounting",
                )


def sweep(dataset: str) -> list[Job]:
    """Return 36 of the 360 configurations of TB21's search at epsilon 3.

    A seed selects them, independently of the results. The accounting is the paper's,
    with one noise draw each.
    """
    grid = presets.load("tb21")["search"][dataset]
    clips = (
        presets.load(f"tb21-{dataset}")["dp-sgd"].get("normalization", {})
        | grid["normalization"]
    )
    clips.setdefault("n_channels", 81)
    kinds: list[tuple[str, Settings]] = [
        (f"scatternet-g{g}", {}) for g in grid["groups"]
    ]
    for sigma in grid["normalization"]["noise_multiplier"]:
        kinds.append(
            (
                "scatternet",
                {"normalization": clips | {"noise_multiplier": float(sigma)}},
            )
        )
    sizes = [512 << k for k in range(6)]
    every = [
        Job(
            dataset,
            features,
            "dp-sgd",
            3.0,
            preset="tb21",
            accountant=TB21_ACCOUNTANT,
            draws=1,
            label=PAPER,
            settings={
                "batch_size": batch,
                "epochs": epochs,
                "base_learning_rate": float(rate),
            }
            | more,
        )
        for features, more in kinds
        for batch, epochs, rate in product(
            sizes, grid["epochs"], grid["base_learning_rate"]
        )
    ]
    drawn = np.random.default_rng(21).choice(len(every), 36, replace=False)
    return [every[i] for i in sorted(drawn)]


def _table2(claim: Claim) -> Iterator[Job]:
    printed = presets.column("tb21-10", dataset=claim.dataset)
    kind = claim.settings["normalization"]
    features = "scatternet"
    settings = {
        k: printed[k]
        for k in ("clip_norm", "momentum", "epochs", "batch_size", "learning_rate")
    }
    settings |= {"unit_norm": False, "intercept": 1.0}
    if kind == "group":
        features = f"scatternet-g{printed['groups']}"
    if kind == "data":
        channels = 243 if claim.dataset == "cifar10" else 81
        settings["normalization"] = {
            "n_channels": channels,
            "mean_clip": 1e6,
            "square_clip": 1e6,
        }
    if kind in ("none", "group", "data"):
        yield Job(
            claim.dataset,
            features,
            "dp-sgd",
            float("inf"),
            settings=settings,
            clip_only=True,
            label="settings of Table 10, no noise",
        )


def _chosen(dataset: str, epsilon: float) -> list[Settings]:
    """Return the settings chosen for an epsilon, on held-out training rows."""
    rows = tomllib.loads(CHOSEN.read_text())["chosen"]
    return [r for r in rows if r["dataset"] == dataset and epsilon in r["epsilons"]]


def own_de22() -> list[Job]:
    """Return jobs of De22's last layer on our network, with the steps of its Table 21.

    They use full batches, normalized updates and EMA.
    """
    columns = presets.load("de22")["columns"]
    return [
        Job(
            "cifar10",
            NETWORK,
            "dp-sgd",
            epsilon,
            preset="de22",
            settings={"steps": steps},
            label="dp-sgd, Table 21",
            draws=3,
        )
        for epsilon, steps in zip(columns["epsilon"], columns["steps"], strict=True)
        if epsilon <= 2
    ]


def quick() -> list[Job]:
    """Return two minutes of jobs on two cores: digits, and a row of TB21's Table 1."""
    small = [
        Job("digits", "scatternet", method, epsilon, label="defaults", draws=3)
        for method in ("dp-fc", "dp-ls", "dp-adam")
        for epsilon in (1.0, 8.0)
    ]
    (claim,) = selected("TB21-1-mnist-2.93:2")
    return [*small, replace(jobs_of(claim)[-1], draws=1)]


def select(selector: str, backbone: str = "") -> list[tuple[Claim | None, Job]]:
    """Return the (claim, job) pairs that run here, of claims or of `quick`.

    `backbone` is the backbone of a user's features file, or "". With a backbone, return
    claims and jobs of heads that need it. If there are none, return those of heads on
    features without public weights. `quick` ignores `backbone`.

    Raises ValueError if the selector names no claim.
    """
    if selector == "quick":
        return [(None, job) for job in quick()]
    found = selected(selector)
    if backbone:
        heads = [
            (claim, job)
            for claim in found
            for job in jobs_of(claim)
            if not job.trains and not job.here
        ]
        same = [pair for pair in heads if backbone in pair[0].needs.get("extract", ())]
        others = [pair for pair in heads if "extract" not in pair[0].needs]
        return [*(same or others)]
    pairs: list[tuple[Claim | None, Job]]
    pairs = [(claim, job) for claim in found for job in run_here(claim)]
    if "de22-5-cifar10".startswith(selector.lower()):
        pairs += [(None, job) for job in own_de22()]
    return pairs


def selected(selector: str) -> list[Claim]:
    """Return the claims whose id begins with a selector, or the one with its name."""
    wanted = selector.lower()
    found = [
        claim
        for claim in claims.load()
        if f"{claim.id}-".lower().startswith(f"{wanted}-")
        or claim.name.lower() == wanted
    ]
    if not found:
        raise ValueError(
            f"no claim has the id {selector!r}. Type PAPER, PAPER-TABLE, "
            "PAPER-TABLE-DATASET or PAPER-TABLE-DATASET-EPSILON, such as TB21-1-mnist, "
            "or a name that `python -m benchmarks claims` prints. The papers are "
            f"{', '.join(claims.PAPERS)}."
        )
    return found
