"""Check that one fit may choose among several backbones, and report the choice.

All features files must hold the same images in the same order. Otherwise one image
counts more than once, and the charge is wrong. Errors do not show private differences
between the files.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from dphead_extract.features.format import FeaturesFile

from dphead.fit.files import SourceFacts
from dphead.fit.options import FitOptions
from dphead.solvers.backbones import BackboneSelection
from dphead.solvers.base import Solver
from dphead.solvers.head import LinearHead

# private columns that identify a row; features and their validity may differ
_SAME = ("row_digest", "split", "group", "labels")


def check_selection_options(options: FitOptions) -> None:
    """Raise ValueError for options that do not support several backbones."""
    if not options.backbones:
        return
    if options.method != "auto":
        raise ValueError(
            f"--backbones needs --method auto, got method={options.method!r}. Fit a "
            "head on each backbone instead."
        )
    given = {
        "--preset": options.preset,
        "--group-mean": options.group_mean or None,
        "--prior": options.settings.get("prior"),
        "--test": options.test,
        "--coordinator": options.processes,
    }
    for name, value in given.items():
        if value is not None:
            todo = "Use --test-split instead" if name == "--test" else f"Drop {name}"
            raise ValueError(
                f"--backbones cannot be combined with {name}, got {value}. {todo}."
            )


def check_same_images(files: Sequence[tuple[FeaturesFile, list[str]]]) -> None:
    """Raise ValueError unless all files hold the same images in the same order.

    Classes, labels, splits and groups must match too, and the backbones must differ.
    Images are compared by digests, which files share if they were extracted with
    --same-data-as.

    Parameters
    ----------
    files : sequence of (FeaturesFile, list of str)
        The files, each with its public class names.
    """
    first, classes = files[0]
    spaces = [file.feature_space for file, _ in files]
    if len(set(spaces)) < len(spaces):
        raise ValueError(
            "--backbones needs different backbones or settings, got "
            f"{', '.join(str(file.path) for file, _ in files)} with two equal ones. "
            "Drop one of the files."
        )
    for file, names in files[1:]:
        if file.dataset_id != first.dataset_id:
            raise _others(file, "another data set's id")
        if names != classes:
            raise _others(file, f"other classes ({names[:5]} for {classes[:5]})")
        if file.split_names != first.split_names:
            raise _others(file, f"other splits ({file.split_names})")
        if not all(_equal(file, first, column) for column in _SAME):
            raise _others(file, "other images, labels, splits, groups or order")


def _equal(one: FeaturesFile, other: FeaturesFile, column: str) -> bool:
    own, theirs = getattr(one, column), getattr(other, column)
    if own is None or theirs is None:
        return own is theirs
    return np.array_equal(own, theirs)


def _others(file: FeaturesFile, what: str) -> ValueError:
    return ValueError(
        f"--backbones needs the same images in the same order, got {file.path} with "
        f"{what}. Extract it from the same source, with --same-data-as the first file."
    )


def selected(head: LinearHead) -> int:
    """Return the index of the backbone that a head uses."""
    return 0 if head.selection is None else head.selection.chosen


def selection_of(
    sources: Sequence[SourceFacts], solver: Solver, head: LinearHead
) -> dict[str, Any] | None:
    """Return the report's entry for a choice among backbones, or None.

    `sources` describes the backbones, in the solver's order.
    """
    if head.selection is None or not isinstance(solver, BackboneSelection):
        return None
    networks = [
        {
            "backbone": source.extraction["backbone"],
            "feature_space": source.feature_space,
            "n_features": source.n_features,
            "trial_accuracy": asdict(trial),
            "extraction": source.extraction,
        }
        for source, trial in zip(sources, head.selection.trials, strict=True)
    ]
    return {
        "chosen": head.selection.chosen,
        "share_of_mu2": solver.trials_share,
        "networks": networks,
    }
