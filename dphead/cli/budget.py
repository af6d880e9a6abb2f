"""Print a data set's budget and spent epsilon, and ask before a charge.

Heavy modules are imported only when needed.
"""

import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import click

from dphead.cli.progress import Progress
from dphead.cli.text import say, section, tied
from dphead.privacy.rounding import as_declared, rounded_up, spent_at


def budget_lines(
    ledger: dict[str, Any], delta: float, which: str | None = "this one"
) -> Iterator[str]:
    """Yield the budget, the spent epsilon and the remaining epsilon.

    Parameters
    ----------
    ledger : dict
        A report's entry "ledger", or the totals of `run_folder.try_plans`.
    delta : float
        Delta of the next fit.
    which : str or None, default "this one"
        Name of a fit, for "remaining for a fit like this one". None before the first
        fit of a ledger.
    """
    from dphead.analysis.profiles import about_sum
    from dphead.privacy.ledger import in_words
    from dphead.privacy.ledger.store import IN_MEMORY

    limit, n_fits = ledger["budget"], ledger["fits"]
    at = tied(f"delta {as_declared(ledger['delta'])}")
    if limit:
        total = tied(f"epsilon {as_declared(limit['epsilon'])} at {at}")
        yield f"{total} for all fits in this ledger"
        if ledger["is_sum"]:
            yield (
                "! ledgers were merged: this budget did not apply to all fits from the "
                "start, so it is no guarantee for their sum"
            )
        if ledger["total_epsilon"] > limit["epsilon"] * (1 + 1e-9):
            yield "! the budget is exceeded: no further fit is charged"
    elif ledger["path"] == IN_MEMORY:
        yield "none: a ledger in memory counts only this fit"
    elif n_fits:
        yield (
            "! none, and it is too late to set one. The ledger refuses no fit because "
            "of its epsilon. The spent epsilon is a guarantee only if no fit was "
            "chosen by the results of another fit"
        )
    else:
        yield "none yet: set it before the first fit with dphead ledger budget"
    spent = tied(f"epsilon {rounded_up(ledger['total_epsilon'])} spent")
    beside = ", in this ledger only" if ledger["elsewhere"] else ""
    fits = f"{n_fits} fit{'s' if n_fits != 1 else ''}{beside}"
    yield f"{spent} in {fits}{'' if limit else f' ({at})'}"
    if why := about_sum(ledger["total_epsilon"], ledger["total_accountant"]):
        yield why
    if limit:
        left = ledger["remaining"]
        every = f"epsilon {as_declared(limit['epsilon'])} remaining"
        why = "; the epsilons of fits do not simply add up" if n_fits else ""
        yield every if which is None else in_words(left, delta, limit, which) + why


def before_charge(fit: Any, options: Any, refused: bool = False) -> Iterator[str]:
    """Yield lines on the epsilon of a prepared fit and the budget of its data set.

    If the ledger would refuse the fit, the last line is the reason. With `refused`,
    this line is omitted, because an error follows. `options` are the run's
    `RunOptions`.
    """
    from dphead.fit.run_folder import interrupted, try_plans

    plan = fit.announced
    asked = tied(spent_at(plan.epsilon_spent(), plan.delta))
    if interrupted(options.out) is not None:
        yield f"{asked} requested by this fit"
        yield "the interrupted fit in the run folder is charged once, even if resumed"
        return
    ledger, tried = try_plans([plan], fit.about, options.ledger, fit.groups)
    yield from budget_lines(ledger, plan.delta)
    yield f"{asked} requested by this fit"
    if tried.refused is not None and not refused:
        yield f"! This fit would be refused: {tried.reason}"


@contextmanager
def budget_on_refusal(
    prepared: Callable[[], Any], options: Any, progress: Progress, verbose: bool
) -> Iterator[None]:
    """Print the budget if the ledger refuses the fit that `prepared` returns.

    With `verbose`, the budget was printed before.
    """
    from dphead.privacy.ledger import LedgerError

    try:
        yield
    except LedgerError:
        if (fit := prepared()) is not None and not verbose:
            lines = before_charge(fit, options, refused=True)
            progress.say(section("Budget", lines))
        raise


def offer_budget(fit: Any, options: Any, progress: Progress, ask: bool) -> None:
    """Print, before a data set's first fit, what the fit fixes and how to set a budget.

    With `ask`, ask a user on a terminal whether to continue without a budget. Before a
    fit without a guarantee, print nothing.
    """
    from dphead.fit.files import is_features_file
    from dphead.fit.ledgers import ledger_name, read_ledger
    from dphead.fit.run_folder import interrupted

    plan, source = fit.announced, fit.about.source
    with closing(read_ledger(options.ledger, source.dataset_id)) as book:
        limited, first = book.budget() is not None, not book.count_fits()
    if not (first and plan.private) or interrupted(options.out) is not None:
        return
    if source.grouped:
        progress.say(section("Unit", _unit_from_now_on(plan)))
    if limited:
        return
    place, then = options.ledger or options.features, []
    if options.ledger is None and not is_features_file(options.features):
        # the index of images has the data set's id by now
        place = ledger_name(None, source.dataset_id)
        then = ["Then type this command again."]
        if options.new_data_set:
            then = [f"Then type --dataset-id {source.dataset_id}, not --new-data-set."]
    total = max(3.0, math.ceil(plan.epsilon))  # 3 is an example
    budget = f"--epsilon {total:g} --delta {as_declared(plan.delta)}"
    command = f"dphead ledger budget {shlex.quote(str(place))} {budget}"
    with progress.paused():
        say(
            "Budget",
            "! none yet. A budget limits the total epsilon of all fits. It can be set "
            "only before the first fit, and cannot be changed later:",
            command,
            *then,
        )
        if ask and on_terminal():
            click.confirm("Fit without a budget?", abort=True, err=True)


def ask_if_too_few(
    fit: Any, options: Any, progress: Progress, ask: bool, verbose: bool
) -> None:
    """Ask before the charge of a fit on too few rows, and print what would help.

    Ask only with `ask` and on a terminal, because a script must not depend on the
    number of rows. A resumed fit is already charged. With `verbose`, print the
    comparison of noise and rows even if the rows are enough.
    """
    from dphead.analysis.protected import name_unit
    from dphead.fit.run_folder import interrupted
    from dphead.planning.worth import about_noise, is_too_little

    plan = fit.plan
    if not fit.announced.private or interrupted(options.out) is not None:
        return
    few = is_too_little(plan, plan.facts)
    if few or verbose:
        unit = name_unit(fit.about.source.extraction)
        progress.say(section("Noise", about_noise(plan, plan.facts, unit)))
    if few and ask and on_terminal():
        with progress.paused():
            click.confirm("Charge this fit all the same?", abort=True, err=True)


def _unit_from_now_on(plan: Any) -> Iterator[str]:
    """Yield what the first fit of a source with groups fixes for all later fits."""
    if plan.group_cap is None:
        yield (
            "! This first fit decides that all fits of its ledger protect single rows "
            "(images). No later fit can take --group-cap."
        )
        return
    yield (
        "! This first fit decides that all fits of its ledger protect groups. Later "
        "fits can have a different --group-cap, and each is charged for its own cap. "
        "No later fit can take --protect image."
    )


def on_terminal() -> bool:
    """Return whether a user can be asked."""
    return all(s is not None and s.isatty() for s in (sys.stdin, sys.stderr))
