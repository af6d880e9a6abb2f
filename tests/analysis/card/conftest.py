"""Two runs that tests of the card and the page read."""

import pytest
from commands import features_file, fit

from dphead.privacy.ledger import Ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with test rows, and two runs: with private and with public ones."""
    folder = tmp_path_factory.mktemp("card")
    features = features_file(folder / "train.h5")
    test = features_file(folder / "test.h5", n=90, seed=5)
    ledger = folder / "ledger.sqlite"
    given = ("--delta", 1e-4, "--ledger", ledger, "--test", test)
    Ledger(ledger).set_budget(5, 1e-4)
    fit(features, folder / "private", "--epsilon", 1, *given)
    fit(features, folder / "public", "--epsilon", 2, *given, "--test-is", "public")
    return folder
