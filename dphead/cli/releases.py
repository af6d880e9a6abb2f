"""Show a plan's releases as a table, before anything is charged."""

from typing import Any

from dphead.cli.text import table

COLUMNS = ("release", ">times", ">clip norm", ">noise multiplier", ">sampling")


def releases_table(rows: list[dict[str, Any]], title: str) -> str:
    """Return a table of releases, with equal ones on one line."""
    lines = [
        (
            r["label"],
            str(r["count"]),
            f"{r['clip_norm']:g}",
            f"{r['noise_multiplier']:.5g}",
            f"{r['sampling_prob'] / r.get('epoch_steps', 1):.4g}",
            "" if r["mu"] is None else f"{r['mu']:.4g}",
        )
        for r in rows
    ]
    return table((*COLUMNS, ">mu each"), lines, title)
