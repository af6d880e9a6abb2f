"""Export a run folder for other software, with the statement of its guarantee.

The export reads no training rows. Besides code, it writes only contents of the run
folder, the guarantee with the ledger's budget, and the backbone's public weights.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from dphead_extract import images

from dphead.analysis.records import FinishedRun
from dphead.analysis.sealed import read_sealed
from dphead.export.trained import Format, Trained, guarantee_of, write_plain_json
from dphead.export.words import example, input_in_words, readme
from dphead.fit.head_file import open_head
from dphead.fit.ledgers import read_known
from dphead.privacy.atomic_write import write_folder

FORMATS = {  # module:Format of heads, and of networks; imported on first use
    "torch": ("dphead.export.heads:TORCH", "dphead.export.finetuned:TORCH"),
    "timm": ("dphead.export.networks:TIMM", "dphead.export.finetuned:TIMM"),
    "onnx": ("dphead.export.networks:ONNX", "dphead.export.finetuned:ONNX"),
    "sklearn": ("dphead.export.heads:SKLEARN", None),
}
# largest error of scores, relative to 1 or to a larger score of the row; chosen
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """Describe a finished export.

    Attributes
    ----------
    folder : Path
        The export.
    files : list of str
        Names of its files.
    takes : str
        Description of the input of the files.
    example : str
        Python code that loads the export.
    guarantee : dict
        The contents of guarantee.json.
    finished : FinishedRun
        The run, as it was read for the export.
    not_compared : str
        Reason why the files were not compared with dphead's scores, or "".
    """

    folder: Path
    files: list[str]
    takes: str
    example: str
    guarantee: dict[str, Any]
    finished: FinishedRun
    not_compared: str


def export(
    run: str | Path,
    to: str,
    out: str | Path,
    weights: str | Path | None = None,
    model: Any = None,
    ledger: str | Path | None = None,
) -> Exported:
    """Write the head or the network of a run folder to the new folder `out`.

    The written files are loaded again, and their scores are compared with dphead's. If
    this is not possible, `Exported.not_compared` has the reason.

    Parameters
    ----------
    run : str or Path
        The run folder.
    to : str
        A key of FORMATS.
    out : str or Path
        A new or empty folder.
    weights : str or Path, optional
        Local weights file of the backbone, for timm and onnx. Default: local weights
        that this machine knows (`known_weights`), else timm's weights.
    model : str or nn.Module, optional
        The user's own network, as in `load_network`.
    ledger : str or Path, optional
        The run's ledger, if it was moved or restored after the fit.

    Returns
    -------
    Exported
        Description of the export.

    Raises
    ------
    ValueError
        If `to` is unknown, or `out` is a file or is not empty. If the run folder holds
        no finished run, was modified, or cannot be exported to this format. If the
        written files give different scores; they are removed then.
    ModuleNotFoundError
        If a package that writes the format is not installed.
    """
    run, out = Path(run), Path(out)
    if to not in FORMATS:
        raise ValueError(f"--to {to} is not a format. Use one of {', '.join(FORMATS)}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"{out} is a file or is not empty. Choose a new or an empty folder with -o."
        )
    path = None if weights is None else Path(weights)
    trained, finished = _read(run, path, model, ledger)
    form = _format(to, trained.kind)
    takes = code = not_compared = ""

    def fill(folder: Path) -> None:
        nonlocal takes, code, not_compared
        written = form.write(trained, folder)
        takes = written.takes
        try:
            answer = form.load(trained, folder)
        except ModuleNotFoundError as error:
            not_compared = f"{error.name} is not installed"
        else:
            if len(written.given):
                _compare(written.answers, np.asarray(answer(written.given)))
            else:
                not_compared = "the scores of random rows are too large"
        code = example(trained, to, takes, out.name)
        text = readme(trained, takes, code)
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_plain_json(folder / "guarantee.json", trained.guarantee)
        if trained.has_decoder:
            shutil.copyfile(images.__file__, folder / "decode.py")

    write_folder(out, fill)
    files = sorted(path.name for path in out.iterdir())
    words = input_in_words(trained, takes)
    return Exported(out, files, words, code, trained.guarantee, finished, not_compared)


def _compare(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Raise ValueError unless the written files give dphead's own scores."""
    moved = np.abs(ours - theirs).max(axis=1)
    size = np.maximum(1.0, np.abs(ours).max(axis=1))
    # an infinite score makes `moved` NaN, which is not within any bound
    wrong = np.flatnonzero(~(moved <= _TOLERANCE * size))
    if len(wrong):
        raise ValueError(
            "the scores of the exported files differ from dphead's by "
            f"{moved[wrong[0]]:.3g} in a row of scores up to {size[wrong[0]]:.3g}. Use "
            "another format (--to), and report this as a bug, with the run's "
            "report.json."
        )


def _read(
    run: Path, weights: Path | None, model: Any, ledger: str | Path | None
) -> tuple[Trained, FinishedRun]:
    """Return the head or the network of a run folder, and the run's records."""
    network = (run / "model.json").exists()
    head, facts = (None, read_sealed(run, "model")[1]) if network else open_head(run)
    finished = read_known(run, ledger)
    if network:
        facts["extraction"] = finished.report["data"]["extraction"]
    guarantee = guarantee_of(run, finished, facts)
    return Trained(run, head, facts, guarantee, weights, model), finished


def _format(to: str, kind: str) -> Format:
    """Return the format `to`. Raise ValueError if it cannot export this `kind`."""
    place = FORMATS[to][kind == "network"]
    if place is None:
        *others, last = (name for name, (_, network) in FORMATS.items() if network)
        raise ValueError(
            f"--to {to} cannot export a network. Use --to {', '.join(others)} or "
            f"{last}."
        )
    return resolve_name(place)
