"""From a run folder to a folder for other software, with the guarantee's statement.

Only the head, public facts and the report are read; nothing may be written that the
run folder does not hold already, the frozen network's public weights aside.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dphead.analysis.protected import made_of_images
from dphead.privacy.atomic_write import write_folder
from dphead.runs.head_file import load_head
from dphead.runs.portable.trained import TrainedHead, guarantee_of, write_json
from dphead.runs.portable.words import example, in_words, readme
from extract import images

WRITERS = {  # format: module:function(trained, folder), imported when it is used
    "torch": "dphead.runs.portable.heads:write_torch",
    "timm": "dphead.runs.portable.networks:write_timm",
    "onnx": "dphead.runs.portable.networks:write_onnx",
    "sklearn": "dphead.runs.portable.heads:write_sklearn",
}


@dataclass(frozen=True)
class Exported:
    """What was written. takes: what the head is given, in words; example: Python code
    that loads it.
    """

    folder: Path
    files: list[str]
    takes: str
    example: str
    guarantee: dict[str, Any]


def export(
    run: str | Path, to: str, out: str | Path, weights: str | Path | None = None
) -> Exported:
    """Write the head of a run folder to the new folder `out`.

    to: a key of WRITERS. weights: a local file of the network's weights, for timm and
    onnx; None looks them up as timm does.

    ValueError for a folder that holds no head, was changed, or cannot be written in
    this format; nothing is left behind then.
    """
    run, out = Path(run), Path(out)
    if to not in WRITERS:
        raise ValueError(f"to must be one of {tuple(WRITERS)}, got {to=}. Choose one.")
    if (run / "model.json").exists():
        raise ValueError(
            f"an export needs the run folder of a head, got a network in {run}. Its "
            "weights are in model.safetensors: docs/export.md says under which names."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"an export needs a new or empty folder, got {out=!s}. Choose another."
        )
    head, facts = load_head(run)
    path = None if weights is None else Path(weights)
    trained = TrainedHead(run, head, facts, guarantee_of(run, facts), path)
    takes = code = ""

    def fill(folder: Path) -> None:
        nonlocal takes, code
        takes = _writer(to)(trained, folder)
        code = example(trained, to, takes, out.name)
        text = readme(trained, takes, code)
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_json(folder / "guarantee.json", trained.guarantee)
        if made_of_images(facts.get("extraction")):
            shutil.copyfile(images.__file__, folder / "decode.py")

    write_folder(out, fill)
    files = sorted(path.name for path in out.iterdir())
    return Exported(out, files, in_words(trained, takes), code, trained.guarantee)


def _writer(to: str) -> Callable[[TrainedHead, Path], str]:
    """What writes a format's own files, and returns what they take."""
    module, name = WRITERS[to].split(":")
    return getattr(import_module(module), name)
