"""Render a Hugging Face model card from a report: README.md with metadata.

The card depends on the report only. Facts that the report lacks are marked TODO.
"""

import re
from typing import Any

import yaml

from dphead.analysis.card.about import About
from dphead.analysis.card.page import (
    class_bars,
    expected_bar,
    facts_of,
    number,
    template,
    test_bar,
)
from dphead.analysis.protected import made_of_images, name_unit_in

_WIDTH = 100  # columns of prose; chosen


def model_card(report: dict[str, Any], about: About | None = None) -> str:
    """Return the README.md of a report from `write_report` or `read_run`.

    `about` fills in the use and the origin of the images.
    """
    facts = facts_of(report)
    bars = [bar for bar in (expected_bar(report), test_bar(report)) if bar is not None]
    network = (report["data"]["extraction"] or {}).get("backbone")
    privacy = "with differential privacy" if facts["private"] else "NOT PRIVATE"
    of_images = made_of_images(report["data"]["extraction"])
    classifier = "Image classifier" if of_images else "Classifier"
    text = template("model_card.md.j2").render(
        facts,
        front=f"---\n{_dumped(metadata(report))}---\n",
        title=f"{classifier} {facts['kind']}, {privacy}",
        about=about,
        trained=_trained(report, network),
        network=network,
        of_images=of_images,
        budget=_budget(report),
        accuracies=[f"{bar.name}: {bar.text}" for bar in bars],
        classes=class_bars(report),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def metadata(report: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the card for Hugging Face.

    A result is included only if the test rows are public.
    """
    thing = name_unit_in(report)
    task = "image-classification" if thing == "image" else "other"
    found: dict[str, Any] = {
        "library_name": "dphead",
        "pipeline_tag": task,
        "tags": ["differential-privacy"] if report["guarantee"]["private"] else [],
    }
    if thing == "image":  # the source of other rows is unknown
        found["tags"].append("image-classification")
    backbone = str((report["data"]["extraction"] or {}).get("backbone"))
    if backbone.startswith("hf-hub:"):
        found["base_model"] = backbone.removeprefix("hf-hub:")
    if report["test"] is not None:
        metric = {"type": "accuracy", "value": report["test"]["accuracy"]}
        result = {
            "task": {"type": task},
            "dataset": {
                "name": f"public test {thing}s",
                "type": f"public-test-{thing}s",
            },
            "metrics": [metric],
        }
        name = f"dphead-{report['ledger']['fit_id'][:8]}"
        found["model-index"] = [{"name": name, "results": [result]}]
    return found


def _trained(report: dict[str, Any], network: str | None) -> str:
    data = report["data"]
    on = "" if network is None else f" on features of {network}"
    return (
        f"Trained{on} by dphead's {report['method']['name']}, {data['n_classes']} "
        "classes. The page `report.html` of the run shows the same with pictures."
    )


def _budget(report: dict[str, Any]) -> str:
    ledger = report["ledger"]
    others = "in one of several ledgers: " if ledger["elsewhere"] else ""
    if ledger["budget"] is None:
        total = number(ledger["total_epsilon"])
        return f"{others}plain sum ε = {total}; no limit was fixed"
    limit = number(ledger["budget"]["epsilon"])
    delta = f"δ = {ledger['budget']['delta']:g}"
    return f"{others}at most ε = {limit}, {delta}, fixed beforehand"


def _dumped(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH)
