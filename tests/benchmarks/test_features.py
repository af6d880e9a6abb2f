"""Images are found under their owners' names, and a missing folder is named."""

import pytest

from benchmarks import features


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
