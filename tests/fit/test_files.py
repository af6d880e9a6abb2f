"""Which files a fit takes: how the rows of a file were chosen decides."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from commands import LS, charges, fitted, refusal
from dphead_extract.features.concatenation import concatenate
from dphead_extract.features.format import FeaturesWriter, Header, open_features
from dphead_extract.shards import Shard, join_shards
from dphead_extract.sources.holdout import Holdout

from dphead import DPLeastSquaresClassifier
from dphead.fit.files import SplitRows, check_selection, source_of_arrays
from dphead.fit.files import test_origin as rows_origin
from dphead.fit.options import FitOptions

N, CAP = 12, 2
RELATIONS = ("zero_out", "add_remove", "replace_one")
HOLDOUT = {"holdout": {"fraction": 0.4, "by": "image", "positions": True}}
SHARD = {"shard": {"index": 1, "count": 2, "n_rows": 2 * N}}
CONFIG = {
    "--limit": {"limit": 5},
    "--shard": {"limit": None} | SHARD,
    "--test-fraction": {"limit": None} | HOLDOUT,
    "whole": {"limit": None},
}


def made(path, config, **more):
    """Write a features file with this record."""
    labels = np.arange(N) % 2
    names = {"class_names": ["a", "b"], "classes_declared": "classes-flag"}
    header = Header(N, 3, config=config, block_rows=6, **names | more)
    with FeaturesWriter(path, header) as writer:
        while writer.next_row < N:
            start, stop = writer.next_block()
            writer.append(np.ones((stop - start, 3)), {"labels": labels[start:stop]})
        writer.finish()
    return path


def chosen(option, rows):
    """Return the training rows that an option chooses of a source, in its order."""
    if option == "--limit":
        return set(rows[:5])
    if option == "--shard":
        first, stop = Shard(1, 2).rows(len(rows), 2)
        return set(rows[first:stop])
    if option == "--test-fraction":
        places, none = map(str, range(len(rows))), np.zeros(len(rows), np.uint8)
        codes = Holdout(0.4).codes([*places], None, none)
        return {row for row, code in zip(rows, codes, strict=True) if code == 0}
    return set(rows)


def neighbors(relation, rows, grouped, named):
    """Yield neighboring sources, and the units (rows or groups) that differ.

    A row is (place, group), and a source is sorted by place. New ones have group -1.
    """
    for unit in sorted({group for _, group in rows}) if grouped else rows:
        own = [row for row in rows if unit in (row, row[1])]
        rest = [row for row in rows if row not in own]
        if relation == "add_remove":
            yield rest, {unit}
        elif relation == "zero_out":  # the rows keep their positions
            yield rows, {unit}
        elif grouped:  # by a group with another number of rows
            for size in (1, len(own), 6):
                other = [(own[0][0] + i / 10, -1) for i in range(size)]
                yield sorted(rest + other), {unit, -1}
        else:  # by a row with any name, or in the same place of an array
            places = np.arange(-0.5, N) if named else [unit[0]]
            for place in places:
                yield sorted([*rest, (place, -1)]), {unit, (place, -1)}


def moves_others(option, relation, grouped, n_splits):
    """Return whether a unit decides more than the proof allows, in some neighbor.

    Only rows of the two units may leave or enter. Under replace_one of a row, any one
    row of its split may enter for any other.
    """
    sizes = [1, 4, 1, 3, 1, 2] if grouped else [1] * N
    groups = np.repeat(range(len(sizes)), sizes).tolist()
    rows = list(zip(map(float, range(N)), groups, strict=True))
    before, named = chosen(option, rows), option != "--test-fraction"
    for other, units in neighbors(relation, rows, grouped, named):
        after = chosen(option, other)
        left, entered = before - after, after - before
        if relation == "replace_one" and not grouped:
            (old,) = (row[0] for row in units if row[1] >= 0)
            sizes_of = [
                Counter(
                    int(old if new < 0 else place) % n_splits for place, new in rows
                )
                for rows in (before, after)
            ]
            bad = len(left) > 1 or len(entered) > 1 or sizes_of[0] != sizes_of[1]
        else:
            bad = bool({row[1] if grouped else row for row in left | entered} - units)
        if bad:
            return True
    return False


@pytest.mark.parametrize("splits", [["all"], ["train", "test"]])
@pytest.mark.parametrize("option", CONFIG)
def test_a_choice_by_position_is_refused_where_one_unit_moves_others(
    tmp_path, option, splits
):
    """Compared with all neighbors of a small source."""
    path = made(tmp_path / "f.h5", CONFIG[option], split_names=splits)
    with open_features(path) as file:
        for relation, cap in product(RELATIONS, (None, CAP)):
            said = ""
            try:
                check_selection(file, relation, cap)
            except ValueError as error:
                said = str(error)
            moved = moves_others(option, relation, cap is not None, len(splits))
            assert (f"{option} chose its rows by positions" in said) == moved
            assert bool(said) == moved


def test_without_its_first_image_a_limit_lets_another_in(tmp_path):
    """Two rows differ then, and add_remove counts one."""
    x = np.random.default_rng(0).integers(0, 256, (52, 8, 8), np.uint8)
    typed = ("--classes", 2, "--backbone", "scatternet", "--scatter-j", 1)
    typed += ("--scatter-l", 1, "--limit", 50)
    files = []
    for first, same in ((0, ()), (1, ("--dataset-id", "0" * 32))):
        np.savez(tmp_path / "x.npz", images=x[first:], labels=np.arange(52 - first) % 2)
        files.append(tmp_path / f"{first}.h5")
        fitted("extract", tmp_path / "x.npz", "-o", files[-1], *typed, *same)
    with open_features(files[0]) as one, open_features(files[1]) as other:
        rows = [set(map(bytes, f.features[:])) for f in (one, other)]
        assert len(rows[0] - rows[1]) == len(rows[1] - rows[0]) == 1
    fit = ("fit", files[0], *LS, "-o", tmp_path / "run")
    hidden = ("--relation", "add_remove", "--nominal-n", 50)
    said = refusal(*fit, *hidden)
    assert "--limit chose its rows by positions, which change if a row is" in said
    model = DPLeastSquaresClassifier(relation="add_remove", nominal_n=50)
    with pytest.raises(ValueError, match="--limit chose its rows"):
        model.fit(str(files[0]))
    steps = ("--shape", "2,4,4", "--batch-size", 10, "--steps", 2)
    said = refusal("finetune", files[0], *hidden, *steps, "-o", tmp_path / "network")
    assert "--limit chose" in said
    assert charges() == 0
    fitted(*fit)


def test_a_file_without_a_record_is_refused_and_told_how_to_write_it_again(tmp_path):
    """It may be the first rows of a source: earlier versions did not say."""
    with open_features(made(tmp_path / "f.h5", {})) as file:
        for relation, cap in (("add_remove", None), ("replace_one", CAP)):
            with pytest.raises(ValueError, match=f"--dataset-id {file.dataset_id}"):
                check_selection(file, relation, cap)
        check_selection(file, "replace_one")
        check_selection(file, "zero_out", CAP)


@pytest.mark.parametrize("config", [{}, *CONFIG.values()])
def test_joined_files_keep_how_their_rows_were_chosen(tmp_path, config):
    """Files without a record do not get one."""
    common = {"dataset_id": "0" * 32, "salt": "1" * 32, "transform": {"mean": None}}
    joined = tmp_path / "joined.h5"
    if "shard" in config:
        both = [config | {"shard": SHARD["shard"] | {"index": i}} for i in (0, 1)]
        join_shards(
            [made(tmp_path / f"{i}.h5", both[i], **common) for i in (0, 1)], joined
        )
        config = {"limit": None}
    else:
        networks = [{"backbone": name} | common for name in "ab"]
        concatenate(
            [made(tmp_path / one["backbone"], config, **one) for one in networks],
            joined,
        )
    with open_features(joined) as file:
        assert {key: file.config[key] for key in config} == config
        assert ("limit" in file.config) == ("limit" in config)


A, NEW, B = ({"system": s, "new": new} for s, new in (("a", 0), ("a", 1), ("b", 0)))


@pytest.mark.parametrize(
    "own, given, data_set, found",
    [
        (A, A, "2", True),
        (A, NEW, "2", True),
        (A, None, None, True),
        (A, B, "2", False),
        (A, None, "2", False),
        (None, None, "2", False),
        (None, None, None, False),
    ],
)
def test_ids_of_two_files_are_compared_within_one_id_system(
    tmp_path, own, given, data_set, found, capsys
):
    """Equal ids of two id systems are two people."""
    for name in ("train", "test"):
        (tmp_path / name).touch()
    paths = {"features": tmp_path / "train", "test": tmp_path / "test"}
    source = source_of_arrays(3, ["a", "b"])
    train = SplitRows(
        source=replace(source, dataset_id="1", people=own),
        split="all",
        groups=np.array([-1, 4, 5]),
    )
    test = SplitRows(
        source=replace(source, dataset_id=data_set, people=given),
        split="all",
        groups=np.array([-1, 5, 5, 6]),
    )
    options = FitOptions(**paths, out=tmp_path / "run", test_is="public")
    assert rows_origin(options, None, train, test) == "another data set"
    assert ("the groups of 2 test rows" in capsys.readouterr().err) == found
    if found:
        with pytest.raises(ValueError, match="The groups of 2 test rows"):
            rows_origin(options, 1, train, test)
    else:
        rows_origin(options, 1, train, test)
