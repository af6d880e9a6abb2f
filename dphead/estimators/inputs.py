"""Check a fit's inputs before the charge.

In a private fit, the checks use shapes, dtypes and declared values, but no row's value.
Three exceptions stop the fit here: rows in a list that is not an array of numbers, a
group that is not a text or a number, and a jax array that could not be computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.items import is_encodable
from scipy.sparse import issparse

from dphead.data.arrays import ArrayRows, declared_dtype, group_ids
from dphead.data.device_rows import DeviceRows, refuse_traced
from dphead.data.features import (
    FeaturesFile,
    FeaturesRows,
    check_classes,
    check_groups,
    check_one_each,
    open_features,
    split_slots,
)
from dphead.estimators.labels import (
    class_name,
    label_column,
    positions,
    require_same_kind,
    told,
    unmatched_labels,
    unread_rows,
)
from dphead.fit.files import (
    SourceFacts,
    check_selection,
    source_of,
    source_of_arrays,
)
from dphead.fit.fit import RowSizes
from dphead.fit.ledgers import RowGroups
from dphead.planning.plan import public_n_rows
from dphead.privacy.contract import Rows
from dphead.privacy.python_values import python_value
from dphead.solvers.base import ProblemInfo
from dphead.solvers.settings import typed
from dphead.sums.hosts import Hosts, bounds

_MOST_CLASSES = 2**20  # chosen, not measured
_JAX_FLOATS = ("bfloat16", "float16", "float32", "float64")  # dtypes of features
_LABELS = "biufUS"  # kinds of dtypes that classes may have


@dataclass(frozen=True)
class TrainingData:
    """Hold the public sizes of training rows, and the function that reads the rows.

    Attributes
    ----------
    rows : callable
        Function that reads the rows, called after the charge. If several processes
        share a jax array, it is called before the charge, and reads only labels.
    facts : ProblemInfo
        Public sizes.
    classes : ndarray of shape (n_classes,)
        The classes, by index.
    source : SourceFacts
        The public values that a run folder stores.
    sizes : RowSizes
        Sizes of the rows that are known before the charge.
    classes_seen : bool
        Whether the classes were inferred from the labels. The fit is then not private.
    notice : callable
        Function that returns a private notice about labels and rows, or "". It is
        called after the fit.
    hosts : Hosts or None
        The processes that hold the rows of a jax array; None for one process.
    groups : RowGroups or None
        The groups of a features file; None for arrays.
    labels : callable
        Function that returns the labels of all processes' rows.
    private : FeaturesFile, ndarray, DeviceRows or None
        The checked rows, which `choose_axes` compares with public rows.
    """

    rows: Callable[[], Rows]
    facts: ProblemInfo
    classes: np.ndarray
    source: SourceFacts
    sizes: RowSizes
    classes_seen: bool = False
    notice: Callable[[], str] = str
    hosts: Hosts | None = None
    groups: RowGroups | None = None
    labels: Callable[[], Any] = list
    private: Any = None

    def wait(self) -> None:
        """Wait for rows that a device still computes (`DeviceRows.wait`)."""
        if isinstance(self.private, DeviceRows):
            self.private.wait()


def is_path(x: Any) -> bool:
    """Return whether X names a features file."""
    return isinstance(x, str | PathLike)


def as_arrays(*given: Any) -> tuple[Any, ...]:
    """Convert PyTorch tensors and jax arrays, and return other objects unchanged.

    torch is not imported. bfloat16 becomes float32, because numpy lacks it. A jax
    matrix of floats becomes `DeviceRows`, which reads no row yet.
    """
    return tuple(_as_array(x) for x in given)


def _as_array(x: Any) -> Any:
    if type(x).__module__.split(".")[0] in ("jax", "jaxlib"):
        return _jax_array(x)
    kinds = {base.__module__.split(".")[0] for base in type(x).__mro__}
    if "torch" not in kinds or not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def _jax_array(x: Any) -> Any:
    """Return a matrix of floats as `DeviceRows`, and other jax arrays as numpy arrays.

    Rows of `DeviceRows` are read later. Other arrays are read now.

    Raises
    ------
    ValueError
        If the array is traced, deleted or not numeric, or if a different process holds
        a part of an array that is read now.
    """
    from jax import Array, dtypes, numpy

    refuse_traced(x)
    if not isinstance(x, Array) or numpy.issubdtype(x.dtype, dtypes.extended):
        raise ValueError(
            f"A {type(x).__name__} of jax is not an array of numbers. Pass a jax.Array "
            "of numbers, such as `ref[...]`."
        )
    if x.is_deleted():
        raise ValueError(
            f"An array of shape {x.shape} was deleted or donated, so it has no values. "
            "Copy the array before jax deletes it, and pass the copy."
        )
    if x.ndim == 2 and str(x.dtype) in _JAX_FLOATS:
        return DeviceRows(x)
    # Read replicated labels and groups. Replicated features are refused, because each
    # process would charge its own fit.
    if x.ndim < 2 and x.is_fully_replicated and x.addressable_shards:
        x = x.addressable_data(0)
    if not x.is_fully_addressable:
        raise ValueError(
            f"Several processes share an array of shape {x.shape} and type {x.dtype}. "
            "Pass features as float32, and labels and groups as numpy arrays."
        )
    return np.asarray(x)


def from_arrays(
    estimator: Any, x: Any, y: Any, groups: Any, classes: Any
) -> TrainingData:
    """Return the training data of arrays or data frames with one class per row."""
    private = np.isfinite(estimator.epsilon)
    refuse_split(estimator.split)
    require_target(y)
    if classes is None and private:
        raise ValueError(
            "`classes` must be declared for a finite epsilon. Pass the public list of "
            "classes. A list inferred from `y` would reveal which labels occur."
        )
    said = declared_dtype(y)
    x, y = checked_rows(estimator, x, label_column(y) if private else y)
    if not private:
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(y)
        said = y.dtype
    names = declared(classes) if classes is not None else np.unique(y)
    require_same_kind(said, names)
    return of_arrays(
        estimator,
        x,
        lambda: positions(y, names),
        groups,
        names,
        classes_seen=classes is None,
        notice=lambda: told(unmatched_labels(y, names), unread_rows(x)),
    )


def of_arrays(
    estimator: Any,
    x: Any,
    labels: Callable[[], np.ndarray],
    groups: Any,
    names: np.ndarray,
    has_sets: bool = False,
    **more: Any,
) -> TrainingData:
    """Return the training data of checked rows.

    Parameters
    ----------
    estimator : PrivateEstimator
        The estimator, with its parameters.
    x : ndarray of shape (n_rows, n_features)
        The rows.
    labels : callable
        Function that returns indices into `names`, or label sets.
    groups : array-like of shape (n_rows,) or None
        Group of each row.
    names : ndarray of shape (n_classes,)
        The classes.
    has_sets : bool, default False
        Whether the labels are label sets.
    **more
        Further attributes of the training data.
    """
    cap, mean = estimator.group_cap, estimator.group_mean
    require_both(groups, cap)
    n_rows, n_features = x.shape
    hosts, own, private = None, slice(None), x
    if isinstance(x, DeviceRows):
        hosts, own, x = _hosts_of(x, groups), x.slots, x.own()
    if groups is not None:
        groups = group_ids(groups, n_rows)
    return TrainingData(
        lambda: ArrayRows(x, labels()[own], None, groups, cap, mean),
        _facts(estimator, n_rows, n_features, len(names)),
        names,
        replace(
            source_of_arrays(n_features, [str(name) for name in names]),
            grouped=groups is not None,
        ),
        RowSizes(n_rows, n_features, cap, has_sets),
        hosts=hosts,
        labels=labels,
        private=private,
        **more,
    )


def _hosts_of(x: DeviceRows, groups: Any) -> Hosts | None:
    """Return the processes that share a jax array, or None if it is not shared."""
    import jax

    if not x.is_shared:
        return None
    # Refuse copies on all processes too: each process would charge a fit of its own.
    hosts = Hosts(jax.process_index(), jax.process_count())
    ends = bounds(len(x), hosts.count)
    equal = {i: slice(*ends[i : i + 2]) for i in range(hosts.count)}
    if groups is not None or x.slots_of != equal:
        raise ValueError(
            "Rows on several processes must have no groups, and each process must hold "
            "an equal part, in the order of the processes. Process "
            f"{hosts.index} holds rows {x.slots.start} to {x.slots.stop - 1} of "
            f"{len(x)}. Use `dphead fit` with a features file instead."
        )
    return hosts


def _facts(estimator: Any, n_rows: int, n_features: int, n_classes: int) -> ProblemInfo:
    n_rows = public_n_rows(n_rows, estimator.relation, estimator.nominal_n)
    return ProblemInfo(n_rows, n_features, n_classes)


def require_target(y: Any) -> None:
    """Raise ValueError, in scikit-learn's words, if y is None."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None. Pass "
            "one label or target per row as `y`."
        )


def require_both(groups: Any, cap: int | None) -> None:
    """Raise ValueError for groups without a cap, or a cap without groups."""
    if (groups is None) != (cap is None):
        raise ValueError(
            f"`groups` and `group_cap` need each other, got group_cap={cap} "
            f"{'without' if groups is None else 'with'} groups. Pass both or neither."
        )


def refuse_split(split: str | None) -> None:
    """Raise ValueError if a split is given for arrays."""
    if split is not None:
        raise ValueError(
            f"`split` must be None for arrays, got {typed(split)}. Pass the rows of "
            "the split as `X`, or the path of a features file."
        )


def checked_rows(
    estimator: Any, x: Any, y: Any = None, **checks: Any
) -> tuple[Any, Any]:
    """Return X and y after scikit-learn's checks of shapes and dtypes.

    With an infinite epsilon, scikit-learn also checks the values. If `y` is passed,
    these checks use the options `checks`.
    """
    # imported here: `PrivateTraining` does not need it, and it takes a second
    from sklearn.utils.validation import check_consistent_length, validate_data

    if not np.isfinite(estimator.epsilon):
        if y is None:
            return validate_data(estimator, x), None
        found: Any = validate_data(estimator, x, y, **checks)
        return found
    # a private number of rows must not stop a fit, and may be 0
    fewest = 0 if estimator.relation == "add_remove" else 1
    rows = x
    # shapes are checked on zeros, so that no row is read here
    if isinstance(x, DeviceRows):
        rows = np.broadcast_to(np.float32(0), x.shape)
    with np.errstate(all="ignore"):  # a signaling NaN would cause a warning
        rows = validate_data(
            estimator,
            row_numbers(rows),
            ensure_all_finite=False,
            ensure_min_samples=fewest,
        )
    x = x if isinstance(x, DeviceRows) else rows
    if y is not None:
        check_consistent_length(x, y)
    return x, y


@contextmanager
def from_file(
    estimator: Any,
    path: Any,
    groups: Any,
    classes: Any,
    label_sets: np.ndarray | None = None,
    **more: Any,
) -> Iterator[TrainingData]:
    """Open a split of a features file as training data, without reading its rows.

    Parameters
    ----------
    estimator : PrivateEstimator
        The estimator, with its parameters.
    path : str or Path
        Path of the features file.
    groups : None
        Must be None, because the file has its own groups.
    classes : sequence of shape (n_classes,) or None
        Public classes. None means the file's declared classes.
    label_sets : ndarray of shape (n_rows, n_classes), optional
        Label sets that replace the file's labels.
    **more
        Further attributes of the training data.
    """
    if groups is not None:
        raise ValueError(
            "`groups` must be None for a features file, which has its own groups. "
            "Remove `groups`."
        )
    vars(estimator).pop("feature_names_in_", None)
    split, cap, mean = estimator.split, estimator.group_cap, estimator.group_mean
    with open_features(Path(path)) as file:
        check_groups(file, cap)
        check_selection(file, estimator.relation, cap)
        n_rows = len(split_slots(file, split))
        if label_sets is None:
            names = _names_of(file, classes)
        else:
            names = classes
            check_one_each(label_sets, n_rows)
        yield TrainingData(
            lambda: FeaturesRows(
                file, split, group_cap=cap, label_sets=label_sets, group_mean=mean
            ),
            _facts(estimator, n_rows, file.n_features, len(names)),
            names,
            source_of(file, [str(name) for name in names]),
            RowSizes(n_rows, file.n_features, cap, label_sets is not None),
            groups=RowGroups.of(file),
            private=file,
            **more,
        )


def _names_of(file: FeaturesFile, classes: Any) -> np.ndarray:
    """Return the given public classes, or else the classes that the file declares.

    Raises ValueError if neither declares public classes.
    """
    names = class_list(classes) if classes is not None else None
    if names is None and file.classes_public:
        names = file.class_names
    if names is None:
        raise ValueError(
            f"`classes` must be declared, got None for {file.path}, which does not "
            "declare its classes public. Pass the public list of classes."
        )
    check_classes(file, names)
    return np.asarray(list(names))


def declared(classes: Any) -> np.ndarray:
    """Return the sorted public classes.

    Raises ValueError unless there is at least one class, and the classes are distinct
    finite numbers or strings with distinct names (`name_of`).
    """
    given = class_list(classes)
    plain = python_value(given)
    with suppress(ValueError, TypeError):  # the items are lists, or have no order
        array = np.asarray(given)
        array = np.asarray(plain) if array.dtype.kind == "O" else array
        names = {class_name(one) for one in plain}
        known = array.ndim == 1 and array.dtype.kind in _LABELS
        finite = known and (array.dtype.kind != "f" or np.isfinite(array).all())
        # numpy converts numbers next to strings, and drops a final "\0"
        same = finite and array.tolist() == plain and None not in names
        if same and len(names) == len(given) > 0:
            return np.unique(array)
    raise ValueError(
        "`classes` must be distinct finite numbers, or distinct strings that are not "
        f"empty, got {typed(given)}. Pass each class once, as in `classes=[0, 1]`."
    )


def class_list(classes: Any) -> list[Any]:
    """Return the declared classes as a list.

    Raises ValueError if the classes have no length, are more than 2**20, or have a name
    that UTF-8 cannot encode. A single string is refused, because Python would split it
    into letters.
    """
    try:
        if isinstance(classes, str | bytes | dict) or len(classes) > _MOST_CLASSES:
            raise TypeError
        given = list(classes)
    except (TypeError, OverflowError):
        raise ValueError(
            f"`classes` must be a list of at most {_MOST_CLASSES} numbers or strings, "
            f"got {typed(classes)}. Pass the public classes, as in `classes=[0, 1]`."
        ) from None
    for one in given:
        if isinstance(one, str) and not is_encodable(one):
            raise ValueError(
                f"`classes` has the name {one!a}, which UTF-8 cannot encode, so no "
                "file could hold it. Rename the class."
            )
    return given


def row_numbers(x: Any) -> Any:
    """Return features as floats, converted independently of other rows' values.

    float16, float32 and float64 stay unchanged, and so does a sparse matrix. Other
    numbers become float64: the dtype that numpy gives a list depends on all its
    numbers. Raises ValueError for a dtype that is not real and numeric, and for objects
    that `_listed` refuses.
    """
    if issparse(x):
        return x  # scikit-learn's check refuses it with a hint
    x = dense(x)
    dtypes: list[Any] = (
        list(x.dtypes)
        if hasattr(x, "iloc") and np.ndim(x) == 2
        else [getattr(x, "dtype", None)]
    )
    if any(d is None for d in dtypes):
        x = _listed(x)
        dtypes = [x.dtype]
    for dtype in dtypes:
        kind = getattr(dtype, "kind", "O")
        if kind not in "biuf":
            # scikit-learn's checks expect these words
            why = "Complex data not supported: " if kind == "c" else ""
            raise ValueError(
                f"{why}`X` must have a real numeric dtype, got {dtype}. "
                "Convert it to numbers, such as with `np.asarray(X, dtype=np.float32)`."
            )
    exact = all(d.kind == "f" and d.itemsize <= 8 for d in dtypes)
    return x if exact else x.astype(np.float64)


def dense(x: Any) -> Any:
    """Return rows with pandas' sparse columns made dense, and masked numbers as NaN."""
    if hasattr(x, "iloc") and np.ndim(x) == 2:
        kinds = dict(x.dtypes)
        sparse = {c: d for c, d in kinds.items() if type(d).__name__ == "SparseDtype"}
        return x.astype({c: d.subtype for c, d in sparse.items()}) if sparse else x
    if not isinstance(x, np.ma.MaskedArray) or x.dtype.kind not in "biuf":
        return x
    return np.ma.filled(x.astype(np.result_type(x, np.float16)), np.nan)


def _listed(x: Any) -> np.ndarray:
    """Return a list as an array: numbers as float64, others in numpy's dtype.

    Raises ValueError for rows of unequal lengths, for a list that mixes strings and
    other objects, and for tables of libraries other than pandas. Their values would
    affect the conversion.
    """
    if hasattr(x, "__array__") and hasattr(x, "__len__"):
        raise ValueError(
            "`X` must be a numpy array, a list, a tensor or a pandas frame, got "
            f"{type(x).__name__}. Use `np.asarray(X)`, or `X.to_pandas()`."
        )
    try:
        array = np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise ValueError(
            f"all rows must have the same shape ({error}). Pad texts and series to a "
            "public length."
        ) from None
    if array.dtype.kind not in "biufO":
        return array
    if array.dtype.kind == "O" and any(
        issubclass(type(item), str | bytes) for item in array.ravel()
    ):
        raise ValueError(
            "`X` must have only numbers, got a list with a string. Remove the strings, "
            "or convert them with `np.asarray(X, dtype=np.float32)`."
        )
    try:
        return np.asarray(x, np.float64)
    except (TypeError, ValueError, OverflowError):
        return array


def given_rows(x: Any, vocabulary: int | None) -> np.ndarray:
    """Return rows for a network as an array, checked by dtype and shape only.

    With a vocabulary, rows are integer tokens. Without one, they are images of uint8,
    or floats. No value of an array is read. A list has no dtype. Its items become
    floats, because one item would decide the dtype of all others. A list that is not an
    array of numbers is refused.

    Raises ValueError for other dtypes and shapes, masked arrays and lists of arrays.
    """
    (x,) = as_arrays(x)
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            "rows cannot be a masked array, because a network would get the masked "
            "values. Replace them by a public value, such as with `x.filled(0)`."
        )
    has_dtype = hasattr(x, "dtype") or hasattr(x, "iloc")
    if not has_dtype and any(hasattr(row, "dtype") for row in x):
        # the dtype of one array would affect all rows
        raise ValueError(
            "rows must be one array, got a list of arrays. Use `np.stack(rows)`, or "
            "`torch.stack`."
        )
    x = np.asarray(x if has_dtype else row_numbers(x))
    wanted = "images of uint8 or floats" if vocabulary is None else "integer tokens"
    kinds = "f" if vocabulary is None or not has_dtype else "iu"
    pixels = vocabulary is None and x.dtype == np.uint8
    if x.ndim < 2 or 0 in x.shape[1:] or not (x.dtype.kind in kinds or pixels):
        raise ValueError(
            f"rows must be {wanted} of shape (n, ...), got {x.dtype} of shape "
            f"{x.shape}. Convert or reshape them. Tokens need `vocabulary`."
        )
    return x


def given_labels(
    y: Any, n_rows: int, names: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, and their indices in the public classes; -1 for no class.

    Raises ValueError unless there is one label per row, in a dtype that can hold the
    classes.
    """
    (y,) = as_arrays(y)
    require_same_kind(declared_dtype(y), names)
    labels = label_column(y)
    if len(labels) != n_rows:
        raise ValueError(
            f"rows must have one label each, got {n_rows} rows and {len(labels)} "
            "labels. Pass a label for each row."
        )
    return labels, positions(labels, names)
