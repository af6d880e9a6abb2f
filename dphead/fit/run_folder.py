"""Check, charge, record and resume runs of heads and networks.

dphead/privacy/proofs/ledger.md covers crashes. This module reads no rows. It writes
released values, public values and, in the fit.json of an unfinished run, a keyed digest
of the rows. Private images decide only which other ledgers a report lists
(`Elsewhere.fact`), and whether the index has all of them.
"""

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dphead_extract.index import Overlap

from dphead.analysis.card.page import page
from dphead.analysis.ledger_place import counted_at, named
from dphead.analysis.sealed import plain, read_json, write_json
from dphead.fit import report as reports
from dphead.fit.fit import About, Fit, FitResult, charge_ledger
from dphead.fit.ledgers import (
    Elsewhere,
    RowGroups,
    at_present,
    charged_elsewhere,
    check_alone,
    counted_in,
    data_set_of,
    is_listed,
    ledger_name,
    ledger_path,
    ledgers_holding,
    open_ledger,
    read_ledger,
)
from dphead.fit.options import RunOptions
from dphead.fit.provenance import commit
from dphead.planning.plan import Plan
from dphead.privacy.atomic_write import lock_file, sync, write_text
from dphead.privacy.ledger import Ledger, LedgerError, Tried, new_fit_id
from dphead.privacy.ledger.charge import Charge
from dphead.privacy.ledger.schema import LostAnswer
from dphead.privacy.ledger.store import GROUPS, IDENTITY, PEOPLE
from dphead.privacy.rounding import declared_at

# endings of a run's files, including files that are being written
_ENDINGS = {".html", ".json", ".npy", ".npz", ".part", ".safetensors", ".toml"}
CHECKPOINT = "checkpoint.npz"  # a network's checkpoint in its run folder
_SLACK_DISK = 64 << 20  # bytes needed besides the stored releases; chosen


def beside_others(
    about: About,
    out: Path,
    ledger: str | Path | None,
    tuning: str | None,
    charged: bool = False,
    known: Sequence[Overlap] = (),
) -> About:
    """Return `about` with an entry and a warning for each other ledger with fits.

    The other ledgers hold fits on the run's images or people that the run's ledger does
    not count. Earlier entries of `about` are kept or replaced (`is_listed`). `charged`
    is True if the fit was charged before. If the index does not have the run's images,
    `known` are the data sets that share images with the run.

    Raises
    ------
    ValueError
        If any of these ledgers has earlier fits and tuning is "none", because they
        could have decided the settings.
    LedgerError
        As `check_alone`, unless the fit may be charged already.
    """
    dataset_id = about.source.dataset_id
    own = ledger_name(ledger, dataset_id)
    earlier = 0
    fit_id = None if charged else interrupted(out)
    if not charged and fit_id is None:
        # an early check that creates no file; `charging` repeats it
        for name in (dataset_id, *(counted_in(one.dataset_id) for one in known)):
            check_alone(name, own, None)
    if not charged and (fit_id is None or tuning == "none"):
        with closing(read_ledger(ledger, dataset_id)) as book:
            ids = [fit["fit_id"] for fit in book.fits()]
        earlier = ids.index(fit_id) if fit_id in ids else len(ids)
    # arrays have no data set, but their ledger can have one
    found = charged_elsewhere(dataset_id or data_set_of(ledger), own)
    for one in known:
        beside = charged_elsewhere(counted_in(one.dataset_id), own)
        found += [replace(more, overlap=more.overlap or one) for more in beside]
    about = _naming(about, found, out)
    if (about.elsewhere or earlier) and tuning == "none":
        raise tuned_on(own if earlier else about.elsewhere[0]["path"])
    return about


def tuned_on(ledger: str | Path) -> ValueError:
    """Return the error for `tuning` "none" if a ledger has earlier fits."""
    return ValueError(
        f"--tuning none is not true: the ledger {ledger} has fits on the same images, "
        "which can have decided the settings. Drop --tuning, or type how the settings "
        "were chosen."
    )


def _naming(
    about: About, found: Sequence[Elsewhere], out: Path, *own: Elsewhere
) -> About:
    """List `found`, and the ledgers of `about` that neither `found` nor `own` has.

    Each listed ledger gets a warning.
    """
    listed = [one.fact(out) for one in found]
    listed += [
        at_present(one, out) | {"path": named(one["path"], out)}
        for one in about.elsewhere
        if not is_listed(one, [*found, *own], out)
    ]
    before = [reports.uncounted(one) for one in about.elsewhere]
    warnings = [text for text in about.warnings if text not in before]
    warnings += map(reports.uncounted, listed)
    return replace(about, elsewhere=tuple(listed), warnings=tuple(warnings))


def _check_new(out: Path) -> None:
    """Raise ValueError if the folder holds a finished run.

    If that run ended before its cleanup, clean up now.
    """
    if (out / "report.json").exists():
        _tidy(out)
        raise ValueError(f"{out} holds a finished run. Choose another folder with -o.")


def check_folder(out: Path, sizes: Iterable[int]) -> None:
    """Check that the run folder is writable and has disk space.

    `sizes` are the numbers of values that each release stores.

    Raises
    ------
    ValueError
        If the folder holds a finished run, or the path is a file. If it contains a
        folder with the name ending of a run's file (_ENDINGS).
    OSError
        If there is too little disk space, or the path is not writable.
    """
    _check_new(out)
    for path in (*out.glob("*"), *out.glob("releases/*")):
        # a rename replaces a file or a link, but not a folder
        if path.suffix in _ENDINGS and path.is_dir() and not path.is_symlink():
            raise ValueError(
                f"{path} is a folder in the place of a file of the run. Rename it, or "
                "choose another folder with -o."
            )
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise ValueError(
            f"the run folder {out} cannot be created, because {parent} is a file. "
            "Choose another folder with -o."
        )
    need = _SLACK_DISK + 8 * sum(sizes)
    free = shutil.disk_usage(parent).free
    if free < need:
        raise OSError(
            f"the run needs {need >> 20} MB of disk, and {parent} has {free >> 20} MB "
            "free. Choose a folder on another disk with -o."
        )
    if not os.access(parent, os.W_OK):
        raise OSError(f"{parent} is not writable. Choose another run folder with -o.")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a run folder's lock during a block.

    The lock is taken before the folder is read. A missing folder is created, and
    removed if it stays empty.

    Raises
    ------
    ValueError
        If another process uses the folder, or if it holds a finished run.
    OSError
        If the folder cannot be written, or if the file system has no locks.
    """
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    if made:
        # sync the folder: if a crash lost it, the same command would charge again
        sync(out.parent)
    # try twice: a process that just ended may have removed the first file
    lock = lock_file(out / "lock") or lock_file(out / "lock")
    if lock is None:
        raise ValueError(
            f"another process is writing to {out}. Wait until that process ends, or "
            "choose another folder with -o."
        )
    try:
        _check_new(out)
        yield
    finally:
        (out / "lock").unlink(missing_ok=True)
        lock.close()
        if made:
            # the folder is not empty, or another process uses it
            with suppress(OSError):
                out.rmdir()


@contextmanager
def noted(options: RunOptions) -> Iterator[None]:
    """Add a note about the charge to any error that ends a run."""
    try:
        yield
    except BaseException as error:
        error.add_note(_about_charge(options))
        raise


def _about_charge(options: RunOptions) -> str:
    """Return a sentence about the charge of a run, from the files in its folder."""
    out = options.out
    budget = declared_at(options.epsilon, options.delta or 0)
    if options.seed is not None:
        budget = "an infinite epsilon"  # noise from a seed is known
    if (out / "report.json").exists():
        return f"the run in {out} is finished, and {budget} is charged."
    if math.isinf(options.epsilon):
        return (
            "an infinite epsilon may be charged. Check with `dphead ledger show`. This "
            "run cannot be resumed."
        )
    if not (out / "fit.json").exists():
        return "nothing was charged. Run the same command to start again."
    if not (out / "releases").exists():
        return f"{budget} is charged at most once. Run the same command to resume."
    return (
        f"{budget} is charged for the run in {out}. Run the same command to resume it "
        "at no further charge."
    )


def interrupted(out: Path) -> str | None:
    """Return the id of the unfinished fit in this folder, or None."""
    marker = _marker(out)
    return None if marker is None else marker["fit_id"]


def data_set_begun(out: Path, known: Sequence[Overlap]) -> str | None:
    """Return the data set that the folder's interrupted run began, or None.

    The ledger of this data set has the run's fit, or fit.json names this ledger.
    `known` are the data sets that share images with a new run. A data set that lacks
    some of the run's images is not returned.
    """
    marker = _marker(out)
    if marker is None:
        return None
    for other in known:
        of, whole = other.dataset_id, other.shared == other.own
        to_get = marker.get("ledger") == str(ledger_name(None, of))
        if whole and (to_get or ledgers_holding(of, marker["fit_id"])):
            return of
    return None


def resumed_at(out: Path, done: int) -> list[int]:
    """Return the numbers of committed releases at which this run was resumed, sorted.

    `done` is the current number, which is added to the list. If the folder has a
    fit.json, it is stored there.
    """
    marker = _marker(out) or {}
    found = sorted({*marker.get("resumed", []), done})
    if marker:
        write_json(out / "fit.json", marker | {"resumed": found})
    return found


def _marker(out: Path) -> dict[str, Any] | None:
    path = out / "fit.json"
    if not path.exists():
        return None
    marker = read_json(path, "marker of an interrupted fit")
    if not isinstance(marker.get("fit_id"), str):
        raise ValueError(
            f"{path} has no fit id. Fit again in another folder with -o. The "
            "ledger charges the new fit too."
        )
    return marker


def try_plans(
    plans: Sequence[Plan],
    about: About,
    ledger: str | Path | None,
    groups: RowGroups | None,
) -> tuple[dict[str, Any], Tried]:
    """Return the totals of a ledger, and whether it takes fits by all plans.

    Nothing is charged. `plans` are at least one, and `about` describes the first fit.
    `groups` are those of its rows, which are compared as `charge_ledger` compares them.
    The totals have the keys of a report's "ledger", without "fit_id". Their "remaining"
    is for a fit by the first plan.
    """
    given = ledger, about.source.dataset_id
    rows = [([s.row() for s in plan.specs], plan.delta) for plan in plans]
    with closing(read_ledger(*given)) as book:
        found = reports.ledger_totals(book, plans[0].events(), plans[0].delta)
        tried = book.try_fits(rows)
        compares = any(key.startswith((GROUPS, PEOPLE)) for key in book.facts())
        if groups is not None and compares and tried.refused != 0:
            people, protects = about.source.people, plans[0].group_cap is not None
            try:
                groups.compared(people, protects).fixed_in(book)
            except LedgerError as error:
                tried = Tried(0, str(error), book.spent(plans[0].delta))
    found |= {"path": str(ledger_path(*given)), "elsewhere": about.elsewhere}
    return found, tried


def charge(fit: Fit[Any], options: RunOptions) -> Charge:
    """Charge the plan, or continue the interrupted fit in the run folder.

    The fit's id is written to the folder first, then to the ledger. A run that ends
    between the two is charged when it resumes. A run that ends later is not charged
    again. A fit without noise writes no id, and cannot be resumed.

    Returns
    -------
    Charge
        The charge.

    Raises
    ------
    ValueError
        If an interrupted fit is resumed with different options, rows or an infinite
        epsilon, or if its fit.json is damaged.
    LedgerError
        If the ledger refuses the plan, or lacks an interrupted fit that may have been
        charged. If it is unknown whether the fit is charged (LostAnswer).
    """
    out, ledger = options.out, open_ledger(options.ledger, fit.about.source.dataset_id)
    marker = _marker(out)
    begun = marker is not None
    store = fit_id = None
    if fit.plan.private:
        about = options.repeated() | fit.about.settings | {"rows": fit.about.rows}
        asked = plain(about)
        store = out / "releases"
        if marker is not None:
            if ledger.holds(marker["fit_id"]):
                _check_same(marker.get("asked", {}), asked, out)
                return ledger.resume(fit.digest(), marker["fit_id"], store)
            _check_uncharged(marker, ledger, out)
        fit_id = new_fit_id() if marker is None else marker["fit_id"]
        marker = {"fit_id": fit_id, "ledger": ledger.path, "asked": asked}
        write_json(out / "fit.json", marker)
    elif marker is not None:
        # exact sums must not reach the disk, so a fit without noise cannot resume
        raise ValueError(
            f"A fit with --epsilon inf or --seed cannot resume the interrupted fit in "
            f"{out}. Repeat the first command to resume, or choose another folder with "
            "-o."
        )
    try:
        return charge_ledger(
            fit,
            ledger,
            not_private=options.not_private,
            store=store,
            fit_id=fit_id,
        )
    except LedgerError as error:
        # Keep the id if the fit may be charged, so that a resume finds the charge. The
        # server may still have been writing an earlier run's charge.
        if not (isinstance(error, LostAnswer) or begun):
            (out / "fit.json").unlink(missing_ok=True)
        raise


def _check_same(before: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    """Raise ValueError with the option's name if a resume has a different value."""
    for name, value in before.items():
        if asked.get(name) != value:
            if name == "rows":
                raise ValueError(
                    f"The interrupted run in {out} used other rows, or began under an "
                    "earlier version of dphead. Name its features file or images "
                    "again, and its --axes-from if it has one, or choose another "
                    "folder with -o. A features file that was extracted again is not "
                    "the same file."
                )
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, list | dict):
                option = name  # a field of the solver, not an option
            had, got = ("none" if v is None else v for v in (value, asked.get(name)))
            raise ValueError(
                f"{option} must be {had}, as in the interrupted run in {out}, got "
                f"{got}. Repeat the first command to resume, or choose another folder "
                "with -o."
            )


def _check_uncharged(marker: dict[str, str], ledger: Ledger, out: Path) -> None:
    """Raise LedgerError if a fit that the ledger lacks may have been charged.

    A fit was never charged if its folder holds no released values and names this
    ledger, or one that was closed and moved here.
    """
    place = marker.get("ledger")
    with suppress(LedgerError), closing(Ledger(str(place), read_only=True)) as book:
        place = counted_at(book) or place
    # a checkpoint replaces stored releases and shows that values were released
    released = any((out / "releases").glob("*.npy")) or (out / CHECKPOINT).exists()
    if released or place != ledger.path:
        todo = f"Pass --ledger {marker.get('ledger', 'with the ledger of this fit')}"
        if marker.get("ledger") == ledger.path:
            todo = "Restore a copy of the ledger that has it"
        raise LedgerError(
            f"the ledger {ledger.path} lacks the interrupted fit {marker['fit_id']}. "
            f"{todo}, or choose another folder with -o."
        )


def tuning_of(settings: Iterable[Any], ledger: Ledger) -> str:
    """Return the report's `tuning` entry if the options do not set it.

    It is "none" for the first fit of a ledger if all settings are None, the default.
    """
    chosen = any(value is not None for value in settings)
    return "NOT ACCOUNTED" if chosen or len(ledger.fits()) > 1 else "none"


def write_report(
    out: Path,
    about: About,
    result: FitResult[Any],
    *,
    tested: reports.Tested,
    tuning: str,
    sha256: str,
    declared: str | None = None,
    config: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Write run.toml, report.html, ledger.json and report.json, each durably.

    report.json is written last, so a folder with this file is complete. Then the stored
    releases are removed.

    Parameters
    ----------
    out : Path
        The run folder.
    about : About
        Description of the fit.
    result : FitResult
        The head or network, its plan and its ledger.
    tested : Tested
        The test metrics.
    tuning : str
        How the settings were chosen, unless other ledgers or `declared` decide it.
    sha256 : str
        Digest of the trained tensors.
    declared : str, optional
        How the settings were chosen, as the user declares.
    config : str, optional
        Text of run.toml, if the folder is to have it.
    **more
        More entries of the report.

    Returns
    -------
    dict
        The report.
    """
    # includes charges that were made while this run was prepared or trained
    book = result.ledger
    dataset_id = about.source.dataset_id or book.meta("dataset_id")
    found = charged_elsewhere(dataset_id, book.path)
    own = Elsewhere(book.path, identity=book.meta(IDENTITY))
    about = _naming(about, found, out, own)
    facts = result.plan.facts
    digest = None if config is None else hashlib.sha256(config.encode()).hexdigest()
    report = reports.build_report(
        result,
        method={
            "name": about.name,
            "preset": about.preset,
            "source": about.settings_from,
            "settings": about.settings,
        },
        data={"n_rows": facts.n_rows, "n_classes": facts.n_classes}
        | vars(about.source)
        | {"axes": about.axes},
        tuning=declared or ("NOT ACCOUNTED" if about.elsewhere else tuning),
        warnings=list(about.warnings),
        tested=tested,
        folder=out,
        elsewhere=about.elsewhere,
    ) | {
        "provenance": {
            "commit": commit(),
            "tensors_sha256": sha256,
            "config_sha256": digest,
        },
        **more,
    }
    if config is not None:
        write_text(out / "run.toml", config)
    write_text(out / "report.html", page(report))
    write_json(out / "ledger.json", {"fits": result.ledger.fits()})
    write_json(out / "report.json", report)
    _tidy(out)
    return report


def _tidy(out: Path) -> None:
    """Remove the files that only an unfinished run needs.

    fit.json is removed last, and only if the others are gone: `refuse_unfinished`
    refuses a folder that has it.
    """
    releases = out / "releases"
    shutil.rmtree(releases, ignore_errors=True)
    for name in (CHECKPOINT, "lock"):
        (out / name).unlink(missing_ok=True)
    if not releases.exists():
        (out / "fit.json").unlink(missing_ok=True)
