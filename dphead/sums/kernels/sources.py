"""Compute the digest of the C sources of a library. setup.py runs this file too."""

from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent
# The compiler gets these flags after those of the environment. Contraction is off,
# because a fused multiply-add rounds once, and the definition of a row rounds twice
# (privacy/proofs/exactness.md).
FLAGS = [
    "-O3",
    "-fno-fast-math",
    "-fno-unsafe-math-optimizations",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]


def files() -> list[Path]:
    """Return the C files of this folder, without an editor's hidden lock files."""
    return sorted(file for file in FOLDER.glob("[!.]*.[ch]") if file.is_file())


def digest() -> str:
    """Return a digest of the flags and the C files, as 16 hexadecimal digits."""
    content = [f"{file.name}\n".encode() + file.read_bytes() for file in files()]
    return sha256(b"\0".join([" ".join(FLAGS).encode(), *content])).hexdigest()[:16]
