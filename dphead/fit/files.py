"""Use features files and images with a head: classes, rows to measure or predict on.

Images are turned into the head's own features first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dphead_extract.features.disk import read_names
from dphead_extract.features.format import FeaturesFile, open_features
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


def is_features_file(path: Path) -> bool:
    """Return whether a path is a features file, by its first bytes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def class_names(file: FeaturesFile, given: tuple[str, ...] | None) -> list[str]:
    """Return the public classes: those of the file, or those given.

    They are never read off the labels.

    Raises
    ------
    ValueError
        If the given classes differ from the file's, or there are not two distinct
        classes.
    """
    if file.class_names and given and list(given) != file.class_names:
        raise ValueError(
            f"--classes must equal the file's, got {list(given)[:5]}. The file says "
            f"{file.class_names[:5]}."
        )
    classes = (
        list(given or ()) or (file.class_names if file.classes_public else None) or []
    )
    if len(set(classes)) < max(2, len(classes)):
        raise ValueError(
            "a fit needs at least two public classes, distinct, got "
            f"classes={classes}. Give them with --classes."
        )
    check_classes(file, classes)
    return classes


def classes_declared(file: FeaturesFile) -> str:
    """Return who declared the classes public.

    It is the file ("classes-flag", "folder-names-flag") or the fit ("fit-flag").
    """
    return file.classes_declared or "fit-flag"


def extraction(file: FeaturesFile) -> dict[str, Any]:
    """Return what `dphead predict` needs to turn images into the same features.

    "views" is the number of views of each training row.
    """
    keys = (
        "backbone",
        "backbone_kwargs",
        "weights_sha256",
        "transform",
        "normalization",
        "library_versions",
    )
    return {k: file.config[k] for k in keys} | {"views": file.views}


def check_features(
    file: FeaturesFile, feature_space: str, n_features: int, own: str | None = None
) -> None:
    """Raise ValueError unless a file has a head's feature space and width.

    `own` is the head's backbone, named in the error. A head of arrays has the feature
    space "": only its width can be compared.
    """
    theirs = f"{file.config['backbone']}, {file.n_features} columns"
    ours = f"{n_features} columns" if own is None else f"{own}, {n_features} columns"
    other = feature_space not in ("", file.feature_space)
    if other or file.n_features != n_features:
        raise ValueError(
            "features must have the width of the head's own network and settings "
            f"({ours}), got features={file.path} ({theirs}). Extract them alike."
        )


def check_labels(
    file: FeaturesFile, labels: np.ndarray, classes: list[str], path: Path
) -> None:
    """Raise ValueError unless rows to measure on have the head's classes and a label.

    At least one row must have a label of these classes.
    """
    check_classes(file, classes)
    if not np.any((labels >= 0) & (labels < len(classes))):
        raise ValueError(
            f"rows to measure on need labels of the classes, got none in {path}. "
            "Extract them with labels."
        )


def test_origin(same_data: bool, split: str, test_split: str) -> str:
    """Return where test rows come from.

    Parameters
    ----------
    same_data : bool
        Whether training and test rows are of one data set.
    split, test_split : str
        Splits of the data. "all" if the data have one split alone or are taken whole.

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
            "test rows that are declared public must not be training rows, whose "
            f"exact accuracy the report would hold, got {test_is=} and the rows of the "
            "fit. Name other rows, or leave --test-is out: then the figures are on "
            "your screen alone."
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

    `classes` are the head's, for rows that are measured: they must be the file's too.
    """
    labels = rows.measured_labels()
    if classes is not None:
        check_labels(file, labels, classes, file.path)
    return NewRows(rows.measured_features(), labels)


def open_matching(
    run: Path, features: Path, split: str | None, labelled: bool = False
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
    labelled : bool, default False
        Whether the rows are measured. They must then have labels of the head's classes.

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
        classes = facts["class_names"] if labelled else None
        x, y = new_rows(rows, file, classes)
        return head, facts, x, y


def check_layout(layout: str | None, path: Path) -> None:
    """Raise ValueError for a folder layout if the rows come from a features file."""
    if layout is not None:
        raise ValueError(
            f"a layout says what folders of image files are, got {layout=} for {path}. "
            "Leave it out."
        )


def row_names(features: Path, split: str | None) -> list[str] | None:
    """Return the private names of a split's rows, or None if their table is missing.

    An extraction wrote the table beside the features file.
    """
    with open_features(features) as file:
        names = read_names(features, file.n_rows)
        slots = split_slots(file, split)
    return None if names is None else [names[slot] for slot in slots]


@dataclass(frozen=True)
class Images:
    """Describe images for a head: their source, and how they become features.

    Attributes
    ----------
    source : Path
        Where the images are.
    split : str or None
        Which of them.
    layout : str or None
        How folders of image files are read.
    labelled : bool
        Whether labels of the head's classes are read.
    weights : Path or None
        The backbone's weights, if they are not the hub's.
    device : str
        Where the backbone runs.
    """

    source: Path
    split: str | None = None
    layout: str | None = None
    labelled: bool = False
    weights: Path | None = None
    device: str = "auto"


def extract_like(
    run: Path,
    images: Images,
    output: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Turn images into a features file as the head in `run` needs it.

    The backbone and its settings are those of the head's own features.

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
    names = facts["class_names"] if images.labelled else None
    options = ExtractOptions(
        images.source,
        output,
        network,
        classes=Classes(names, False, not images.labelled, allow_unlabelled=True),
        split=images.split,
        layout=images.layout,
        normalize=normalize,
        device=images.device,
        skip_unreadable=True,  # such an image has no class
        check=False,
    )
    tell_left_out(extract(options, progress).left_out)
    return output


def backbone_options(facts: dict[str, Any], weights: Path | None) -> Any:
    """Return the `BackboneOptions` of the backbone that an `extraction` records.

    They include the image transform.

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
            "images need a head of features that were extracted from images, got "
            f"backbone={name!r}. Give a features file, written as the head's own was."
        )
    own = family_of(name).recorded(arguments, t)
    if weights is not None and "weights" in family_of(name).takes:
        own["weights"] = weights
    mean, std = (None if t[k] is None else tuple(t[k]) for k in ("mean", "std"))
    # without interpolation the images were taken at their size, and must have it
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
