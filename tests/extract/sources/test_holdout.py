"""Test images are chosen by the name of their group, or by their own."""

from dataclasses import replace

import numpy as np
import pytest
from dphead_extract.errors import ExtractError
from dphead_extract.features.rows import group_ids
from dphead_extract.sources.holdout import Holdout
from dphead_extract.sources.image import Source


def source(names, groups=None):
    n = len(names)
    return Source(
        kind="folder",
        digest="",
        names=names,
        labels=np.zeros(n, np.int32),
        split=np.zeros(n, np.uint8),
        split_names=["all"],
        group=None if groups is None else group_ids(groups, n),
    )


IMAGES = [f"{i}.png" for i in range(3000)]
PATIENTS = [f"P-{i // 3}" for i in range(3000)]


@pytest.mark.parametrize("groups", [None, PATIENTS])
def test_about_the_fraction_is_set_apart_and_groups_stay_whole(groups):
    split = Holdout(0.2).split(source(IMAGES, groups))
    assert split.split_names == ["train", "test"]
    # 1,000 groups: a standard deviation of 0.013
    assert abs(split.split.mean() - 0.2) < 0.05
    if groups is not None:
        assert len({*zip(groups, split.split.tolist(), strict=True)}) == 1000


@pytest.mark.parametrize("groups", [None, PATIENTS])
def test_no_row_decides_the_split_of_another(groups):
    """Neither another row's name, nor its group, nor the order of the rows."""
    names, patients = np.array(IMAGES), np.array(groups or [""] * 3000)
    before = Holdout(0.2).split(source(IMAGES, groups)).split
    order = np.random.default_rng(0).permutation(3000)
    names[0], patients[0] = "other.png", "P-new"
    changed = source(names[order].tolist(), groups and patients[order].tolist())
    after = np.empty(3000, np.uint8)
    after[order] = Holdout(0.2).split(changed).split
    assert np.array_equal(after[1:], before[1:])


def test_the_split_is_fixed_for_good():
    """Another version must not turn training images into test images."""
    split = Holdout(0.5).split(source(IMAGES[:16])).split
    assert "".join(map(str, split)) == "0010101000010010"
    split = Holdout(0.5).split(source(IMAGES[:8], [*"aabbccd", ""])).split
    assert "".join(map(str, split)) == "11111100"


def test_a_split_that_cannot_be_made_is_refused():
    with pytest.raises(ExtractError, match="--columns group=NAME"):
        Holdout(0.2, by_group=True).split(source(IMAGES))
    assert Holdout.parse("0.2:groups") == Holdout(0.2, by_group=True)
    assert Holdout.parse("0.2") == Holdout(0.2)
    for text in ("1", "-0.1", "0:groups", "0.2:group", "x", "nan"):
        with pytest.raises(ExtractError, match=r"such as 0\.2:groups, got"):
            Holdout.parse(text)
    several = replace(source(IMAGES), split_names=["train", "test"])
    with pytest.raises(ExtractError, match="cannot be combined"):
        Holdout(0.2).split(several)
    assert np.array_equal(Holdout().split(several).split, several.split)
