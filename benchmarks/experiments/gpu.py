"""Measure what needs an accelerator: `python -m benchmarks gpu PARTS`.

`equality` compares sums and seeded heads of a GPU with those of the processor, bit by
bit. `scale` times DP-FC's releases at ImageNet's size. `extraction` is timed beside
plain timm and kymatio. Each part stores its rows in results/gpu/rows.jsonl. `python -m
benchmarks claims` has the commands of the papers' networks.
"""

import json
from typing import Any

import numpy as np

from benchmarks.experiments import extraction as pairs
from benchmarks.experiments import scale as experiment
from benchmarks.store import RESULTS, append, provenance

OUT = RESULTS / "gpu" / "rows.jsonl"


def card() -> str:
    """Return the name of the accelerator, or "cpu"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def keep(part: str, **row: Any) -> None:
    """Store a row, and print it."""
    row = {"part": part, "card": card()} | row
    append(OUT, row | provenance())
    shown = {k: v for k, v in row.items() if k not in ("card", "arguments")}
    print(json.dumps(shown, default=str)[:600], flush=True)


# --- equality -----------------------------------------------------------------


def statistics(m: int) -> list[Any]:
    """Return every statistic of a head, with every loss."""
    from dphead.privacy import statistics as s
    from dphead.privacy.loss import LOSSES

    found = [
        *(s.Gram(m), s.ClassGrams(m), s.SigmoidHessians(m), s.ClassSums(m)),
        *(s.ClassCounts(m), s.CorrectCounts(m), s.ClassCorrectCounts(m)),
        *(s.RowCounts(m), s.ChannelMoment(m), s.ChannelMoment(m, 2)),
    ]
    for loss in LOSSES:
        found.append(s.Gradient(m, loss))
        if np.isfinite(found[-1].longest_residual()):
            found.append(s.Gradient(m, loss, "features"))
    return found


def hostile(n: int, d: int, m: int) -> Any:
    """Return rows of every size, with rows that are not finite or have no class."""
    from dphead.data.arrays import ArrayRows

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), np.float32)
    with np.errstate(under="ignore"):
        x[: n // 4] *= np.logspace(-45, 36, n // 4)[:, None].astype(np.float32)
    x[5, 0], x[6, 1], x[7] = np.nan, np.inf, 0
    return ArrayRows(x, rng.integers(-1, m + 1, n))


def equality(tiny: bool) -> None:
    """Compare sums and seeded heads of a device with those of the processor."""
    from dphead.privacy.contract import SumTask
    from dphead.privacy.statistic_base import Params
    from dphead.privacy.transform import RowTransform
    from dphead.sums.cpu import CpuSums
    from dphead.sums.jax import JaxSums
    from dphead.sums.passes import checked_sum

    rng = np.random.default_rng(1)
    for n, d, m in SIZES[: 1 if tiny else 2]:
        rows = hostile(n, d, m)
        center = rng.standard_normal(d) / np.sqrt(d)
        for transform in (RowTransform(), RowTransform(True, center, None, 0.3)):
            weights = rng.standard_normal((transform.width(d), m))
            for statistic in statistics(m):
                if transform.append and "ChannelMoment" in statistic.name:
                    continue
                task = SumTask(statistic, Params(transform, weights), 0.7, rows)
                facts = {"statistic": statistic.name, "rows": n, "features": d}
                facts["centered"] = transform.center is not None
                (wanted,) = checked_sum([task], CpuSums())
                try:
                    (found,) = checked_sum([task], JaxSums())
                except RuntimeError as error:  # the pass itself found other integers
                    keep("equality", **facts, failed=str(error))
                    continue
                different = int((found != wanted).sum())
                keep("equality", **facts, integers=found.size, different=different)
        if n == SIZES[0][0]:
            heads()


# The numbers of rows are multiples of a block, so that fewer shapes are compiled.
SIZES = ((4096, 40, 7), (16_384, 768, 10))


def heads() -> None:
    """Compare seeded heads of every method by both backends, byte for byte.

    With JAX's algebra too, compare them by their largest relative difference.
    """
    from dphead.data.arrays import ArrayRows
    from dphead.fit.fit import fit_rows
    from dphead.planning.methods import make_method
    from dphead.planning.plan import make_plan
    from dphead.planning.registry import OURS
    from dphead.privacy.noise import NoiseSource
    from dphead.solvers import ProblemInfo
    from dphead.sums.cpu import CpuSums
    from dphead.sums.jax import JaxSums
    from dphead.sums.verified import VerifiedSum

    rng = np.random.default_rng(2)
    n, d, m = 4000, 200, 8
    y = rng.integers(0, m, n)
    x = rng.standard_normal((n, d), np.float32) + rng.standard_normal((m, d))[y]
    rows = ArrayRows(x.astype(np.float32), y)
    facts = ProblemInfo(n, d, m)
    for name in OURS:
        settings = {"batch_size": 500, "steps": 20} if "sgd" in name else {}
        solver = make_method(name, facts, settings).solver
        plan = make_plan(solver, facts, epsilon=1.0, delta=1e-5)
        one, other, third = (
            fit_rows(
                plan,
                rows,
                noise=NoiseSource(3),
                summer=VerifiedSum(way, memory=1 << 28),
                backend=backend,
            ).trained.weights
            for way, backend in (
                (JaxSums(), "numpy"),
                (CpuSums(), "numpy"),
                (JaxSums(), "jax"),
            )
        )
        different = int(one.tobytes() != other.tobytes())
        far = float(np.abs(third - one).max() / np.abs(one).max())
        keep("equality", head=name, bytes=one.nbytes, different=different, far=far)


# --- speed -------------------------------------------------------------------


def scale(tiny: bool) -> None:
    """Time DP-FC's releases at ImageNet's size, by each backend."""
    experiment.run_gpu(tiny=tiny, store=lambda **row: keep("scale", **row))


def extraction(tiny: bool) -> None:
    """Time extraction by the networks of three papers, and by common PyTorch code."""
    pairs.gpu(tiny=tiny, store=lambda **row: keep("extraction", **row))


PARTS = {part.__name__: part for part in (equality, scale, extraction)}
