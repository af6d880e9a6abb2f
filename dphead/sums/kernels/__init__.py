"""Call the compiled sums of this folder, after checks of shapes and types.

The C functions check no bounds. The package's build compiles them once for each
instruction set, and `library` is the best one for this processor. `library` is None if
the installation had no C compiler, or if the C files of this folder changed since.
numpy then computes all sums. ctypes releases Python's lock during a call, so that
threads of a pass run at the same time.
"""

from collections.abc import Iterator
from ctypes import CDLL, Structure, byref, c_char_p, c_double, c_int, c_int64, c_void_p
from typing import Any

import numpy as np
from numpy.ctypeslib import ndpointer

from dphead.privacy.contract import SumTask
from dphead.privacy.predictions import (
    MAX_SCORE_RATE,
    POWERS_PER_NAT,
    PROBABILITY_SCALE,
    powers_of_two,
)
from dphead.privacy.statistic_base import counting
from dphead.privacy.statistics import MOMENT_RADIUS, ChannelMoment, Gradient
from dphead.privacy.transform import (
    RADIUS,
    IntegerRows,
    RowTransform,
    aim,
    clipped_bound,
    clipped_step,
)
from dphead.sums.kernels import sources

_TABLE = powers_of_two().astype(np.int32)


class _Rounding(Structure):
    """Define `struct rounding` of rows.c for ctypes."""

    _fields_ = (
        ("append", c_int),
        ("whole", c_int),
        ("moments", c_int),
        ("bound", c_int64),
    )


def _array(kind: Any, ndim: int) -> Any:
    return ndpointer(kind, ndim, flags=("C", "ALIGNED"))


def _result(kind: Any, ndim: int) -> Any:
    return ndpointer(kind, ndim, flags=("C", "ALIGNED", "WRITEABLE"))


_SUM = _result(np.int64, 2)
_FLOATS = _array(np.float64, 1)
_SIZES = _result(np.float64, 1)
# arguments of the C functions: integer rows and their shape; raw rows, their shape and
# their transform
_Q = (_array(np.int16, 2), c_int64, c_int64)
_X = (_array(np.float32, 2), c_int64, c_int64, c_int, c_void_p, c_void_p)
_WEIGHTS = (_array(np.int16, 2), c_int64)
_CLASSES = (_array(np.int64, 1), _array(np.int64, 1), c_int64)
_RESIDUALS = (_array(np.int32, 1), _FLOATS, _FLOATS)
_LIMITS = (c_void_p, c_double, c_double, c_double)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "sources": (),
    "instruction_set": (),
    "add_gram": (*_Q, _SUM),
    "add_class_rows": (*_Q, *_CLASSES, _SUM),
    "add_gradient": (*_Q, *_RESIDUALS, *_WEIGHTS, c_double, _array(np.int32, 1), _SUM),
    "round_rows": (*_X, *_LIMITS, _result(np.int16, 2), _SIZES),
    "round_moments": (*_X, c_int, c_double, c_double, _result(np.int32, 2), _SIZES),
    "row_norms": (*_X, _SIZES),
}


def _load(name: str) -> CDLL | None:
    """Return the library for an instruction set, or None if none fits.

    A library fits if it was compiled from the C sources beside it. The name is plain,
    avx2, avx512 or avx512vnni, as in setup.py.
    """
    try:
        loaded = CDLL(str(sources.FOLDER / f"{name}.abi3.so"))
        for function, arguments in _ARGUMENTS.items():
            getattr(loaded, function).argtypes = arguments
        loaded.sources.restype = c_char_p
    except (OSError, AttributeError):  # the library is missing, or lacks a function
        return None
    return loaded if loaded.sources() == sources.digest().encode() else None


def libraries() -> Iterator[CDLL]:
    """Yield the libraries for this processor, with the newest instructions first."""
    plain = _load("plain")
    if plain is None:
        return
    names = ("avx2", "avx512", "avx512vnni")[: plain.instruction_set()]
    yield from filter(None, map(_load, reversed(names)))
    yield plain


library = next(libraries(), None)


def stale() -> bool:
    """Return whether the plain library exists, but `_load` refuses it."""
    return (sources.FOLDER / "plain.abi3.so").exists() and _load("plain") is None


def _call(function: str, *arguments: Any) -> None:
    """Call a library function, and raise MemoryError if the function returns 1."""
    assert library is not None
    if getattr(library, function)(*arguments):
        raise MemoryError("A sum needs more memory. Use fewer features or classes.")


def add_gram(rows: np.ndarray, out: np.ndarray) -> None:
    """Add sum_i row_i row_iᵀ to the upper triangle of `out`.

    Parameters
    ----------
    rows : ndarray of int16, shape (k, d)
        Integer rows, with entries of at most 4095.
    out : ndarray of int64, shape (d, d)
        Sum in C order. Entries below the diagonal are unspecified.

    Raises
    ------
    ValueError
        If shapes or types do not match.
    """
    rows = _integers(rows)
    _check_sum(out, (rows.shape[1], rows.shape[1]))
    _call("add_gram", rows, *rows.shape, out)


def add_class_rows(
    rows: np.ndarray, y: np.ndarray, keep: np.ndarray, out: np.ndarray
) -> None:
    """Add each kept row i of `rows` to row y_i of `out`.

    Parameters
    ----------
    rows : ndarray of int16, shape (k, d)
        Integer rows.
    y : ndarray of int, shape (k,)
        Classes: from 0 to m - 1 for kept rows.
    keep : ndarray of bool, shape (k,)
        False for rows that add zero to every sum.
    out : ndarray of int64, shape (m, d)
        Class sums in C order.

    Raises
    ------
    ValueError
        If shapes, types or classes do not match.
    """
    rows = _integers(rows)
    _check_sum(out, (len(out), rows.shape[1]))
    if y.shape != (len(rows),) or keep.shape != y.shape or keep.dtype != bool:
        raise ValueError(
            f"Internal error: {len(rows)} rows have {y.shape} classes and a "
            f"{keep.dtype} mask of shape {keep.shape}. Please report it."
        )
    used = np.flatnonzero(keep)
    # sorted by class, so that four rows of a class are added in one loop
    used = used[np.argsort(y[used], kind="stable")]
    classes = y[used].astype(np.int64)
    if len(used) and not 0 <= classes.min() <= classes.max() < len(out):
        raise ValueError(
            f"Internal error: a kept row has no class from 0 to {len(out) - 1}. Please "
            "report it."
        )
    _call("add_class_rows", rows, *rows.shape, used, classes, len(used), out)


def add_gradient(
    ask: SumTask,
    rows: IntegerRows,
    y: np.ndarray,
    used: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the softmax gradients of used rows to out (n_classes, width) int64.

    rows.q is (k, width) int16. Raises ValueError if the shapes differ.
    """
    statistic = ask.statistic
    assert isinstance(statistic, Gradient) and ask.weights is not None
    q = _integers(rows.q)
    w = np.ascontiguousarray(ask.weights.w)
    wanted = (statistic.n_classes, q.shape[1])
    if w.shape != wanted or out.shape != wanted:
        raise ValueError(
            f"Internal error: weights of shape {w.shape} and a sum of shape "
            f"{out.shape} do not fit the gradient of shape {wanted}. Please report it."
        )
    _check_sum(out, wanted)
    keep = counting(statistic, rows, y, used)
    # as in `Chunk.scores`: one rounding each, so that products equal the reference's
    with np.errstate(over="ignore"):
        rate = (
            np.minimum(rows.scale * ask.weights.step, MAX_SCORE_RATE) * POWERS_PER_NAT
        )
    # few residuals of this length exceed RADIUS after rounding (`aim`)
    longest = aim(RADIUS**2, statistic.n_classes)
    if statistic.clip == "rows":
        factor = rows.scale * (float(RADIUS**2) / (ask.clip_norm * PROBABILITY_SCALE))
    else:
        # features are clipped, so the loss bounds the residual: no clip per row
        factor = np.full(
            len(y), longest / (statistic.longest_residual() * PROBABILITY_SCALE)
        )
        longest = np.inf
    classes = np.where(keep, y, -1).astype(np.int32)
    residuals = (classes, rate, factor)
    _call("add_gradient", q, *q.shape, *residuals, w, len(w), longest, _TABLE, out)


def integer_rows(
    transform: RowTransform, x: np.ndarray, clip_norm: float | None = None
) -> IntegerRows:
    """Return the integers of `clipped_rows` for rows x (k, d) float32.

    Without a clip norm, return the integers of `direction_rows`. Both functions are in
    `privacy.transform`.
    """
    k, d = x.shape
    width = transform.width(d)
    append = float(transform.append)
    if clip_norm is None:
        length, step, constant = aim(RADIUS**2, width), append, 0
        bound = RADIUS**2
    else:
        bound, constant = clipped_bound(clip_norm, append)
        length, step = aim(bound, d), clipped_step(clip_norm, append)
    how = _Rounding(bool(append), clip_norm is None, False, bound)
    q = np.empty((k, width), np.int16)
    sizes = np.empty(k)
    limits = (byref(how), length, step, constant)
    _call_rows("round_rows", transform, x, *limits, q, sizes)
    return IntegerRows(q, sizes)


def moment_rows(
    statistic: ChannelMoment, transform: RowTransform, x: np.ndarray, clip_norm: float
) -> IntegerRows:
    """Return the integers of `ChannelMoment.rows` if each feature is a channel.

    q is int32.
    """
    longest = aim(MOMENT_RADIUS**2, x.shape[1])
    limits = (statistic.power, clip_norm / MOMENT_RADIUS, longest)
    q = np.empty(x.shape, np.int32)
    sizes = np.empty(len(x))
    _call_rows("round_moments", transform, x, *limits, q, sizes)
    return IntegerRows(q, sizes)


def norms(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Return the norms (k,) of transformed rows x (k, d) float32, 0 if not finite."""
    sizes = np.empty(len(x))
    _call_rows("row_norms", transform, x, sizes)
    return sizes


def _call_rows(
    function: str, transform: RowTransform, x: np.ndarray, *arguments: Any
) -> None:
    """Call a function of rows.c, after a check that the transform fits the rows."""
    x = np.ascontiguousarray(x, np.float32)
    transform.width(x.shape[1])  # raises if the transform does not fit the rows
    numbers = [
        None if values is None else np.ascontiguousarray(values, np.float64)
        for values in (transform.center, transform.scale)
    ]
    places = [None if values is None else values.ctypes.data for values in numbers]
    _call(function, x, *x.shape, transform.unit_norm, *places, *arguments)


def _integers(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 2 or rows.dtype != np.int16:
        raise ValueError(
            f"Internal error: rows must be an int16 matrix, got {rows.dtype} of shape "
            f"{rows.shape}. Please report it."
        )
    return np.ascontiguousarray(rows)


def _check_sum(out: np.ndarray, shape: tuple[int, ...]) -> None:
    fits = out.shape == shape and out.dtype == np.int64
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(
            f"Internal error: a sum must be int64 of shape {shape} in C order, got "
            f"{out.dtype} of shape {out.shape}. Please report it."
        )
