"""Decisions of the rule of `auto --balanced`, on the sets and draws that are stored:

    python -m benchmarks.experiments.balanced IMAGES TABLES [SET...]

IMAGES and TABLES are those of `benchmarks.experiments.calibration`. Each stored cell (a
set and an epsilon) is fitted in the draws that results/calibration/intercept.jsonl
lacks. A line has the balanced accuracy of the head before the rule (plain), that of the
adjusted head, and whether the rule takes this head, with and without the intercept.
"""

import math
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.experiments.calibration import Classes, Split, images, sets_of, table
from benchmarks.store import RESULTS, append, provenance, read
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, auto, balancing_rule

Spec = tuple[str, str, list[str]]
RULE = RESULTS / "calibration" / "intercept.jsonl"
SYNTHETIC = "400:40, far apart"
SUBSETS: dict[str, tuple[str, Classes, list[int] | None]] = {
    "c100 25:6:2": (
        "cifar100",
        [list(range(25)), list(range(25, 31)), [31, 32]],
        None,
    ),
    "c100 12:4:1": ("cifar100", [list(range(60, 72)), [72, 73, 74, 75], [76]], None),
    "mn 5:1": ("mnist", [[2], [7]], [270, 54]),
    "fa 6:2:1": ("fashion_mnist", [[5], [7], [9]], [360, 120, 60]),
}
_PLACES: str = (  # file and label, and columns that are left out
    "Ecdat/BudgetItaly size, Ecdat/Bwages educ, Ecdat/Griliches mrt mrt80, "
    "Ecdat/Participation foreign, Ecdat/Somerville quality, Ecdat/SumHes com year, "
    "Ecdat/UnempDur censor1 censor2 censor3 censor4, Ecdat/Wages ind, "
    "COUNT/azcabgptca died, survival/pbc stage id, psych/sat.act education, "
    "Zelig/turnout vote, Zelig/voteincome vote year, Ecdat/BudgetUK children, "
    "Ecdat/Fair rate, Ecdat/Mathlevel major, HistData/Quarrels international ID, "
    "Ecdat/Train comfort1 id choiceid, Ecdat/VietNamH urban commune, "
    "psych/ability reason.4, multgee/arthritis y id, COUNT/azdrg112 type1, "
    "COUNT/azpro admit, KMsurv/bfeed race, KMsurv/kidtran race obs, "
    "survival/logan race, pscl/bioChemists mar, MASS/biopsy class ID, "
    "psych/epi V1, COUNT/mdvis educ educ1 educ2 educ3, geepack/ohio resp id, "
    "KMsurv/std condom obs"
)
FURTHER: dict[str, Spec] = {
    file.split("/")[1]: (f"{file}.csv", label, dropped)
    for file, label, *dropped in (str.split(place) for place in _PLACES.split(", "))
}
FURTHER["Wages, ind"] = FURTHER.pop("Wages")


def balanced_accuracy(head, new: np.ndarray, label: np.ndarray) -> float:
    chosen = head.scores(new).argmax(axis=1)
    each = [float((chosen[label == k] == k).mean()) for k in np.unique(label)]
    return round(float(np.mean(each)), 5)


@cache
def planned(facts: ProblemInfo, epsilon: float):
    return make_plan(Auto(balanced=True), facts, epsilon=epsilon, delta=1e-5)


def fitted(rows: Split, epsilon: float, seed: int):
    x, y, _, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    plan = planned(facts, epsilon)
    return fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed)).trained


def decided(name: str, rows: Split, epsilon: float, seed: int) -> dict:
    """One fit: both heads, and whether the rule adjusts with and without intercepts."""
    line: dict = {"set": name, "epsilon": epsilon, "seed": seed}
    rule, error = balancing_rule.better_head, balancing_rule._INTERCEPT_ERROR
    make = balancing_rule.adjusted_head

    def noted(facts, head, before, noise):
        made = []
        balancing_rule.adjusted_head = lambda *given: (
            made.append(make(*given)) or made[0]
        )
        for key, value in (("without_intercept", np.inf), ("with_intercept", error)):
            balancing_rule._INTERCEPT_ERROR = value
            steps = rule(facts, head, before, noise)
            request = next(steps)
            if key == "without_intercept":
                after = yield request
            try:
                steps.send(after)
            except StopIteration as stop:
                line[key] = bool(stop.value.balanced)
        line["plain"] = balanced_accuracy(head, *rows[2:])
        line["adjusted"] = balanced_accuracy(made[0], *rows[2:])
        return head

    auto.better_head = noted
    try:
        fitted(rows, epsilon, seed)
    finally:
        auto.better_head, balancing_rule.adjusted_head = rule, make
        balancing_rule._INTERCEPT_ERROR = error
    return line


def sets(folder: Path, csv: Path) -> dict[str, Callable[[], Split]]:
    """All sets of the page, each read when it is called."""
    found = sets_of(folder, csv) | sets_of(folder, csv, True)
    for name, (file, label, dropped) in FURTHER.items():
        found[name] = lambda f=file, a=label, b=dropped: table(csv / f, a, b)
    for name, (file, classes, sizes) in SUBSETS.items():
        found[name] = lambda f=file, a=classes, b=sizes: images(
            folder / f"{f}.npz", a, b
        )
    found[SYNTHETIC] = synthetic
    return found


def synthetic() -> Split:
    """Two normal classes that are far apart, with 400 and 40 training rows."""
    rng = np.random.default_rng(0)
    found: list[np.ndarray] = []
    for sizes in ([400, 40], [2000, 2000]):
        y = np.repeat([0, 1], sizes)
        x = rng.normal(size=(len(y), 10)).astype(np.float32)
        x[np.arange(len(y)), y] += 4
        found += [x, y]
    return found[0], found[1], found[2], found[3]


def stored() -> dict[tuple[str, float], dict[int, float]]:
    """Balanced accuracy of the head before the rule, by cell and seed."""
    found: dict[tuple[str, float], dict[int, float]] = {}
    for file in ("draws", "rows", "uneven"):
        for r in read(RULE.with_name(f"{file}.jsonl")):
            cell = found.setdefault((r["set"], r["epsilon"]), {})
            if r["seed"] < 1000:
                cell[r["seed"]] = r["plain"]
    for r in read(RULE.with_name("margin.jsonl")):
        cell = found.setdefault((r["set"], r["epsilon"]), {})
        cell |= dict(enumerate(r["plain"]))
    return found


def main(folder: Path, csv: Path, *names: str) -> None:
    """Run what is missing, and append."""
    warnings.simplefilter("ignore")
    made = sets(folder, csv)
    cells = stored()
    cells |= {(SYNTHETIC, e): dict.fromkeys(range(24), math.nan) for e in (1.0, 8.0)}
    done = {(r["set"], r["epsilon"], r["seed"]) for r in read(RULE)}
    for name in names or sorted(made, key=lambda name: name in {s for s, *_ in done}):
        rows = made[name]()
        for (found, epsilon), cell in cells.items():
            for seed, plain in sorted(cell.items()) if found == name else ():
                if (name, epsilon, seed) in done:
                    continue
                line = decided(name, rows, epsilon, seed)
                print(name, epsilon, seed, plain, line["plain"], flush=True)
                append(RULE, line | provenance())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
