"""`dphead check`: what the guarantee of a finished run does not cover."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)


@click.command(short_help="List what a run's guarantee does not cover.")
@click.argument("run", type=PATH)
@click.option(
    "--ledger",
    type=PATH,
    help="The data set's ledger, if it is not where the report says.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(run: Path, ledger: Path | None, as_json: bool) -> None:
    """List what the guarantee of RUN (a run folder or a report.json) does not cover;
    one line each.

    The report's epsilon is computed again from its releases and held against the head
    and the ledger. Exit code 0: nothing found; 1: findings; 2: no report, or one that
    was changed.
    """
    from dphead.analysis.check import check as find
    from dphead.analysis.check import notes
    from dphead.analysis.records import read_run

    finished = read_run(run, ledger)
    findings, remarks, g = find(finished), notes(finished), finished.report["guarantee"]
    if as_json:
        import json
        from dataclasses import asdict

        from dphead.runs.report import plain

        found = {
            "findings": [asdict(f) for f in findings],
            "notes": remarks,
            "epsilon": g["epsilon"],
        }
        click.echo(json.dumps(plain(found), indent=2, allow_nan=False))
    else:
        private = "" if g["private"] else " (NOT PRIVATE)"
        click.echo(
            f"epsilon {g['epsilon']:.5g}{private} at delta {g['delta']:g}, "
            f"{g['neighboring_relation']}: recomputed"
        )
        for finding in findings:
            click.echo(f"not covered  {finding}")
        for remark in remarks:
            click.echo(f"note: {remark}")
        if not findings:
            click.echo(
                "nothing found that the guarantee does not cover; what left no record "
                "cannot be seen here"
            )
    if findings:
        raise SystemExit(1)
