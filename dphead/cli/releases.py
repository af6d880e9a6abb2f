"""Show a plan's releases as a table, before anything is charged."""

from typing import Any


def releases_text(rows: list[dict[str, Any]], title: str) -> str:
    """Return a table of releases as text."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(releases_table(rows, title))
    return captured.get().rstrip("\n")


def releases_table(rows: list[dict[str, Any]], title: str) -> Any:
    """Return a table of releases, with equal ones on one line."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in (
        "release",
        "times",
        "clip norm",
        "noise multiplier",
        "sampling",
        "mu each",
    ):
        table.add_column(name, justify="left" if name == "release" else "right")
    for r in rows:
        mu = "" if r["mu"] is None else f"{r['mu']:.4g}"
        table.add_row(
            r["label"],
            str(r["count"]),
            f"{r['clip_norm']:g}",
            f"{r['noise_multiplier']:.5g}",
            f"{r['sampling_prob'] / r.get('epoch_steps', 1):.4g}",
            mu,
        )
    return table
