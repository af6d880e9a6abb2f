"""Rounded Gaussian noise from a cryptographic generator, keyed anew for each release.

One independent draw per coordinate, step and release: none may be used twice. ChaCha20
(the `randomgen` package) gets 256 bits from the operating system for every release, so
nothing is shared between releases, processes or forks and no generator state can be
repeated or guessed.
"""

import hashlib
import secrets
from typing import Any

import numpy as np
from randomgen import ChaCha

from dphead.privacy.normal import rounded_gaussian, symmetric_rounded_gaussian


class NoiseSource:
    """Gives each release its own generators.

    seed: None for a guarantee. An integer makes every draw reproducible, for tests:
    then there is no privacy, and `private` is False, which every report states.

    Guarantee: with seed=None each call of `generator` returns a stream keyed by 256
    fresh bits of OS entropy.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @property
    def private(self) -> bool:
        """Whether the draws are secret."""
        return self.seed is None

    def generator(self, sequence: int, purpose: str) -> np.random.Generator:
        """A fresh generator for release number `sequence` and `purpose` ("noise" or
        "sample").

        Guarantee: seeded draws depend on (seed, sequence, purpose) alone, so a resumed
        seeded run repeats them and no two releases of a fit share any; unseeded draws
        never repeat.
        """
        if self.seed is None:
            key = secrets.token_bytes(32)
        else:
            key = hashlib.blake2b(
                f"{self.seed}/{sequence}/{purpose}".encode(), digest_size=32
            ).digest()
        chacha: Any = ChaCha(key=int.from_bytes(key, "little"), rounds=20)
        return np.random.Generator(chacha)


def rounded_noise(
    generator: np.random.Generator, shape: tuple[int, ...], sd: float, symmetric: bool
) -> np.ndarray:
    """Independent draws of round(N(0, sd**2)), int64; of round(sd (Z + Zᵀ)/2) if
    symmetric.

    Guarantee: proofs/noise.md; the symmetric form is post-processing of the whole d x d
    mechanism.
    """
    draw = symmetric_rounded_gaussian if symmetric else rounded_gaussian
    return draw(generator, shape, sd)
