"""Several networks' features of the same images: what must hold before one fit may
choose among them, and what its report says of the choice.

One image must be one slot of all files: else it would count more than once, and no
charge would hold. What differs between files is private, and is not said.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dphead.runs.custody import Source
from dphead.runs.options import FitOptions
from dphead.solvers.backbones import BackboneSelection
from dphead.solvers.base import Solver
from dphead.solvers.head import LinearHead
from extract.format import FeaturesFile

# private columns that say whose row a slot is; features and their validity may differ
SAME = ("row_digest", "split", "group", "labels")


def check_options(options: FitOptions) -> None:
    """ValueError for what a choice among networks does not go with."""
    if not options.backbones:
        return
    without = {
        "method": (options.method, "auto", "Fit the networks apart"),
        "preset": (options.preset, None, "Leave it out"),
        "prior": (options.settings.get("prior"), None, "It is of one network's"),
        "test": (options.test, None, "Use --test-split, or dphead evaluate afterwards"),
        "processes": (options.processes, None, "Use one process"),
    }
    for name, (given, needed, todo) in without.items():
        if given != needed:
            raise ValueError(
                f"a choice among networks (backbones) needs {name}={needed}, got "
                f"{name}={given}. {todo}."
            )


def check_same_images(files: Sequence[tuple[FeaturesFile, list[str]]]) -> None:
    """ValueError unless all files are of one data set's images, in the same order, with
    the same classes, labels, splits and groups, each by another network.

    files: each with its public class names. Images are compared by their digests, which
    files have in common that were extracted with --same-data-as.
    """
    first, classes = files[0]
    spaces = [file.feature_space for file, _ in files]
    if len(set(spaces)) < len(spaces):
        raise ValueError(
            "networks to choose among must differ, in themselves or their settings, "
            f"got two files of one ({_names(files)}). Leave one out."
        )
    for file, names in files[1:]:
        if file.dataset_id != first.dataset_id:
            raise _others(file, "another data set's id")
        if names != classes:
            raise _others(file, f"other classes ({names[:5]} for {classes[:5]})")
        if file.split_names != first.split_names:
            raise _others(file, f"other splits ({file.split_names})")
        if not all(_equal(file, first, column) for column in SAME):
            raise _others(file, "other images, labels, splits or groups, or an order")


def _equal(one: FeaturesFile, other: FeaturesFile, column: str) -> bool:
    own, theirs = getattr(one, column), getattr(other, column)
    if own is None or theirs is None:
        return own is theirs
    return np.array_equal(own, theirs)


def _others(file: FeaturesFile, what: str) -> ValueError:
    return ValueError(
        "files to choose among must be of the same images in the same order, got "
        f"backbones={file.path} with {what}. Extract it from the same source, with "
        "--same-data-as the first."
    )


def _names(files: Sequence[tuple[FeaturesFile, list[str]]]) -> str:
    return ", ".join(str(file.path) for file, _ in files)


def selected(head: LinearHead) -> int:
    """Which network's features a head is of."""
    return 0 if head.selection is None else head.selection.chosen


def selection_of(
    sources: Sequence[Source], solver: Solver, head: LinearHead
) -> dict[str, Any] | None:
    """What a report says of a choice, from its releases: None where there was none.

    sources: of the networks, in the order of the solver's.
    """
    if head.selection is None or not isinstance(solver, BackboneSelection):
        return None
    networks = [
        {
            "backbone": source.extraction["backbone"],
            "feature_space": source.feature_space,
            "n_features": source.n_features,
            "trial_accuracy": asdict(trial),
        }
        for source, trial in zip(sources, head.selection.trials, strict=True)
    ]
    return {
        "chosen": head.selection.chosen,
        "share_of_mu2": solver.trials_share,
        "networks": networks,
    }
