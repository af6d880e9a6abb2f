"""Make the wavelets of ScatterNet, and two engines that convolve with them.

`Fourier` uses fast Fourier transforms. `Hartley` is for small images: short transforms
are matrix products there, which run near a CPU's peak rate.

Both have the same methods. `signal` lays out planes as the engine needs them.
`spectrum` transforms a signal. `parts` regroups a spectrum by the frequencies that fold
onto one when every 2**(j - level)-th pixel is kept. `modulus` is |signal * psi[j,
theta]| at those pixels, from parts. `average` writes local means. `take` gives memory:
a `Scratch`'s memory for numbers that only the next step reads, else new memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

_Take = Callable[..., torch.Tensor]

# The reference filters divide by 2 * 3.1415 * sigma^2. With pi itself every wavelet
# would be 3e-5 smaller.
_PI = 3.1415


def _morlet(
    M: int, N: int, sigma: float, theta: float, xi: float, slant: float
) -> np.ndarray:
    """Return the Fourier transform (M, N), real, of a periodic Morlet wavelet.

    The wavelet is g(u) (exp(i xi.u) - beta), with zero mean. g is a Gaussian of width
    sigma along theta and sigma / slant across it.
    """
    rows = np.arange(-2 * M, 3 * M)[:, None]
    cols = np.arange(-2 * N, 3 * N)[None, :]
    along = rows * np.cos(theta) + cols * np.sin(theta)
    across = -rows * np.sin(theta) + cols * np.cos(theta)
    envelope = (
        np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
        * slant
        / (2 * _PI * sigma**2)
    )
    wave, bump = (
        g.reshape(5, M, 5, N).sum((0, 2))
        for g in (envelope * np.exp(1j * xi * along), envelope)
    )
    return np.fft.fft2(wave - wave.sum() / bump.sum() * bump).real


def wavelets(M: int, N: int, L: int, j: int, level: int) -> np.ndarray:
    """Return the Fourier transforms of the wavelets of scale j.

    Their shape is (L, M / 2**level, N / 2**level), on every 2**level-th pixel.
    """
    angles = [(int(L / 2 - 1) - t) * np.pi / L for t in range(L)]
    spectra = [
        _morlet(M, N, 0.8 * 2**j, theta, 0.75 * np.pi / 2**j, 4.0 / L)
        for theta in angles
    ]
    return np.stack([_crop_spectrum(s, M >> level, N >> level) for s in spectra])


def _lowpass_matrix(size: int, J: int, j: int) -> np.ndarray:
    """Return the matrix that averages one axis with phi[J] and samples it.

    The matrix keeps every 2**J-th pixel and drops one at each end: (size / 2**J - 2,
    size / 2**j). It acts on one axis of a signal that is already sampled every 2**j
    pixels. `size` is the padded length at full resolution.
    """
    sigma = 0.8 * 2 ** (J - 1)
    places = np.arange(-2 * size, 3 * size)
    gaussian = np.exp(-(places**2) / (2 * sigma**2))
    bump = gaussian.reshape(5, size).sum(0)
    n, step = size // 2**j, 2 ** (J - j)
    kernel = np.fft.ifft(
        _crop_spectrum(np.fft.fft(bump / np.sqrt(2 * _PI * sigma**2)), n)
    ).real
    out = np.arange(1, size // 2**J - 1)
    return kernel[(out[:, None] * step - np.arange(n)[None, :]) % n]


def _crop_spectrum(spectrum: np.ndarray, *sizes: int) -> np.ndarray:
    """Keep the lowest frequencies of each axis: the same filter on a coarser grid."""
    for axis, n in enumerate(sizes):
        full = spectrum.shape[axis]
        half = n // 2
        keep = np.arange(n) if n == full else np.r_[0:half, full - half : full]
        spectrum = np.take(spectrum, keep, axis)
    return spectrum


class Scratch:
    """Return two pieces of memory in turn.

    One step writes the numbers that the next step reads. Both pieces stay in the cache.
    """

    def __init__(self, device: torch.device):
        self.device, self._pieces = device, [torch.empty(0, device=device)] * 2

    def take(self, *shape: int) -> torch.Tensor:
        """Return memory of this shape: the piece that was not given last."""
        size = math.prod(shape)
        self._pieces.reverse()
        if len(self._pieces[0]) < size:
            self._pieces[0] = torch.empty(size, device=self.device)
        return self._pieces[0][:size].view(shape)


class _Engine(nn.Module):
    """Hold filters by scale j and level.

    Signals at a level hold every 2**level-th pixel of the padded image (M, N).
    """

    cache_bytes: int  # best size of a piece's largest intermediate on a CPU (measured)
    planes: int  # a piece's number of planes is a multiple of this

    def __init__(self, J: int, M: int, N: int, L: int):
        super().__init__()
        self.M, self.N = M, N
        for j in range(J):
            self._keep(f"left{j}", _lowpass_matrix(M, J, j))
            self._keep(f"right{j}", _lowpass_matrix(N, J, j))
            for level in range(min(j + 1, max(J - 1, 1))):
                self._keep_wavelets(
                    f"{j}at{level}", wavelets(M, N, L, j, level), 2 ** (j - level)
                )

    def _keep(self, name: str, values: np.ndarray) -> None:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        self.register_buffer(
            name,
            tensor.float() if tensor.is_floating_point() else tensor,
            persistent=False,
        )

    def _keep_wavelets(self, name: str, psi: np.ndarray, step: int) -> None:
        raise NotImplementedError


class Fourier(_Engine):
    """Convolve by fast Fourier transforms.

    Signals are (P, angles, m, n) for P planes; spectra are complex.
    """

    cache_bytes = 4 << 20
    planes = 1

    def _keep_wavelets(self, name: str, psi: np.ndarray, step: int) -> None:
        blocks = np.stack(_blocks(psi, step)) / step**2
        # repeat the real filters for real and imaginary parts side by side
        self._keep(f"psi{name}", blocks.repeat(2, axis=-1))

    def signal(self, planes: torch.Tensor) -> torch.Tensor:
        """Lay out planes (P, m, n) as (P, 1, m, n)."""
        return planes[:, None]

    def spectrum(self, signal: torch.Tensor) -> torch.Tensor:
        """Return the Fourier transforms of a signal."""
        return torch.fft.fft2(signal)

    def parts(
        self, spectrum: torch.Tensor, j: int, level: int, take: _Take
    ) -> torch.Tensor:
        """Return the blocks of a spectrum that fold onto one block.

        Real and imaginary parts alternate.
        """
        return torch.view_as_real(
            torch.stack(_blocks(spectrum, 2 ** (j - level)))
        ).flatten(-2)

    def modulus(
        self, parts: torch.Tensor, j: int, level: int, angles: slice, take: _Take
    ) -> torch.Tensor:
        """Return |signal * psi[j, theta]| for some angles, on every 2**j-th pixel."""
        psi = self.get_buffer(f"psi{j}at{level}")[:, angles]
        folded = parts[0] * psi[0]
        for part, weights in zip(parts[1:], psi[1:], strict=True):
            folded.addcmul_(part, weights)
        wave = torch.fft.ifft2(torch.view_as_complex(folded.unflatten(-1, (-1, 2))))
        squares = torch.view_as_real(wave).square_()
        return (squares[..., 0] + squares[..., 1]).sqrt_()

    def average(self, signal: torch.Tensor, j: int, out: torch.Tensor) -> None:
        """Write local means of a signal at scale j to `out`."""
        left = self.get_buffer(f"left{j}")
        right = self.get_buffer(f"right{j}")
        columns = (signal @ right.T).transpose(-1, -2)
        out.copy_((columns @ left.T).transpose(-1, -2))


def _blocks(values: Any, step: int) -> list[Any]:
    """Return the step**2 blocks (..., m / step, n / step) of (..., m, n).

    Folding adds these blocks.
    """
    m, n = values.shape[-2] // step, values.shape[-1] // step
    return [
        values[..., a * m : (a + 1) * m, b * n : (b + 1) * n]
        for a in range(step)
        for b in range(step)
    ]


class Hartley(_Engine):
    """Convolve by Hartley transforms, as matrix products.

    Signals are (m, n, angles * P), planes last, so that transforming an axis is a
    product of large matrices.

    Spectra are Hartley transforms H[k, l] = sum over (u, v) of x[u, v] cas(2 pi k u /
    m) cas(2 pi l v / n), where cas = cos + sin. They are real, as large as the signal,
    and their own inverse up to a factor m n. A wavelet's transform psi is real. Its
    even part makes the real part of a convolution, its odd part the imaginary one. From
    H[k, l] = Re X[k, -l] - Im X[k, l], X the Fourier transform, each is a sum of two
    terms:

        even:  H[k, l] (E[k, l] + E[k, -l]) / 2  +  H[-k, -l] (E[k, -l] - E[k, l]) / 2
        odd:   H[k, -l] (O[k, l] - O[k, -l]) / 2  +  H[-k, l] (O[k, l] + O[k, -l]) / 2
    """

    cache_bytes = 25 << 16
    # Planes are columns of its products. A library computes the last columns in another
    # way if they do not fill a cache line of 16, and those planes had other bits.
    planes = 16

    def __init__(self, J: int, M: int, N: int, L: int):
        super().__init__(J, M, N, L)
        for size in {s >> j for s in (M, N) for j in range(J)}:
            turns = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
            self._keep(f"cas{size}", np.cos(turns) + np.sin(turns))

    def _keep_wavelets(self, name: str, psi: np.ndarray, step: int) -> None:
        """Keep the rows and weights of a wavelet's two terms.

        The rows (m n 2 terms) of a spectrum (M N, P) are in the order of `parts`; the
        weights are (m n 2, L, terms).
        """
        L, M, N = psi.shape
        m, n = M // step, N // step
        axes = (np.arange(size) for size in (m, n, step, step))
        k, l, a, b = np.meshgrid(*axes, indexing="ij")
        k, l = k + a * m, l + b * n
        mirrored = np.roll(psi[:, ::-1, ::-1], 1, (1, 2))
        even = (psi + mirrored) / 2
        odd = (psi - mirrored) / 2
        terms = [
            [
                (k, l, even[:, k, l] + even[:, k, -l]),
                (-k, -l, even[:, k, -l] - even[:, k, l]),
            ],
            [
                (k, -l, odd[:, k, l] - odd[:, k, -l]),
                (-k, l, odd[:, k, l] + odd[:, k, -l]),
            ],
        ]
        rows = []
        weights = []
        for part in terms:
            places = [r % M * N + c % N for r, c, _ in part]
            rows.append(np.stack(places, -1))
            weights.append(np.stack([w for _, _, w in part], -1))
        rows = np.stack(rows, 2)
        weights = np.stack(weights, 3) / (2 * step**2 * m * n)
        self._keep(f"rows{name}", rows.ravel())
        self._keep(
            f"psi{name}", np.moveaxis(weights, 0, 3).reshape(2 * m * n, L, 2 * step**2)
        )

    def signal(self, planes: torch.Tensor) -> torch.Tensor:
        """Lay out planes (P, m, n) as (m, n, P)."""
        return planes.permute(1, 2, 0).contiguous()

    def spectrum(self, signal: torch.Tensor) -> torch.Tensor:
        """Return the Hartley transforms of a signal."""
        return self._transform(signal, signal.new_empty)

    def _transform(self, signal: torch.Tensor, take: _Take) -> torch.Tensor:
        m, n = signal.shape[:2]
        return _both_axes(
            self.get_buffer(f"cas{m}"), self.get_buffer(f"cas{n}"), signal, take
        )

    def parts(
        self, spectrum: torch.Tensor, j: int, level: int, take: _Take
    ) -> torch.Tensor:
        """Return the rows of a spectrum in the order of the wavelet's weights."""
        rows, psi = (
            self.get_buffer(f"rows{j}at{level}"),
            self.get_buffer(f"psi{j}at{level}"),
        )
        found = take(len(rows), spectrum.shape[2])
        return torch.index_select(spectrum.flatten(0, 1), 0, rows, out=found).unflatten(
            0, (len(psi), -1)
        )

    def modulus(
        self, parts: torch.Tensor, j: int, level: int, angles: slice, take: _Take
    ) -> torch.Tensor:
        """Return |signal * psi[j, theta]| for some angles, on every 2**j-th pixel."""
        psi = self.get_buffer(f"psi{j}at{level}")[:, angles]
        folded = take(*psi.shape[:2], parts.shape[2])
        if j == level:  # two terms are too few for a matrix product
            torch.mul(psi[:, :, :1], parts[:, :1], out=folded).addcmul_(
                psi[:, :, 1:], parts[:, 1:]
            )
        else:
            torch.bmm(psi, parts, out=folded)
        wave = self._transform(folded.reshape(self.M >> j, self.N >> j, -1), take)
        real, imaginary = wave.unflatten(2, (2, -1)).unbind(2)
        return (real * real).addcmul_(imaginary, imaginary).sqrt_()

    def average(self, signal: torch.Tensor, j: int, out: torch.Tensor) -> None:
        """Write local means of a signal at scale j to `out`."""
        means = _both_axes(
            self.get_buffer(f"left{j}"),
            self.get_buffer(f"right{j}"),
            signal,
            signal.new_empty,
        )
        planes = means.unflatten(2, (-1, len(out)))
        out.copy_(planes.permute(3, 2, 0, 1))


def _both_axes(
    left: torch.Tensor, right: torch.Tensor, signal: torch.Tensor, take: _Take
) -> torch.Tensor:
    """Return (h, w, B) from left (h, m), right (w, n) and a signal (m, n, B)."""
    h = len(left)
    w = len(right)
    _, n, B = signal.shape
    rows = torch.mm(left, signal.flatten(1), out=take(h, n * B))
    rows = rows.view(h, n, B)
    turned = right.expand(h, -1, -1)
    return torch.bmm(turned, rows, out=take(h, w, B))
