"""Open images or feature maps to train and measure a network."""

import hashlib
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.features.format import open_features
from dphead_extract.identity import check_images
from dphead_extract.index import ImageIndex, Overlap, recognized
from dphead_extract.people import People
from dphead_extract.sources.opening import open_source

from dphead.data.features import load_features
from dphead.finetune.images import Opened, load_images
from dphead.finetune.models import pixel_scale
from dphead.finetune.network import NetworkSpec
from dphead.finetune.options import FinetuneOptions, Scale
from dphead.finetune.rows import ImageRows, group_places
from dphead.fit import files
from dphead.fit.files import DECLARED_IN_FIT, SourceFacts, source_of_arrays
from dphead.fit.ledgers import (
    IN_MEMORY,
    RowGroups,
    counted_in,
    data_set_of,
    declared_people,
    image_index,
    people_index,
)
from dphead.fit.noted import has_home
from dphead.fit.run_folder import data_set_begun
from dphead.privacy.contract import Rows
from dphead.solvers.settings import typed
from dphead.sums.hosts import Hosts, bounds


@dataclass(frozen=True, kw_only=True)
class Data(files.SplitRows):
    """Hold the rows of one source, to train or to measure on.

    Attributes
    ----------
    rows : Rows
        The private rows. With several processes, sums read `own` instead.
    own : Rows
        The rows that this process sums.
    measured : Opened or None
        The rows to measure on; None for feature maps to train on.
    shape : tuple of int
        Shape of a row, such as (channels, h, w).
    pixels : bool
        Whether rows are 8-bit images, not feature maps.
    digests : ndarray or None
        Digests of images, for the index of known images.
    charged : RowGroups or None
        The groups that the charge compares; None without a data set.
    known : tuple of Overlap
        For a ledger in memory, the known data sets that have some of the images.
    facts : dict
        Values that must be equal on all processes (`agree`).
    digest : str
        Digest of the rows, as `About.rows`.
    """

    rows: Rows
    own: Rows
    measured: Opened | None
    shape: tuple[int, ...]
    pixels: bool
    digests: np.ndarray | None = None
    charged: RowGroups | None = None
    known: tuple[Overlap, ...] = ()
    facts: Mapping[str, str | list[str]] = field(default_factory=dict)
    digest: str = ""


def load_data(
    options: FinetuneOptions,
    path: Path,
    split: str | None,
    index: ImageIndex | None = None,
    hosts: Hosts | None = None,
    is_test: bool = False,
) -> Data:
    """Load images, or the feature maps of a features file, to train or to measure on.

    Each of several processes loads its own part. Process 0 loads all images, to compare
    them with known images. Images have no data set id yet (`identified`).
    """
    if not is_test:
        files.check_kind(options, path)
    if files.is_features_file(path):
        return _load_maps(options, path, split, hosts, is_test)
    cap = None if is_test else options.group_cap
    return _load_images(options, path, split, cap, index, hosts)


def _load_maps(
    options: FinetuneOptions,
    path: Path,
    split: str | None,
    hosts: Hosts | None,
    is_test: bool,
) -> Data:
    """Load a split of a features file, to train or to measure on."""
    files.check_layout(path, options.layout, options.columns)
    rows, file = load_features(path, split, memory=0)
    start, stop = (0, rows.n_rows) if hosts is None else hosts.part(rows.n_rows)
    with file:
        if not is_test:
            if options.group_cap is not None:
                raise ValueError(
                    f"--group-cap of a network needs images, and {path} is a features "
                    "file. Pass the images, or use `dphead fit --group-cap`."
                )
            files.check_selection(file, options.relation)
        shape = options.shape or (rows.n_features,)
        if math.prod(shape) != rows.n_features:
            raise ValueError(
                f"--shape must give {rows.n_features} numbers per row of {path}, got "
                f"{','.join(map(str, shape))}. Pass the shape of a row, such as "
                "CHANNELS,H,W."
            )
        given = tuple(options.classes.names or ()) or None
        own, measured, images = rows, None, rows.image_digests()
        if is_test:
            images = files.images_of_test(options, rows, file)
            x, y, groups = files.measured_rows(rows, file, None)
            measured = Opened(x, y, rows.valid, groups=groups)
        else:
            # load the rows, because the file is closed before the first step
            own = rows.part(start, stop, 4 * rows.n_rows * rows.n_features)
        return Data(
            rows=rows if hosts is not None else own,
            own=own,
            measured=measured,
            shape=shape,
            pixels=False,
            split=split or file.split_names[0],
            groups=rows.groups,
            images=images,
            charged=RowGroups.of(file),
            holdout=file.holdout,
            facts={"n_rows": str(rows.n_rows)} | files.file_facts(file),
            digest=files.rows_digest(file),
            source=files.source_of(file, files.class_names(file, given)),
        )


def _load_images(
    options: FinetuneOptions,
    path: Path,
    split: str | None,
    cap: int | None,
    index: ImageIndex | None,
    hosts: Hosts | None,
) -> Data:
    """Load images, without a data set id."""
    settings = options.settings
    channels = 1 if settings.model == "tb21-mnist" else None
    source = open_source(
        path, options.classes, split, options.layout, options.columns, options.pixels
    )
    if cap is not None and source.group is None:
        raise ValueError(
            f"--group-cap needs groups, and {path} has none. Add --columns group=NAME, "
            "or drop --group-cap."
        )
    part = None
    if hosts is not None and not hosts.first:
        places = group_places(source.n_rows, source.group, cap)
        own = places[slice(*hosts.part(len(places)))]
        part = np.sort(own[own >= 0])
    images, digests = load_images(source, options.image_size, channels, index, part)
    shape = images.x.shape[1:]
    rows = ImageRows(
        images.x, np.where(images.readable, images.y, -1), source.group, cap
    )
    summed, shared = rows, {}
    if hosts is not None:
        ends = pairwise(bounds(rows.n_rows, hosts.count))
        parts = [rows.part(*pair) for pair in ends]
        summed = parts[hosts.index]
        # process 0 has the digests of all parts, other processes only their own
        digests_of = [
            one.digest() if hosts.first or one is summed else "" for one in parts
        ]
        shared = {"n_rows": str(rows.n_rows), "shape": str(shape), "images": digests_of}
    mean, std = pixel_scale(settings, shape[0], options.mean, options.std)
    # A resume compares this keyed digest of listing, images and groups. Without the
    # key, it does not show whether an image is there. Without an index, a group cap
    # needs a ledger in memory (`identified`).
    digest = ""
    if index is not None:
        groups = source.group.tobytes() if cap and source.group is not None else b""
        contents = source.digest.encode() + digests.tobytes() + groups
        digest = index.keyed(hashlib.sha256(contents).hexdigest(), 32).hex()
    return Data(
        rows=rows,
        own=summed,
        measured=images,
        shape=shape,
        pixels=True,
        split=split or source.split_names[0],
        source=source_of_pixels(
            shape,
            source.class_names or [],
            (mean, std),
            declared=source.classes_declared,
            pixels=options.pixels.record(),
            grouped=source.group is not None,
        ),
        digests=digests,
        images=None if index is None else index.under_each_key(digests),
        groups=source.group,
        facts=shared,
        digest=digest,
    )


def source_of_pixels(
    shape: tuple[int, ...],
    classes: list[str],
    scale: tuple[Scale, Scale],
    *,
    declared: str,
    pixels: dict[str, Any],
    grouped: bool,
) -> SourceFacts:
    """Describe images of shape (channels, h, w) by public values.

    `scale` is the pair (mean, std) for the pixels. `declared` states how the classes
    were declared. `pixels` is the declared range of pixel values.
    """
    mean, std = (np.broadcast_to(value, 3).tolist() for value in scale)
    transform = {"mean": mean, "std": std, "image_size": shape[1:], **pixels}
    return SourceFacts(
        n_features=math.prod(shape),
        class_names=classes,
        dataset_id=None,
        feature_space=f"images {shape} {pixels or ''}".rstrip(),
        classes_declared=declared,
        extraction={
            "backbone": "pixels",
            "transform": transform,
            "normalization": {"kind": "none"},
        },
        grouped=grouped,
    )


def source_of_given(
    spec: NetworkSpec, names: np.ndarray, *, grouped: bool
) -> SourceFacts:
    """Describe rows in memory: images, or rows of unknown origin."""
    classes = [str(name) for name in names]
    if not spec.pixels or len(spec.shape) != 3:
        source = source_of_arrays(math.prod(spec.shape), classes)
        return replace(source, grouped=grouped)
    return source_of_pixels(
        spec.shape,
        classes,
        (spec.mean, spec.std),
        declared=DECLARED_IN_FIT,
        pixels={},
        grouped=grouped,
    )


def index_for(options: FinetuneOptions) -> ImageIndex | None:
    """Return the index of known images.

    A run with its own --ledger needs no DPHEAD_HOME, and gets None without it.
    """
    return image_index() if options.ledger is None or has_home() else None


def identified(options: FinetuneOptions, data: Data, index: ImageIndex | None) -> Data:
    """Return the data with the id of its data set.

    A features file has its own id. For images, an option may name the data set by an
    id, a file or a ledger. Otherwise it is the data set that already has the images, or
    a new one. An interrupted run with --new-data-set keeps its data set. Without an
    index, only an option sets an id. A dry run keeps no images, no people and no new
    id. With a ledger in memory, no images are kept, and `FinetuneOptions` refuses
    --people.

    Parameters
    ----------
    options : FinetuneOptions
        The run's options.
    data : Data
        The rows.
    index : ImageIndex or None
        The index of known images; None without DPHEAD_HOME.

    Raises
    ------
    ValueError
        If the user must name the images' data set.
    LedgerError or ExtractError
        If groups cannot be compared, or as `declared_people` does.
    """
    if data.digests is None:
        return data
    in_memory = options.ledger == IN_MEMORY
    if options.group_cap and not in_memory and not has_home():
        RowGroups("", data.groups).compared(None, protects=True)  # raises LedgerError
    system = options.people
    people = People(
        people_index(declares=system is not None) if has_home() else None,
        system,
        options.new_people,
    )
    people = people.of_same(options.same_data_as, data.groups, split=options.split)
    named = _named(options)
    if not options.same_data_as:  # the ledger of that file can have been merged
        named = people.data_set(named)
    known = index.overlaps(data.digests) if index else []
    named = named or (
        data_set_begun(options.out, known) if options.new_data_set else None
    )
    recorded, notable = not options.dry_run, [one for one in known if one.notable]
    with people.held():
        if in_memory:
            # the budget of a known data set, if any, covers every fit
            named = named or next((one.dataset_id for one in notable), None)
            people, recorded = People(), False
        else:
            if people.shared_id:
                check_images(known, people)
            new_set = options.new_data_set and not named
            claims = index is not None and not named and not new_set
            named = recognized(known) if claims else named
            people.check(named, data.groups)
            if options.dry_run and (claims or new_set):
                # a real run will draw a different id
                named = named or uuid.uuid4().hex
            elif not options.dry_run:
                if claims and index:
                    named, _ = index.claim(data.digests)
                named = uuid.uuid4().hex if new_set else named
                if named:
                    people.keep(named, "", data.groups)
                    if index and not claims:
                        index.add(named, data.digests)
    charged, record = None, people.record
    if named and recorded:
        charged = RowGroups(named, data.groups, record)
        record = declared_people(charged)
    source = replace(
        data.source,
        dataset_id=named and counted_in(named),
        people=record,
        image_index=index.public_id(charged.dataset_id) if charged and index else None,
    )
    return replace(
        data,
        source=source,
        charged=charged,
        known=tuple(notable) if in_memory else (),
    )


def _named(options: FinetuneOptions) -> str | None:
    """Return the data set named by the user, or None."""
    if options.same_data_as:
        with open_features(options.same_data_as) as file:
            return file.dataset_id
    if options.dataset_id is not None:
        return options.dataset_id
    return data_set_of(options.ledger)


def load_test(options: FinetuneOptions, train: Data) -> tuple[Opened, str] | None:
    """Return (test rows, their origin) from --test or another split, or None.

    `files.test_origin` names the origin. Images at a different path count as another
    data set. Raises ValueError as it does, and if shape, classes or features of the
    test rows differ from those of the training rows.
    """
    if options.test is None and options.test_split is None:
        return None
    path = options.test or options.features
    index = index_for(options)
    data = load_data(options, path, options.test_split, index, is_test=True)
    assert data.measured is not None
    own, given = train.source, data.source
    origin = files.test_origin(options, options.group_cap, train, data)
    for name, wanted, got in (
        ("shape", train.shape, data.shape),
        ("classes", own.class_names, given.class_names),
        ("features", own.feature_space, given.feature_space),
    ):
        if got != wanted:
            raise ValueError(
                f"test rows must have the same {name} as the training rows, got "
                f"{typed(got)} instead of {typed(wanted)}. Prepare both sources with "
                "the same options and image size."
            )
    data.measured.check_labeled(len(own.class_names), path)
    return data.measured, origin
