"""Define the parameters, the ledger and the fit that all estimators share.

A fit plans, warns, verifies the sums, charges, fits, and reports the guarantee. Before
the charge of a private fit, the value of a row can only stop the fit, in the cases that
the docstring of the package `dphead.estimators` names.
"""

import inspect
import json
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import numpy as np
from dphead_extract.safe_text import printable
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dphead.analysis.check import about_classes
from dphead.analysis.ledger_place import counted_at
from dphead.analysis.protected import about_people
from dphead.analysis.records import about_unread, unread_place
from dphead.data.device_rows import DeviceRows
from dphead.estimators.guarantee import SEEDED, Privacy, privacy_of
from dphead.estimators.inputs import TrainingData, as_arrays, dense, of_arrays
from dphead.estimators.labels import saved_facts
from dphead.estimators.leakage_warnings import around, is_news
from dphead.fit.fit import (
    About,
    Fit,
    FitResult,
    array_sum,
    charge_ledger,
    warn_of_duration,
)
from dphead.fit.ledgers import charged_elsewhere, is_current, open_ledger
from dphead.fit.noted import check_noted
from dphead.fit.options import (
    ALLOW_LARGE_DELTA,
    DELTA,
    EPSILON,
    GROUP_CAP,
    GROUP_MEAN,
    NOMINAL_N,
    PRESET,
    PROTECT,
    RELATION,
)
from dphead.fit.processes import software
from dphead.fit.report import NOT_TESTED, uncounted
from dphead.fit.run_folder import (
    beside_others,
    check_folder,
    interrupted,
    locked,
    tuned_on,
    write_report,
)
from dphead.planning import presets
from dphead.planning.plan import FitPlan, large_delta, make_plan
from dphead.planning.worth import about_noise, is_too_little
from dphead.privacy.ledger import Ledger, LedgerError
from dphead.privacy.ledger.server import is_on_server, is_url
from dphead.privacy.ledger.store import IN_MEMORY, PEOPLE
from dphead.privacy.noise import NoiseSource
from dphead.privacy.python_values import python_value
from dphead.solvers.base import Solver
from dphead.solvers.settings import Range, Setting
from dphead.sums.hosts import SumOfParts, all_or_none
from dphead.sums.verified import VerifiedSum

_IN_ONE_PROGRAM = (
    "Only the fits in this in-memory ledger are counted. Other fits on the same data "
    "add to the total."
)
# parameters that do not change what a fit learns, so changing them is no search
_NO_CHOICE = {"random_state", "ledger", "backend"}
_PLACE = Range("a path or a Ledger", lambda v: v != "")
_T = TypeVar("_T")


class PrivacyWarning(UserWarning):
    """Warn that a guarantee is weaker than it may seem, or that a fit has none."""


class PrivateNotice(UserWarning):
    """Inform the data holder about private rows.

    `fit` shows these warnings and stores them nowhere. A filter that turns warnings
    into errors does not stop the fit.
    """


class _PlainSignature:
    """Return the signature of `__init__` with plain types, for `help` and editors."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        _, *parameters = inspect.signature(owner.__init__).parameters.values()
        return inspect.Signature(
            [p.replace(annotation=_plain(p.annotation)) for p in parameters]
        )


def _plain(annotation: Any) -> Any:
    checked = get_origin(annotation) is Annotated
    return get_args(annotation)[0] if checked else annotation


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """Hold the parameters of the guarantee, and run fits.

    scikit-learn's searches clone an estimator, change its settings and fit the clone,
    in any process. A fit of a clone with changed settings counts as part of a search.
    An estimator and all its clones form a family. In a process, a family gets most
    warnings only once (`is_news`).

    Clones share a `Ledger` object. A pickled copy opens the ledger again by its path.
    An estimator with a `Ledger` object in memory cannot be pickled.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of this fit. Infinity means no clipping, no noise and no privacy.
    delta : float, default=None
        Failure probability, below 1/n_rows unless `allow_large_delta` is True. None
        means the preset's value, or 1e-5 without a preset.
    relation : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighboring relation: one row is zeroed out, added or removed, or replaced. With
        "add_remove", the number of rows is private.
    nominal_n : int, default=None
        Public number used in place of the number of rows. Required with "add_remove",
        and invalid otherwise.
    ledger : path or Ledger, default=None
        Ledger to charge. None means the ledger that counts the features file's data
        set. For arrays, None means a new ledger for this fit only. Clones share a
        `Ledger` object. Pass a path if clones fit in other processes.
    allow_large_delta : bool, default=False
        Whether to accept a delta of 1/n or more. Such a fit may publish whole rows.
    random_state : int, default=None
        Seed of the noise, for tests. A fit with a seed is not private, and needs a
        ledger of its own: ":memory:", or for arrays None.

    Attributes
    ----------
    privacy_ : Privacy
        The guarantee: private, epsilon, delta, mu, releases, notes.
    ledger_ : Ledger
        Ledger with the charge of this fit.
    """

    __signature__: ClassVar[Any] = _PlainSignature()

    epsilon: Annotated[float, EPSILON] = 1.0
    delta: Annotated[float | None, DELTA] = None
    relation: Annotated[Literal["zero_out", "add_remove", "replace_one"], RELATION] = (
        "zero_out"
    )
    nominal_n: Annotated[int | None, NOMINAL_N] = None
    ledger: Annotated[
        str | Path | Ledger | None, Setting("Ledger to charge.", _PLACE)
    ] = None
    allow_large_delta: Annotated[bool, ALLOW_LARGE_DELTA] = False
    random_state: Annotated[int | None, Setting("Seed of the noise, for tests.")] = None

    @property
    def ledger_(self) -> Ledger:
        """Return the ledger that has the charge of this fit now.

        An unpickled estimator opens the file again. Pickling loses a ledger in memory.
        A ledger that was moved or merged after the fit is opened at its new place. So
        its total counts this fit, and the fits after it.

        Raises
        ------
        AttributeError
            If there is no fit, or if this process or this copy has no ledger.
        LedgerError
            If the file is missing, because a new ledger would be empty. If the ledger
            cannot be opened or does not have this fit. If it was moved or merged to a
            place that cannot be read, or if a merge is not finished (`unread_place`).
        """
        if "_ledger" not in vars(self):
            raise AttributeError(
                "This estimator has no `ledger_`. Call `fit` first. Of several "
                "processes, only process 0 has the ledger. Pickling loses a ledger in "
                "memory, so read the ledger and save the head before you pickle."
            )
        if isinstance(self._ledger, str):
            if not (is_on_server(self._ledger) or os.path.isfile(self._ledger)):
                raise LedgerError(
                    f"The ledger of this fit is missing: {self._ledger}. Restore the "
                    "file from a backup."
                )
            self._ledger = Ledger(self._ledger)
        unread, ended = unread_place(self._ledger)
        if unread is not None:
            text = about_unread(unread, ended)
            raise LedgerError(f"{text[:1].upper()}{text[1:]}.")
        if (place := counted_at(self._ledger)) is not None:
            self._ledger = Ledger(place)
        if not self._ledger.holds(self._fit_id):
            raise LedgerError(
                f"The ledger {self._ledger.path} does not have this fit. Replace the "
                "ledger by a copy only if the copy has this fit and all fits of the "
                "ledger. Without such a copy, this fit has no total and cannot be "
                "saved."
            )
        return self._ledger

    def __setattr__(self, name: str, value: Any) -> None:
        # printing, pickling and saving an estimator would show the URL's password
        if name == "ledger" and is_url(value):
            raise LedgerError(
                "`ledger` must be a path or a `Ledger`, got a server's URL. Set the "
                "environment variable DPHEAD_LEDGER to the URL, and leave `ledger` out."
            )
        # only parameters are converted, not the results of a fit
        fitted = name.startswith("_") or name.endswith("_")
        super().__setattr__(name, value if fitted else python_value(value))

    def set_params(self, **params: Any) -> Any:
        """Set parameters, and mark a clone with changed settings as part of a search.

        Returns
        -------
        self
        """
        changed = {name.split("__")[0] for name in params} - _NO_CHOICE
        if vars(self).get("_is_clone") and changed:
            self._is_candidate = True
        return super().set_params(**params)

    def __sklearn_clone__(self) -> Any:
        """Return a clone with the same ledger, so that its fits are charged there."""
        bare: Any = copy(self)
        bare.ledger = None
        twin: Any = BaseEstimator.__sklearn_clone__(bare)
        twin.ledger = self.ledger
        twin._family = vars(self).setdefault("_family", uuid.uuid4().hex)
        twin._is_clone = True
        return twin

    def __getstate__(self) -> Any:
        state: dict[str, Any] = {**super().__getstate__()}  # type: ignore[dict-item]
        ledger = state.pop("_ledger", None)
        path = getattr(ledger, "path", ledger)
        given = getattr(state["ledger"], "path", state["ledger"])
        if isinstance(given, str | os.PathLike) and given != IN_MEMORY:
            # an open file is replaced by its path, and any working folder can open it
            state["ledger"] = given if is_on_server(given) else os.path.abspath(given)
        return state if path in (None, IN_MEMORY) else {**state, "_ledger": path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "privacy_" in state:
            # An earlier version kept ledgers with private counts, and did not keep
            # which settings were chosen.
            kept = [
                one if isinstance(one, dict) else one.fact() | {"path": one.path}
                for one in state.get("_beside", ())
            ]
            state = {"_chosen": [True], **state, "_beside": kept}
            if "_result" in state:
                state = {"_fit_id": state["_result"].fit_id, **state}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.epsilon != np.inf
        return tags

    def _new_rows(self, x: Any) -> Any:
        """Return checked rows.

        Raises ValueError if the number of columns differs from the fit's. With an
        infinite epsilon, also for rows that are not finite.
        """
        check_is_fitted(self)
        (x,) = map(dense, as_arrays(x))
        finite = not self.__sklearn_tags__().input_tags.allow_nan
        return validate_data(self, x, reset=False, ensure_all_finite=finite)

    def _delta(self) -> float:
        """Return the given delta, or else the preset's delta or 1e-5."""
        return presets.delta_of(getattr(self, "preset", None), self.delta)

    def _carry_out(
        self,
        data: TrainingData,
        about: About,
        prepare: Callable[[], tuple[FitPlan[_T], VerifiedSum]],
    ) -> FitResult[_T]:
        """Warn, plan, charge and fit, for heads and for fine-tuning.

        This method sets `privacy_` and `ledger_`.

        Parameters
        ----------
        data : TrainingData
            The public sizes of the rows, and the function that returns the rows.
        about : About
            The public description of the fit. Its warnings become notes on the
            guarantee.
        prepare : callable
            Function that returns the plan and the verified sum.

        Returns
        -------
        FitResult
            Result of the solver.

        Raises
        ------
        ValueError, LedgerError
            If the fit is refused. Nothing is charged then. After the charge,
            LedgerError if the ledger cannot be written.
        """
        follows = data.hosts is not None and not data.hosts.first
        with all_or_none(data.hosts):
            data.wait()
            noise = NoiseSource(self.random_state)
            large = self._confirmed_delta(data.facts.n_rows)
            plan, summer = prepare()
            given = None if follows else self.ledger  # only process 0 has the ledger
            ledger = _ledger_of(given, data.source.dataset_id)
            counted = ledger.path != IN_MEMORY or isinstance(self.ledger, Ledger)
            weaker: dict[str, str] = {}
            if plan.private:
                spent = ledger.spent(plan.delta, *plan.events()) if counted else None
                weaker = around(self, spent and spent.epsilon)
                weaker |= {} if noise.private else {"seed": SEEDED}
            # other ledgers may hold fits on the same images
            named = data.source.dataset_id or ledger.meta("dataset_id")
            # entries for `save`, without private counts: they can be pickled
            beside = [one.fact() for one in charged_elsewhere(named, ledger.path)]
            weaker["ledgers"] = " ".join(map(uncounted, beside))
            for subject, text in weaker.items():
                if text and is_news(self, subject):
                    warnings.warn(printable(text), PrivacyWarning, stacklevel=3)
            weaker.pop("seed", None)  # `privacy_of` adds this note
            fit = Fit(
                plan=plan,
                about=about,
                sizes=data.sizes,
                rows=data.rows,
                summer=summer,
                noise=noise,
                backend=getattr(self, "backend", "numpy"),
                groups=data.groups,
            )
            fit = _on_processes(fit, data, self.ledger)
        # the folds of a cross-validation share one charge
        charge = vars(self).pop("_charge", charge_ledger)
        if follows:
            result = FitResult(fit.serve(), plan, ledger, "", noise.private, 0.0)
        else:
            result = fit.carry_out(
                lambda fit: charge(fit, ledger), announce=warn_of_duration
            )
        people = about_people(vars(data.source)) or ""
        people += "." if people else ""
        notes = [large, *about.warnings, *weaker.values(), people]
        if isinstance(self.ledger, Ledger) and self.ledger.path == IN_MEMORY:
            notes.append(_IN_ONE_PROGRAM)
        self.privacy_: Privacy = privacy_of(
            plan,
            n_rows=data.facts.n_rows,
            seeded=not noise.private,
            counted=counted or (follows and self.ledger not in (None, IN_MEMORY)),
            classes_seen=data.classes_seen,
            warning=" ".join(filter(None, notes)),
        )
        for name in ("_ledger", "_is_fold"):  # drop what an earlier fit left
            vars(self).pop(name, None)
        if not follows:
            self._ledger: str | Ledger = ledger
            self._fit_id = result.fit_id
        self._beside = beside
        tell_holder(data.notice())
        return result

    def _confirmed_delta(self, n_rows: int) -> str:
        """Show and return a warning about a delta of 1/n or more, or return "".

        Raises ValueError for such a delta unless `allow_large_delta` is set.
        """
        cap = getattr(self, "group_cap", None)
        text = large_delta(self.epsilon, self._delta(), n_rows, cap)
        if text is None:
            return ""
        if not self.allow_large_delta:
            raise ValueError(
                f"{text} Use a smaller delta, or `allow_large_delta=True`."
            )
        warnings.warn(text, PrivacyWarning, stacklevel=4)
        return text


@dataclass(kw_only=True, eq=False, repr=False)
class HeadEstimator(PrivateEstimator):
    """Fit heads, and hold the parameters that fine-tuning does not have.

    Parameters
    ----------
    group_cap : int, default=None
        Largest number of rows used per group (patient): the first rows of the group.
        The fit then protects groups. None protects each row. Pass the same groups to
        all fits of a ledger: dphead does not compare the groups of arrays.
    group_mean : bool, default=False
        Whether to replace a group's rows of each class by their mean. At most group_cap
        classes of a group are used: the first in the order of `classes_`. The expected
        accuracy is then unavailable.
    backend : {"auto", "numpy", "jax"}, default="auto"
        Library that computes sums and weights. "auto" means JAX if it finds an
        accelerator. All backends give equal sums. For equal released values, their
        weights agree to a relative 1e-9.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of X.
    head_ : LinearHead
        The head, with its transform and weights.
    """

    group_cap: Annotated[int | None, GROUP_CAP] = None
    group_mean: Annotated[bool, GROUP_MEAN] = False
    backend: Annotated[
        Literal["auto", "numpy", "jax"], Setting("Library that computes.")
    ] = "auto"

    def _plan_head(
        self, solver: Solver[_T], data: TrainingData, accountant: str = "auto"
    ) -> tuple[FitPlan[_T], VerifiedSum]:
        """Return a head's plan and its verified sum, and warn of too much noise."""
        plan = make_plan(
            solver,
            data.facts,
            epsilon=self.epsilon,
            delta=self._delta(),
            relation=self.relation,
            accountant=accountant,
            group_cap=self.group_cap,
            group_mean=self.group_mean,
        )
        classes = data.facts.n_classes > 1 and self.random_state is None
        if classes and is_too_little(plan, data.facts) and is_news(self, "noise"):
            lines = about_noise(plan, data.facts, "row")
            worth, problem, *helps = (line.removeprefix("! ") for line in lines)
            told = f"The noise is {worth}. {problem} {'; '.join(helps)}."
            warnings.warn(told, stacklevel=5)
        return plan, array_sum(plan, self.backend)

    def _fit_unclassed(
        self, solver: Solver[_T], rows: Any, groups: Any, notice: Callable[[], str]
    ) -> _T:
        """Fit on rows without classes, with one dummy class, and return the head."""
        one_class = np.zeros(len(rows), np.int64)
        given = (self, rows, lambda: one_class, groups, np.array([0]))
        data = of_arrays(*given, notice=notice)
        about = About(source=data.source, name=solver.name)
        result = self._carry_out(data, about, lambda: self._plan_head(solver, data))
        self.head_: Any = result.trained
        return result.trained


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Hold the parameters that classifiers of features and of images share.

    Parameters
    ----------
    classes : sequence of shape (n_classes,), default=None
        Public classes, required for a guarantee. Rows with any other label add zero to
        every sum. None means the classes that a features file declares public. For
        arrays, None needs an infinite epsilon, and means the labels that occur in `y`.
    protect : "image" or None, default=None
        "image" protects single rows even if a features file has groups. None refuses
        such a file, unless `group_cap` is set.
    preset : str, default=None
        Name of a paper's settings, such as "fc23". They replace the defaults of
        parameters that are None.
    accountant : str, default="auto"
        Accountant that calibrates the noise. "auto" means the preset's accountant.
        Without a preset, "auto" is exact for full batches, and PLD for random batches.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted. For a features file, the classes in the order of its
        labels' indices.
    """

    classes: Sequence[Any] | np.ndarray | None = None
    protect: Annotated[Literal["image"] | None, PROTECT] = None
    preset: Annotated[str | None, PRESET] = None
    accountant: Annotated[str, Setting("Accountant that calibrates.")] = "auto"

    def _keep_run(self, result: FitResult[Any], about: About) -> None:
        """Keep the result of the fit for `save`, and warn of unmeasured classes.

        The result is kept without the ledger, which `ledger_` holds and which cannot be
        pickled.
        """
        self._about = about
        # settings can be changed after the fit
        self._was_candidate = vars(self).get("_is_candidate", False)
        # without the time, which is private and could be published in a pickle
        self._result: Any = replace(
            result,
            ledger=None,  # type: ignore[arg-type]
            seconds=0.0,
        )
        each = result.trained.class_accuracy
        report = {
            "data": vars(about.source),
            "method": {"name": about.name},
            "guarantee": {"group_mean": result.plan.group_mean},
            "class_accuracy": each and asdict(each),
        }
        has_sets = self.__sklearn_tags__().classifier_tags.multi_label
        private = result.private_noise and result.plan.private
        told = private and not has_sets and is_news(self, "classes")
        for text in about_classes(report) if told else ():
            tell_holder(f"{text[:1].upper()}{text[1:]}.", UserWarning)

    def _write_run(
        self,
        folder: str | Path,
        tuning: str | None,
        tuned: str,
        save: Callable[[Path, Any, dict[str, Any]], str],
        facts: dict[str, Any],
    ) -> None:
        """Write a run folder. The function `save` writes the head or the network.

        Raises ValueError for a fold of `cross_validate`, if the folder holds an
        interrupted run, and as `check_folder` does. Raises it too if `tuning` is "none"
        and the fit is a search's, or if this or a different ledger has earlier fits.
        Raises LedgerError as `ledger_`.
        """
        if vars(self).get("_is_fold"):
            raise ValueError(
                "a classifier of `cross_validate` has no run of its own, because one "
                "charge covers all folds. Fit again, under a new charge, to save a run."
            )
        out, ledger = Path(folder), self.ledger_
        check_folder(out, [])
        about = self._about
        if not is_current(about.source.image_index):
            about = replace(about, source=replace(about.source, image_index=None))
        at_fit, notes = about_people(vars(about.source)), self.privacy_.notes
        declared = about.source.dataset_id and ledger.meta(PEOPLE)
        if declared:  # people may be declared after the fit
            own = {"dataset_id": ledger.meta("dataset_id")}
            source = replace(about.source, **own, people=json.loads(declared))
            about = replace(about, source=source)
            now = about_people(vars(source)) or ""
            notes = [note.replace(at_fit or now, now) for note in notes]
        searched = vars(self).get("_was_candidate")
        if tuning == "none" and searched:
            raise ValueError(
                'tuning "none" is not true: this fit uses a clone with changed '
                "settings, as in a grid search. Leave out `tuning`, or pass how the "
                "settings were chosen."
            )
        first = [fit["fit_id"] for fit in ledger.fits()[:1]]
        if tuning == "none" and first not in ([], [self._result.fit_id]):
            raise tuned_on(ledger.path)
        # other ledgers get new warnings, because their names depend on the folder
        told = " ".join(map(uncounted, self._beside))
        notes = [" ".join(note.replace(told, "").split()) for note in notes]
        # the DPHEAD_HOME of the fit can list more ledgers than the present one
        about = replace(
            about, elsewhere=tuple(self._beside), warnings=tuple(filter(None, notes))
        )
        about = beside_others(about, out, ledger.path, tuning, charged=True)
        result = replace(self._result, ledger=ledger)
        facts |= saved_facts(about, vars(self)["classes_"])
        with locked(out):
            if interrupted(out) is not None:
                raise ValueError(
                    f"{out} holds an interrupted run, which can be resumed without a "
                    "further charge. Choose another folder."
                )
            write_report(
                out,
                about,
                result,
                tested=NOT_TESTED,
                declared=tuning,
                tuning="NOT ACCOUNTED" if searched else tuned,
                sha256=save(out, result.trained, facts),
            )


def _on_processes(
    fit: Fit[_T], data: TrainingData, ledger: str | Path | Ledger | None
) -> Fit[_T]:
    """Return the fit on this process's rows, or `fit` if there is one process."""
    if data.hosts is None:
        return fit
    own = data.rows()  # features are read after the charge
    parts = SumOfParts(data.hosts, own)
    memory = fit.summer.kept.memory
    whole: Any = data.sizes  # process 0 needs only the sizes of all rows
    settings = f"{fit.digest()} {fit.backend}"
    labels = np.ascontiguousarray(data.labels())
    place = ledger.path if isinstance(ledger, Ledger) else ledger or IN_MEMORY
    needed = ["optax"] if hasattr(fit.plan.solver, "needs_jax") else []
    agreed = {
        "settings": settings,
        "n_rows": str(fit.sizes.n_rows),
        "labels": sha256(labels.tobytes()).hexdigest(),
        # otherwise a process that skipped a fit would join a different fit
        "ledger": sha256(str(place).encode()).hexdigest(),
        "the number of shared arrays so far": str(DeviceRows.shared),
    }
    return replace(
        fit,
        summer=VerifiedSum(fit.summer.block_sum, parts=parts, memory=memory),
        rows=lambda: whole,
        hosts=data.hosts,
        agreed=agreed | software(*needed),
    )


def _ledger_of(given: str | Path | Ledger | None, dataset_id: str | None) -> Ledger:
    """Return the given ledger, else the data set's own, else a new one in memory.

    Raises LedgerError if the ledger belongs to a different data set.
    """
    if not isinstance(given, Ledger):
        return open_ledger(given, dataset_id)
    if dataset_id is None:
        return given
    check_noted(given.path, given)
    theirs = given.set_once("dataset_id", dataset_id)
    if theirs != dataset_id:
        raise LedgerError(
            f"`ledger` belongs to data set {theirs}, but `X` to data set {dataset_id}. "
            "Remove `ledger` to charge the ledger of `X`."
        )
    return given


def tell_holder(text: str, kind: type[Warning] = PrivateNotice) -> None:
    """Show a non-empty text for the data holder as a warning.

    If a filter turns warnings into errors, print the text to standard error. Otherwise
    a private or a released value could stop a charged fit.
    """
    try:
        if text:
            warnings.warn(text, kind, stacklevel=4)
    except kind:
        print(text, file=sys.stderr)
