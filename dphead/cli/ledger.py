"""Implement `dphead ledger`, which shows and limits charges.

No command may change a charge.
"""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import click

from dphead.cli import values
from dphead.cli.features import print_people
from dphead.cli.text import TIE, print_json, say, table, tied
from dphead.privacy.rounding import as_declared, declared_at


@click.group()
def ledger() -> None:
    """Show, limit or verify the record of all fits on a data set."""


@ledger.command("init")
@click.argument("url", envvar="DPHEAD_LEDGER")
def _init(url: str) -> None:
    """Create a team's ledgers on a PostgreSQL server.

    URL is postgresql://OWNER@HOST/DATABASE (default: DPHEAD_LEDGER). The role OWNER
    owns the tables. Give other roles the right to charge by GRANT
    (docs/team-ledger.md).

    \b
    dphead ledger init postgresql://owner@host/database
    """
    from dphead.privacy.ledger import server

    say("Server", f"ready: its id is {server.init(url)}")
    say(
        "Next",
        "GRANT USAGE ON SCHEMA dphead TO role",
        "GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA dphead TO role",
    )


@ledger.command("move")
@click.argument("source", type=values.LEDGER)
@click.argument("url", envvar="DPHEAD_LEDGER")
def _move(source: Any, url: str) -> None:
    """Move a ledger to a team's server.

    SOURCE is a ledger file, or a features file (for the ledger of its data set). URL is
    postgresql://ROLE@HOST/DATABASE (default: DPHEAD_LEDGER). The server gets the budget
    and all charges. The file then takes no more charges. Run the same command again to
    continue an interrupted move. The ledger of an id system (--people) does not move.

    \b
    dphead ledger move train.h5 postgresql://role@host/database
    """
    from dphead.fit.ledgers import image_indexes, move_ledger
    from dphead.privacy.ledger import server

    if not server.is_url(url):
        raise ValueError(
            "URL (default: DPHEAD_LEDGER) must begin with postgresql://, got "
            f"{url}. Type the URL of the team's server, such as "
            "postgresql://role@host/database."
        )
    if server.is_on_server(source):
        raise ValueError(
            f"SOURCE must be a file, got {source}. A ledger cannot move from one "
            "server to another, because the index of its images would stay behind. "
            "Type a ledger file or a features file."
        )
    (book,) = _open(source, write=True, own=True)
    target = move_ledger(book, url)
    moved = f"{_in_words(len(target.fits()))}, from {book.path}"
    say("Ledger", target.path)
    say("Moved", f"{moved}, which takes no more charges")
    if image_indexes()[-1].knows(str(target.dataset_id)):
        say(
            "Next",
            "repeat each `dphead extract` of its images with the same -o: it adds them "
            "to the server, so that other members recognize them",
        )


@ledger.command("people")
@click.argument("system", metavar="NAME")
@click.argument("files", nargs=-1, required=True, type=values.PATH)
@click.option(
    "--new-people",
    is_flag=True,
    help="Declare that nobody in FILES is in another data set of the id system.",
)
@click.option(
    "--i-know-this-is-not-private",
    "not_private",
    is_flag=True,
    help="Confirm a merge if only some of the ledgers have a fit without noise or with "
    "a seed. The merged total is then infinite.",
)
def _people(
    system: str, files: tuple[Path, ...], new_people: bool, not_private: bool
) -> None:
    """Declare NAME as the id system of the groups in FILES.

    FILES are features files. The ledgers of their data sets are merged into the ledger
    that all data sets of NAME share. The shared ledger counts the fits of these data
    sets, and keeps all their budgets. With --new-people, a data set keeps its own
    ledger. Run the same command again to continue an interrupted merge.

    \b
    dphead ledger people clinic-records 2024.h5 2025.h5
    """
    from dphead.fit.people import declare_people, of_another_home

    for file in files:
        values.check_there("a features file", file)
    for i, file in enumerate(files):
        foreign, beside = of_another_home(file), files[:i] + files[i + 1 :]
        book, merged = declare_people(file, system, new_people, not_private, beside)
        for place in merged:
            say("Merged", f"{place}, which takes no more charges")
        print_people({"system": system, "new": new_people})
        if foreign:
            say(
                "Fits",
                f"! {file} was declared with another DPHEAD_HOME or DPHEAD_LEDGER. If "
                "it was fitted there, this ledger does not count those fits",
            )
        _spent(book, False)


@ledger.command("show")
@click.argument("which", type=values.LEDGER, envvar="DPHEAD_LEDGER")
@click.option("--json", "as_json", is_flag=True, help="Print every release as JSON.")
def _show(which: Any, as_json: bool) -> None:
    """Print the budget, the spent epsilon and the remaining epsilon.

    WHICH is a ledger file, a features file (for the ledger of its data set), or the URL
    of a team's server (default: DPHEAD_LEDGER).

    \b
    dphead ledger show train.h5
    """
    for book in _open(which):
        _spent(book, as_json)


def _spent(book: Any, as_json: bool) -> None:
    from dphead.analysis.records import about_unread, fit_events, unread_place
    from dphead.cli.budget import budget_lines
    from dphead.fit.ledgers import charged_elsewhere
    from dphead.fit.noted import check_noted
    from dphead.fit.report import ledger_totals
    from dphead.privacy.ledger.seals import check_undamaged
    from dphead.privacy.ledger.store import IN_MEMORY, MOVED, LedgerError

    check_undamaged(book)
    fits = book.fits()
    if as_json:
        limit = {"budget": book.budget(), "is_sum": book.is_sum()}
        print_json({**limit, "fits": fits}, indent=None)
        return
    if book.path != IN_MEMORY:
        say("Ledger", book.path)
    for name, check in (
        ("Ledger", partial(check_noted, book.path, book)),
        ("Moved", partial(book.check_open, but=MOVED)),
        ("Merge", book.check_joined),
    ):
        try:
            check()
        except LedgerError as error:
            say(name, f"! {error}")
    if place := book.meta(MOVED):
        say("Moved", f"! to {place}: this copy takes no more charges")
        lacks, ended = unread_place(book)
        if lacks is not None:
            say("Merge" if ended else "Moved", f"! {about_unread(lacks, ended)}")
    say("Data set", book.meta("dataset_id") or "-")
    if fits:
        click.echo(_fits_table(fits))
    notes = list[str]()
    # an empty ledger on a server has no values
    named = book.meta("dataset_id") or book.dataset_id
    others = charged_elsewhere(named, book.path, notes=notes)
    if others or notes:
        listed = (f"! not counted here: {o}" for o in others)
        say("Elsewhere", *listed, *(f"! {note}" for note in notes))
    delta = fits[-1]["delta"] if fits else 1e-5
    # use the fits' smallest delta, because a larger one could hide what a fit spent
    if book.budget() is None:
        delta = min((fit["delta"] for fit in fits), default=delta)
    totals = ledger_totals(book, fit_events(fits[-1:]), delta)
    totals |= {"path": "", "elsewhere": others}
    which = "the last one" if fits else None
    say("Budget", *budget_lines(totals, delta, which))


_FIT_COLUMNS = (
    "charged at",
    "fit",
    ">epsilon",
    ">delta",
    "relation",
    ">releases",
    ">committed",
)


def _fits_table(fits: list[dict[str, Any]]) -> str:
    """Return a table with one line for each fit."""
    import time

    rows = []
    for f in fits:
        done = sum(r["state"] == "committed" for r in f["releases"])
        at = time.strftime(f"%Y-%m-%d{TIE}%H:00", time.gmtime(f["created"]))
        rows.append(
            (
                at,
                f["description"],
                f["epsilon"],
                as_declared(f["delta"]),
                f["relation"],
                str(len(f["releases"])),
                str(done),
            )
        )
    return table(_FIT_COLUMNS, rows).replace(TIE, " ")


@ledger.command("budget")
@click.argument("which", type=values.LEDGER)
@click.option(
    "--epsilon", type=values.NUMBER, required=True, help="Total epsilon of all fits."
)
@click.option(
    "--delta",
    type=values.NUMBER,
    required=True,
    help="Delta of the total over all fits, below 1/n for n images or groups.",
)
def _budget(which: Any, epsilon: float, delta: float) -> None:
    """Set the budget of a data set.

    WHICH is a features file, a ledger file, or the name of a ledger on a team's server.
    A ledger file that ends in .sqlite is created if it is missing. The budget limits
    the total of all fits in this ledger. Set it before the first fit. It cannot be
    changed later.

    \b
    dphead ledger budget train.h5 --epsilon 3 --delta 1e-5
    """
    from dphead.fit.ledgers import fix_budget
    from dphead.privacy.ledger.server import is_url

    if is_url(which):
        raise ValueError(
            "WHICH is the URL of a server, which has a ledger for each data set. Set "
            "DPHEAD_LEDGER to this URL, and type a features file, for the ledger of "
            "its data set."
        )
    if (text := _too_large(Path(which), epsilon, delta)) is not None:
        raise ValueError(f"{text} Nothing was set. Use a smaller --delta.")
    (book,) = _open(which, write=True)
    fix_budget(book, epsilon, delta)
    if book.is_sum():  # a merge fixed this budget
        _spent(book, False)
        return
    limit = declared_at(epsilon, delta)
    text = f"{tied(limit)}, for all fits in this ledger together. It is never exceeded."
    beside = "The ledger is new. Its first fit decides which data set it counts."
    if book.meta("dataset_id"):
        beside = _of_same_rows(Path(which))
    say("Budget", text, beside)
    say("Ledger", book.path)


def _of_same_rows(which: Path) -> str:
    """Return text on how dphead recognizes the rows of a ledger in other files."""
    from dphead_extract.features.format import open_features

    from dphead.analysis.protected import made_of_images
    from dphead.fit.files import extraction_of, is_features_file
    from dphead.fit.ledgers import images_known_in

    recognized = (
        "From now on, dphead refuses fits on these images in any other ledger, if it "
        "recognizes the images."
    )
    images = (
        "Images are recognized only after you repeat their `dphead extract` with the "
        "same -o and this DPHEAD_HOME."
    )
    rows = (
        "Rows that are imported a second time are recognized only with "
        "--same-data-as FILE or --dataset-id."
    )
    if not is_features_file(which):
        return f"{images} {rows}"  # a ledger does not name the files that it counts
    with open_features(which) as file:
        if not made_of_images(extraction_of(file)):
            return rows
        return recognized if images_known_in(file) else images


def _too_large(which: Path, epsilon: float, delta: float) -> str | None:
    """Return why delta is too large for the rows of a features file, or None."""
    from dphead_extract.features.format import open_features

    from dphead.fit.files import is_features_file
    from dphead.planning.plan import large_delta

    if not is_features_file(which):
        return None
    with open_features(which) as file:
        return large_delta(epsilon, delta, file.n_rows)


@ledger.command("verify")
@click.argument("which", type=values.LEDGER, envvar="DPHEAD_LEDGER")
def _verify(which: Any) -> None:
    """Check a ledger for damage by its digests.

    WHICH is a ledger file, a features file (for the ledger of its data set), or the URL
    of a team's server (default: DPHEAD_LEDGER). Exit code 0: no damage. 1: damage,
    listed. 2: the file is unusable.

    \b
    dphead ledger verify train.h5
    """
    from dphead.analysis.ledger_place import damage_elsewhere

    damaged = False
    for book in _open(which):
        problems = [*book.verify(), *damage_elsewhere(book)]
        damaged |= bool(problems)
        for problem in problems:
            click.echo(f"damaged: {problem}")
        if not problems:
            say("Ledger", book.path)
            say("Damage", f"nothing found, in {_in_words(len(book.fits()))}")
    if damaged:
        raise SystemExit(1)


def _in_words(fits: int) -> str:
    return f"{fits} fit{'s' if fits != 1 else ''}"


def _check_known(dataset_id: str) -> None:
    """Raise ValueError if no index of images or people knows the data set."""
    from dphead.fit.ledgers import image_indexes, people_index

    if not any(one.knows(dataset_id) for one in (*image_indexes(), people_index())):
        raise ValueError(
            f"No index of images or people knows the data set {dataset_id}. Correct "
            "the name of the ledger, or type a features file of the data set."
        )


def _open(which: Any, write: bool = False, own: bool = False) -> list[Any]:
    """Return the ledgers that an argument names; several only for a server's URL.

    Without `write`, they are read-only, and a features file whose data set has no
    ledger file gives an empty ledger in memory. With `own`, a features file means the
    ledger file in DPHEAD_HOME, even if there is a team's server.
    """
    from dphead.fit.ledgers import (
        counted_in,
        default_ledger_path,
        ledger_path,
        open_ledger,
        other_ledgers,
        people_index,
    )
    from dphead.fit.noted import has_home
    from dphead.privacy.ledger import Ledger, server

    if server.is_url(which):
        return [
            Ledger(which, dataset_id, read_only=True)
            for dataset_id in server.data_sets(which)
        ]
    if server.is_on_server(which):  # a ledger's name, as `offer_budget` prints it
        if write:
            _check_known(which.rpartition("/")[2])
        return [Ledger(which, read_only=not write)]
    if write and which.suffix == ".sqlite" and not which.exists():
        # a new ledger; a mistyped features file is refused below
        own_place = has_home() and default_ledger_path("any").parent
        named = re.fullmatch("[0-9a-f]{32}", which.stem)  # the name is a data set's id
        in_home = which.absolute().parent == own_place
        if not (in_home and named):
            return [open_ledger(which)]
        _check_known(which.stem)
        return [open_ledger(which, which.stem)]
    values.check_there("a ledger or features file", which)

    from dphead_extract.features.format import open_features

    from dphead.fit.files import is_features_file
    from dphead.privacy.ledger.store import IN_MEMORY

    if not is_features_file(which):
        return [Ledger(which, read_only=not write)]
    if has_home() and not own:
        people_index()  # raises an error if another store has the home's id systems
    with open_features(which) as file:
        dataset_id = counted_in(file.dataset_id)
    path = default_ledger_path(dataset_id) if own else ledger_path(None, dataset_id)
    if write:
        return [open_ledger(path, dataset_id)]
    if isinstance(path, Path) and not os.path.lexists(path):
        said = "no ledger yet: no fit was charged to this data set's ledger"
        if others := other_ledgers(dataset_id):
            said = (
                f"no ledger at {path}. Restore it if it had fits. The data set is also "
                f"known to {', '.join(map(str, others))}"
            )
        click.echo(said)
        return [Ledger(IN_MEMORY, dataset_id)]
    return [Ledger(path, dataset_id, read_only=True)]
