"""What can be run here: from a claim to the fits that measure it, or to why there are
none.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import claims
from benchmarks.arithmetic import FC23_EPSILONS, FC23_METHODS, METRICS
from benchmarks.claims import Claim
from benchmarks.features import facts_of
from dphead.planning import presets
from dphead.planning.methods import make_method
from dphead.solvers.base import Solver

CHOSEN = Path(__file__).parent / "claims" / "chosen.toml"
PAPER, EXACT = "the paper's", "exact"  # accountings
TB21_ACCOUNTANT = "rdp-classic"
DRAWS = 5
# verdicts of claims that no stored row decides
NOT_RUN, ARITHMETIC, CITED = "not run yet", "arithmetic", "cited or not printed"
ACCELERATOR, NOT_PUBLIC = "needs an accelerator", "needs weights that are not public"
OWN_EPSILONS = (*FC23_EPSILONS, float("inf"))


@dataclass(frozen=True)
class Job:
    """One fit, to be repeated over noise draws (draw k uses seed k, whatever the job,
    so that jobs are paired).

    features: a name of `features.extract_options`. settings: over the preset's.
    accountant: what calibrates the noise ("auto": exact for full batches, PLD for
    Poisson ones). clip_only: gradients are clipped, there is no noise.
    held_out: a fifth of the training rows stands in for the test set (for choosing
    settings). sampling: "poisson", or "shuffle" (`benchmarks.shuffled`; the noise is
    calibrated as if batches were Poisson ones). label: what tables say.
    """

    dataset: str
    features: str
    method: str
    epsilon: float
    delta: float = 1e-5
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    accountant: str = "auto"
    clip_only: bool = False
    held_out: bool = False
    sampling: str = "poisson"
    draws: int = field(default=DRAWS, compare=False)
    label: str = field(default="", compare=False)

    def described(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON data."""
        data = asdict(self) | {"epsilon": str(float(self.epsilon))}
        left_out = (
            ("draws", "label")
            if self.sampling == "shuffle"
            else ("draws", "label", "sampling")
        )
        return {k: v for k, v in data.items() if k not in left_out}

    @property
    def key(self) -> str:
        """Identifies the job in stored rows."""
        return hashlib.sha256(
            json.dumps(self.described(), sort_keys=True).encode()
        ).hexdigest()[:12]

    def solver(self) -> Solver:
        """The solver, for the data set's public sizes."""
        facts = facts_of(self.dataset, self.features)
        return make_method(self.method, facts, dict(self.settings), self.preset).solver

    def size(self) -> float:
        """Rows times features that a fit passes over: a measure of its time."""
        facts = facts_of(self.dataset, self.features)
        width = {"gram": facts.n_features / 40}
        passes = sum(
            p.sampling_prob * width.get(p.statistic.kind, 1.0)
            for p in self.solver().plan(facts)
        )
        return passes * facts.n_rows * facts.n_features


def standing(claim: Claim) -> tuple[str, str]:
    """Return the verdict of a claim that has no jobs, and its reason; else "" twice."""
    if claim.metric in METRICS:
        return ARITHMETIC, "a formula gives it"
    if claim.source:
        return CITED, f"cited by the paper from {claim.source}"
    if claim.unreadable:
        return CITED, f"the paper's text is damaged: {claim.unreadable}"
    if any(_jobs(claim)):
        return "", ""
    if claim.features == "ScatterNet":
        return CITED, "the paper prints no number of epochs"
    if claim.needs["weights"] == "not public":
        return NOT_PUBLIC, claim.features
    if claim.features in TRAINED and not claim.preset:
        return CITED, "the paper prints no settings"
    reasons = [f"`{claim.needs['command'].format(**vars(claim))}`"]
    small = claim.features in TRAINED and claim.dataset != "cifar10"
    if small:
        of = " for each of 360 configurations" if claim.table == "3" else ""
        reasons.append(f"{claim.needs['small']}{of}")
    if claim.settings.get("sampling") == "shuffle":
        reasons.append("networks have no shuffled batches here")
    reasons += claims.tried(claim)
    return (NOT_RUN if small else ACCELERATOR), "; ".join(reasons)


def jobs_of(claim: Claim) -> list[Job]:
    """Return the jobs that measure a claim; none if `standing` has a verdict."""
    return [] if standing(claim)[0] else list(_jobs(claim))


# Networks of TB21's Table 13 that `dphead finetune` trained on MNIST.
TRAINED = {
    features: Job(
        "mnist",
        features,
        "end-to-end",
        3.0,
        preset=preset,
        accountant=TB21_ACCOUNTANT,
        draws=1,
        label=f"settings of Table 13, {PAPER} accounting",
    )
    for features, preset in (
        ("CNN on pixels", "tb21-cnn"),
        ("CNN on ScatterNet", "tb21-sn-cnn"),
    )
}


def _jobs(claim: Claim) -> Iterator[Job]:
    """TB21's linear heads on ScatterNet features: Table 2 without noise, Tables 1 and
    19 under both accountings; and its best networks on MNIST.
    """
    best = claim.metric == "max" or claim.settings.get("sampling") == "poisson"
    if claim.features in TRAINED and claim.dataset == "mnist" and best:
        yield TRAINED[claim.features]
    if claim.features != "ScatterNet":
        return
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
        table13: dict[str, Any] = {
            "features": features,
            "preset": f"tb21-{claim.dataset}",
            "label": "settings of Table 13",
        }
        chosen: list[dict[str, Any]] = [
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
                    sampling=str(claim.settings.get("sampling", "poisson")),
                    label=f"{how['label']}, {accounting} accounting",
                )


def sweep(dataset: str, size: int = 36) -> list[Job]:
    """Return `size` of the 360 configurations of TB21's search at epsilon 3.

    Which ones is fixed by a seed, whatever the results are. The accounting is the
    paper's, with one noise draw each.
    """
    grid = presets.load("tb21")["search"][dataset]
    clips = (
        presets.load(f"tb21-{dataset}")["dp-sgd"].get("normalization", {})
        | grid["normalization"]
    )
    clips.setdefault("n_channels", 81)
    kinds: list[tuple[str, dict[str, Any]]] = [
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
    drawn = np.random.default_rng(21).choice(len(every), size, replace=False)
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


def _chosen(dataset: str, epsilon: float) -> list[dict[str, Any]]:
    """Settings chosen on held-out training rows, for this data set and budget."""
    rows = tomllib.loads(CHOSEN.read_text())["chosen"] if CHOSEN.exists() else []
    return [r for r in rows if r["dataset"] == dataset and epsilon in r["epsilons"]]


def own() -> list[Job]:
    """FC23's Table 3 (CIFAR-10) with an available network: MobileNetV2 of
    ImageNet-1K, our defaults, no search.
    """
    return [
        Job(
            "cifar10",
            "mobilenetv2-128",
            method,
            epsilon,
            settings={} if method == "dp-ls" else {"steps": epochs},
            label=f"{method}, {epochs}",
            draws=1 if method == "dp-newton" else DRAWS,
        )
        for method, epochs in FC23_METHODS
        for epsilon in OWN_EPSILONS
    ]


def own_de22() -> list[Job]:
    """De22's last layer on the same network: full batches, normalized update, EMA, the
    steps of its Table 21.
    """
    columns = presets.load("de22")["columns"]
    return [
        Job(
            "cifar10",
            "mobilenetv2-128",
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
    """Ten minutes on two cores from nothing: digits, and one row of TB21's Table 1."""
    small = [
        Job("digits", "scatternet", method, epsilon, label="defaults", draws=3)
        for method in ("dp-fc", "dp-ls", "dp-adam")
        for epsilon in (1.0, 8.0)
    ]
    claim = next(
        c
        for c in claims.load("TB21")
        if c.table == "1" and c.epsilon == "2.93" and not c.source
    )
    mnist = [job for job in jobs_of(claim) if job.accountant == "auto"]
    return small + [replace(job, draws=1) for job in mnist[-1:]]


def select(selector: str) -> list[tuple[Claim | None, Job]]:
    """Return the (claim, job) pairs of `paper[/table[/dataset]]` or of `quick`.

    Raises ValueError if it names nothing.
    """
    if selector == "quick":
        return [(None, job) for job in quick()]
    claimed: list[tuple[Claim | None, Job]] = [
        (c, job) for c in selected(selector) for job in jobs_of(c)
    ]
    paper, table, dataset = (*selector.lower().split("/"), "", "")[:3]
    ours: list[Job] = []
    if dataset in ("", "cifar10"):
        ours += own() if (paper, table) in (("fc23", ""), ("fc23", "3")) else []
        ours += own_de22() if (paper, table) in (("de22", ""), ("de22", "5")) else []
    return claimed + [(None, job) for job in ours]


def selected(selector: str) -> list[Claim]:
    """The claims that a selector names, runnable or not."""
    paper, *rest = selector.split("/")
    found = [c for c in claims.load() if c.paper.lower() == paper.lower()]
    for name, wanted in zip(("table", "dataset"), rest, strict=False):
        found = [c for c in found if getattr(c, name).lower() == wanted.lower()]
    if not found or len(rest) > 2:
        raise ValueError(
            "a selector must be PAPER, PAPER/TABLE, PAPER/TABLE/DATASET or quick, got "
            f"{selector=}. The papers are {', '.join(claims.PAPERS)}."
        )
    return found
