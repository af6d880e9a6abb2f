"""Name the unit of privacy, from public values of the source.

A row is called an image if dphead extracted it from an image.
"""

from pathlib import Path
from typing import Any

from dphead.planning.plan import Plan
from dphead.privacy import accounting

# widest informative 90 % interval of an expected accuracy; chosen
_TELLING = 0.2
NETWORK = "finetune "  # prefix of the method name of a trained network


def parts_of(extraction: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the record of each backbone in an `extraction` record.

    There are several if `dphead features concat` joined their features.
    """
    extraction = extraction or {}
    return (extraction.get("backbone_kwargs") or {}).get("parts") or [extraction]


def describe_input(transform: dict[str, Any]) -> str:
    """Describe how images were prepared for a backbone; "" if this is not recorded."""
    size = transform.get("image_size") or (transform.get("input_size") or ())[1:]
    if not size:
        return ""
    parts = [f"{size[0]} x {size[1]} pixels", transform.get("interpolation") or ""]
    if transform.get("crop_mode"):
        parts.append(f"crop {transform['crop_mode']} {transform['crop_pct']:g}")
    for key in ("mean", "std"):
        if transform.get(key):
            parts.append(f"{key} {' '.join(f'{value:g}' for value in transform[key])}")
    return ", ".join(part for part in parts if part)


def made_of_images(extraction: dict[str, Any] | None) -> bool:
    """Return whether an `extraction` record shows that dphead made rows from images.

    Then each row comes from its own image. Only an extraction records the pixel mean
    (`mean`); imported rows and arrays do not.
    """
    return all("mean" in (part.get("transform") or {}) for part in parts_of(extraction))


def name_unit(extraction: dict[str, Any] | None) -> str:
    """Return the name of a row: "image" or "row"."""
    return "image" if made_of_images(extraction) else "row"


def name_unit_in(report: dict[str, Any]) -> str:
    """Return the name of a report's training rows."""
    return name_unit(report["data"].get("extraction"))


def name_member(report: dict[str, Any]) -> str:
    """Return the name of what an attack detects: "person", or a training row's name."""
    grouped = report["guarantee"]["group_cap"] is not None
    return "person" if grouped else name_unit_in(report)


def name_counted(report: dict[str, Any]) -> str:
    """Return what the number of training rows counts: images, rows or groups.

    A group is one row of a network that protects groups.
    """
    grouped = report["guarantee"]["group_cap"] is not None
    if grouped and kind_of(report) == "network":
        return "groups"
    return f"{name_unit_in(report)}s"


def name_new(report: dict[str, Any]) -> str:
    """Return the name of the rows for which the expected accuracy holds.

    If the source has groups but single rows are protected, rows were counted as
    independent. The expected accuracy then holds only for new rows of the same people.
    """
    rows = f"new {name_unit_in(report)}s"
    same = report["data"].get("grouped") and report["guarantee"]["group_cap"] is None
    return f"{rows} of the same people" if same else rows


def is_vague(expected: dict[str, Any]) -> bool:
    """Return whether an expected accuracy is too uncertain to be informative."""
    return expected["high"] - expected["low"] > _TELLING


def about_scores(balanced: bool | None) -> str:
    """Return a sentence on scores if they were adjusted for class sizes, else "".

    `balanced` is the report's entry of this name.
    """
    if not balanced:
        return ""
    return (
        "Decisions weight all classes equally (--balanced). Probabilities assume that "
        "classes are equally frequent."
    )


def kind_of(report: dict[str, Any]) -> str:
    """Return the kind of the trained object: "head" or "network"."""
    return "network" if report["method"]["name"].startswith(NETWORK) else "head"


def own_model(report: dict[str, Any]) -> str:
    """Return the `--model` option for a network of the user's own code, else ""."""
    name = str(report["method"]["name"]).removeprefix(NETWORK)
    return f" --model {name}" if kind_of(report) == "network" and ":" in name else ""


def of_people(metrics: dict[str, Any], other: str = "") -> str:
    """Return " of N people" for rows with groups, else ""."""
    if (count := metrics.get("n_groups")) is None:
        return ""
    return f" of {count:,} {other}{'people' if count != 1 else 'person'}"


def protected_unit(group_cap: int | None, thing: str, group_mean: bool = False) -> str:
    """Return the unit of privacy of a plan with rows called `thing`."""
    if group_cap is None:
        return f"one {thing}"
    counted = f"{group_cap} means" if group_mean else group_cap
    # a network that protects groups uses one mean per group
    counted = "one mean counts" if counted == "1 means" else f"{counted} count"
    return f"one person (group) with all their {thing}s, of which at most {counted}"


def about_people(data: dict[str, Any]) -> str | None:
    """State in which data sets people are recognized. None without groups.

    `data` is a report's entry "data". The text has no period at its end.
    """
    if not data.get("grouped"):
        return None
    if (people := data.get("people")) is None:
        if data.get("dataset_id") is None:
            return (
                "People are recognized only within the rows of this fit. For a person "
                "who is also in other rows, the privacy losses of both add up. A total "
                "includes both only if one ledger counts both fits"
            )
        return (
            "People are recognized only within this data set. For a person who is also "
            "in another data set, the privacy losses of both add up, and no total "
            "includes both"
        )
    system = people["system"]
    if people["new"]:
        return (
            "It was declared that nobody in this data set is in another data set of "
            f"the id system {system}. If this is true, those data sets add no privacy "
            "loss. Data sets outside the id system are not known"
        )
    return (
        f"People are recognized by the id system {system}. Its data sets under one "
        "DPHEAD_HOME or team's server share the ledger of data set "
        f"{data['dataset_id']}, except data sets that were declared to hold new people "
        "only. Other data sets are not known"
    )


def recognizes_rows(data: dict[str, Any]) -> bool:
    """Return whether dphead recognizes fits on the same rows under another data set id.

    `data` is a report's entry "data". Rows are recognized by their images, if the index
    has them. Declared people are not enough, because a copy of the rows can lack the
    declaration. A report of an earlier version has no `image_index`, so its images
    count as not recognized.
    """
    return None not in (data.get("dataset_id"), data.get("image_index"))


def about_copies(report: dict[str, Any]) -> str:
    """State which fits on copies of a report's rows may be uncounted.

    The text has no period at its end.
    """
    data, where = report["data"], "under another data set id or in another ledger"
    if recognizes_rows(data):
        return (
            "dphead recognizes these images in another source only if it read all "
            "images of that source with the same DPHEAD_HOME or team's server. Fits on "
            "other copies are not known"
        )
    # the data sets of an id system share one ledger, except those of new people
    if (people := data.get("people")) is not None and not people["new"]:
        where = "in another ledger"
    return (
        f"dphead can fail to recognize fits on the same {name_unit_in(report)}s "
        f"{where}. Their privacy loss adds to that of this ledger, and no total "
        "includes it"
    )


def counts_all_fits(report: dict[str, Any]) -> bool:
    """Return whether a report may say that its ledger counts all fits on its rows.

    A ledger in memory does not know the fits of other programs.
    """
    ledger = report["ledger"]
    alone = not ledger["elsewhere"] and ledger["path"] != ":memory:"
    return alone and recognizes_rows(report["data"])


def budget_is(ledger: dict[str, Any]) -> str:
    """Return "guarantee", "limit of a sum" or "none", for a ledger's budget.

    `ledger` is a report's entry "ledger". After a merge, a budget did not apply to
    all fits from the start. It limits the plain sum of the fits, but is no guarantee.
    """
    if ledger["budget"] is None:
        return "none"
    return "limit of a sum" if ledger.get("is_sum") else "guarantee"


def largest_delta(report: dict[str, Any]) -> float:
    """Return the delta of the fit, or of the guarantee for all fits if it is larger."""
    delta, ledger = report["guarantee"]["delta"], report["ledger"]
    if budget_is(ledger) == "guarantee":
        return max(delta, ledger["budget"]["delta"])
    return delta


def counts_one_fit(ledger: dict[str, Any]) -> bool:
    """Return whether a ledger (a report's entry "ledger") could count one fit only.

    It was in memory, had no budget, and counted no other fit of its program.
    """
    alone = ledger["path"] == ":memory:" and ledger["fits"] == 1
    return alone and ledger["budget"] is None


def public_statement(report: dict[str, Any]) -> str:
    """Return the report's statement, without the folders of ledgers."""
    return without_folders(report["statement"], report)


def without_folders(text: str, report: dict[str, Any]) -> str:
    """Return a text of a report with the names of its ledgers, but not their folders.

    A folder may contain a user's name.
    """
    ledger = report["ledger"]
    paths = [ledger["path"], *(one["path"] for one in ledger["elsewhere"])]
    # longest first, because one path can be the beginning of another
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, Path(path).name)
    return text


def stated_guarantee(plan: Plan, thing: str) -> dict[str, Any]:
    """Return the guarantee of an executed plan, with rows called `thing`.

    mu and rho are None unless the plan is private and all batches are full. Without
    noise, or with a seed, "private" is False and "epsilon" is infinite.
    "nominal_epsilon" is the epsilon of the same plan without a seed.
    """
    seeded = not all(spec.private for spec in plan.specs)
    nominal = plan.marked(private=True) if seeded else plan
    mu = accounting.total_mu(plan.events()) if plan.private else None
    return {
        "private": plan.private,
        "seeded": seeded,
        "epsilon": plan.epsilon_spent(),
        "nominal_epsilon": nominal.epsilon_spent(),
        "delta": plan.delta,
        "mu": mu,
        "rho": None if mu is None else mu * mu / 2,
        "neighboring_relation": plan.relation,
        "protected_unit": protected_unit(plan.group_cap, thing, plan.group_mean),
        "releases": plan.summary(),
    }
