"""Weights that are made to break a program, or to run code in it."""

import io
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.sources import Touch, Write, npy, written, zipped


def pickled_weights(at: Path, rng: random.Random) -> Path:
    """A pickle that runs code, by itself or in torch's zip."""
    import torch

    name = at / rng.choice(["w.pth", "w.pt", "w.bin", "w.safetensors", "w.npz"])
    if rng.random() < 0.5:
        return written(name, pickle.dumps({"state_dict": Touch(at)}))
    torch.save({"state_dict": {"head.weight": Touch(at)}}, name)
    return name


def pickled_tensors(at: Path, rng: random.Random) -> Path:
    stream = io.BytesIO()
    tensors: Any = {"head.weight": np.array([Touch(at)], dtype=object)}
    np.savez(stream, **tensors)
    return written(at / "w.npz", stream.getvalue())


def odd_state(at: Path, rng: random.Random) -> Path:
    """A state dict that is none."""
    import torch

    odd = [3, [1, 2], {1: torch.zeros(2)}, {"a": 3}, {"state_dict": 4}, "text", None]
    odd += [{"a": torch.zeros(2).to_sparse()}, {"state_dict": {"state_dict": {}}}]
    odd += [{"stem.weight": torch.zeros(16, 3, 3, 3, dtype=torch.complex64)}]
    torch.save(rng.choice(odd), at / "w.pth")
    return at / "w.pth"


def odd_safetensors(at: Path, rng: random.Random) -> Path:
    headers = [
        *("{}", "[]", "3", "{", '{"a": 3}', '{"a":' * 20_000),
        '{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
    ]
    text = rng.choice(headers).encode()
    size = rng.choice([len(text), len(text), 2**63, 0, 10**8])
    return written(at / "w.safetensors", struct.pack("<Q", size) + text + bytes(4))


def odd_weights(at: Path, rng: random.Random) -> Path:
    path = at / rng.choice(["w.pth", "w.safetensors", "w.npz", "w"])
    kind = rng.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        written(path, rng.randbytes(rng.choice([0, 10, 5000])))
    else:
        zipped(path, {"head.weight.npy": npy((2**40, 2**20), b"0" * 8, "<f4")})
    return path


WEIGHTS: tuple[Write, ...] = (
    *(pickled_weights, pickled_weights, pickled_tensors, odd_state, odd_safetensors),
    odd_weights,
)
