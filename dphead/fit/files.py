"""Match features files and images with a head, for prediction and measurement.

Images are first turned into the head's features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dphead_extract.features.disk import read_names
from dphead_extract.features.format import FeaturesFile, open_features
from dphead_extract.features.rows import Header
from dphead_extract.features.seal import MAGIC

from dphead.analysis.metrics import evaluate_scores
from dphead.analysis.protected import made_of_images
from dphead.analysis.sealed import explain_damage
from dphead.data.features import (
    FeaturesRows,
    check_classes,
    load_features,
    split_slots,
)
from dphead.fit.head_file import load_head
from dphead.solvers.head import LinearHead

# what an `extraction` records of how rows were made
_MADE_BY = (
    "backbone",
    "backbone_kwargs",
    "weights_sha256",
    "transform",
    "normalization",
    "library_versions",
)


def is_features_file(path: Path) -> bool:
    """Return whether a path is a features file, judged by its first bytes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def class_names(file: FeaturesFile, given: tuple[str, ...] | None) -> list[str]:
    """Return the public classes of the file, or else the given ones.

    Classes are never inferred from the labels.

    Raises
    ------
    ValueError
        If the given classes differ from the file's, or if there are fewer than two.
    """
    if file.class_names and given and list(given) != file.class_names:
        raise ValueError(
            f"--classes must equal the file's classes {file.class_names[:5]}, got "
            f"{list(given)[:5]}. Drop --classes."
        )
    classes = (
        list(given or ()) or (file.class_names if file.classes_public else None) or []
    )
    if len(set(classes)) < max(2, len(classes)):
        raise ValueError(
            "a fit needs at least two distinct public classes, got "
            f"classes={classes}. Pass them with --classes."
        )
    check_classes(file, classes)
    return classes


def classes_declared(file: FeaturesFile) -> str:
    """Return who declared the classes public.

    Return "classes-flag" or "folder-names-flag" if the file declared them, and
    "fit-flag" if the fit did.
    """
    return file.classes_declared or "fit-flag"


def extraction(file: FeaturesFile) -> dict[str, Any]:
    """Return the settings that `dphead predict` needs to extract the same features.

    "views" is the number of views of each training row.
    """
    return {key: file.config[key] for key in _MADE_BY} | {"views": file.views}


def extraction_of_arrays() -> dict[str, Any]:
    """Return the `extraction` of rows of arrays: how they were made is not known."""
    unknown = Header(n_rows=1, n_features=1)
    return {key: getattr(unknown, key) for key in _MADE_BY} | {"views": 1}


def check_features(
    file: FeaturesFile, feature_space: str, n_features: int, own: str | None = None
) -> None:
    """Raise ValueError unless a file has a head's feature space and width.

    The error names `own`, the head's backbone. A head of arrays has the feature space
    "", so only the width can be compared.
    """
    theirs = f"{file.config['backbone']}, {file.n_features} columns"
    ours = f"{n_features} columns" if own is None else f"{own}, {n_features} columns"
    other = feature_space not in ("", file.feature_space)
    if other or file.n_features != n_features:
        raise ValueError(
            f"features must come from the head's backbone and settings ({ours}), got "
            f"features={file.path} ({theirs}). Extract them with the same settings."
        )


def check_labels(
    file: FeaturesFile, labels: np.ndarray, classes: list[str], path: Path
) -> None:
    """Raise ValueError unless rows to measure on have the head's classes and labels.

    At least one row must have a label of these classes.
    """
    check_classes(file, classes)
    if not np.any((labels >= 0) & (labels < len(classes))):
        raise ValueError(
            "measuring needs rows with labels of the head's classes, got none in "
            f"{path}. Extract them with labels."
        )


def test_origin(same_data: bool, split: str, test_split: str) -> str:
    """Return where test rows come from.

    Parameters
    ----------
    same_data : bool
        Whether training and test rows belong to one data set.
    split, test_split : str
        Splits of the data; "all" for the whole data set.

    Returns
    -------
    str
        "training rows", "another split" or "another data set".
    """
    if not same_data:
        return "another data set"
    shared = split == test_split or "all" in (split, test_split)
    return "training rows" if shared else "another split"


def check_public(origin: str, test_is: str) -> None:
    """Raise ValueError if exact figures on the training rows would be published."""
    if test_is == "public" and origin == "training rows":
        raise ValueError(
            f"public test rows must not be training rows, got {test_is=} and the rows "
            "of the fit. The report would publish their exact accuracy. Choose other "
            "rows, or drop --test-is to see the accuracy on your screen only."
        )


def evaluate(
    head: LinearHead, test: tuple[np.ndarray, np.ndarray], n_classes: int
) -> dict[str, Any]:
    """Return the metrics of a head on the test rows with a label among the classes."""
    x, y = test
    known = (y >= 0) & (y < n_classes)
    return evaluate_scores(head.scores(x)[known], y[known], head.loss)


class NewRows(NamedTuple):
    """Hold rows to predict or to measure on.

    x is (n, n_features), with NaN where training masks the row. y is (n,) class
    positions.
    """

    x: np.ndarray
    y: np.ndarray


def new_rows(
    rows: FeaturesRows,
    file: FeaturesFile,
    classes: list[str] | None = None,
) -> NewRows:
    """Return the rows of an open file.

    Pass the head's `classes` if rows are measured; they must equal the file's.
    """
    labels = rows.measured_labels()
    if classes is not None:
        check_labels(file, labels, classes, file.path)
    return NewRows(rows.measured_features(), labels)


def open_matching(
    run: Path, features: Path, split: str | None, labeled: bool = False
) -> tuple[LinearHead, dict[str, Any], np.ndarray, np.ndarray]:
    """Open a run folder and a features file of the same feature space.

    Parameters
    ----------
    run : Path
        The run folder.
    features : Path
        The features file.
    split : str or None
        The split to read.
    labeled : bool, default False
        Whether the rows are measured, which requires labels of the head's classes.

    Returns
    -------
    LinearHead
        The head.
    dict
        The head's facts.
    (n, n_features) float
        The rows' features.
    (n,) int
        The rows' class positions.

    Raises
    ------
    ValueError
        If the file does not match the head.
    """
    head, facts = load_head(run)
    rows, file = load_features(features, split, memory=0)
    with file:
        made = facts.get("extraction")
        own = made.get("backbone") if isinstance(made, dict) else None
        check_features(file, facts["feature_space"], len(head.weights), own)
        classes = facts["class_names"] if labeled else None
        x, y = new_rows(rows, file, classes)
        return head, facts, x, y


def check_layout(layout: str | None, path: Path) -> None:
    """Raise ValueError for a folder layout if the rows come from a features file."""
    if layout is not None:
        raise ValueError(
            f"--layout describes folders of image files, got {layout=} for {path}. "
            "Drop it."
        )


def row_names(features: Path, split: str | None) -> list[str] | None:
    """Return the private names of a split's rows, or None if their table is missing.

    Extraction writes the table beside the features file.
    """
    with open_features(features) as file:
        names = read_names(features, file.n_rows)
        slots = split_slots(file, split)
    return None if names is None else [names[slot] for slot in slots]


@dataclass(frozen=True)
class Images:
    """Describe images to classify with a head.

    Attributes
    ----------
    source : Path
        Source of the images.
    split : str or None
        Split of the source.
    layout : str or None
        Meaning of folder levels.
    labeled : bool
        Whether labels of the head's classes are read.
    weights : Path or None
        Local weights file of the backbone.
    device : str
        Device of the backbone.
    """

    source: Path
    split: str | None = None
    layout: str | None = None
    labeled: bool = False
    weights: Path | None = None
    device: str = "auto"


def extract_like(
    run: Path,
    images: Images,
    output: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Turn images into features with the backbone and settings of a run's head.

    The run folder records the backbone and its settings.

    Returns
    -------
    Path
        `output`.

    Raises
    ------
    ValueError
        If the images are missing, or the head does not record its extraction.
    """
    from dphead_extract.normalization import RowNorm
    from dphead_extract.run import ExtractOptions, extract
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.opening import tell_left_out

    _, facts = load_head(run)
    if not images.source.exists():
        raise ValueError(
            f"images or a features file must exist, got {images.source}. Check the "
            "path."
        )
    with explain_damage("a head's extraction", run):
        made = facts["extraction"]
        network = backbone_options(made, images.weights)
        kind = made["normalization"]["kind"]
        normalize = RowNorm(kind, made["normalization"].get("groups", 0))
    names = facts["class_names"] if images.labeled else None
    options = ExtractOptions(
        images.source,
        output,
        network,
        classes=Classes(names, False, not images.labeled, allow_unlabeled=True),
        split=images.split,
        layout=images.layout,
        normalize=normalize,
        device=images.device,
        skip_unreadable=True,  # an unreadable image gets no class
        check=False,
    )
    tell_left_out(extract(options, progress).left_out)
    return output


def backbone_options(facts: dict[str, Any], weights: Path | None) -> Any:
    """Return the `BackboneOptions` recorded in an `extraction`.

    The options include the image transform.

    Raises
    ------
    ValueError
        If the head's features were not extracted from images.
    """
    from dphead_extract.backbones.base import BackboneOptions
    from dphead_extract.backbones.registry import family_of
    from dphead_extract.images import PixelRange

    name = facts["backbone"]
    arguments = dict(facts["backbone_kwargs"])
    t = dict(facts["transform"])
    if not made_of_images(facts):
        raise ValueError(
            f"this head was not trained on extracted images, got backbone={name!r}. "
            "Pass a features file instead of images."
        )
    own = family_of(name).recorded(arguments, t)
    if weights is not None and "weights" in family_of(name).takes:
        own["weights"] = weights
    mean, std = (None if t[k] is None else tuple(t[k]) for k in ("mean", "std"))
    # without interpolation, images must have the size of the training images
    interpolation = t["interpolation"] or "none"
    return BackboneOptions(
        name,
        mean=mean,
        std=std,
        interpolation=interpolation,
        mirror=t.get("mirror", False),
        axes=t.get("axes"),
        pixels=PixelRange.of(t),
        **own,
    )
