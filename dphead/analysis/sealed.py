"""Write and read a run's JSON and tensor files with digests.

Files that do not match their digests are refused. No file is a pickle.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from dphead_extract.bounds import is_plain, read_text

from dphead.privacy.atomic_write import write_atomically

_RECORD_BYTES = 1 << 30  # size limit of JSON records; chosen, not measured
_FORMAT = 1  # format number of `write_sealed`
# digest of NAME.safetensors, and of all other entries of NAME.json
_DIGESTS = ("tensors_sha256", "sha256")


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Write data as plain JSON with its digest, atomically and durably."""
    facts = json.loads(json.dumps(plain(facts), allow_nan=False))
    facts["sha256"] = _digest(facts)
    text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def plain(value: Any) -> Any:
    """Return data as plain JSON: lists for arrays, texts for inf, nan, functions."""
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the data of `write_json` after checking its digest.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        Name of the record for errors, such as "report".

    Returns
    -------
    dict
        The data.

    Raises
    ------
    ValueError
        If the file is missing, is not a JSON object, or does not have the digest of its
        other entries.
    """
    if not path.exists():
        raise ValueError(f"the {what} {path} does not exist. {_todo(what)}")
    try:
        facts = json.loads(read_text(path, _RECORD_BYTES))
        if not isinstance(facts, dict):
            raise ValueError(f"{type(facts).__name__} instead of an object")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a {what} in JSON, because it is not text. {_todo(what)}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a {what} in JSON: {error}. {_todo(what)}"
        ) from error
    if facts.get("sha256") != _digest(facts):
        raise ValueError(
            f"The {what} {path} was changed after dphead wrote it: its digest `sha256` "
            "does not match. Restore the file from a backup."
        )
    return facts


def _todo(what: str) -> str:
    """Return the advice about an unreadable record, for errors."""
    if what == "simulation":
        return "Pass a file of `dphead tan simulate --json`."
    return "Pass a run folder, or restore the file from a backup."


def refuse_unfinished(folder: Path) -> None:
    """Raise ValueError if the run in a folder has not removed its private files.

    A run with a finite epsilon writes fit.json before its charge, and removes it last.
    """
    if not (folder / "fit.json").exists():
        return
    if (folder / "report.json").exists():
        raise ValueError(
            f"the run in {folder} ended before it removed its private files, such as "
            "fit.json. Repeat the command that started the run. It removes these files "
            "and charges nothing. If the run's data are gone, delete releases, "
            "checkpoint.npz and lock in this folder, and then fit.json."
        )
    raise ValueError(
        f"{folder} holds an interrupted run, which has no result yet. Repeat the "
        "command that started the run. The run then resumes under its charge."
    )


def write_sealed(
    folder: Path, name: str, tensors: dict[str, np.ndarray], facts: dict[str, Any]
) -> str:
    """Write NAME.safetensors and NAME.json with digests of both.

    Returns
    -------
    str
        SHA-256 digest of NAME.safetensors.
    """
    from safetensors.numpy import save

    held = save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    write_atomically(folder / f"{name}.safetensors", lambda file: file.write(held))
    digest = hashlib.sha256(held).hexdigest()
    write_json(
        folder / f"{name}.json", {"format": _FORMAT, **facts, "tensors_sha256": digest}
    )
    return digest


def read_sealed(
    folder: Path, name: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the tensors and the JSON values of `write_sealed`.

    Raises
    ------
    ValueError
        If the files are missing, of another format, or do not match their digests. If
        the folder's run did not finish.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    refuse_unfinished(folder)
    try:
        facts = json.loads(read_text(folder / f"{name}.json", _RECORD_BYTES))
        tensors = folder / f"{name}.safetensors"
        if tensors.exists() and not is_plain(tensors):
            raise OSError(f"{tensors} is a pipe, a device or a folder")
        held = tensors.read_bytes()
        if facts["format"] != _FORMAT:
            raise ValueError(
                f"{folder / name}.json has format {facts['format']}, but this version "
                f"of dphead reads format {_FORMAT}. Use the version that wrote it."
            )
        found = (hashlib.sha256(held).hexdigest(), _digest(facts))
        if tuple(facts[key] for key in _DIGESTS) != found:
            raise ValueError(
                f"{name}.json or {name}.safetensors in {folder} was modified after "
                "training. Restore both files from a backup."
            )
        return load(held), facts
    except (
        OSError,
        KeyError,
        TypeError,
        RecursionError,
        UnicodeDecodeError,
        json.JSONDecodeError,
        SafetensorError,
    ) as error:
        todo = "fit" if name == "head" else "finetune"
        raise ValueError(
            f"{folder} has no readable {name}.json and {name}.safetensors ({error}). "
            f"Pass a run folder of `dphead {todo}`."
        ) from error


@contextmanager
def explain_damage(what: str, where: object) -> Iterator[None]:
    """Raise a one-line ValueError instead of an error from a malformed record.

    For example, such a record lacks a key, or has a list instead of a number.
    """
    try:
        yield
    except (
        AttributeError,
        LookupError,
        OverflowError,
        RuntimeError,
        TypeError,
    ) as error:
        text = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"{where} has no valid {what}, because a value is missing or invalid "
            f"({type(error).__name__}: {text}). Restore {where} from a backup."
        ) from error


def _digest(facts: dict[str, Any]) -> str:
    rest = {key: value for key, value in facts.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
