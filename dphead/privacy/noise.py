"""Draw rounded Gaussian noise from a cryptographic generator, keyed for each release.

Each release gets its own generators, and no other release may use them. Every generator
is ChaCha20 (package `randomgen`). Without a seed, its key is 256 bits from the
operating system, so releases, processes and forks share no state.
"""

import hashlib
import secrets
import sys
from typing import Any

import numpy as np
from randomgen import ChaCha

from dphead.privacy.normal import rounded_gaussian, symmetric_rounded_gaussian


def refuse_compilation() -> None:
    """Raise RuntimeError inside a function that torch compiles.

    torch.compile replaces numpy by code of its own. This code draws noise of one sign,
    and prints keys in warnings.
    """
    compiler = sys.modules.get("torch._C._dynamo.eval_frame")
    if compiler is not None and compiler.get_eval_frame_callback() is not None:
        raise RuntimeError(
            "A function that torch compiles called dphead. Compilation would change "
            "the noise. This call read no row. Call dphead outside of torch.compile, "
            "and compile the optimizer's step alone."
        )


class NoiseSource:
    """Give each release its own random generators.

    Parameters
    ----------
    seed : int or None, default None
        None draws keys from the operating system, as a guarantee requires. An integer
        makes every draw reproducible, for tests. Then there is no privacy: `private` is
        False, and every report states it.

    Guarantee
    ---------
    With `seed=None`, each call of `generator` returns a stream keyed by 256 fresh bits
    of operating-system entropy.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @property
    def private(self) -> bool:
        """Return whether the draws are secret."""
        # A seed may be guessed or written down: such noise can be subtracted.
        return self.seed is None

    def generator(self, sequence: int, purpose: str) -> np.random.Generator:
        """Return a fresh generator for one release and one purpose.

        Parameters
        ----------
        sequence : int
            Index of the release in its fit.
        purpose : {"noise", "sample"}
            Use of the draws.

        Returns
        -------
        numpy.random.Generator
            A ChaCha20 stream.

        Guarantee
        ---------
        Seeded draws depend only on (seed, sequence, purpose). A resumed seeded run
        therefore repeats its draws, and each release of a fit has a different key.
        Without a seed, each call has a fresh key.
        """
        if self.seed is None:
            # A fresh key for each call: if two releases shared a stream, their
            # difference would have no noise.
            key = secrets.token_bytes(32)
        else:
            # A hash, so that releases and purposes have unrelated streams.
            # The seed alone as a key would give every release the same noise.
            key = hashlib.blake2b(
                f"{self.seed}/{sequence}/{purpose}".encode(), digest_size=32
            ).digest()
        # 20 rounds: the full cipher [Bernstein 2008].
        chacha: Any = ChaCha(key=int.from_bytes(key, "little"), rounds=20)
        return np.random.Generator(chacha)


def rounded_noise(
    generator: np.random.Generator, shape: tuple[int, ...], sd: float, symmetric: bool
) -> np.ndarray:
    """Return independent draws of Gaussian noise, rounded to integers.

    Parameters
    ----------
    generator : numpy.random.Generator
        Source of uniform bits.
    shape : tuple of int
        Shape of the sum. If `symmetric`, it ends in two equal lengths.
    sd : float
        Standard deviation before rounding, in integer units of the sum.
    symmetric : bool
        Whether the sum is a symmetric matrix, or a stack of symmetric matrices.

    Returns
    -------
    ndarray of int64
        Draws of round(N(0, sd**2)). If `symmetric`, draws of round(sd (Z + Zᵀ)/2).

    Guarantee
    ---------
    Draws are independent and have exactly the stated distribution (proofs/noise.md).
    The symmetric form is post-processing of the mechanism on the whole d x d matrix.
    """
    # The symmetric form has half the variance off the diagonal (claim N).
    draw = symmetric_rounded_gaussian if symmetric else rounded_gaussian
    return draw(generator, shape, sd)
