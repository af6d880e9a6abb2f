"""Render a Hugging Face model card from a report: README.md with metadata.

The card depends only on the report and about.toml. Missing values are marked TODO.
"""

import re
from typing import Any

import yaml

from dphead.analysis.card.about import About
from dphead.analysis.card.page import (
    class_bars,
    expected_bar,
    facts_of,
    template,
    test_bar,
)
from dphead.analysis.protected import name_unit_in, own_model, parts_of

_WIDTH = 100  # columns of prose; chosen


def model_card(report: dict[str, Any], about: About | None = None) -> str:
    """Return the README.md of a report from `write_report` or `read_run`.

    `about` fills in the use and the origin of the images.
    """
    facts = facts_of(report)
    bars = [bar for bar in (expected_bar(report), test_bar(report)) if bar is not None]
    network = (report["data"]["extraction"] or {}).get("backbone")
    privacy = "with differential privacy" if facts["private"] else "NOT PRIVATE"
    classifier = "Image classifier" if facts["of_images"] else "Classifier"
    front = yaml.safe_dump(
        metadata(report), sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    text = template("model_card.md.j2").render(
        facts,
        front=f"---\n{front}---\n",
        title=f"{classifier} {facts['kind']}, {privacy}",
        about=about,
        network=network,
        own_model=own_model(report),
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
    names = [str(p.get("backbone")) for p in parts_of(report["data"]["extraction"])]
    hub = [n.removeprefix("hf-hub:") for n in names if n.startswith("hf-hub:")]
    if hub:
        found["base_model"] = hub[0] if len(hub) == 1 else hub
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
