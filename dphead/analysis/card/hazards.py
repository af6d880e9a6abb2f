"""Compare a run's report with the hazards of NIST SP 800-226.

The document is "Guidelines for Evaluating Differential Privacy Guarantees" (2025). The
names of the hazards are ours, in the order of the document's pyramid from top to
bottom. A hazard is met only if the report shows it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dphead.analysis.protected import (
    kind_of,
    made_of_images,
    name_counted,
    name_unit_in,
)
from dphead.planning.plan import large_delta

MET, STATED, OPEN, NOT_COVERED = "met", "stated", "open", "not covered"


@dataclass(frozen=True)
class Hazard:
    """Describe one hazard of the card, as returned by `hazards_of`.

    Attributes
    ----------
    name : str
        Description of the hazard.
    status : str
        MET, STATED, OPEN or NOT_COVERED.
    how : str
        The reason for the status.
    """

    name: str
    status: str
    how: str


def hazards_of(report: dict[str, Any]) -> list[Hazard]:
    """Return all hazards of a report, one row for each."""
    return [hazard for part in _PARTS for hazard in part(report)]


def parameters(report: dict[str, Any]) -> Iterator[Hazard]:
    """Yield the hazards of epsilon, delta and the relation."""
    g, n_rows = report["guarantee"], report["data"]["n_rows"]
    if g["private"]:
        how = f"ε = {g['epsilon']:.4g}; the card shows the resulting bounds on attacks"
        yield Hazard("Large epsilon", STATED, how)
    else:
        how = "Noise was off or had a fixed seed, so there is no guarantee"
        yield Hazard("Large epsilon", OPEN, how)
    large = large_delta(g["epsilon"], g["delta"], n_rows, g["group_cap"]) is not None
    share = f"{g['delta'] * n_rows:.2g}"
    of = f"{share} of 1/n"
    if g["group_cap"] is not None:
        of = f"at most {share} of 1/groups, because n rows are at most n groups"
    how = f"δ = {g['delta']:g}, {of}"
    yield Hazard("Delta that permits whole rows", OPEN if large else MET, how)
    exact = "μ is exact" if g["mu"] is not None else "ε is an upper bound"
    how = (
        f"Relation {g['neighboring_relation']}, unit and accountant are named; {exact}"
    )
    yield Hazard("Epsilons that cannot be compared", STATED, how)


def unit(report: dict[str, Any]) -> Iterator[Hazard]:
    """Yield the hazards of the unit of privacy and of several releases."""
    g, ledger, thing = report["guarantee"], report["ledger"], name_unit_in(report)
    if g["group_cap"] is None:
        how = f"One {thing}; each {thing} of a person is protected separately"
    else:
        counted = f"{g['group_cap']} {name_counted(report)}"
        how = f"One group with all its {thing}s; at most {counted} of each count"
    yield Hazard("A unit that is less than a person", STATED, how)
    if ledger["elsewhere"]:
        how = "Other ledgers have, or may have, fits that this ledger does not count"
        yield Hazard("Several releases of the same data", OPEN, how)
    elif ledger["budget"] is not None:
        how = "One ledger counts all fits; a limit was fixed before the first fit"
        yield Hazard("Several releases of the same data", MET, how)
    elif ledger["path"] == ":memory:":
        how = "Only this fit was counted"
        yield Hazard("Several releases of the same data", OPEN, how)
    else:
        how = "One ledger counts all fits; no limit was fixed before the first fit"
        yield Hazard("Several releases of the same data", OPEN, how)


def _algorithms(report: dict[str, Any]) -> Iterator[Hazard]:
    """Yield the hazards of the mechanism and its implementation."""
    bounded = "Each row is clipped, and its integers are compared with the bound"
    yield Hazard("Contributions without a bound", MET, bounded)
    exact = "Sums are exact integers; noise is a Gaussian rounded to integers"
    if kind_of(report) == "network":
        exact = (
            "Gradients are computed in floating point, truncated to integers and added "
            "exactly"
        )
    yield Hazard("Floating point", MET, exact)
    random = "Noise and samples come from ChaCha20, keyed by the operating system"
    if report["guarantee"]["seeded"]:
        yield Hazard("Predictable randomness", OPEN, "The noise had a fixed seed")
    else:
        yield Hazard("Predictable randomness", MET, random)
    releases = report["guarantee"]["releases"]
    batches = "Full batches"
    if any(r["sampling_prob"] < 1 for r in releases):
        batches = "Poisson samples, as in the accounting"
    if any(r.get("epoch_steps", 1) > 1 for r in releases):
        batches = "Each row in one random step of an epoch, as in the accounting"
    yield Hazard("Sampling that differs from the accounting", MET, batches)
    audit = "Proofs, tests, seeded defects and audits are in the source (AUDIT.md)"
    yield Hazard("Defects of the implementation", STATED, audit)


def _around(report: dict[str, Any]) -> Iterator[Hazard]:
    """Yield the hazards of data processing before and after the mechanism."""
    tuning, thing = report["tuning"], name_unit_in(report)
    status = OPEN if tuning == "NOT ACCOUNTED" else MET
    yield Hazard("Settings tuned on the data", status, f"tuning: {tuning}")
    made = report["data"]["extraction"]
    if made_of_images(made):
        how = "Features of an image come from that image and a fixed network"
        yield Hazard("Steps before the mechanism", STATED, how)
    elif made.get("attested"):
        how = (
            "The data holder attests that each row was made for itself, by something "
            "not fitted to these rows"
        )
        yield Hazard("Steps before the mechanism", STATED, how)
    else:
        how = (
            "The origin of the features is not recorded; each row is assumed to be "
            "independent of other rows"
        )
        yield Hazard("Steps before the mechanism", OPEN, how)
    how = "The network's own training data have no guarantee from this run"
    yield Hazard("Data of the pretrained network", NOT_COVERED, how)
    how = f"Class names, the number of {thing}s and settings were declared public"
    yield Hazard("Facts published without noise", STATED, how)
    test = report["test_is"]
    how = {
        None: f"No test {thing}s were used",
        "private": f"Accuracy on private test {thing}s is not in the report",
        "public": f"Test {thing}s were declared public; their accuracy is exact",
    }[test]
    yield Hazard("Exact accuracy", STATED if test == "public" else MET, how)
    bias = "Noise lowers the accuracy of small classes most"
    if report["test"] is None:
        yield Hazard("Utility and bias", OPEN, f"{bias}; no class was measured here")
    else:
        worst = f"worst class {100 * report['test']['worst_class_accuracy']:.0f} %"
        yield Hazard(
            "Utility and bias", STATED, f"{bias}: {worst} of public test {thing}s"
        )


def deployment(report: dict[str, Any]) -> Iterator[Hazard]:
    """Yield the hazards of access to the data."""
    thing = name_unit_in(report)
    how = f"Central: the data holder, the machine and its users see the {thing}s"
    yield Hazard("Trust model", STATED, how)
    how = f"Timings and memory use may depend on the {thing}s; keep them private"
    yield Hazard("Side channels", NOT_COVERED, how)
    how = "Only their owner can read features and ledger, which are not encrypted"
    yield Hazard("Data security and access", NOT_COVERED, how)
    how = "The data holder is responsible for collection, consent and deletion"
    yield Hazard("Data collection", NOT_COVERED, how)


_PARTS: tuple[Callable[[dict[str, Any]], Iterator[Hazard]], ...] = (
    parameters,
    unit,
    _algorithms,
    _around,
    deployment,
)
