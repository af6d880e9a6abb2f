"""Save a fitted classifier as a run folder, load one, and export its head.

The code of `dphead fit` writes the folder. `dphead check`, `predict`, `report` and
`export` therefore accept it.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dphead.analysis.records import read_run
from dphead.estimators.guarantee import CLASSES_SEEN, privacy_of
from dphead.fit.head_file import load_head, save_head
from dphead.fit.loop import FitResult
from dphead.fit.options import FitOptions
from dphead.fit.report import HEAD
from dphead.fit.run import tuning_of
from dphead.fit.run_folder import (
    Prepared,
    Source,
    Trained,
    beside_others,
    check_folder,
    locked,
    make_report,
    write_records,
)
from dphead.planning.methods import Method
from dphead.planning.plan import Plan
from dphead.privacy.ledger.store import IN_MEMORY
from dphead.solvers.base import ProblemInfo

if TYPE_CHECKING:
    from dphead.estimators.base import DPClassifier

_KINDS = {"b": bool, "i": int, "u": int, "f": float}  # of classes that are no text


@dataclass(frozen=True)
class Fitted:
    """Hold the facts that a run folder records besides its head and its ledger."""

    method: Method
    facts: ProblemInfo
    source: Source
    plan: Plan
    fit_id: str
    seconds: float
    seeded: bool


def save(model: "DPClassifier", folder: str | Path, tuning: str | None) -> None:
    """Write the run folder of a fitted classifier (`DPClassifier.save`)."""
    _refuse_label_sets(model)
    out, fitted = Path(folder), model._fitted
    if CLASSES_SEEN in model.privacy_.notes:
        raise ValueError(
            "a run folder needs declared classes, got classes read off the labels. "
            "Fit with classes=."
        )
    check_folder(out, [])
    source, ledger = fitted.source, model.ledger_
    options = FitOptions(
        features=Path(),
        out=out,
        settings=model._options(),
        ledger=ledger.path,
        preset=model.preset,
        epsilon=model.epsilon,
        delta=model.delta,
        relation=model.relation,
        nominal_n=model.nominal_n,
        tuning=tuning,
    )
    run = Prepared(
        options=options,
        source=source,
        facts=fitted.facts,
        method=fitted.method,
        plan=fitted.plan,
        name=model.method,
        settings=asdict(fitted.method.solver),  # type: ignore[call-overload]
        space=source.feature_space,
        warnings=[],
    )
    # the notes name other ledgers already
    run = replace(beside_others(run), warnings=list(model.privacy_.notes))
    # fits on the same arrays in other ledgers are not known
    tuned = "NOT ACCOUNTED" if ledger.path == IN_MEMORY else tuning_of(options, ledger)
    result = FitResult(
        head=model.head_,
        plan=fitted.plan,
        ledger=ledger,
        fit_id=fitted.fit_id,
        private_noise=not fitted.seeded,
        seconds=fitted.seconds,
    )
    facts = {
        "class_names": source.class_names,
        "class_kind": model.classes_.dtype.kind,
        "feature_space": source.feature_space,
        "extraction": source.extraction,
    }
    with locked(out):
        trained = Trained(HEAD, save_head(out, model.head_, facts))
        report = make_report(run, result, None, tuned, trained)
        write_records(options, report, ledger)


def load(kind: type["DPClassifier"], folder: str | Path) -> Any:
    """Return the fitted classifier of a run folder (`DPHeadClassifier.load`)."""
    run = read_run(folder)
    head, facts = load_head(folder)
    report, data = run.report, run.report["data"]
    g, method = report["guarantee"], report["method"]
    names = facts["class_names"]
    as_given = _KINDS.get(facts.get("class_kind", "U"))
    classes = np.array([as_given(n) for n in names] if as_given else names)
    model: Any = kind(
        method=method["name"],  # type: ignore[call-arg]
        epsilon=g["target_epsilon"],
        delta=g["delta"],
        relation=g["neighboring_relation"],
        group_cap=g["group_cap"],
        group_mean=g.get("group_mean", False),
        preset=method["preset"],
        classes=classes,
    )
    model.head_, model.classes_ = head, classes
    model.n_features_in_ = data["n_features"]
    model._feature_space = data["feature_space"]
    model.expected_accuracy_ = head.estimate
    model._set_coefficients()
    _refuse_label_sets(model)
    privacy = privacy_of(
        run.plan,
        n_rows=data["n_rows"],
        seeded=not g["private"] and run.plan.private,
        counted=True,
        classes_seen=False,
        warning="",
    )
    model.privacy_ = replace(privacy, notes=tuple(report["warnings"]))
    return model


def _refuse_label_sets(model: "DPClassifier") -> None:
    if model.__sklearn_tags__().classifier_tags.multi_label:
        raise ValueError(
            "a run folder holds a head of one class per row, got one of label sets. "
            "Keep `head_.weights` and `head_.intercept` instead."
        )


def export(
    model: "DPClassifier", to: str, folder: str | Path, weights: str | Path | None
) -> Any:
    """Write a fitted classifier for other software (`DPClassifier.export`)."""
    from dphead.export.exporting import export as write

    with TemporaryDirectory() as made:
        run = Path(made) / "run"
        save(model, run, None)
        return write(run, to, folder, weights)
