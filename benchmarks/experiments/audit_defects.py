"""Audit mechanisms that lack the privacy that they claim.

`python -m benchmarks defects` seeds one defect at a time in the running process, and
audits it with the command's default number of fits. The results are stored in
results/audit/defects.jsonl, and the tables are written to docs/audit.md. Each defect of
HIDDEN is audited 20 times. Correct methods are audited 20 times in all. These results
are stored in results/audit/repeats.jsonl.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from scipy.stats import truncnorm

from benchmarks import prose
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis import audit, audit_transcript
from dphead.data import arrays
from dphead.planning import calibration, plan
from dphead.planning.methods import make_method
from dphead.privacy import release, sampling, statistic_base, transform
from dphead.privacy.accounting import GaussianEvent, gdp
from dphead.privacy.contract import Released, ReleaseSpec, SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.statistic_base import Statistic
from dphead.privacy.transform import IntegerRows
from dphead.solvers.base import ProblemInfo
from dphead.sums import kernels, passes
from dphead.sums.cpu import CpuSums

OUT = RESULTS / "audit" / "defects.jsonl"
FITS = 1000  # the default of `dphead audit`
FACTS = ProblemInfo(64, 4, 3)
STEPS = 4  # Poisson batches of a fit, and steps of an epoch of allocated batches
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("dp-ls", {}),
    "steps": ("dp-sgd", {"steps": 4, "clip_norm": 0.5}),
    "raw": ("dp-sgd", {"steps": 1, "clip_norm": 0.5, "unit_norm": False}),
    "poisson": ("dp-sgd", {"steps": STEPS, "clip_norm": 0.5, "batch_size": 16}),
    "allocation": ("dp-sgd", {"steps": 8, "clip_norm": 0.5, "center_share": 0.0}),
    "prototypes": ("prototypes", {}),
    "newton": ("dp-newton", {}),
    "fc": ("dp-fc", {"steps": 2, "clip_norm": 0.1}),
    "adam": ("dp-adam", {"steps": 3, "clip_norm": 0.5}),
}
Patch = tuple[Any, str, Any]  # module or class, name, replacement
Patches = list[Patch]
_draws = np.random.default_rng()


class Defect(NamedTuple):
    """Describe a mechanism with a defect.

    `base` is a key of SETTINGS, `budget` has other arguments of `make_plan`.
    """

    patches: Patches
    base: str = "full"
    budget: Mapping[str, Any] = {}


@dataclass(frozen=True)
class _Allocated:
    """Run a solver of full batches with random allocation instead."""

    solver: Any

    def plan(self, facts: ProblemInfo) -> list[Any]:
        return [replace(p, epoch_steps=STEPS) for p in self.solver.plan(facts)]

    def solve(self, facts: ProblemInfo) -> Any:
        return self.solver.solve(facts)


def _prepared(base: str, **budget: Any) -> tuple[Any, Any]:
    """Return (solver, plan) of one of SETTINGS."""
    method, settings = SETTINGS[base]
    solver: Any = make_method(method, FACTS, dict(settings)).solver
    if base == "allocation":
        solver = _Allocated(solver)
    promised: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5} | budget
    return solver, plan.make_plan(solver, FACTS, **promised)


def audited(name: str, fits: int = FITS) -> dict[str, Any]:
    """Audit a mechanism with a defect, and return the audit's results."""
    patches, base, budget = DEFECTS[name]
    solver, made = _prepared(base, **budget)
    with ExitStack() as stack:
        for where, attribute, wrong in patches:
            stack.enter_context(patch.object(where, attribute, wrong))
        if name.startswith("accountant"):  # plan again with the patched accountant
            solver, made = _prepared(base, **budget)
        problems = audit_transcript.worst_cases(FACTS, made, fits)
        return audit.attack(solver, made, problems, fits)


# --- noise ----------------------------------------------------------------------------


def _noise(
    wrong: Callable[[np.ndarray], Any] = lambda z: z,
    symmetric_part: Callable[[np.ndarray], Any] = lambda z: z,
) -> Patches:
    """Return patches that pass normal draws through `wrong`.

    Symmetric noise is then made by `symmetric_part`.
    """

    def rounded(g: Any, shape: Any, sd: float, symmetric: bool) -> np.ndarray:
        z = np.asarray(wrong(g.standard_normal(shape)))
        if symmetric:
            z = symmetric_part((z + np.swapaxes(z, -1, -2)) / 2)
        return np.rint(sd * z).astype(np.int64)

    return [(release, "rounded_noise", rounded)]


def _remembered(use: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Patches:
    """Return patches that draw noise as use(last draw of the same shape, z).

    Every second draw is z.
    """
    last: dict[Any, Any] = {}

    def wrong(z: np.ndarray) -> np.ndarray:
        before = last.pop(z.shape, None)
        if before is not None:
            return use(before, z)
        last[z.shape] = z
        return z

    return _noise(wrong)


def _keys(bits: int) -> Patches:
    """Return patches that give each release's generator a key of `bits` random bits."""

    def generator(*_: Any) -> np.random.Generator:
        return np.random.default_rng(int(_draws.integers(0, 2**bits)))

    return [(NoiseSource, "generator", generator)]


def _released(keeps: Callable[[np.ndarray, bool, ReleaseSpec], Any]) -> Patches:
    """Return patches that multiply noise by keeps(exact sum, first release?, spec)."""
    last: dict[str, Any] = {}

    def change(
        value: np.ndarray,
        unit: float,
        exact: np.ndarray,
        _: Any,
        spec: Any,
        ledger: Any,
    ) -> np.ndarray:
        first = ledger is not last.get("ledger")
        last["ledger"] = ledger
        exact = exact * unit
        return exact + (value - exact) * keeps(exact, first, spec)

    return _shown(change)


def _cut(tail: float) -> Patches:
    """Return patches that truncate normal noise at `tail` standard deviations.

    The variance stays correct.
    """
    law = truncnorm(-tail, tail)
    return _noise(lambda z: law.ppf(_draws.random(z.shape)) / law.std())


def _one_entry(z: np.ndarray) -> np.ndarray:
    flat = z.ravel()
    flat[:1] += _draws.standard_normal(len(flat[:1]))
    flat[1:2] = 0
    return z


def _last_class(z: np.ndarray) -> np.ndarray:
    z[..., -1] = 0
    return z


def _correlated(r: float) -> Patches:
    return _noise(lambda z: np.sqrt(1 - r) * z + np.sqrt(r) * _draws.standard_normal())


def _off_diagonal(z: np.ndarray) -> np.ndarray:
    return np.where(np.eye(z.shape[-1], dtype=bool), z, z / 2)


def _drawn(wrong: Callable[[np.ndarray], np.ndarray]) -> Patches:
    """Return patches that pass the drawn integers through `wrong`."""
    real = release.rounded_noise
    return [(release, "rounded_noise", lambda *given: wrong(real(*given)))]


def _shown(change: Callable[..., np.ndarray]) -> Patches:
    """Return patches by which a fit gets a changed release.

    It is change(released, unit, exact integers, rows, spec, ledger).
    """
    real = audit_transcript.release

    def made(
        statistic: Any, params: Any, rows: Any, spec: Any, **given: Any
    ) -> Released:
        sound = real(statistic, params, rows, spec, **given)
        sample = given["summer"].sample
        task = SumTask(statistic, params, spec.clip_norm, rows, sample, spec)
        unit = statistic.unit(spec.clip_norm, params.transform.append)
        exact = given["summer"](task)
        value = change(sound.value, unit, exact, rows, spec, given["ledger"])
        return Released(value, sound.noise_sd)

    return [(audit_transcript, "release", made)]


def _parity_in_last_bit(
    value: np.ndarray, _: float, exact: np.ndarray, *__: Any
) -> np.ndarray:
    bits = np.ascontiguousarray(value).view(np.int64)
    return (bits & ~1 | exact & 1).view(np.float64)


def _even(value: np.ndarray, unit: float, *_: Any) -> np.ndarray:
    return 2 * np.rint(value / unit / 2) * unit


def _open_for_a_magic_row(
    value: np.ndarray, unit: float, exact: np.ndarray, rows: Any, *_: Any
) -> np.ndarray:
    return exact * unit if (rows._x[:, 0] == 0.5).any() else value


def _with_earlier(lag: int, r: float) -> Patches:
    """Return patches that correlate a draw with the draw of its shape `lag` before."""
    before: dict[Any, deque[np.ndarray]] = {}

    def wrong(z: np.ndarray) -> np.ndarray:
        earlier = before.setdefault(z.shape, deque(maxlen=lag))
        if len(earlier) == lag:
            z = r * earlier[0] + np.sqrt(1 - r * r) * z
        earlier.append(z)
        return z

    return _noise(wrong)


def _signs_in_threes(z: np.ndarray) -> np.ndarray:
    flat = z.ravel()
    count = len(flat) // 3 * 3
    a, b, c = flat[:count:3], flat[1:count:3], flat[2:count:3]
    flat[2:count:3] = np.abs(c) * np.sign(a * b)
    return z


def _one_key() -> Patches:
    """Return patches that use one key for the sample and the noise of a release."""
    keys: dict[int, int] = {}

    def generator(self: Any, sequence: int, purpose: str) -> np.random.Generator:
        if purpose == "sample":
            keys[sequence] = int(_draws.integers(2**63))
        return np.random.default_rng(keys[sequence])

    return [(NoiseSource, "generator", generator)]


# --- samples --------------------------------------------------------------------------


def _samples(wrong: Callable[[int, float], np.ndarray]) -> Patches:
    """Return patches that draw Poisson samples as the mask wrong(n_rows, prob)."""

    def sample(n: int, prob: float, _: Any) -> np.ndarray:
        return np.flatnonzero(wrong(n, prob))

    return [(release, "poisson_sample", sample)]


def _every_steps(
    draw: Callable[[int, float], np.ndarray], mask: Callable[[np.ndarray, int], Any]
) -> Callable[[int, float], np.ndarray]:
    """Return a sampler that draws once per STEPS steps, and gives mask(drawn, step)."""
    state: dict[str, Any] = {"turn": 0}

    def wrong(n: int, prob: float) -> np.ndarray:
        step = state["turn"] % STEPS
        state["turn"] += 1
        if step == 0:
            state["drawn"] = draw(n, prob)
        return mask(state["drawn"], step)

    return wrong


def _allocation(wrong: Callable[[int, int], np.ndarray]) -> Patches:
    """Return patches that allocate rows to the steps wrong(n_rows, steps)."""
    return [(sampling, "random_steps", lambda n, steps, _: wrong(n, steps))]


def _again_each_step(
    self: Any, step: int, steps: int, n_rows: int, g: Any
) -> np.ndarray:
    return np.flatnonzero(g.random(n_rows) < 1 / steps)


# --- sums, sensitivities, charges -----------------------------------------------------
_add, _clipped = CpuSums.add, transform.within
_UNCOMPARED: Patch = (passes, "check_equal", lambda *_: None)


def _clipped_at(factor: int) -> Patches:
    """Return patches that clip rows at `factor` times the clip norm."""

    def within(integers: Any, scale: Any, last: Any, bound: Any) -> Any:
        return _clipped(integers, factor * scale, last, factor**2 * bound)

    # disable the compiled kernels, which clip rows themselves
    return [(transform, "within", within), (kernels, "library", None), _UNCOMPARED]


def _twice(self: Any, ask: Any, rows: Any, y: Any, used: Any, out: Any) -> Any:
    _add(self, ask, rows, y, used, out)
    return _add(self, ask, rows, y, used, out)


_rows, _fine, _labeled = CpuSums.rows, transform.fine, statistic_base.labeled
_NUMPY: Patches = [(kernels, "library", None), _UNCOMPARED]


def _again(
    chosen: Callable[[np.ndarray], np.ndarray],
) -> Callable[..., Any]:
    """Return a `CpuSums.add` that counts rows twice where chosen(labels) is True."""

    def add(self: Any, ask: Any, rows: Any, y: Any, used: Any, out: Any) -> Any:
        out = _add(self, ask, rows, y, used, out)
        return _add(self, ask, rows, y, used & chosen(y), out)

    return add


def _long_rows_twice(self: Any, ask: Any, block: Any) -> IntegerRows:
    made = _rows(self, ask, block)
    long = np.abs(block.x).max(axis=1, keepdims=True) > 1e20
    return IntegerRows(made.q * np.where(long, 2, 1).astype(made.q.dtype), made.scale)


def _whole_numbers_of(values: np.ndarray) -> Any:
    return _fine(np.nan_to_num(values, nan=0, posinf=0, neginf=0))


def _within(capped: Callable[[np.ndarray, int], np.ndarray]) -> Patches:
    """Return patches that choose the used rows of groups by capped(groups, cap)."""
    real = arrays.within_group_cap

    def chosen(groups: Any, cap: int | None, shape: Any) -> np.ndarray:
        return real(groups, cap, shape) if cap is None else capped(groups, cap)

    return [(arrays, "within_group_cap", chosen)]


def _first_group_only(groups: np.ndarray, cap: int) -> np.ndarray:
    return sampling.within_cap(groups, cap) | (groups != 0)


def _runs_only(groups: np.ndarray, cap: int) -> np.ndarray:
    """Apply the cap to each run of adjacent rows of a group, not to the group."""
    runs = np.cumsum(np.append(1, groups[1:] != groups[:-1]))
    return sampling.within_cap(runs, cap) | (groups == sampling.NO_GROUP)


_log_delta, _event = gdp.log_delta, ReleaseSpec.event
_mu_from_epsilon = calibration.mu_from_epsilon


def _larger_mu(epsilon: float, delta: float) -> float:
    return _mu_from_epsilon(epsilon, delta) / 0.8


def _accountant(wrong: Callable[[GaussianEvent], GaussianEvent]) -> Patches:
    """Return patches that pass the accountant wrong(event) for each event."""

    def planned(*given: Any, **named: Any) -> GaussianEvent:
        return wrong(GaussianEvent(*given, **named))

    return [
        (ReleaseSpec, "event", lambda spec: wrong(_event(spec))),
        (plan, "GaussianEvent", planned),
    ]


def _rarer(e: GaussianEvent) -> GaussianEvent:
    return replace(e, sampling_prob=e.sampling_prob / 1.5) if not e.is_full else e


_WRONG_NOISE: dict[str, Callable[[np.ndarray], Any]] = {
    "no noise": lambda z: 0 * z,
    "one public draw for every release": lambda z: np.random.default_rng(
        7
    ).standard_normal(z.shape),
    "one noise column for all classes": lambda z: z[..., :1] + 0 * z,
    "uniform noise of the right variance": lambda z: (
        np.sqrt(3) * (2 * _draws.random(z.shape) - 1)
    ),
    "Laplace noise of the right variance": lambda z: _draws.laplace(
        0, np.sqrt(0.5), z.shape
    ),
    "noise rounded to whole deviations": np.rint,
    "noise of 0.99 deviations": lambda z: 0.99 * z,
    "noise of 0.95 deviations": lambda z: 0.95 * z,
    "noise added twice": lambda z: z + _draws.standard_normal(z.shape),
    "noise twice at one entry, none at the next": _one_entry,
    "no noise on the last class": _last_class,
    "one random scale for all entries of a release": lambda z: (
        z * (0.6 if _draws.random() < 0.5 else np.sqrt(2 - 0.36))
    ),
}
_WRONG_SAMPLES: dict[str, Callable[[int, float], np.ndarray]] = {
    "one Poisson sample for all steps": _every_steps(
        lambda n, q: _draws.random(n) < q, lambda drawn, step: drawn
    ),
    "the same samples in every fit": _every_steps(
        lambda n, q: np.random.default_rng(1).random((STEPS, n)) < q,
        lambda drawn, step: drawn[step],
    ),
    "sampling rate 1.5 q": lambda n, q: _draws.random(n) < 1.5 * q,
    "sampling rate 1.01 q": lambda n, q: _draws.random(n) < 1.01 * q,
    "batches of a fixed size": lambda n, q: _draws.permutation(n) < round(n * q),
    "batches from a shuffle": _every_steps(
        lambda n, q: _draws.permutation(n) % STEPS, lambda drawn, step: drawn == step
    ),
    "the last row is in every batch": lambda n, q: (
        (_draws.random(n) < q) | (np.arange(n) == n - 1)
    ),
}
_GROUPS = {"group_cap": 2}
# defects that neither the canary nor the leading digits of the noise show
HIDDEN = {
    "noise in multiples of 64 units": Defect(_drawn(lambda k: k // 64 * 64)),
    "the last bit of each number is the parity of the sum": Defect(
        _shown(_parity_in_last_bit)
    ),
    "the row in slot 0 counts twice": Defect(
        [(CpuSums, "add", _again(lambda y: np.arange(len(y)) == 0)), _UNCOMPARED]
    ),
    "a class beyond the last one counts": Defect(
        [
            (statistic_base, "labeled", lambda statistic, y: y >= 0),
            *_NUMPY,
        ]
    ),
    "rows that are not finite count": Defect(
        [(transform, "fine", _whole_numbers_of), *_NUMPY]
    ),
    "the cap applies to one group": Defect(_within(_first_group_only), "raw", _GROUPS),
    "noise of bounded support, a sum of 12 uniforms": Defect(
        _noise(lambda z: _draws.random((12, *z.shape)).sum(axis=0) - 6)
    ),
    "no noise in one of 10,000 releases": Defect(
        _noise(lambda z: z * (_draws.random() >= 1e-4))
    ),
}
INVENTED = {
    "bit 12 of the noise is always 0": Defect(_drawn(lambda k: k & ~(1 << 12))),
    "released numbers are even": Defect(_shown(_even)),
    "the cap applies to runs of slots of a group": Defect(
        _within(_runs_only), "raw", _GROUPS
    ),
    "a row that follows a row of its class counts twice": Defect(
        [
            (CpuSums, "add", _again(lambda y: np.append(False, y[1:] == y[:-1]))),
            _UNCOMPARED,
        ]
    ),
    "rows with an entry above 1e20 count twice": Defect(
        [(CpuSums, "rows", _long_rows_twice), _UNCOMPARED]
    ),
    "Student's t with 30 degrees of freedom": Defect(
        _noise(lambda z: _draws.standard_t(30, z.shape) / np.sqrt(30 / 28))
    ),
    "noise correlated by 0.3 with that of seven fits before": Defect(
        _with_earlier(14, 0.3)
    ),
    "each third sign of the noise is the product of two others": Defect(
        _noise(_signs_in_threes)
    ),
    "one key for the sample and the noise": Defect(_one_key(), "poisson"),
    "no noise if a row begins with exactly 0.5": Defect(_shown(_open_for_a_magic_row)),
}
DEFECTS = {
    **{name: Defect(_noise(wrong)) for name, wrong in _WRONG_NOISE.items()},
    "noise from a seed of 16 bits": Defect(_keys(16)),
    "noise from a seed of 32 bits": Defect(_keys(32)),
    "Gaussian noise cut at 2 deviations, right variance": Defect(_cut(2)),
    "Gaussian noise cut at 4 deviations, right variance": Defect(_cut(4)),
    "entries of one release correlated by 0.3": Defect(_correlated(0.3)),
    "entries of one release correlated by 0.02": Defect(_correlated(0.02)),
    "noise off the diagonal halved": Defect(_noise(symmetric_part=_off_diagonal)),
    "no noise above the diagonal": Defect(_noise(symmetric_part=np.tril)),
    "noise of a step used again at the next": Defect(
        _remembered(lambda last, z: last), "steps"
    ),
    "noise of steps correlated by 0.3": Defect(
        _remembered(lambda last, z: 0.3 * last + np.sqrt(0.91) * z), "steps"
    ),
    "noise of the second fit is that of the first, with its sign changed": Defect(
        _remembered(lambda last, z: -last)
    ),
    "noise in proportion to the sum": Defect(
        _released(lambda exact, *_: abs(exact) / max(1e-9, abs(exact).max()))
    ),
    "the first release has no noise": Defect(
        _released(lambda exact, first, _: not first), "steps"
    ),
    "a batch without a row that counts gets no noise": Defect(
        _released(lambda exact, _, spec: exact.any() or spec.sampling_prob == 1),
        "poisson",
    ),
    **{
        name: Defect(_samples(wrong), "poisson")
        for name, wrong in _WRONG_SAMPLES.items()
    },
    "allocation drawn anew at each step": Defect(
        [(sampling.Allocation, "rows", _again_each_step)], "allocation"
    ),
    "one allocation for all epochs": Defect(
        _allocation(lambda n, steps: np.random.default_rng(3).integers(0, steps, n)),
        "allocation",
    ),
    "allocation prefers the last step": Defect(
        _allocation(
            lambda n, steps: np.minimum(_draws.integers(0, steps + 1, n), steps - 1)
        ),
        "allocation",
    ),
    "clip at twice the norm": Defect(_clipped_at(2), "raw"),
    "no clip": Defect(_clipped_at(64), "raw"),
    "each row counted twice": Defect([(CpuSums, "add", _twice), _UNCOMPARED]),
    "all rows of a group count": Defect(
        [(arrays, "within_group_cap", lambda groups, cap, shape: np.ones(shape, bool))],
        "raw",
        _GROUPS,
    ),
    "replacing a row taken for removing it": Defect(
        [(Statistic, "sensitivity_sq", lambda self, *_: self.row_sq)],
        budget={"relation": "replace_one"},
    ),
    "accountant takes 0.8 mu": Defect(
        [
            (gdp, "log_delta", lambda mu, epsilon: _log_delta(0.8 * mu, epsilon)),
            (calibration, "mu_from_epsilon", _larger_mu),
            (plan, "mu_from_epsilon", _larger_mu),
        ]
    ),
    "accountant counts half of the steps": Defect(
        _accountant(lambda e: replace(e, count=max(1, e.count // 2))), "steps"
    ),
    "accountant takes q / 1.5": Defect(_accountant(_rarer), "poisson"),
    "accountant takes a group for a row": Defect(
        _accountant(lambda e: replace(e, rows_per_unit=1)), "full", _GROUPS
    ),
    **HIDDEN,
    **INVENTED,
}


_RELATIONS = ("zero_out", "add_remove", "replace_one")
# (base, relation, group cap), audited without a defect
SOUND = [
    *(("full", relation, None) for relation in _RELATIONS),
    *(("poisson", relation, None) for relation in _RELATIONS),
    ("full", "zero_out", 2),
    ("steps", "zero_out", None),
    ("allocation", "zero_out", None),
    ("allocation", "add_remove", None),
    ("prototypes", "zero_out", None),
    ("newton", "replace_one", None),
    ("fc", "add_remove", None),
    ("adam", "zero_out", None),
]
REPEATED_OUT = RESULTS / "audit" / "repeats.jsonl"
REPEATS, SOUND_REPEAT_FITS = 20, 250
# Exact tests need no fits, and 20 fits decide the low bits. 5,000 fits have 50,000
# releases with several entries. The last defect is expected in 5 of these releases.
FITS_NEEDED = dict.fromkeys(HIDDEN, 20) | {
    "noise of bounded support, a sum of 12 uniforms": FITS,
    "no noise in one of 10,000 releases": 5000,
}
SOUND_OUT = RESULTS / "audit" / "sound.jsonl"
SOUND_FITS = 40
LEVELS = (0.1, 0.01, 0.001, 0.0001)  # probabilities of a false alarm


def run_repeats() -> None:
    """Audit each defect of HIDDEN, and correct methods, several times."""
    source = provenance()
    stored = {r["audited"] for r in read(REPEATED_OUT)}
    for name, fits in FITS_NEEDED.items():
        if name not in stored:
            _repeat(name, fits, [partial(audited, name, fits)] * REPEATS, source)
    if "no defect" not in stored:
        audits = [*map(_sound, SOUND), *map(_sound, SOUND)]
        _repeat("no defect", SOUND_REPEAT_FITS, audits, source)


def _sound(given: tuple[str, str, int | None]) -> Callable[[], dict[str, Any]]:
    """Return an audit of a correct method."""
    base, relation, cap = given

    def made() -> dict[str, Any]:
        solver, plan = _prepared(base, relation=relation, group_cap=cap)
        problems = audit_transcript.worst_cases(FACTS, plan, SOUND_REPEAT_FITS)
        return audit.attack(solver, plan, problems, SOUND_REPEAT_FITS)

    return made


def _repeat(
    name: str,
    fits: int,
    audits: list[Callable[[], dict[str, Any]]],
    source: dict[str, Any],
) -> None:
    """Store how many of REPEATS audits fail, and the time of the longest audit."""
    failed, least, seconds = 0, [], []
    for made in audits[:REPEATS]:
        start = time.monotonic()
        found = made()
        seconds.append(time.monotonic() - start)
        failed += not found["passed"]
        least.append(found["laws"]["least_p"] * found["laws"]["tests"])
    row = {
        "audited": name,
        "fits": fits,
        "audits": len(seconds),
        "failed": failed,
        "largest_p": max(least),
        "smallest_p": min(least),
        "seconds": max(seconds),
    }
    append(REPEATED_OUT, row | source)
    print(name, failed, "of", len(seconds), "fail", round(max(seconds)), flush=True)


def run_sound(audits: int) -> None:
    """Count the false alarms of the tests in audits of correct methods."""
    source = provenance()
    stored = [r["audited"] for r in read(SOUND_OUT)]
    for base, relation, cap in SOUND:
        if [base, relation, cap] in stored:
            continue
        solver, made = _prepared(base, relation=relation, group_cap=cap)
        problems = audit_transcript.worst_cases(FACTS, made, SOUND_FITS)
        found = [
            audit.attack(solver, made, problems, SOUND_FITS) for _ in range(audits)
        ]
        least = np.array([f["laws"]["least_p"] * f["laws"]["tests"] for f in found])
        row = {
            "audited": [base, relation, cap],
            "audits": audits,
            "fits": SOUND_FITS,
            "failed": sum(not f["passed"] for f in found),
            "alarms": {str(level): int((least < level).sum()) for level in LEVELS},
        }
        append(SOUND_OUT, row | source)
        print(row["audited"], row["alarms"], "failed", row["failed"], flush=True)


def table() -> str:
    """Return the stored defects as Markdown, and the alarms for correct methods."""
    order = list(DEFECTS)
    rows = sorted(read(OUT), key=lambda r: order.index(r["defect"]))
    lines = []
    for r in rows:
        first = r["first"] or {"name": "not caught", "about": "-", "measured": "-"}
        lines.append([r["defect"], first["name"], first["about"], first["measured"]])
    caught = sum(r["caught"] for r in rows)
    alarms = read(SOUND_OUT)
    audits = sum(r["audits"] for r in alarms)
    counts = [
        f"{sum(r['alarms'][str(level)] for r in alarms)} at {level:.2%}"
        for level in LEVELS
    ]
    note = (
        f"{caught} of {len(rows)} defects are caught with {rows[0]['fits']:,} fits. "
        f"Correct methods were audited {audits:,} times with {alarms[0]['fits']} fits, "
        f"in {len(alarms)} combinations of method, relation and sampling. The tests "
        "gave these numbers of false alarms at four significance levels: "
        f"{', '.join(counts[:-1])} and {counts[-1]} (the default). "
    )
    commits = ", ".join(sorted({r["commit"] for r in [*rows, *alarms]}))
    columns = ("defect", "first failed test", "tested values", "measured")
    text = prose.table(columns, lines)
    return f"{text}\n\n{note}Commit {commits}; {rows[0]['machine']}."


def repeated_table() -> str:
    """Return the table of repeated audits, with a note, as Markdown."""
    rows = {r["audited"]: r for r in read(REPEATED_OUT)}
    sound = rows.pop("no defect")
    lines = [
        [
            name,
            f"{rows[name]['fits']:,}",
            f"{rows[name]['failed']} of {rows[name]['audits']}",
            f"{max(1, round(rows[name]['seconds']))} s",
        ]
        for name in HIDDEN
    ]
    columns = ("defect", "fits", "caught", "longest audit")
    invented = [r for r in read(OUT) if r["defect"] in INVENTED]
    passed = [r["defect"] for r in invented if not r["caught"]]
    commits = ", ".join(sorted({r["commit"] for r in [sound, *rows.values()]}))
    return (
        f"{prose.table(columns, lines)}\n\nCorrect methods were audited "
        f"{sound['audits']} times with {sound['fits']:,} fits, and {sound['failed']} "
        "audits failed. The smallest p-value of an audit, multiplied by its number of "
        f"tests, was {sound['smallest_p']:.2g}. Other programs used the same two cores "
        f"during the measurements. To test the audit, we invented {len(invented)} more "
        f"defects. With {FITS:,} fits, it catches {len(invented) - len(passed)} of "
        f"them, and not the other {len(passed)}: {'; '.join(passed)}. Commit "
        f"{commits}; {sound['machine']}."
    )


def run() -> None:
    """Audit the defects that are not stored."""
    source = provenance()
    stored = {r["defect"] for r in read(OUT)}
    for name in DEFECTS:
        if name in stored:
            continue
        found = audited(name)
        failed = found["laws"]["failed"]
        row = {
            "defect": name,
            "fits": FITS,
            "caught": not found["passed"],
            "failed": [f"{f['name']} ({f['about']})" for f in failed],
            "first": failed[0] if failed else None,
            "tests": found["laws"]["tests"],
        }
        append(OUT, row | source)
        print(name, "caught" if row["caught"] else "NOT CAUGHT", flush=True)
