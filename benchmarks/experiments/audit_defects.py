"""Mechanisms without the privacy that they claim, and whether `dphead audit` sees it.

`python -m benchmarks defects` seeds one defect at a time in the running process, and
audits it with the command's default number of fits. Each is caught, or is among those
of which the audit itself says how many fits it needs. Rows are stored in
results/audit/defects.jsonl, and the table is in docs/audit.md.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import prose
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis import audit, audit_transcript
from dphead.data import arrays
from dphead.planning import calibration, plan
from dphead.planning.methods import make_method
from dphead.privacy import release, sampling
from dphead.privacy.accounting import GaussianEvent, gdp
from dphead.privacy.contract import Released, ReleaseSpec, SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Statistic
from dphead.solvers.base import ProblemInfo
from dphead.sums import passes
from dphead.sums.cpu import CpuSums

OUT = RESULTS / "audit" / "defects.jsonl"
FITS = 1000  # the default of `dphead audit`
FACTS = ProblemInfo(64, 4, 3)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("dp-ls", {}),
    "steps": ("dp-sgd", {"steps": 4, "clip_norm": 0.5}),
    "raw": ("dp-sgd", {"steps": 1, "clip_norm": 0.5, "unit_norm": False}),
    "poisson": ("dp-sgd", {"steps": 4, "clip_norm": 0.5, "batch_size": 16}),
    "allocation": ("dp-sgd", {"steps": 8, "clip_norm": 0.5, "center_share": 0.0}),
    "prototypes": ("prototypes", {}),
    "newton": ("dp-newton", {}),
    "fc": ("dp-fc", {"steps": 2, "clip_norm": 0.1}),
    "adam": ("dp-adam", {"steps": 3, "clip_norm": 0.5}),
}
EPOCH_STEPS = 4
# Patches of one defect: (module or class, name, what stands there instead)
Patches = list[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Defect:
    """A mechanism that is not what it claims.

    base: of SETTINGS. patches: makes the defect, anew for each audit. calibrated: the
    plan is made with the defect, as where an accountant is wrong. more: other arguments
    of `make_plan`. needs: the audit's own name for it, where more fits are needed.
    """

    name: str
    patches: Callable[[], Patches]
    base: str = "full"
    calibrated: bool = False
    more: tuple[tuple[str, Any], ...] = ()
    needs: str = ""


@dataclass(frozen=True)
class Allocated:
    """A solver of full batches with random allocation in their place."""

    solver: Any

    def plan(self, facts: ProblemInfo) -> list[Any]:
        """As the solver's, without the releases before the steps."""
        return [replace(p, epoch_steps=EPOCH_STEPS) for p in self.solver.plan(facts)]

    def solve(self, facts: ProblemInfo) -> Any:
        """As the solver's."""
        return self.solver.solve(facts)


def prepared(base: str, **more: Any) -> tuple[Any, Any]:
    """(solver, plan) of one of SETTINGS."""
    method, settings = SETTINGS[base]
    solver: Any = make_method(method, FACTS, dict(settings)).solver
    if base == "allocation":
        solver = Allocated(solver)
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5} | more
    return solver, plan.make_plan(solver, FACTS, **budget)


@contextmanager
def seeded(patches: Patches) -> Iterator[None]:
    """Put the defect in place."""
    with ExitStack() as stack:
        for where, name, wrong in patches:
            stack.enter_context(patch.object(where, name, wrong))
        yield


def audited(defect: Defect, fits: int = FITS) -> dict[str, Any]:
    """Audit a mechanism with the defect."""
    patches = defect.patches()
    more = dict(defect.more)
    with seeded(patches if defect.calibrated else []):
        solver, made = prepared(defect.base, **more)
    with seeded(patches):
        problems = audit_transcript.worst_cases(FACTS, made, fits)
        return audit.attack(solver, made, problems, fits)


# --- noise ----------------------------------------------------------------------------


def noise(wrong: Callable[..., Any]) -> Callable[[], Patches]:
    """Draws z of the planned law pass through `wrong`, (generator, z, symmetric) → z.

    The symmetric form is (z + zᵀ)/2.
    """

    def patches() -> Patches:
        def rounded(g: Any, shape: Any, sd: float, symmetric: bool) -> np.ndarray:
            z = np.asarray(wrong(g, g.standard_normal(shape)))
            if symmetric:
                z = (z + np.swapaxes(z, -1, -2)) / 2
            return np.rint(sd * z).astype(np.int64)

        return [(release, "rounded_noise", rounded)]

    return patches


def after_symmetry(wrong: Callable[..., Any]) -> Callable[[], Patches]:
    """As `noise`, but the symmetric draw passes through `wrong`: (z, symmetric)."""

    def patches() -> Patches:
        def rounded(g: Any, shape: Any, sd: float, symmetric: bool) -> np.ndarray:
            z = g.standard_normal(shape)
            if symmetric:
                z = (z + np.swapaxes(z, -1, -2)) / 2
            return np.rint(sd * wrong(g, z, symmetric)).astype(np.int64)

        return [(release, "rounded_noise", rounded)]

    return patches


def remembered(use: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[[], Patches]:
    """Draws z that may use the last draw of the same shape: use(last or None, z)."""

    def patches() -> Patches:
        last: dict[Any, Any] = {}

        def wrong(_: Any, z: np.ndarray) -> np.ndarray:
            now = use(last.get(z.shape), z)
            last[z.shape] = None if now is last.get(z.shape) else now
            return now

        return noise(wrong)()

    return patches


def keys(bits: int) -> Callable[[], Patches]:
    """Each release's generator is keyed by so few bits."""

    def generator(self: Any, sequence: int, purpose: str) -> np.random.Generator:
        seed = int(np.random.default_rng().integers(0, 2**bits))
        return np.random.default_rng(seed)

    return lambda: [(NoiseSource, "generator", generator)]


def released(wrong: Callable[..., np.ndarray]) -> Callable[[], Patches]:
    """Releases are `wrong(exact sum, noise, first, spec)`; the exact sum and the noise
    are the sound mechanism's. first: whether it is the first release of a fit.
    """

    def patches() -> Patches:
        real = audit_transcript.release
        last: dict[str, Any] = {}

        def made(
            query: Any, params: Any, rows: Any, spec: Any, **keywords: Any
        ) -> Released:
            sound = real(query, params, rows, spec, **keywords)
            sample = keywords["summer"].sample
            asked = SumTask(query, params, spec.clip_norm, rows, sample, spec)
            unit = query.unit(spec.clip_norm, params.transform.append)
            exact = keywords["summer"](asked) * unit
            first = keywords["ledger"] is not last.get("ledger")
            last["ledger"] = keywords["ledger"]
            value = wrong(exact, sound.value - exact, first, spec)
            return Released(value, sound.noise_sd)

        return [(audit_transcript, "release", made)]

    return patches


def _first_column(_: Any, z: np.ndarray) -> np.ndarray:
    return np.broadcast_to(z[..., :1], z.shape).copy()


def _off_diagonal(_: Any, z: np.ndarray, symmetric: bool) -> np.ndarray:
    return np.where(np.eye(z.shape[-1], dtype=bool), z, z / 2) if symmetric else z


def _lopsided(g: Any, z: np.ndarray, symmetric: bool) -> np.ndarray:
    return np.where(np.tri(z.shape[-1], dtype=bool), z, 0) if symmetric else z


def _cut(tail: float) -> Callable[..., np.ndarray]:
    """A normal law cut at `tail` deviations, scaled to the right variance."""

    def wrong(g: Any, z: np.ndarray) -> np.ndarray:
        from scipy.stats import truncnorm

        law = truncnorm(-tail, tail)
        return law.ppf(g.random(z.shape)) / law.std()

    return wrong


def _one_coordinate(g: Any, z: np.ndarray) -> np.ndarray:
    flat = z.ravel().copy()
    flat[:1] += g.standard_normal(len(flat[:1]))
    flat[1:2] = 0
    return flat.reshape(z.shape)


def _last_class(_: Any, z: np.ndarray) -> np.ndarray:
    return np.concatenate([z[..., :-1], np.zeros_like(z[..., -1:])], axis=-1)


def _correlated(r: float) -> Callable[..., np.ndarray]:
    def wrong(g: Any, z: np.ndarray) -> np.ndarray:
        return np.sqrt(1 - r) * z + np.sqrt(r) * g.standard_normal()

    return wrong


def _common_scale(g: Any, z: np.ndarray) -> np.ndarray:
    return z * (0.6 if g.random() < 0.5 else np.sqrt(2 - 0.36))


def _proportional(exact: np.ndarray, noise: np.ndarray, *_: Any) -> np.ndarray:
    return exact + noise * np.abs(exact) / max(1e-9, float(np.abs(exact).max()))


def _first_is_exact(
    exact: np.ndarray, noise: np.ndarray, first: bool, _: Any
) -> np.ndarray:
    return exact + noise * (not first)


def _empty_is_exact(
    exact: np.ndarray, noise: np.ndarray, _: bool, spec: ReleaseSpec
) -> np.ndarray:
    return exact + noise * (exact.any() or spec.sampling_prob == 1)


# --- samples --------------------------------------------------------------------------


def samples(wrong: Callable[[int, float, Any], np.ndarray]) -> Callable[[], Patches]:
    """Poisson samples are wrong(n_rows, prob, generator)."""

    def patches() -> Patches:
        def sample(n: int, prob: float, g: Any) -> np.ndarray:
            return np.flatnonzero(wrong(n, prob, g))

        return [(release, "poisson_sample", sample)]

    return patches


def one_sample() -> Patches:
    """One sample for all steps of a fit: a mask by the number of rows, redrawn at each
    fourth step.
    """
    state: dict[str, Any] = {"turn": 0}

    def wrong(n: int, prob: float, g: Any) -> np.ndarray:
        if state["turn"] % SETTINGS["poisson"][1]["steps"] == 0:
            state["mask"] = g.random(n) < prob
        state["turn"] += 1
        return state["mask"]

    return samples(wrong)()


def every_fit() -> Patches:
    """The samples of every fit are those of the first."""

    def wrong(n: int, prob: float, g: Any) -> np.ndarray:
        state["turn"] = (state["turn"] + 1) % SETTINGS["poisson"][1]["steps"]
        return np.random.default_rng(state["turn"]).random(n) < prob

    state = {"turn": -1}
    return samples(wrong)()


def shuffled() -> Patches:
    """The batches of an epoch are parts of one shuffle."""
    state: dict[str, Any] = {"turn": 0}

    def wrong(n: int, prob: float, g: Any) -> np.ndarray:
        parts = round(1 / prob)
        if state["turn"] % parts == 0:
            state["places"] = g.permutation(n) % parts
        state["turn"] += 1
        return state["places"] == state["turn"] % parts

    return samples(wrong)()


def _fixed_size(n: int, prob: float, g: Any) -> np.ndarray:
    return g.permutation(n) < round(n * prob)


def _last_always(n: int, prob: float, g: Any) -> np.ndarray:
    return (g.random(n) < prob) | (np.arange(n) == n - 1)


def steps_of(wrong: Callable[[int, int, Any], np.ndarray]) -> Callable[[], Patches]:
    """An epoch's allocation is wrong(n_rows, steps, generator)."""
    return lambda: [(sampling, "random_steps", wrong)]


def again_each_step() -> Patches:
    """Each step of an epoch draws its own rows: a row may be in two of them."""

    def rows(
        self: Any, step: int, steps: int, n_rows: int, generator: Any
    ) -> np.ndarray:
        return np.flatnonzero(generator.random(n_rows) < 1 / steps)

    return [(sampling.Allocation, "rows", rows)]


# --- sums, sensitivities, charges -----------------------------------------------------


def clipped_at(factor: float) -> Callable[[], Patches]:
    """Rows are clipped at so many clip norms; nothing compares with the reference."""
    rows_of, add_to = CpuSums.rows, CpuSums.add

    def wider(ask: Any) -> Any:
        return replace(ask, clip_norm=factor * ask.clip_norm)

    def rows(self: Any, ask: Any, block: Any) -> Any:
        return rows_of(self, wider(ask), block)

    def add(self: Any, ask: Any, rows: Any, y: Any, used: Any, out: Any) -> Any:
        append = ask.params.transform.append
        units = [a.query.unit(a.clip_norm, append) for a in (ask, wider(ask))]
        total = add_to(self, wider(ask), rows, y, used, np.zeros_like(out))
        out += np.rint(total * (units[1] / units[0])).astype(np.int64)
        return out

    def patches() -> Patches:
        return [
            (CpuSums, "rows", rows),
            (CpuSums, "add", add),
            (passes, "check_equal", lambda *_: None),
        ]

    return patches


def twice() -> Patches:
    """Each row counts twice."""
    real = CpuSums.add

    def add(self: Any, ask: Any, rows: Any, y: Any, used: Any, out: Any) -> Any:
        real(self, ask, rows, y, used, out)
        return real(self, ask, rows, y, used, out)

    return [(CpuSums, "add", add), (passes, "check_equal", lambda *_: None)]


def no_cap() -> Patches:
    """All rows of a group count."""

    def every(groups: Any, cap: Any, shape: Any) -> np.ndarray:
        return np.ones(shape, bool)

    return [(arrays, "within_group_cap", every)]


def one_sensitivity() -> Patches:
    """A row that is replaced is taken for one that is removed."""

    def squared(self: Statistic, *_: Any) -> int:
        return self.row_sq

    return [(Statistic, "sensitivity_sq", squared)]


def smaller_sd() -> Patches:
    """A release's noise, and what it says of it, are 0.8 of what was planned."""
    real = release.noise_scale

    def scale(*given: Any) -> tuple[float, float]:
        unit, sd = real(*given)
        return unit, 0.8 * sd

    return [(release, "noise_scale", scale)]


def less_mu() -> Patches:
    """The accountant takes 0.8 mu."""
    real = gdp.log_delta

    def wrong(mu: float, epsilon: float) -> float:
        return real(0.8 * mu, epsilon)

    mu_of = calibration.mu_from_epsilon

    def back(epsilon: float, delta: float) -> float:
        return mu_of(epsilon, delta) / 0.8

    return [
        (gdp, "log_delta", wrong),
        (calibration, "mu_from_epsilon", back),
        (plan, "mu_from_epsilon", back),
    ]


def event(wrong: Callable[[GaussianEvent], GaussianEvent]) -> Callable[[], Patches]:
    """The accountant sees another event than the one that is released."""
    real = ReleaseSpec.event
    made = GaussianEvent

    def seen(self: ReleaseSpec) -> GaussianEvent:
        return wrong(real(self))

    def planned(*given: Any, **named: Any) -> GaussianEvent:
        return wrong(made(*given, **named))

    return lambda: [(ReleaseSpec, "event", seen), (plan, "GaussianEvent", planned)]


def _fewer(e: GaussianEvent) -> GaussianEvent:
    return replace(e, count=max(1, e.count // 2))


def _rarer(e: GaussianEvent) -> GaussianEvent:
    return replace(e, sampling_prob=e.sampling_prob / 1.5) if not e.is_full else e


def _rows_alone(e: GaussianEvent) -> GaussianEvent:
    return replace(e, rows_per_unit=1)


GROUPS = (("group_cap", 2),)
REPLACED = (("relation", "replace_one"),)
DEFECTS = [
    Defect("no noise", noise(lambda g, z: 0 * z)),
    Defect(
        "one public draw for every release",
        noise(lambda g, z: np.random.default_rng(7).standard_normal(z.shape)),
    ),
    Defect("noise from a seed of 16 bits", keys(16)),
    Defect("one noise column for all classes", noise(_first_column)),
    Defect("noise off the diagonal halved", after_symmetry(_off_diagonal)),
    Defect("no noise above the diagonal", after_symmetry(_lopsided)),
    Defect(
        "uniform noise of the right variance",
        noise(lambda g, z: np.sqrt(3) * (2 * g.random(z.shape) - 1)),
    ),
    Defect("Gaussian noise cut at 2 deviations, right variance", noise(_cut(2))),
    Defect(
        "Laplace noise of the right variance",
        noise(lambda g, z: g.laplace(size=z.shape) / np.sqrt(2)),
    ),
    Defect("noise rounded to whole deviations", noise(lambda g, z: np.rint(z))),
    Defect("noise of 0.95 deviations", noise(lambda g, z: 0.95 * z)),
    Defect("noise too small by the root of 2", noise(lambda g, z: z / np.sqrt(2))),
    Defect("noise and its stated deviation 0.8 of the plan's", smaller_sd),
    Defect("noise added twice", noise(lambda g, z: z + g.standard_normal(z.shape))),
    Defect("noise twice at one entry, none at the next", noise(_one_coordinate)),
    Defect("no noise on the last class", noise(_last_class)),
    Defect("entries of one release correlated by 0.3", noise(_correlated(0.3))),
    Defect("one random scale for all entries of a release", noise(_common_scale)),
    Defect(
        "noise of a step used again at the next",
        remembered(lambda last, z: z if last is None else last),
        "steps",
    ),
    Defect(
        "noise of steps correlated by 0.3",
        remembered(
            lambda last, z: z if last is None else 0.3 * last + np.sqrt(0.91) * z
        ),
        "steps",
    ),
    Defect(
        "noise of the second fit is that of the first, with its sign changed",
        remembered(lambda last, z: z if last is None else -last),
    ),
    Defect("noise in proportion to the sum", released(_proportional)),
    Defect(
        "the first release has no noise",
        released(_first_is_exact),
        "steps",
    ),
    Defect(
        "a batch without a row that counts gets no noise",
        released(_empty_is_exact),
        "poisson",
    ),
    Defect("one Poisson sample for all steps", one_sample, "poisson"),
    Defect("the same samples in every fit", every_fit, "poisson"),
    Defect(
        "sampling rate 1.5 q", samples(lambda n, q, g: g.random(n) < 1.5 * q), "poisson"
    ),
    Defect("batches of a fixed size", samples(_fixed_size), "poisson"),
    Defect("batches from a shuffle", shuffled, "poisson"),
    Defect("the last row is in every batch", samples(_last_always), "poisson"),
    Defect("allocation drawn anew at each step", again_each_step, "allocation"),
    Defect(
        "one allocation for all epochs",
        steps_of(lambda n, t, g: np.random.default_rng(3).integers(0, t, n)),
        "allocation",
    ),
    Defect(
        "allocation prefers the first step",
        steps_of(lambda n, t, g: np.minimum(g.integers(0, t + 1, n) % (t + 1), t - 1)),
        "allocation",
    ),
    Defect("clip at twice the norm", clipped_at(2.0), "raw"),
    Defect("no clip", clipped_at(64.0), "raw"),
    Defect("each row counted twice", twice),
    Defect("all rows of a group count", no_cap, "raw", more=GROUPS),
    Defect("replacing a row taken for removing it", one_sensitivity, more=REPLACED),
    Defect("accountant takes 0.8 mu", less_mu, calibrated=True),
    Defect("accountant counts half of the steps", event(_fewer), "steps", True),
    Defect("accountant takes q / 1.5", event(_rarer), "poisson", True),
    Defect(
        "accountant takes a group for a row", event(_rows_alone), "full", True, GROUPS
    ),
    Defect(
        "noise of 0.99 deviations",
        noise(lambda g, z: 0.99 * z),
        needs="noise 1% too small",
    ),
    Defect(
        "Gaussian noise cut at 4 deviations",
        noise(_cut(4)),
        needs="noise cut at 4 deviations",
    ),
    Defect(
        "noise from a seed of 32 bits", keys(32), needs="noise from a seed of 32 bits"
    ),
    Defect(
        "entries correlated by 0.02",
        noise(_correlated(0.02)),
        needs="a correlation of 0.02 between entries",
    ),
    Defect(
        "sampling rate 1.01 q",
        samples(lambda n, q, g: g.random(n) < 1.01 * q),
        "poisson",
        needs="a sampling rate 1% too large",
    ),
]


# name: (base, relation, group cap): audited as they are
SOUND = {
    "dp-ls, zero-out": ("full", "zero_out", None),
    "dp-ls, add/remove": ("full", "add_remove", None),
    "dp-ls, replace-one": ("full", "replace_one", None),
    "dp-ls, groups of at most 2": ("full", "zero_out", 2),
    "dp-sgd, zero-out": ("steps", "zero_out", None),
    "dp-sgd, Poisson batches, zero-out": ("poisson", "zero_out", None),
    "dp-sgd, Poisson batches, add/remove": ("poisson", "add_remove", None),
    "dp-sgd, Poisson batches, replace-one": ("poisson", "replace_one", None),
    "dp-sgd, random allocation, zero-out": ("allocation", "zero_out", None),
    "dp-sgd, random allocation, add/remove": ("allocation", "add_remove", None),
    "prototypes, zero-out": ("prototypes", "zero_out", None),
    "dp-newton, replace-one": ("newton", "replace_one", None),
    "dp-fc, add/remove": ("fc", "add_remove", None),
    "dp-adam, zero-out": ("adam", "zero_out", None),
}
SOUND_OUT = RESULTS / "audit" / "sound.jsonl"
SOUND_FITS = 40
LEVELS = (0.1, 0.01, 0.001, 0.0001)  # chances of a false alarm that are counted


def sound(name: str, audits: int) -> dict[str, Any]:
    """Audit a sound method many times; count the false alarms of the laws at some
    levels.
    """
    base, relation, cap = SOUND[name]
    solver, made = prepared(base, relation=relation, group_cap=cap)
    problems = audit_transcript.worst_cases(FACTS, made, SOUND_FITS)
    alarms = dict.fromkeys(LEVELS, 0)
    failed = 0
    for _ in range(audits):
        found = audit.attack(solver, made, problems, SOUND_FITS)
        chance = found["laws"]["least_p"] * found["laws"]["tests"]
        for level in LEVELS:
            alarms[level] += int(chance < level)
        failed += int(not found["passed"])
    return {
        "name": name,
        "audits": audits,
        "fits": SOUND_FITS,
        "failed": failed,
        "alarms": {str(level): count for level, count in alarms.items()},
    }


def run_sound(audits: int) -> None:
    """Audit the sound methods that are not stored."""
    source = provenance()
    stored = {r["name"] for r in read(SOUND_OUT)}
    for name in SOUND:
        if name not in stored:
            found = sound(name, audits)
            append(SOUND_OUT, found | source)
            print(name, found["alarms"], "failed", found["failed"], flush=True)


def table() -> str:
    """The stored defects as Markdown, and what sound methods showed."""
    order = [defect.name for defect in DEFECTS]
    rows = sorted(read(OUT), key=lambda r: order.index(r["defect"]))
    lines = []
    for r in rows:
        if r["caught"]:
            first = r["first"]
            said = f"{first['name']}, {first['about']}: {first['measured']}"
        else:
            said = f"not caught: needs {r['needs']:,} fits"
        lines.append([r["defect"], said])
    caught = sum(r["caught"] for r in rows)
    named = sum(not r["caught"] and r["needs"] is not None for r in rows)
    alarms = read(SOUND_OUT)
    audits = sum(r["audits"] for r in alarms)
    counts = [
        f"{sum(r['alarms'][level] for r in alarms)} at {float(level):.2%}"
        for level in (str(level) for level in LEVELS)
    ]
    note = (
        f"{caught} of {len(rows)} defects are caught with {rows[0]['fits']:,} fits, "
        f"and {named} are named with the fits that they need. "
        f"Sound methods: {audits:,} audits of {alarms[0]['fits']} fits, of "
        f"{len(alarms)} methods, relations and ways to sample. Of these the laws "
        f"raised a false alarm in {', '.join(counts[:-1])} and {counts[-1]} (the "
        "default). "
    )
    commits = ", ".join(sorted({r["commit"] for r in [*rows, *alarms]}))
    text = prose.table(("defect", "what the audit says first"), lines)
    return f"{text}\n\n{note}Commit {commits}; {rows[0]['machine']}."


def row(defect: Defect, fits: int = FITS) -> dict[str, Any]:
    """Audit a defect, and say what of it is stored."""
    began = time.monotonic()
    found = audited(defect, fits)
    laws = found["laws"]
    needed = {n["defect"]: n["fits"] for n in found["needs"]}
    return {
        "defect": defect.name,
        "base": defect.base,
        "fits": fits,
        "caught": not found["passed"],
        "needs": needed[defect.needs] if defect.needs else None,
        "broken": [f"{f['name']} ({f['about']})" for f in laws["failed"]],
        "first": laws["failed"][0] if laws["failed"] else None,
        "least_p": laws["least_p"],
        "tests": laws["tests"],
        "alarm": laws["alarm"],
        "bounds_exceeded": found["epsilon_lower_bound"] > found["epsilon"],
        "seconds": round(time.monotonic() - began, 1),
    }


def run(only: str = "") -> None:
    """Audit the defects that are not stored."""
    source = provenance()
    stored = {r["defect"] for r in read(OUT)}
    for defect in DEFECTS:
        if defect.name in stored or only not in defect.name:
            continue
        found = row(defect)
        append(OUT, found | source)
        print(defect.name, "caught" if found["caught"] else "NOT CAUGHT", flush=True)
