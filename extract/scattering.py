"""ScatterNet: the wavelet scattering transform of Oyallon and Mallat (CVPR 2015), to second order, in torch.

With the modulus of convolutions with oriented Morlet wavelets psi[j, theta] and a Gaussian average phi[J],

    S0 = x * phi,   S1 = |x * psi1| * phi,   S2 = ||x * psi1| * psi2| * phi   (j1 < j2 only),

sampled every 2**J pixels. There are 1 + J L + L^2 J (J - 1) / 2 channels, ordered S0, S1 by (j1, theta1), S2 by
(j1, theta1, j2, theta2). The numbers agree with kymatio's ``Scattering2D`` (relative difference below 1e-5 in float32).

Two facts make it fast. Averaging with phi, keeping every 2**J-th pixel and cutting the border is one small real matrix
for each axis (phi is a product of two one-dimensional Gaussians), so no Fourier transform is needed after the last
modulus. And images are worked through in pieces whose largest intermediate fits in a core's cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from extract.errors import ExtractError

_CACHE_BYTES = 2 << 20  # largest intermediate of a piece on a CPU: one core's share of the second-level cache
_GPU_BYTES = 256 << 20
_PI = 3.1415  # the reference filters divide by 2 * 3.1415 * sigma^2; with pi itself every wavelet would be 3e-5 smaller


def n_channels(J: int, L: int = 8) -> int:
    """Number of scattering channels of one image channel, up to order 2."""
    return 1 + J * L + L * L * J * (J - 1) // 2


def padded_size(size: int, J: int) -> tuple[int, int, int]:
    """Length of an axis after reflection, and how many pixels are added before and after it."""
    step = 2**J
    total = ((size + step) // step + 1) * step
    return total, (total - size) // 2, (total - size + 1) // 2


def morlet(M: int, N: int, sigma: float, theta: float, xi: float, slant: float) -> np.ndarray:
    """Fourier transform (M, N), real, of the periodic Morlet wavelet g(u) (exp(i xi.u) - beta) with zero mean.

    g is a Gaussian of width sigma along theta and sigma / slant across it.
    """
    rows, cols = np.arange(-2 * M, 3 * M)[:, None], np.arange(-2 * N, 3 * N)[None, :]
    along = rows * np.cos(theta) + cols * np.sin(theta)
    across = -rows * np.sin(theta) + cols * np.cos(theta)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * _PI * sigma**2)
    wave, bump = (g.reshape(5, M, 5, N).sum((0, 2)) for g in (envelope * np.exp(1j * xi * along), envelope))
    return np.fft.fft2(wave - wave.sum() / bump.sum() * bump).real


def lowpass_matrix(size: int, J: int, j: int) -> np.ndarray:
    """Matrix (size / 2**J - 2, size / 2**j): average with phi[J], keep every 2**J-th pixel, drop one at each end.

    It acts on one axis of a signal already sampled every 2**j pixels; `size` is the padded length at full resolution.
    """
    sigma = 0.8 * 2 ** (J - 1)
    bump = np.exp(-(np.arange(-2 * size, 3 * size) ** 2) / (2 * sigma**2)).reshape(5, size).sum(0)
    n, step = size // 2**j, 2 ** (J - j)
    kernel = np.fft.ifft(crop_spectrum(np.fft.fft(bump / np.sqrt(2 * _PI * sigma**2)), n)).real
    out = np.arange(1, size // 2**J - 1)
    return kernel[(out[:, None] * step - np.arange(n)[None, :]) % n]


def crop_spectrum(spectrum: np.ndarray, *sizes: int) -> np.ndarray:
    """Keep the lowest frequencies of each axis: the same filter on a coarser grid."""
    for axis, n in enumerate(sizes):
        full = spectrum.shape[axis]
        keep = np.arange(n) if n == full else np.r_[0 : n // 2, full - n // 2 : full]
        spectrum = np.take(spectrum, keep, axis)
    return spectrum


def reflect_index(size: int, before: int, after: int) -> np.ndarray:
    """Index that extends an axis by reflection about its first and last pixel, however far."""
    period = max(2 * (size - 1), 1)
    position = np.arange(-before, size + after) % period
    return np.minimum(position, period - position)


class ScatterNet(nn.Module):
    """Scattering transform of images with a fixed height and width.

    Input (B, C, H, W) float32; output (B, C * K, H', W') float32 with K = `n_channels(J, L)`; 28x28 with J = 2 gives
    81x7x7 a channel, 32x32 gives 81x8x8. Rows never mix. ExtractError if an axis is shorter than 2**J.
    """

    def __init__(self, J: int, shape: tuple[int, int], L: int = 8):
        super().__init__()
        if J < 1 or L < 1 or min(shape) < 2**J:
            raise ExtractError(
                f"scatternet needs J >= 1, L >= 1 and images of at least 2**J pixels, got J={J}, L={L}, shape={shape}. "
                "Choose a smaller --scatter-j or a larger --image-size."
            )
        self.J, self.L, self.shape = J, L, tuple(shape)
        (self.M, *pad_rows), (self.N, *pad_cols) = (padded_size(s, J) for s in shape)
        self.register_buffer("rows", torch.from_numpy(reflect_index(shape[0], *pad_rows)), persistent=False)
        self.register_buffer("cols", torch.from_numpy(reflect_index(shape[1], *pad_cols)), persistent=False)
        for j in range(J):
            for name, size in (("left", self.M), ("right", self.N)):
                matrix = torch.from_numpy(lowpass_matrix(size, J, j)).float()
                self.register_buffer(f"{name}{j}", matrix.T.contiguous(), persistent=False)
            spectra = np.stack([self._wavelet(j, t) for t in range(L)])
            for level in range(min(j + 1, max(J - 1, 1))):
                coarse = np.stack([crop_spectrum(s, self.M >> level, self.N >> level) for s in spectra])
                # Each value twice, to multiply real and imaginary parts side by side without complex filters; divided
                # by the number of frequencies that fold onto one when every 2**(j - level)-th pixel is kept.
                pairs = torch.from_numpy(coarse.repeat(2, axis=-1) / 4 ** (j - level)).float()
                self.register_buffer(f"psi{j}at{level}", pairs, persistent=False)

    def _wavelet(self, j: int, t: int) -> np.ndarray:
        theta = (int(self.L / 2 - 1) - t) * np.pi / self.L
        return morlet(self.M, self.N, 0.8 * 2**j, theta, 0.75 * np.pi / 2**j, 4.0 / self.L)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        B, C, H, W = images.shape
        if self.shape != (H, W):
            raise ExtractError(f"images must be {self.shape}, got shape={(H, W)}. Build ScatterNet for this size.")
        planes = images.reshape(B * C, H, W).float()
        k, h, w = n_channels(self.J, self.L), self.M // 2**self.J - 2, self.N // 2**self.J - 2
        out = torch.empty(B * C, k, h, w, device=planes.device)
        if self.J > 1:
            largest = max(4 * (self.M * self.N << 1) * self.L, 8 * self.L**2 * self.M * self.N // 4 * (self.J - 1))
        else:
            largest = 8 * self.L * self.M * self.N
        budget = _CACHE_BYTES * torch.get_num_threads() if planes.device.type == "cpu" else _GPU_BYTES
        piece = max(1, budget // largest)
        for start in range(0, B * C, piece):
            self._scatter(planes[start : start + piece], out[start : start + piece])
        return out.reshape(B, C * k, h, w)

    def _scatter(self, planes: torch.Tensor, out: torch.Tensor) -> None:
        J, L = self.J, self.L
        x = planes[:, self.rows][:, :, self.cols]  # type: ignore[index]
        self._average(x[:, None], 0, out[:, :1])
        spectrum = torch.fft.fft2(x)
        second = 1 + J * L
        for j1 in range(J):
            first = self._modulus(spectrum[:, None], j1, level=0)
            self._average(first, j1, out[:, 1 + j1 * L : 1 + (j1 + 1) * L])
            if j1 == J - 1:
                break
            spectra = torch.fft.fft2(first)
            width = (J - 1 - j1) * L  # S2 channels of one (j1, theta1)
            block = out[:, second : second + L * width].unflatten(1, (L, J - 1 - j1, L))
            for j2 in range(j1 + 1, J):
                self._average(self._modulus(spectra[:, :, None], j2, level=j1), j2, block[:, :, j2 - j1 - 1])
            second += L * width

    def _modulus(self, spectra: torch.Tensor, j: int, level: int) -> torch.Tensor:
        """|signal * psi[j, theta]| for each theta, every 2**j pixels, from spectra (..., 1, m, n) at `level`."""
        psi = self.get_buffer(f"psi{j}at{level}")
        m, n, step = spectra.shape[-2], spectra.shape[-1], 2 ** (j - level)
        values = torch.view_as_real(spectra).flatten(-2)
        mm, nn2 = m // step, 2 * n // step
        total: torch.Tensor | None = None
        for a in range(step):  # keeping every step-th pixel folds the spectrum onto itself
            for b in range(step):
                at = (..., slice(a * mm, (a + 1) * mm), slice(b * nn2, (b + 1) * nn2))
                total = values[at] * psi[at] if total is None else total.addcmul_(values[at], psi[at])
        assert total is not None
        wave = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(total.unflatten(-1, (-1, 2)))))
        real, imaginary = wave[..., 0], wave[..., 1]
        return (real * real).addcmul_(imaginary, imaginary).sqrt_()

    def _average(self, signal: torch.Tensor, j: int, out: torch.Tensor) -> None:
        """Write into `out` (..., h, w) the average with phi[J] of a signal (..., M / 2**j, N / 2**j)."""
        left, right = self.get_buffer(f"left{j}"), self.get_buffer(f"right{j}")
        narrow = (signal @ right).transpose(-1, -2) @ left
        out.copy_(narrow.transpose(-1, -2))
