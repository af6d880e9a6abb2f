"""Methods of installed packages: docs/own-method.md's example is fitted in every way,
and what cannot be one is refused when it is asked for.
"""

import re
import sys
from pathlib import Path

import pytest
from commands import dphead, features_file, fitted, report_of, rows

from dphead import DPHeadClassifier
from dphead.planning import registry
from dphead.planning.methods import make_method, settable
from dphead.privacy.ledger import Ledger
from dphead.solvers import ProblemInfo

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"
FACTS = ProblemInfo(240, 12, 3)
GREEDY = """
from dataclasses import dataclass, replace
from angles import Angles, Request, ClassSums, Params


@dataclass(frozen=True)
class Greedy(Angles):
    name: str = "greedy"
    label: str = "class sums"

    def solve(self, facts):
        yield Request("class sums", ClassSums(facts.n_classes), Params())
        yield Request(self.label, ClassSums(facts.n_classes), Params())


@dataclass(frozen=True)
class Swapped(Angles):
    name: str = "swapped"

    def solve(self, facts):
        yield Request("class sums", ClassSums(facts.n_classes + 1), Params())
"""


def block(language):
    """The page's code in a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that makes entry points, of modules given as text, as pip would."""
    loaded = set(sys.modules)

    def install(package, points, **modules):
        site = tmp_path / f"site-{package}"
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
        text = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[dphead.solvers]\n{text}\n")
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(site)

    yield install
    for name in set(sys.modules) - loaded:
        if name in ("angles", "greedy", "broken"):
            del sys.modules[name]


@pytest.fixture
def angles(installed):
    """The page's example, installed as it says."""
    points = dict(
        line.replace('"', "").split(" = ")
        for line in block("toml").splitlines()
        if " = " in line
    )
    installed("angles", points, angles=block("python"))


def test_the_example_is_a_method_of_the_command_line(angles, tmp_path):
    path = features_file(tmp_path / "features.h5", n=3000)
    run = tmp_path / "run"
    words = ("--method", "angles", "--epsilon", 8, "--test-is", "public")
    test = features_file(tmp_path / "test.h5", seed=1)
    fitted("fit", path, "-o", run, "--test", test, *words)
    report = report_of(run)
    assert report["method"]["name"] == "angles"
    assert report["method"]["source"] == "angles 1.0's defaults"
    assert report["guarantee"]["epsilon"] <= 8
    assert report["guarantee"]["private"]
    assert report["test"]["accuracy"] > 0.8
    assert "angles" in dphead("fit", "--help").out
    sizes = ("--sizes", "3000,12,3")
    budget = ("--delta", 1e-5, "--epsilon", 1, "--method", "angles")
    wrong = ("--set", "sharpness=-1")
    assert "class sums" in fitted("account", *budget, *sizes).out
    assert "sharpness must be" in dphead("account", *budget, *sizes, *wrong).err


@pytest.mark.parametrize(
    "method, settings, message",
    [
        ("greedy", {}, "requested 'class sums' at release 2, but its plan"),
        ("greedy", {"label": "more"}, "requested .* at release 2, but its plan"),
        ("swapped", {}, "and the charged plan has"),
    ],
)
def test_what_was_not_planned_is_refused(angles, installed, method, settings, message):
    """As ours: one release was planned, so one is made and charged."""
    points = {"greedy": "greedy:Greedy", "swapped": "greedy:Swapped"}
    installed("greedy", points, greedy=GREEDY)
    ledger = Ledger()
    head = DPHeadClassifier(
        method=method, settings=settings, classes=[0, 1, 2], ledger=ledger
    )
    with pytest.raises((RuntimeError, ValueError), match=message):
        head.fit(*rows())
    assert not hasattr(head, "coef_")
    (fit,) = ledger.fits()
    assert float(fit["epsilon"]) == 1.0


def test_a_name_that_is_taken_is_refused_and_others_are_not(installed):
    installed("thief", {"dp-fc": "angles:Angles"}, angles=block("python"))
    with pytest.raises(
        ValueError, match=r"'dp-fc' exists in dphead and thief 1\.0\. Rename"
    ):
        make_method("dp-fc", FACTS, {})
    assert make_method("dp-ls", FACTS, {}).source == "dphead's defaults"
    assert registry.method_names() == list(registry.OURS)
    assert "--gram-share" in fitted("fit", "--method", "dp-ls", "--help").out
    assert "gram_share" in settable("dp-fc")


@pytest.mark.parametrize(
    "value, message",
    [
        ("nowhere:Solver", r"'odd' of odd 1\.0 does not load \(ModuleNotFoundError"),
        ("broken:Solver", r"'odd' of odd 1\.0 does not load \(ZeroDivisionError"),
        ("math:floor", "must be a dataclass"),
        ("angles:Angles", "method 'odd' has the name 'angles'"),
    ],
)
def test_a_broken_entry_point_is_an_error_once_it_is_asked_for(
    installed, value, message
):
    installed("odd", {"odd": value}, angles=block("python"), broken="1 / 0")
    assert registry.method_names()[-1] == "odd"
    assert "odd" in dphead("fit", "--help").out
    make_method("dp-fc", FACTS, {})
    with pytest.raises(ValueError, match=message):
        make_method("odd", FACTS, {})
