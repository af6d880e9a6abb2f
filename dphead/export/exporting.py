"""Export a run folder for other software, with the statement of its guarantee.

The export reads only the head or network, public facts and the report. It writes only
contents of the run folder and the backbone's public weights.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dphead_extract import images

from dphead.analysis.sealed import read_json, read_sealed
from dphead.export.trained import Trained, guarantee_of, write_plain_json
from dphead.export.words import example, input_in_words, readme
from dphead.fit.head_file import open_head
from dphead.privacy.atomic_write import write_folder

WRITERS = {  # format: module:function(trained, folder), imported on first use
    "torch": "dphead.export.heads:write_torch",
    "timm": "dphead.export.networks:write_timm",
    "onnx": "dphead.export.networks:write_onnx",
    "sklearn": "dphead.export.heads:write_sklearn",
}
_NETWORKS = "dphead.export.finetuned"  # has `write_network_FORMAT`


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
        Description of the head's input.
    example : str
        Python code that loads the export.
    guarantee : dict
        The contents of guarantee.json.
    """

    folder: Path
    files: list[str]
    takes: str
    example: str
    guarantee: dict[str, Any]


def export(
    run: str | Path,
    to: str,
    out: str | Path,
    weights: str | Path | None = None,
    model: Any = None,
) -> Exported:
    """Write the head or the network of a run folder to the new folder `out`.

    Parameters
    ----------
    run : str or Path
        The run folder.
    to : str
        A key of WRITERS.
    out : str or Path
        A new or empty folder.
    weights : str or Path, optional
        Local weights file of the backbone, for timm and onnx. Default: timm's weights.
    model : str or nn.Module, optional
        A network of the user's own, as in `load_network`.

    Returns
    -------
    Exported
        Description of the export.

    Raises
    ------
    ValueError
        If the folder holds no head, was modified, or cannot be exported to this format.
        Then no files remain.
    """
    run, out = Path(run), Path(out)
    if to not in WRITERS:
        raise ValueError(
            f"--to must be a format, got {to}. Use one of {', '.join(WRITERS)}."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"an export needs a new or empty folder, got {out}, which exists. Choose "
            "another folder (-o)."
        )
    path = None if weights is None else Path(weights)
    trained = _read(run, path, model)
    takes = code = ""

    def fill(folder: Path) -> None:
        nonlocal takes, code
        takes = _writer(to, trained.kind)(trained, folder)
        code = example(trained, to, takes, out.name)
        text = readme(trained, takes, code)
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_plain_json(folder / "guarantee.json", trained.guarantee)
        if trained.has_decoder:
            shutil.copyfile(images.__file__, folder / "decode.py")

    write_folder(out, fill)
    files = sorted(path.name for path in out.iterdir())
    return Exported(out, files, input_in_words(trained, takes), code, trained.guarantee)


def _read(run: Path, weights: Path | None, model: Any) -> Trained:
    """Return the head or the network of a run folder, with its guarantee."""
    if not (run / "model.json").exists():
        head, facts = open_head(run)
        return Trained(run, head, facts, guarantee_of(run, facts), weights)
    _, facts = read_sealed(run, "model")
    data = read_json(run / "report.json", "report")["data"]
    facts["extraction"] = data["extraction"]
    return Trained(run, None, facts, guarantee_of(run, facts), weights, model)


def _writer(to: str, kind: str) -> Callable[[Trained, Path], str]:
    """Return the function that writes a format's own files.

    The function returns the input that these files take: "images" or "features".
    """
    module, name = WRITERS[to].split(":")
    if kind == "network":
        module, name = _NETWORKS, f"write_network_{to}"
    writer = getattr(import_module(module), name, None)
    if writer is None:
        raise ValueError(
            f"--to {to} is for heads, got a network. Use --to torch, timm or onnx."
        )
    return writer
