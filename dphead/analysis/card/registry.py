"""Render an entry for OpenDP's registry of deployments from a report, as YAML.

The fields are those of schemas/deployments-schema.yaml in
opendp/deployments-registry-data at 057e5d8. It has no field for mu, which is in
`privacy_parameters_details`. The entry is a function of the report alone. What only
people know is a TODO, or one of the schema's choices that the first lines ask to
correct.
"""

import math
from typing import Any

import yaml

from dphead.analysis.card import words
from dphead.analysis.card.page import expected_bar, number, test_bar
from dphead.analysis.card.risk import Limits, limits_of
from dphead.analysis.protected import kind_of, name_counted, name_unit_in
from dphead.analysis.rounding import percent_up
from dphead.analysis.tradeoff import PLACES, REPORTED_RATES

WIDTH = 100  # columns of YAML; a choice
TODO = "TODO"
_HEAD = """\
# An entry for OpenDP's registry of deployments, made of report.json. Before you propose
# it to opendp/deployments-registry-data, fill in what is TODO, and correct
# data_curator_type (Government, Industry or Nonprofit), data_product_sector and
# publication_date, which dphead cannot know.
"""
_RELATIONS = {
    "zero_out": "one is the other with one {unit}'s contribution replaced by nothing; "
    "the number of {thing}s is public",
    "add_remove": "one has one {unit} more than the other; the number of {thing}s is "
    "private",
    "replace_one": "one is the other with one {unit} replaced by any other; the number "
    "of {thing}s is public",
}


def registry_entry(report: dict[str, Any]) -> str:
    """Return the YAML of an entry. Raises ValueError for a run that is not private."""
    if not report["guarantee"]["private"]:
        raise ValueError(
            "an entry of the registry needs a private run, got one without noise or "
            "with a fixed seed. Fit again."
        )
    entry = {
        "url_slug": f"dphead-{report['ledger']['fit_id'][:8]}",
        "deployment": {
            "basic": _basic(report),
            "dp_variant": _variant(report),
            "privacy_loss": _loss(report, limits_of(report)),
            "deployment_model": _model(report),
            "implementation": _implementation(report),
            "administrative": {
                "status": "Draft",
                "registry_authors": [TODO],
                "tier": 3,
            },
        },
    }
    dumped = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=WIDTH)
    return f"{_HEAD}{dumped}"


def _basic(report: dict[str, Any]) -> dict[str, Any]:
    data, kind = report["data"], kind_of(report)
    network = (data["extraction"] or {}).get("backbone")
    of = f" on features of {network}" if network else ""
    of_images = name_unit_in(report) == "image"
    classifier = "an image classifier" if of_images else "a classifier"
    return {
        "name": TODO,
        "data_curators": [{"data_curator_name": TODO, "data_curator_type": "Industry"}],
        "description": (
            f"A {kind} of {classifier}{of}, {data['n_classes']} classes, "
            f"trained by {report['method']['name']} of dphead {report['dphead']}."
        ),
        "intended_use": TODO,
        "data_product_type": "Machine learning model",
        "data_product_region": TODO,
        "data_product_sector": "Technology",
        "publication_date": "1900-01-01",
    }


def _variant(report: dict[str, Any]) -> dict[str, Any]:
    made = f"{name_unit_in(report)}s"
    if kind_of(report) == "head":
        made = f"features of {made}" if made == "images" else "features"
    public = next(m.why for m in words.not_covered(report) if m.what == words.PUBLIC)
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"All sets of {made}, with a class each",
        "unprotected_quantities": f"Declared public: {public}",
    }


def _loss(report: dict[str, Any], limits: list[Limits]) -> dict[str, Any]:
    g, n_rows = report["guarantee"], report["data"]["n_rows"]
    grouped = g["group_cap"] is not None
    thing = name_unit_in(report)
    unit = "group" if grouped else thing
    relation = _RELATIONS[g["neighboring_relation"]].format(unit=unit, thing=thing)
    counted = f"{g['group_cap']} {name_counted(report)}"
    cap = f"; at most {counted} of a group count" if grouped else ""
    parameters = {"epsilon": g["epsilon"], "delta": g["delta"]}
    if g["rho"] is not None:
        parameters["rho"] = g["rho"]
    found: dict[str, Any] = {
        "privacy_unit": f"group of {thing}s (such as a patient)" if grouped else thing,
        "privacy_unit_details": f"Data sets are adjacent if {relation}{cap}.",
    }
    if not grouped:
        found["number_of_privacy_units"] = n_rows
    return found | {
        "privacy_parameters": parameters,
        "privacy_parameters_details": _details(report, limits),
    }


def _details(report: dict[str, Any], limits: list[Limits]) -> str:
    """Return mu, which the schema has no field for, and the limits on an attack."""
    g, ledger = report["guarantee"], report["ledger"]
    attacks = " ".join(_limits(one, report) for one in limits if one.own)
    mu = ""
    if g["mu"] is not None:
        mu = (
            f"The run is mu-Gaussian differentially private with mu = {g['mu']:.6g}, "
            "which is exact; epsilon and rho follow from it. "
        )
    total = ""
    alone = ledger["budget"] is not None and not ledger["elsewhere"]
    if alone and math.isfinite(ledger["total_epsilon"]):
        budget = ledger["budget"]
        total = (
            f" All fits on the same {name_unit_in(report)}s stay within epsilon = "
            f"{number(budget['epsilon'])} at delta = {budget['delta']:g}."
        )
    return f"{mu}{attacks}{total}"


def _limits(own: Limits, report: dict[str, Any]) -> str:
    """Return a sentence with the run's limits under one comparison."""
    pairs = zip(REPORTED_RATES, own.hits, strict=True)
    hits = ", ".join(f"{percent_up(h)} at {100 * r:g} %" for r, h in pairs)
    unused = f"an unused {name_unit_in(report)} {PLACES[own.replaced]}"
    return (
        "Largest true-positive rates of any membership-inference attack, by "
        f"false-positive rate, if {unused}: {hits}."
    )


def _model(report: dict[str, Any]) -> dict[str, Any]:
    fits, things = report["ledger"]["fits"], f"{name_unit_in(report)}s"
    return {
        "model_name": "Central",
        "trust_assumptions": (
            f"The data holder, the machine and its users see the {things}. Whoever "
            f"gets the {kind_of(report)} and the report may know everything else "
            "and run any feasible computation."
        ),
        "release_type": "One release" if fits == 1 else "Many releases",
        "release_type_details": f"Fits on these {things} in the ledger: {fits}.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _composition(guarantee: dict[str, Any]) -> str:
    if guarantee["mu"] is not None:
        return "Gaussian differential privacy (exact)"
    if any(r.get("epoch_steps", 1) > 1 for r in guarantee["releases"]):
        return "Privacy loss distributions of randomly allocated Gaussian mechanisms"
    return "Privacy loss distributions of Poisson-sampled Gaussian mechanisms"


def _implementation(report: dict[str, Any]) -> dict[str, Any]:
    releases = report["guarantee"]["releases"]
    lines = [
        f"{r['count']} x {r['label']} (clip norm {number(r['clip_norm'])}, noise "
        f"multiplier {number(r['noise_multiplier'])}, share of rows "
        f"{number(r['sampling_prob'] / r.get('epoch_steps', 1))})"
        for r in releases
    ]
    bars = [bar for bar in (expected_bar(report), test_bar(report)) if bar is not None]
    utility = "; ".join(f"accuracy {bar.name}: {bar.text}" for bar in bars)
    return {
        "preprocessing_and_hyperparameter_tuning": (
            f"Settings: {report['tuning']} ({words.TUNED[report['tuning']]})."
        ),
        "mechanisms": (
            "Gaussian mechanism, rounded to integers, on sums of clipped integer "
            f"rows: {'; '.join(lines)}. Sums are exact; noise is keyed by the "
            f"operating system's entropy. Implemented in dphead {report['dphead']}."
        ),
        "composition": _composition(report["guarantee"]),
        "post_processing": "Weights are computed from the noisy sums alone.",
        "justification": TODO,
        "utility": utility or "No accuracy was released.",
        "additional_information": (
            f"The {kind_of(report)} comes with report.json and report.html, "
            "which state the guarantee; `dphead check` computes it again."
        ),
    }
