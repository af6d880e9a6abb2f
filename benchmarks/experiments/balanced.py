"""Fresh draws of `auto --balanced`, and of the heads before the rule decides:

    python -m benchmarks.experiments.balanced TABLES draws FIRST LAST SET...
    python -m benchmarks.experiments.balanced TABLES rule FIRST LAST chose|judged|SET...

TABLES is the folder `csv` of the package pydataset 0.2.0. "draws" fits each set with
and without `balanced`, from seed FIRST to LAST - 1 at ε = 1 and 8, and appends a line a
pair to results/calibration/draws.jsonl. "rule" fits `balanced` once a draw, and appends
to intercept.jsonl the balanced accuracy of the head before the rule (plain), that of
the adjusted head, and whether the rule takes this head, with and without the intercept.
"chose" and "judged" are labels of tables that no stored cell has.
"""

import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.experiments.calibration import TABLES, UNEVEN_TABLES, Split, table
from benchmarks.store import RESULTS, append, provenance
from dphead.data.arrays import ArrayRows
from dphead.fit.fit import fit_rows
from dphead.planning.plan import make_plan
from dphead.privacy.noise import NoiseSource
from dphead.solvers import Auto, ProblemInfo, auto, balancing_rule

Spec = tuple[str, str, list[str]]
OUT = RESULTS / "calibration" / "draws.jsonl"
RULE = OUT.with_name("intercept.jsonl")
_PLACES: str = (  # file and label, and columns that are left out
    "Ecdat/BudgetItaly size, Ecdat/Bwages educ, Ecdat/Griliches mrt, "
    "Ecdat/Participation foreign, Ecdat/Somerville quality, Ecdat/SumHes com, "
    "Ecdat/UnempDur censor1, Ecdat/Wages ind, COUNT/azcabgptca died, "
    "survival/pbc stage id, psych/sat.act education, Zelig/turnout vote, "
    "Zelig/voteincome vote, Ecdat/BudgetUK children, Ecdat/Fair rate, "
    "Ecdat/Mathlevel major, HistData/Quarrels international ID, "
    "Ecdat/Train comfort1 id, Ecdat/VietNamH urban, psych/ability reason.4, "
    "multgee/arthritis y id, COUNT/azdrg112 type1, COUNT/azpro admit, "
    "KMsurv/bfeed race, KMsurv/kidtran race obs, survival/logan race, "
    "pscl/bioChemists mar, MASS/biopsy class ID, psych/epi V1, "
    "COUNT/mdvis educ educ1 educ2 educ3, geepack/ohio resp id, KMsurv/std condom obs"
)
FURTHER: dict[str, Spec] = {
    file.split("/")[1]: (f"{file}.csv", label, dropped)
    for file, label, *dropped in (str.split(place) for place in _PLACES.split(", "))
}
FURTHER["Wages, ind"] = FURTHER.pop("Wages")
_IDS = ("id", "obs", "nr", "subject", "pid", "idnum", "caseid", "case")
_ROWS = 4_000  # rows of the largest table


def unstored(csv: Path, chose: bool) -> dict[str, Spec]:
    """Random uneven labels of each table that no stored cell has.

    Two labels chose the rule, and two further ones judge it.
    """
    stored = {
        spec[0].split("/")[1] for spec in (TABLES | UNEVEN_TABLES | FURTHER).values()
    }
    seen, found = set(), {}
    for path in sorted(csv.glob("*/*.csv")):
        if path.name.startswith("._") or path.name in stored:
            continue
        try:
            frame = pd.read_csv(path, index_col=0)
        except (ValueError, UnicodeDecodeError):
            continue
        key = tuple(sorted(map(str, frame.columns))), len(frame)
        if key in seen or not 500 <= len(frame) < _ROWS or frame.shape[1] < 4:
            continue
        seen.add(key)
        labels: Any = [name for name in frame if _is_uneven(frame[name])]
        rng = np.random.default_rng(len(frame))
        ids = [name for name in frame if str(name).lower() in _IDS]
        for label in (
            rng.permutation(labels)[:2] if chose else (rng.permutation(labels)[2:4])
        ):
            spec = f"{path.parent.name}/{path.name}", str(label), ids
            found[f"{path.stem}, {label}"] = spec
    return found


def _is_uneven(column: Any) -> bool:
    """Whether a column has 2 to 10 values, none rare, of different frequencies."""
    texts = column.dropna().astype(str)
    sizes = texts.value_counts()
    few = 2 <= len(sizes) <= 10 and len(texts) >= 500
    return (
        few
        and sizes.min() >= max(20, 0.02 * len(texts))
        and (sizes.max() >= 1.5 * sizes.min())
    )


@cache
def rows_of(csv: Path, file: str, label: str, dropped: tuple[str, ...]) -> Split:
    return table(csv / file, label, list(dropped))


def balanced_accuracy(head, new: np.ndarray, label: np.ndarray) -> float:
    chosen = head.scores(new).argmax(axis=1)
    each = [float((chosen[label == k] == k).mean()) for k in np.unique(label)]
    return round(float(np.mean(each)), 5)


def fitted(rows: Split, epsilon: float, seed: int, balanced: bool):
    x, y, _, label = rows
    facts = ProblemInfo(len(x), x.shape[1], int(max(y.max(), label.max())) + 1)
    plan = make_plan(Auto(balanced=balanced), facts, epsilon=epsilon, delta=1e-5)
    return fit_rows(plan, ArrayRows(x, y), noise=NoiseSource(seed)).trained


def draw(job) -> dict:
    """One pair of fits."""
    name, csv, (file, label, dropped), epsilon, seed = job
    rows = rows_of(csv, file, label, tuple(dropped))
    heads = [fitted(rows, epsilon, seed, balanced) for balanced in (False, True)]
    plain, balanced = (balanced_accuracy(head, *rows[2:]) for head in heads)
    line = {"set": name, "epsilon": epsilon, "seed": seed, "plain": plain}
    return line | {"balanced": balanced, "adjusted": bool(heads[1].balanced)}


def decided(job) -> dict:
    """One fit: both heads, and whether the rule adjusts with and without intercepts."""
    name, csv, (file, label, dropped), epsilon, seed = job
    rows = rows_of(csv, file, label, tuple(dropped))
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
        fitted(rows, epsilon, seed, True)
    finally:
        auto.better_head, balancing_rule.adjusted_head = rule, make
        balancing_rule._INTERCEPT_ERROR = error
    return line


def main(csv: Path, part: str, first: int, last: int, *names: str) -> None:
    """Run and append."""
    warnings.simplefilter("ignore")
    old = TABLES | UNEVEN_TABLES | FURTHER
    if names in (("chose",), ("judged",)):
        sets = unstored(csv, names == ("chose",))
    else:
        sets = {name: old[name] for name in names or old}
    jobs = [
        (name, csv, spec, epsilon, seed)
        for name, spec in sets.items()
        for epsilon in (1.0, 8.0)
        for seed in range(first, last)
    ]
    file, one = {"draws": (OUT, draw), "rule": (RULE, decided)}[part]
    with ProcessPoolExecutor(2) as both:
        for line in both.map(one, jobs, chunksize=max(1, last - first)):
            append(file, line | provenance())


if __name__ == "__main__":
    place, part, first, last, *names = sys.argv[1:]
    main(Path(place), part, int(first), int(last), *names)
