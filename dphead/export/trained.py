"""Hold the contents of an export: a head or a network, public values, the guarantee.

All numbers come from the run folder and its ledger.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dphead import __version__
from dphead.analysis.protected import (
    budget_is,
    counts_all_fits,
    made_of_images,
    parts_of,
    public_statement,
)
from dphead.analysis.records import RESTORE, FinishedRun
from dphead.analysis.sealed import plain
from dphead.fit.report import statement_of
from dphead.privacy.ledger import LedgerError
from dphead.privacy.loss import loss_named
from dphead.solvers.head import LinearHead

_FORMAT = 1  # format number of an export's head.json
_GUARANTEE = (
    "private",
    "epsilon",
    "delta",
    "mu",
    "neighboring_relation",
    "protected_unit",
    "group_cap",
)


@dataclass(frozen=True)
class Trained:
    """Hold a head or a network to export.

    Attributes
    ----------
    run : Path
        The run folder.
    head : LinearHead or None
        The head; None for a network.
    facts : dict
        The run's head.json, or model.json with the report's `extraction`.
    guarantee : dict
        The result of `guarantee_of`.
    weights : Path or None
        Local weights file of the backbone, or None, as in `exporting.export`.
    model : str, nn.Module or None
        The user's own network, as in `load_network`.
    """

    run: Path
    head: LinearHead | None
    facts: dict[str, Any]
    guarantee: dict[str, Any]
    weights: Path | None
    model: Any = None

    @property
    def linear(self) -> LinearHead:
        """Return the head. Raise AssertionError for a network."""
        assert self.head is not None
        return self.head

    @property
    def kind(self) -> str:
        """Return "head" or "network"."""
        return "network" if self.head is None else "head"

    @property
    def is_own(self) -> bool:
        """Return whether the network is a module of the user's own code."""
        return self.head is None and ":" in self.facts["network"]["model"]["model"]

    @property
    def has_decoder(self) -> bool:
        """Return whether the export contains the image decoder, decode.py.

        It does if the features come from images through a single backbone.
        """
        extraction = self.facts.get("extraction")
        return made_of_images(extraction) and len(parts_of(extraction)) == 1

    @property
    def n_features(self) -> int:
        """Return the number of values in a row."""
        if self.head is None:
            return int(np.prod(self.facts["network"]["shape"]))
        return self.head.n_features

    @property
    def vocabulary(self) -> int | None:
        """Return the number of tokens, or None if rows are not tokens."""
        if self.head is not None:
            return None
        return self.facts["network"]["model"].get("vocabulary")


class Written(NamedTuple):
    """Hold random input of a format's files, and dphead's own answers to it.

    Attributes
    ----------
    takes : str
        The input of the files: "images" or "features".
    given : ndarray of float32
        Random input: rows (n, n_features), or images (n, channels, height, width) with
        values from 0 to 1.
    answers : ndarray of shape (n, n_classes)
        dphead's scores for this input. Probabilities if the format has no scores.
    """

    takes: str
    given: np.ndarray
    answers: np.ndarray


class Format(NamedTuple):
    """Describe a format of exports.

    Attributes
    ----------
    write : callable
        Function of (trained, folder) that writes the files.
    load : callable
        Function of (trained, folder) that loads the files. It returns a function from
        input to answers, as `Written` describes them.
    """

    write: Callable[[Trained, Path], Written]
    load: Callable[[Trained, Path], Callable[[np.ndarray], Any]]


def guarantee_of(
    run: Path, finished: FinishedRun, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the contents of guarantee.json for a run and its head.json.

    They include the guarantee in the report, the budget if it covers all fits, and the
    digests of the report and the head. The statement counts the ledgers' present fits.

    Raises LedgerError if the ledger lost fits, because its budget may be exceeded, and
    if it was merged into a ledger that cannot be read, because the total is unknown.
    """
    if finished.lost:
        raise LedgerError(
            "the ledger lacks this fit, or fits that it had when this fit ended. "
            f"Nothing was exported. {RESTORE}."
        )
    if finished.ended:
        raise LedgerError(f"Nothing was exported: {finished.about_unread()}.")
    report, ledger, now = finished.report, finished.ledger_now, finished.report_now()
    found = {key: report["guarantee"][key] for key in _GUARANTEE}
    # a budget covers the fits of its ledger, not fits on the same rows elsewhere
    promised = budget_is(ledger) == "guarantee" and counts_all_fits(now)
    promised &= not now["ledger"]["unread"]
    digest = hashlib.sha256((run / "report.json").read_bytes()).hexdigest()
    return plain(
        {
            **found,
            "budget_of_all_fits": ledger["budget"] if promised else None,
            "tuning": report["tuning"],
            "balanced": report.get("balanced"),
            "statement": public_statement(now | {"statement": statement_of(now)}),
            "class_names": facts["class_names"],
            "fit_id": ledger["fit_id"],
            "head_sha256": facts.get("tensors_sha256"),
            "report_sha256": digest,
            "dphead": __version__,
        }
    )


def write_plain_json(path: Path, facts: dict[str, Any]) -> None:
    """Write JSON for other software, without the digest of a run's files."""
    text = json.dumps(plain(facts), indent=2, sort_keys=True, allow_nan=False)
    path.write_text(f"{text}\n")


def tensors_of(head: LinearHead) -> dict[str, np.ndarray]:
    """Return tensors under the names of `torch_head.Head`.

    The tensors are float32, or float64 if float32 cannot hold the scale of the numbers.
    """
    found = {"weight": head.weights.T, "bias": head.intercept}
    found |= {"center": head.transform.center, "scale": head.transform.scale}
    found |= {"axes": None if head.axes is None else head.axes.values.T}
    return {name: _narrow(value) for name, value in found.items() if value is not None}


def _narrow(value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.array(value, np.float32, order="C")
    same = np.allclose(narrow, value, rtol=1e-6, atol=1e-6 * np.abs(value).max())
    return narrow if same else np.array(value, np.float64, order="C")


def described(trained: Trained, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the head.json of an export: everything except the tensors."""
    return {
        "format": _FORMAT,
        "class_names": trained.facts["class_names"],
        "n_features": trained.n_features,
        "axes": trained.linear.axes and trained.linear.axes.count,
        "link": loss_named(trained.linear.loss).link,
        "unit_norm": trained.linear.transform.unit_norm,
        "center": "center" in tensors,
        "scale": "scale" in tensors,
        "feature_clip": trained.linear.feature_clip,
        "features": trained.facts["extraction"],
    }


def file_metadata(guarantee: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of a tensor file or a graph.

    A file that is shared without the folder then keeps its guarantee.
    """
    keys = (*_GUARANTEE, "statement", "fit_id")
    return {f"dphead.{key}": str(guarantee[key]) for key in keys}
