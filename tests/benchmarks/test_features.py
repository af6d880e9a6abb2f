"""Images are found under their owners' names, and a missing folder is named."""

import shlex

import pytest

from benchmarks import features
from dphead.cli.extract import extract


@pytest.mark.parametrize("name", ["mnist", "MNIST/raw"])
def test_a_folder_of_images_has_the_projects_or_torchvisions_name(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    assert features.images("mnist", tmp_path) == tmp_path / name


def test_a_missing_folder_is_named_with_the_option_to_type(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin.*--images DIR"):
        features.images("cifar10", tmp_path)


def test_missing_weights_are_named_before_an_extraction(tmp_path, monkeypatch):
    monkeypatch.setenv("DPHEAD_CACHE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"weights/mobilenetv2_100.*docs/papers"
    ):
        features.extract_options("cifar10", "mobilenetv2-128")


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("digits", "scatternet"),
        ("cifar10", "scatternet"),
        ("cifar10", "scatternet-unscaled"),
        ("fashion-mnist", "scatternet-normalized-27"),
    ],
)
def test_features_are_extracted_with_options_that_the_command_has(
    dataset, name, tmp_path
):
    options = shlex.split(features.extract_options(dataset, name))
    parsed = extract.make_context("extract", [str(tmp_path), "-o", "x.h5", *options])
    assert parsed.params["name"] == "scatternet"
