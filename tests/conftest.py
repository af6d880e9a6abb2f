"""Settings of every test: strict JAX arrays, fixed hypothesis examples, files in
memory, and a ledger folder of the test's own.
"""

import gc
import os
import sys
import tempfile
from importlib.util import find_spec
from itertools import count
from pathlib import Path

os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# BLAS and torch on as many threads as there are cores, in a process for each core, wait
# for one another: up to 5 times the time. Tests of code on several threads set their
# number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# for `core`, the helpers of the privacy tests
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
import numpy as np
import pytest

# A ledger waits for the disk at each commit, which took a tenth of the suite's time.
MEMORY, NEEDED = "/dev/shm", 4 << 30  # bytes; a container often has 64 MB
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    memory = os.statvfs(MEMORY)
    runs = not memory.f_flag & os.ST_NOEXEC  # tests load the kernels that they compile
    if runs and memory.f_bavail * memory.f_frsize > NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY
HOMES = count()  # a name for the ledgers of each test
known_modules = 0  # number of modules whose objects are frozen
# until all modules are imported, which makes no garbage: a tenth of that time
gc.disable()

hypothesis.settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=15,
    suppress_health_check=list(hypothesis.HealthCheck),
)
# for `make mutants`: that an example fails is enough, however large it is
hypothesis.settings.register_profile(
    "mutants",
    hypothesis.settings.get_profile("fixed"),
    max_examples=50,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
# for `make sweeps`
hypothesis.settings.register_profile(
    "sweep", hypothesis.settings.get_profile("fixed"), max_examples=60
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(scope="session", autouse=True)
def no_ledgers_of_the_users(tmp_path_factory):
    """Fixtures of several tests are made before `own_ledgers`."""
    home = tmp_path_factory.mktemp("home")
    os.environ["DPHEAD_HOME"] = str(home)
    return home


@pytest.fixture(autouse=True)
def own_ledgers(monkeypatch, no_ledgers_of_the_users):
    """No test reads or writes the user's ledgers, or those of another test."""
    home = no_ledgers_of_the_users / str(next(HOMES))
    monkeypatch.setenv("DPHEAD_HOME", str(home))
    return home


@pytest.fixture
def features(tmp_path):
    """A features file of 240 rows, 12 columns and 3 classes."""
    from commands import features_file

    return features_file(tmp_path / "train.h5")


@pytest.fixture
def run(tmp_path):
    """A run folder that is to be made."""
    return tmp_path / "run"


@pytest.fixture
def blobs():
    """300 rows of 8 features, and their labels, of 3 classes far apart."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 300)
    return draw.normal(size=(300, 8)) + 3 * np.eye(3, 8)[y], y


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits as uint8 images (1797, 8, 8) and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return np.rint(data.images * (255 / 16)).astype(np.uint8), data.target.astype(int)


@pytest.fixture(scope="session")
def team():
    """A PostgreSQL server with the tables of a team's ledgers, and a client's role."""
    from benchmarks.faults.servers import GRANTS, Server, programs

    pytest.importorskip("psycopg", reason="needs psycopg: pip install .[postgres]")
    if programs() is None:
        pytest.skip("needs PostgreSQL: apt-get install -y postgresql")

    from dphead.privacy.ledger import server

    with Server() as running:
        server.init(running.url())
        for statement in GRANTS:
            running.run(statement)
        yield running


def pytest_collection_finish():
    """Search for garbage where collection has ended."""
    gc.set_threshold(10_000)  # jax adds a millisecond to each search
    gc.enable()


def pytest_runtest_setup():
    """Keep the libraries' million objects out of every search for garbage, and out of
    PrivateTraining's for tensors. Tests import some of them.
    """
    global known_modules
    if len(sys.modules) > known_modules + 20:
        gc.collect()
        gc.freeze()
        known_modules = len(sys.modules)


def pytest_collection_modifyitems(items):
    """Mark the tests of slow.txt. Skip dp-optax where optax is missing, such as in an
    environment of before it.
    """
    lines = Path(__file__).with_name("slow.txt").read_text().splitlines()
    slow = tuple(line for line in lines if line.startswith("tests/"))
    for item in items:
        if item.nodeid.startswith(slow):
            item.add_marker("slow")
    if find_spec("optax") is None:
        for item in items:
            if "optax" in item.nodeid.lower():
                item.add_marker(pytest.mark.skip(reason="optax is not installed"))
