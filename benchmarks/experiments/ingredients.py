"""De22's Table 2 in miniature: what each ingredient of its training adds, on paired
seeds.

`python -m benchmarks ingredients [--most N]` makes the missing runs, or N of them, and
prints what was found. WRN-16-1 on 8,000 CIFAR-10 images of 16 by 16 pixels,
epsilon 8, at most 131,072 views a run: one to four minutes of a core. De22 tunes each
line: here the learning rate is the best of RATES at a seed of its own, by 2,000 further
training images. The 10,000 test images are used only for what is reported. Every line
takes the same number of rows, so that the number of steps is not tuned, and the line
with views, which takes the rate of the line before it, four times the work. The weights
of its runs, the last and their moving average, are the last two lines.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.experiments.finetune import OUT, Run, do, plain
from benchmarks.store import read
from dphead.finetune.settings import Settings

ROWS = 32_768  # of a run: 4 epochs
# tried from batch / 512, or the line before's if larger, on
RATES = tuple(2.0**k for k in range(-4, 5))
SEEDS = (0, 1, 2)
PILOT = 100
# 97.5th percentile of Student's t with two degrees of freedom: three pairs
T_95 = 4.303


@dataclass(frozen=True)
class Line:
    """A line of the table: what is added to the line before."""

    name: str
    batch_size: int
    groups: int
    standardise: bool
    views: int = 0

    def run(self, rate: float, seed: int) -> Run:
        """A training of this line."""
        settings = Settings(
            "wrn-16-1",
            batch_size=self.batch_size,
            steps=ROWS // self.batch_size,
            learning_rate=rate,
        )
        average: dict[str, Any] = (
            {"views": self.views, "augment": "crop"}
            if self.views
            else {"average": "last"}
        )
        settings = replace(settings, **average)
        job = "ablation" if seed in SEEDS else "ablation rate"
        variant = f"{self.name}, 16 pixels"
        options: dict[str, Any] = {
            "groups": self.groups,
            "standardise": self.standardise,
            "size": 16,
        }
        return Run(
            job,
            variant,
            "cifar10",
            settings,
            seed,
            10_000,
            test=seed in SEEDS,
            **options,
        )


LINES = (
    Line("baseline", 64, 0, False),
    Line("+ group norm", 64, 16, False),
    Line("+ large batch", 512, 16, False),
    Line("+ weight standardisation", 512, 16, True),
    Line("+ augmentation multiplicity", 512, 16, True, 4),
)


def stored(run: Run) -> dict[str, Any] | None:
    """Its row, or None."""
    return next((r for r in read(OUT) if r.get("key") == plain(run.key)), None)


def climb(line: Line, start: float) -> tuple[float, Run | None]:
    """(the best rate so far, the next pilot run): no run once both its neighbours on
    the grid were tried.
    """
    if line.views:
        return start, None
    pilots = {rate: line.run(rate, PILOT) for rate in RATES}
    tried = {
        rate: row["accuracy"] for rate, run in pilots.items() if (row := stored(run))
    }
    if not tried:
        return start, pilots[start]
    best = max(tried, key=lambda rate: tried[rate])
    missing = [
        rate for rate in (best / 2, best * 2) if rate in pilots and rate not in tried
    ]
    return best, pilots[missing[0]] if missing else None


def rates() -> tuple[dict[Line, float], Run | None]:
    """(each line's rate, None), or (those found so far, the next pilot run)."""
    found, rate = {}, 0.0
    for line in LINES:
        rate, pilot = climb(line, max(rate, line.batch_size / 512))
        if pilot is not None:
            return found, pilot
        found[line] = rate
    return found, None


def next_run() -> Run | None:
    """The next missing run: first the pilots of all lines, then seed by seed.

    None: all are there.
    """
    found, pilot = rates()
    if pilot is not None:
        return pilot
    runs = (line.run(rate, seed) for seed in SEEDS for line, rate in found.items())
    return next((run for run in runs if stored(run) is None), None)


def accuracies() -> dict[str, np.ndarray]:
    """Test accuracy (seeds,) of each line that has all its seeds, in the table's
    order.
    """
    found: dict[str, np.ndarray] = {}
    for line, rate in rates()[0].items():
        rows = [row for seed in SEEDS if (row := stored(line.run(rate, seed)))]
        if len(rows) == len(SEEDS):
            found[line.name] = np.array([r["test_last"] for r in rows])
            if line.views:
                found["+ averaging"] = np.array([r["test_average"] for r in rows])
    return found


def verdict(differences: np.ndarray) -> str:
    """The sign of a mean of paired differences (3,), or "not resolved": Student's t, 95
    %, two-sided.
    """
    mean = differences.mean()
    half = T_95 * differences.std(ddof=1) / np.sqrt(len(differences))
    return "not resolved" if abs(mean) <= half else "+" if mean > 0 else "-"


def table() -> str:
    """Markdown: each line's accuracy, and what it adds to the line before on the same
    seeds.
    """
    lines = ["| | test accuracy, % | added | sign |", "|---|---|---|---|"]
    before = None
    for name, values in accuracies().items():
        mean = 100 * values.mean()
        sd = 100 * values.std(ddof=1)
        if before is None:
            added = " | "
        else:
            d = 100 * (values - before)
            added = (
                f"{d.mean():+.2f} ({', '.join(f'{v:+.2f}' for v in d)}) | {verdict(d)}"
            )
        lines.append(f"| {name} | {mean:.2f} ± {sd:.2f} | {added} |")
        before = values
    return "\n".join(lines)


def run(most: int | None = None) -> None:
    """The missing runs, or so many of them."""
    left = len(LINES) * (len(RATES) + len(SEEDS)) if most is None else most
    while left > 0 and (one := next_run()) is not None:
        do([one])
        left -= 1
