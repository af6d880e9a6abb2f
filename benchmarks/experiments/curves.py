"""Accuracy against epsilon during one run, and convergence with and without noise
(TB21, Figures 3 and 11).

Two learning rates, with noise for epsilon 3 and with gradients that are only clipped,
on the same Poisson batches. Test accuracy of the iterate after each epoch, and what had
been spent by then: an iterate costs what its prefix of the releases costs, so that the
whole curve may be looked at for the price of its end.
`python -m benchmarks curves` runs what is missing.
"""

from dataclasses import replace
from typing import Any

from benchmarks import features, runner
from benchmarks.jobs import Job
from benchmarks.store import RESULTS, append, provenance, read
from dphead.analysis.metrics import evaluate_scores
from dphead.fit.loop import Run, fit_head
from dphead.planning.calibration import epsilon_by
from dphead.planning.plan import Plan
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params
from dphead.solvers.base import ProblemInfo, Solver, Steps
from dphead.solvers.head import LinearHead, split_intercept

OUT = RESULTS / "curves.jsonl"
RATES = (0.25, 4.0)  # the caption of Figure 3; TB21's Table 14 has lost MNIST's
SETTINGS = {"batch_size": 512, "epochs": 40}
Row = dict[str, Any]


class Watched:
    """A solver whose iterates are looked at: `seen` has (gradients so far, parameters),
    every so many gradients.
    """

    def __init__(self, solver: Solver, every: int) -> None:
        self._solver, self._every, self.name = solver, every, solver.name
        self.seen: list[tuple[int, Params]] = []

    def plan(self, facts: ProblemInfo) -> list:
        """The solver's own."""
        return self._solver.plan(facts)

    def solve(self, facts: ProblemInfo) -> Steps:
        """The solver's own releases and head."""
        steps = self._solver.solve(facts)
        answer = None
        gradients = 0
        while True:
            try:
                ask = steps.send(answer) if answer is not None else next(steps)
            except StopIteration as stop:
                return stop.value
            if ask.label == "gradient":
                if gradients and gradients % self._every == 0:
                    self.seen.append((gradients, ask.params))
                gradients += 1
            answer = yield ask


def spent(plan: Plan, gradients: int, accountant: str) -> float | None:
    """Epsilon of the plan's releases up to so many gradients; None without noise."""
    others = [s for s in plan.specs if s.label != "gradient"]
    first = [s for s in plan.specs if s.label == "gradient"][:gradients]
    prefix = replace(plan, specs=[*others, *first])
    return (
        epsilon_by(accountant, prefix.events(), plan.delta, plan.relation)
        if plan.private
        else None
    )


def jobs(dataset: str = "mnist", name: str = "scatternet-g27") -> list[Job]:
    """Each learning rate with noise and without."""
    return [
        Job(
            dataset,
            name,
            "dp-sgd",
            epsilon,
            preset="tb21",
            clip_only=epsilon == float("inf"),
            settings=SETTINGS | {"base_learning_rate": rate},
        )
        for rate in RATES
        for epsilon in (3.0, float("inf"))
    ]


def curves(wanted: list[Job], seed: int = 0) -> list[Row]:
    """A row for each job: its points (epoch, test accuracy, epsilon by PLD, epsilon as
    the paper counts).
    """
    data = features.load(wanted[0].dataset, wanted[0].features)
    every = round(data.facts.n_rows / SETTINGS["batch_size"])
    rows = []
    for job in wanted:
        solver, plan = runner.prepared(job, data)
        watch = Watched(solver, every)
        fit_head(watch, data.rows, data.facts, plan, Run(noise=NoiseSource(seed)))
        points = []
        for gradients, params in watch.seen:
            assert params.weights is not None
            head = LinearHead(
                *split_intercept(params.weights, params.transform.append),
                params.transform,
            )
            accuracy = evaluate_scores(head.scores(data.x), data.y)["accuracy"]
            epsilons = [
                spent(plan, gradients, accountant)
                for accountant in ("auto", "rdp-classic")
            ]
            points.append([gradients / every, accuracy, *epsilons])
        described = {
            "key": job.key,
            "job": job.described(),
            "seed": seed,
            "points": points,
        }
        rows.append(described | {"features": data.described} | provenance())
    return rows


def run() -> None:
    """Run all curves, unless they are stored."""
    wanted = jobs()
    if {j.key for j in wanted} - {r["key"] for r in read(OUT)}:
        for row in curves(wanted):
            append(OUT, row)
