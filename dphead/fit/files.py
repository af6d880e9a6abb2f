"""Describe features files for fits, and match files and images with a head.

To predict or to measure, images are first turned into the head's features.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
from dphead_extract.features.disk import read_names
from dphead_extract.features.format import FeaturesFile, open_features
from dphead_extract.features.rows import Header
from dphead_extract.features.seal import MAGIC
from dphead_extract.items import UNGROUPED, name_of
from dphead_extract.sources.columns import Columns

from dphead.analysis.protected import made_of_images, parts_of
from dphead.analysis.sealed import explain_damage
from dphead.data.features import (
    FeaturesRows,
    check_classes,
    load_features,
    split_slots,
)
from dphead.fit.head_file import open_head
from dphead.fit.known_weights import known_weights
from dphead.fit.ledgers import (
    RowGroups,
    counted_in,
    declared_people,
    images_known_in,
    known_images,
)
from dphead.fit.options import RunOptions
from dphead.solvers.head import LinearHead

# keys of an `extraction` that describe how rows were made
_MADE_BY = (
    "backbone",
    "backbone_kwargs",
    "weights_sha256",
    "transform",
    "normalization",
    "library_versions",
)
# value of `SourceFacts.classes_declared` if the fit declared the classes
DECLARED_IN_FIT = "fit-flag"


def is_features_file(path: Path) -> bool:
    """Return whether a path is a features file, judged by its first bytes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def class_names(file: FeaturesFile, given: tuple[str, ...] | None) -> list[str]:
    """Return the given classes, or else the file's public ones.

    Classes are never inferred from the labels.

    Raises
    ------
    ValueError
        If the given classes differ from the file's, if there are fewer than two, if two
        are equal, or if the labels are not indices of them (`check_classes`).
    """
    classes = [name_of(name) or "" for name in given or ()]
    own = [name_of(name) or "" for name in file.class_names or ()]
    if own and classes and classes != own:
        raise ValueError(
            f"--classes does not list the file's classes, {','.join(own[:5])}"
            f"{',...' if len(own) > 5 else ''}, in this order. "
            f"{'Drop --classes.' if file.classes_public else 'Type these classes.'}"
        )
    classes = classes or (file.class_names if file.classes_public else None) or []
    if len(set(classes)) < max(2, len(classes)):
        raise ValueError(
            "--classes must name at least two public classes, and each class once, "
            f"got {','.join(classes) or 'none'}. Name all classes, such as --classes "
            "cat,dog."
        )
    check_classes(file, classes)
    return classes


def extraction_of(file: FeaturesFile) -> dict[str, Any]:
    """Return the settings that `dphead predict` needs to extract the same features.

    "attested" is True if the data holder attests how imported rows were made.
    "local_weights" is True if the weights are not those of a hub.
    """
    made = {key: file.config[key] for key in _MADE_BY}
    more = ("attested", "local_weights")
    return made | {key: True for key in more if file.config.get(key)}


def rows_digest(file: FeaturesFile) -> str:
    """Return a digest that identifies a file's rows, for a resume (`About.rows`).

    The digest covers the file's random salt and its configuration, so nobody without
    the file can use it to test whether a row is in the file.
    """
    text = f"{file.salt} {file.config_hash}"
    return hashlib.sha256(text.encode()).hexdigest()


def file_facts(file: FeaturesFile) -> dict[str, str]:
    """Return sizes and digests that all processes' features files must share.

    Every column is compared, by the digests of the file's blocks.
    """
    return {
        "n_features": f"{file.n_features} {file.dtype}",
        "dataset_id": file.dataset_id,
        "config": file.config_hash,
        "features": hashlib.sha256(file.block_digest.tobytes()).hexdigest(),
    }


@dataclass(frozen=True)
class SourceFacts:
    """Describe a run's source by public values.

    Attributes
    ----------
    n_features : int
        Number of values in a row.
    class_names : list of str
        The public classes.
    dataset_id : str or None
        The id of the data set whose ledger counts the rows. None for arrays, and for
        images without an id.
    feature_space : str
        Description of the features, or "" for arrays. A head with a description accepts
        only files with the same one.
    classes_declared : str
        How the classes were declared public: "classes-flag" or "folder-names-flag" at
        the extraction, or "fit-flag".
    extraction : dict
        Settings of the feature extraction, as `dphead predict` needs them.
    grouped : bool
        Whether the source has a group column.
    people : dict or None
        The declared id system of the groups (`declared_people`), or None.
    image_index : str or None
        The public id of the index entry that has the images of all rows
        (`images_known_in`).
    """

    n_features: int
    class_names: list[str]
    dataset_id: str | None
    feature_space: str
    classes_declared: str
    extraction: dict[str, Any]
    grouped: bool
    people: dict[str, Any] | None = None
    image_index: str | None = None


def source_of(file: FeaturesFile, classes: list[str]) -> SourceFacts:
    """Describe a features file by public values, with its public classes.

    Raises LedgerError and ExtractError as `declared_people` does.
    """
    return SourceFacts(
        n_features=file.n_features,
        class_names=classes,
        dataset_id=counted_in(file.dataset_id),
        feature_space=file.feature_space,
        classes_declared=file.classes_declared or DECLARED_IN_FIT,
        extraction=extraction_of(file),
        grouped=file.group is not None,
        people=declared_people(RowGroups.of(file)),
        image_index=images_known_in(file),
    )


def source_of_arrays(n_features: int, classes: list[str]) -> SourceFacts:
    """Describe an array source of unknown extraction."""
    unknown = Header(n_rows=1, n_features=1)
    made = {key: getattr(unknown, key) for key in _MADE_BY}
    return SourceFacts(n_features, classes, None, "", DECLARED_IN_FIT, made, False)


def check_selection(
    file: FeaturesFile, relation: str, group_cap: int | None = None
) -> None:
    """Raise ValueError if one row or group may change which other rows were chosen.

    A choice by positions shifts if a row is added or removed, or if a group is replaced
    by a larger one. If a row is replaced, a row of a different split can leave the
    first N rows or a shard, which changes the public sizes of the splits. In these
    cases, a file that does not record the choice is refused too. Other files are
    accepted (proofs/sensitivity.md).
    """
    of_rows = relation == "replace_one" and group_cap is None
    if relation == "zero_out" or (of_rows and len(file.split_names) == 1):
        return
    config, holdout = file.config, file.holdout
    chosen = {
        "--limit": config.get("limit") is not None,
        "--shard": "shard" in config,
        # a row without a name is replaced at its position
        "--test-fraction": not of_rows and holdout.get("positions", bool(holdout)),
    }
    by = [option for option, used in chosen.items() if used]
    if not by and "limit" in config:
        return
    with_groups = " with --group-cap" if relation != "add_remove" and group_cap else ""
    why = "an earlier version of dphead did not record how it chose the rows"
    todo = (
        "repeat the command that wrote the file, with another -o and with --dataset-id "
        f"{file.dataset_id}"
    )
    if by:
        unit = "group" if with_groups else "row"
        change = f"{unit} is {'removed' if relation == 'add_remove' else 'replaced'}"
        why = f"{by[0]} chose its rows by positions, which change if a {change}"
        todo = _WITHOUT_POSITIONS[by[0]]
    raise ValueError(
        f"--relation {relation}{with_groups} cannot be used with {file.path}: {why}. "
        f"Use --relation zero_out, or {todo}."
    )


_WITHOUT_POSITIONS = {
    "--limit": "extract all images, without --limit",
    "--shard": "join all shards by `dphead features join`",
    "--test-fraction": "give the splits in a column of the table",
}


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
            f"{file.path} has different features ({theirs}) from the head's ({ours}). "
            "Make the file with the head's backbone, with the same settings."
        )


def check_labels(
    file: FeaturesFile, labels: np.ndarray, classes: list[str], path: Path
) -> None:
    """Raise ValueError if a file cannot measure a head.

    The file must have the head's classes, and one of `labels` must be a class.
    """
    check_classes(file, classes)
    if not np.any((labels >= 0) & (labels < len(classes))):
        raise ValueError(
            f"{path} has no labels of the head's classes. Use a source with labels, or "
            "use `dphead predict`, which needs no labels."
        )


@dataclass(frozen=True, kw_only=True)
class SplitRows:
    """Hold what `test_origin` compares of training rows and test rows.

    Attributes
    ----------
    source : SourceFacts
        Public description of the source. Test images have no data set id. They belong
        to the training rows' data set only if they are in the same file.
    split : str
        Their split. "all" is the whole data set. Splits of two files may overlap,
        because two tables or two values of --test-fraction can split the same images.
    groups : (n,) int64 or None
        Group id of each row; None without groups. Private.
    images : ndarray or None
        Digests of their images, (n,) or (n, forms). For test rows of another features
        file, of the images of its data set that the index knows. Private.
    holdout : dict
        How --test-fraction split the features file; {} without --test-fraction.
    """

    source: SourceFacts
    split: str
    groups: np.ndarray | None = None
    images: np.ndarray | None = None
    holdout: dict[str, Any] = field(default_factory=dict)


def test_origin(
    options: RunOptions, group_cap: int | None, train: SplitRows, test: SplitRows
) -> str:
    """Return where test rows come from.

    The data holder is told of test rows that are known to be of training people, to be
    copies of training rows, or to be images of the training data set. Groups of one
    file are compared, and groups of one declared id system. No origin depends on a
    group or an image.

    Parameters
    ----------
    options : RunOptions
        The files, and whether the test rows are public.
    group_cap : int or None
        The group cap; None if the fit protects rows.
    train, test : SplitRows
        The training rows and the test rows.

    Returns
    -------
    str
        "training rows" (if some may be), "another split", "other groups" or "another
        data set".

    Raises
    ------
    ValueError
        If exact figures on the training rows would be published, on known images of
        their data set, or on rows of groups that the fit protects. The last two errors
        depend on private ids and images, so they are for the data holder only.
    """
    same_file = _is_one_file(options)
    data_set, own = test.source.dataset_id, train.source.dataset_id
    splits = {train.split, test.split}
    origin = "training rows"
    if not (same_file if data_set is None else data_set == own):
        origin = "another data set"
    elif same_file and len(splits) == 2 and "all" not in splits:
        by_group = test.holdout.get("by") == "group"
        origin = "other groups" if by_group else "another split"
    public = options.test_is == "public"
    if public and origin == "training rows":
        raise ValueError(
            "--test-is public needs test rows that cannot be training rows, because "
            "the report publishes the exact accuracy on them. Test on a different "
            "split of the training file (after --test-fraction, `test`) or on a data "
            "set with a different ledger. Or drop --test-is to see the accuracy on "
            "your screen only."
        )
    another = origin == "another data set"
    shared = _shared_images(train, test, same_file)
    if shared and another and public:
        raise ValueError(
            "--test-is public needs test images that cannot be training images, and "
            f"{shared:,} images of the test data set are in the training data set. "
            "Remove these images from the test source and extract it again. Or drop "
            "--test-is to see the accuracy on your screen only."
        )
    known = _rows_of_training_groups(train, test, same_file)
    if known and public and group_cap is not None:
        raise ValueError(
            "--test-is public with --group-cap needs test rows of other groups, "
            "because the report publishes the exact accuracy on them. The groups of "
            f"{known:,} test rows have training rows too. Put each group into one "
            "split, such as with --test-fraction 0.2:groups of `dphead extract`. Or "
            "drop --test-is to see the accuracy on your screen only."
        )
    doubts = []
    if shared and another:
        doubts += [
            f"{shared:,} images of the test data set are in the training data set, so "
            "some may be training images"
        ]
    elif shared and origin != "training rows":
        doubts += [
            f"{shared:,} test rows are equal to training rows. If they are copies, the "
            "test accuracy is not one of new rows"
        ]
    if known:
        doubts += [
            f"the groups of {known:,} test rows have training rows too, so the test "
            "accuracy is not one of new people"
        ]
    if doubts:
        from dphead_extract.sources.opening import tell_doubts

        tell_doubts(doubts)
    return origin


def images_of_test(
    options: RunOptions, rows: FeaturesRows, file: FeaturesFile
) -> np.ndarray | None:
    """Return the images that `SplitRows` holds for test rows of a features file."""
    if _is_one_file(options):
        return rows.image_digests()
    return known_images(file.dataset_id)


def _is_one_file(options: RunOptions) -> bool:
    return options.test is None or options.test.samefile(options.features)


def _shared_images(train: SplitRows, test: SplitRows, same_file: bool) -> int:
    """Return how many test images are known to be training images. Private.

    Of two sources, they are compared with all known images of the training data set.
    """
    if test.images is None or not len(test.images):
        return 0
    own = train.source.dataset_id
    known = [known_images(own, every_form=True)] if own and not same_file else []
    known += [] if train.images is None else [train.images.ravel()]
    if not known:
        return 0
    found = np.isin(test.images, np.concatenate(known))
    return int(found.reshape(len(found), -1).any(axis=1).sum())


def _rows_of_training_groups(train: SplitRows, test: SplitRows, same_file: bool) -> int:
    """Return how many test rows have the group of a training row. Private.

    Ids of two files are compared only if one id system was declared for both. Otherwise
    the result is 0.
    """
    if train.groups is None or test.groups is None:
        return 0
    if not same_file:
        # --people of `finetune` is for all its images. Images have no data set id.
        images = test.source.dataset_id is None
        people = train.source.people, (train if images else test).source.people
        systems = {(one or {}).get("system") for one in people}
        if len(systems) == 2 or None in systems:
            return 0
    grouped = test.groups != UNGROUPED
    return int(np.sum(grouped & np.isin(test.groups, train.groups)))


def measured_rows(
    rows: FeaturesRows, file: FeaturesFile, classes: list[str] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return what is needed of rows to predict or to measure on.

    Parameters
    ----------
    rows : FeaturesRows
        The rows.
    file : FeaturesFile
        Their open file.
    classes : list of str or None
        The head's classes, if rows are measured. The file's classes must equal them.

    Returns
    -------
    (n, n_features) float
        Features; NaN for rows that are not valid, such as unreadable images.
    (n,) int
        Class indices.
    (n,) int or None
        Group ids; None without groups.
    """
    labels = rows.measured_labels()
    if classes is not None:
        check_labels(file, labels, classes, file.path)
    return rows.measured_features(), labels, rows.groups


def open_matching(
    run: Path, features: Path, split: str | None, labeled: bool = False
) -> tuple[LinearHead, dict[str, Any], np.ndarray, np.ndarray, np.ndarray | None]:
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
        The contents of head.json.
    (n, n_features) float
        The rows' features.
    (n,) int
        The rows' class indices.
    (n,) int or None
        The rows' group ids; None without groups.

    Raises
    ------
    ValueError
        If the folder holds no finished run with a head. If the file does not match the
        head, or has no labels of its classes although `labeled` is True.
    """
    head, facts = open_head(run)
    rows, file = load_features(features, split, memory=0)
    with file:
        made = facts.get("extraction")
        own = made.get("backbone") if isinstance(made, dict) else None
        check_features(file, facts["feature_space"], head.n_features, own)
        classes = facts["class_names"] if labeled else None
        return head, facts, *measured_rows(rows, file, classes)


def check_layout(path: Path, layout: str | None, columns: Columns) -> None:
    """Raise ValueError if a layout or columns are given for a features file."""
    if columns.declared:
        raise ValueError(
            f"--columns is for tables, and {path} is a features file. Drop --columns."
        )
    if layout is not None:
        raise ValueError(
            f"--layout is for folders of images, and {path} is a features file. Drop "
            "--layout."
        )


_OF_DATA_SETS = ("same_data_as", "dataset_id", "new_data_set")
_OF_IMAGES = ("bits", "intensity", "image_size", "mean", "std", "people", "new_people")
_OF_LABELS = ("folder_names_are_public", "allow_unlabeled")


def check_kind(options: Any, path: Path) -> None:
    """Raise ValueError if an option of `finetune` is for a different kind of source.

    For example, a features file has its own data set, so no option names one.
    """
    kinds, names = ("features files", "has images"), ("shape",)
    if is_features_file(path):
        kinds = "images", "is a features file"
        names = *_OF_IMAGES, *_OF_DATA_SETS, *_OF_LABELS
    labels = options.classes.folder_names_public, options.classes.allow_unlabeled
    given = vars(options) | dict(zip(_OF_LABELS, labels, strict=True))
    for name in names:
        if (value := given[name]) is None or value is False:
            continue
        option = f"--{name.replace('_', '-')}"
        todo = f"Drop {option}"
        if name in _OF_DATA_SETS:
            todo = f"Write the file again with {option}, and use the new file"
        if name == "people":
            todo = f"Type dphead ledger people {value} {path}"
        raise ValueError(f"{option} is for {kinds[0]}, and {path} {kinds[1]}. {todo}.")


def row_names(features: Path, split: str | None) -> list[str] | None:
    """Return the private names of a split's rows, or None if their table is missing.

    Extraction writes the table beside the features file.
    """
    with open_features(features) as file:
        names = read_names(features, file.n_rows)
        slots = split_slots(file, split)
    return None if names is None else [names[slot] for slot in slots]


def extract_like(
    run: Path,
    source: Path,
    output: Path,
    labeled: bool,
    weights: Sequence[Path] = (),
    progress: Callable[[int, int, str], None] | None = None,
    **reading: Any,
) -> None:
    """Turn images into features with the backbones and settings of a run's head.

    The run folder records each backbone and its settings.

    Parameters
    ----------
    run : Path
        The run folder.
    source : Path
        Source of the images.
    output : Path
        The features file to write.
    labeled : bool
        Whether labels of the head's classes are read.
    weights : sequence of Path, optional
        Local weights file of each backbone that has weights, in the head's order. By
        default, weights of the hub, or local weights that this machine knows.
    progress : callable, optional
        Called with (images done, images in all, label).
    **reading
        `split`, `layout`, `columns` and `device`, as in `ExtractOptions`.

    Raises
    ------
    ValueError
        If the head does not record an extraction from images. If `weights` is given,
        but does not have one file for each backbone with weights. If the source cannot
        be extracted.
    """
    from dphead_extract.features.concatenation import concatenate
    from dphead_extract.normalization import RowNorm
    from dphead_extract.run import ExtractOptions, extract
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.listing import SUFFIXES
    from dphead_extract.sources.opening import tell_doubts, tell_left_out

    if source.is_file() and source.suffix.lower() in SUFFIXES:
        folder = output.with_name("image")  # a folder with this image only
        folder.mkdir()
        copyfile(source, folder / source.name)
        source = folder
    _, facts = open_head(run)
    names = facts["class_names"] if labeled else None
    with explain_damage("record of the extraction", run):
        parts = parts_of(facts["extraction"])
        files = [output]
        if len(parts) > 1:
            files = [output.with_stem(f"{output.stem}-{k}") for k in range(len(parts))]
        options = [
            ExtractOptions(
                source,
                file,
                network,
                classes=Classes(names, False, not labeled, allow_unlabeled=True),
                normalize=RowNorm(
                    part["normalization"]["kind"],
                    part["normalization"].get("groups", 0),
                ),
                skip_unreadable=True,  # an unreadable image gets no class
                check=False,
                **reading,
            )
            for part, file, network in zip(
                parts, files, _networks(parts, weights), strict=True
            )
        ]
    done = extract(options[0], progress, beside=options[1:])
    tell_left_out(done.left_out)
    tell_doubts(done.problems)
    if len(files) > 1:
        concatenate(files, output)


def _networks(parts: list[dict[str, Any]], weights: Sequence[Path]) -> list[Any]:
    """Return the `BackboneOptions` of each backbone, with its file of weights."""
    from dphead_extract.backbones.families import traits_of

    takes = ["weights" in traits_of(part["backbone"]).takes for part in parts]
    names = [p["backbone"] for p, take in zip(parts, takes, strict=True) if take]
    if weights and len(weights) != len(names):
        todo = "Pass one --weights FILE for each, in this order."
        raise ValueError(
            "--weights must be given once for each backbone with weights, got "
            f"{len(weights)} for {', '.join(names) or 'no backbone'}. "
            f"{todo if names else 'Drop --weights.'}"
        )
    files = iter(weights)
    return [
        backbone_options(part, next(files, None) if take else None)
        for part, take in zip(parts, takes, strict=True)
    ]


def import_like(
    run: Path, source: Path, output: Path, labeled: bool, columns: Columns
) -> str:
    """Write embeddings to a features file for the head of a run.

    The file cannot name the embedding model, so the head's model is assumed.

    Parameters
    ----------
    run : Path
        The run folder.
    source : Path
        A file of embeddings that `dphead features import` reads.
    output : Path
        The features file to write.
    labeled : bool
        Whether labels of the head's classes are read.
    columns : Columns
        Roles of the columns.

    Returns
    -------
    str
        The name of the head's model.

    Raises
    ------
    ValueError
        If the file of embeddings is unusable, or does not have the head's width.
    """
    from dphead_extract.importing import ImportOptions, import_features
    from dphead_extract.sources.classes import Classes
    from dphead_extract.sources.schema import Schema

    head, facts = open_head(run)
    with explain_damage("record of the extraction", run):
        backbone = facts["extraction"]["backbone"]
        declared = facts["extraction"].get("transform", {}).get("schema")
        schema = None if declared is None else Schema.of(declared)
    names = facts["class_names"] if labeled else None
    classes = Classes(names, False, not labeled, allow_unlabeled=True)
    if schema is None:
        columns = replace(columns, width=head.n_features)
    made = {"backbone": backbone, "schema": schema}
    options = ImportOptions(source, output, columns, classes, **made)
    if (width := import_features(options).n_features) != head.n_features:
        raise ValueError(
            f"{source} has {width} columns, and the head needs {head.n_features}. "
            f"Pass embeddings from {backbone}."
        )
    return backbone


def backbone_options(facts: dict[str, Any], weights: Path | None) -> Any:
    """Return the `BackboneOptions` recorded in an `extraction`.

    The options include the image transform.

    Raises
    ------
    ValueError
        If the head's features were not extracted from images, or if `weights` is needed
        and missing.
    """
    from dphead_extract.backbones.base import BackboneOptions
    from dphead_extract.backbones.families import traits_of
    from dphead_extract.backbones.registry import family_of
    from dphead_extract.images import PixelRange

    name = facts["backbone"]
    arguments = dict(facts["backbone_kwargs"])
    t = dict(facts["transform"])
    if not made_of_images(facts):
        raise ValueError(
            f"The features of this head come from {name!r}, not from `dphead extract`, "
            "so the head cannot use images. Pass a features file."
        )
    own = family_of(name).recorded(arguments, t)
    if "weights" in traits_of(name).takes:
        digest = facts["weights_sha256"]
        own["weights"] = weights or known_weights(digest)
        if own["weights"] is None and facts.get("local_weights"):
            raise ValueError(
                f"--weights is required for {name}: the head's features were made with "
                f"local weights of sha256 {digest[:12]}. Type --weights FILE with them."
            )
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
