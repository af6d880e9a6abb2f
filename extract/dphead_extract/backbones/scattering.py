"""Compute ScatterNet: the scattering transform of Oyallon and Mallat (CVPR 2015).

The transform has order 2. With the modulus of convolutions with oriented Morlet
wavelets psi[j, theta] and a Gaussian average phi[J],

    S0 = x * phi,   S1 = |x * psi1| * phi,   S2 = ||x * psi1| * psi2| * phi   (j1 < j2
    only),

sampled every 2**J pixels. There are 1 + J L + L^2 J (J - 1) / 2 channels, ordered S0,
S1 by (j1, theta1), S2 by (j1, theta1, j2, theta2). The numbers agree with kymatio's
``Scattering2D`` (relative difference below 1e-5 in float32).

Two properties make it fast. One small real matrix for each axis averages with phi,
keeps every 2**J-th pixel and cuts the border, because phi is a product of two
one-dimensional Gaussians. The largest intermediate of a piece of images fits in a
core's cache.

The features of an image must have the same bits at every position of a batch, whatever
the other images are. A plane is one color channel of an image. All pieces of a batch
have the same number of planes, and the last piece is padded with zeros (`_pieces`). If
the bits on a CPU still differ, extraction uses batches of one image
(`with_equal_places`).
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dphead_extract.backbones.base import BackboneOptions, register
from dphead_extract.backbones.fixed_filters import FixedFilters
from dphead_extract.errors import ExtractError

# bytes of the largest intermediate of a piece; choices, not measured
CPU_BYTES, _GPU_BYTES = 4 << 20, 256 << 20
# kymatio, the reference, divides by 2 * 3.1415 * sigma^2. With pi itself every wavelet
# would be 3e-5 smaller.
_PI = 3.1415


def _padded_size(size: int, J: int) -> tuple[int, int, int]:
    """Return the length of an axis after reflection, and the pixels added.

    The added pixels are given as (before, after).
    """
    step = 2**J
    total = ((size + step) // step + 1) * step
    return total, (total - size) // 2, (total - size + 1) // 2


class ScatterNet(nn.Module):
    """Compute the scattering transform of images with a fixed height and width.

    Input (B, C, H, W) float32; output (B, C * K, H', W') float32 with K = 1 + J L +
    L^2 J (J - 1) / 2. 28x28 with J = 2 gives 81x7x7 for each channel, 32x32 gives
    81x8x8. The features of an image do not depend on the other images. Raises
    ExtractError if an axis is shorter than 2**J.
    """

    def __init__(self, J: int, shape: tuple[int, int], L: int = 8):
        super().__init__()
        if min(shape) < 2**J:
            raise ExtractError(
                f"--scatter-j {J} needs images of at least {2**J} x {2**J} pixels, got "
                f"{shape[0]} x {shape[1]}. Choose a smaller --scatter-j or a larger "
                "--image-size."
            )
        self.J, self.L, self.shape = J, L, tuple(shape)
        (self.M, *pad_rows), (self.N, *pad_cols) = (_padded_size(s, J) for s in shape)
        self._keep("rows", np.pad(np.arange(shape[0]), pad_rows, "reflect"))
        self._keep("cols", np.pad(np.arange(shape[1]), pad_cols, "reflect"))
        for j in range(J):
            self._keep(f"left{j}", _lowpass_matrix(self.M, J, j))
            self._keep(f"right{j}", _lowpass_matrix(self.N, J, j))
            for level in range(min(j + 1, max(J - 1, 1))):
                step = 2 ** (j - level)
                psi = _wavelet_spectra(self.M, self.N, L, j, level)
                # repeat the real filters for real and imaginary parts side by side
                blocks = (np.stack(_blocks(psi, step)) / step**2).repeat(2, axis=-1)
                self._keep(f"psi{j}at{level}", blocks)

    def _keep(self, name: str, values: np.ndarray) -> None:
        tensor = torch.from_numpy(values)
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        B, C, H, W = images.shape
        J, L = self.J, self.L
        planes = images.reshape(B * C, H, W).float()
        k = 1 + J * L + L * L * J * (J - 1) // 2  # channels of a plane, up to order 2
        h, w = (size // 2**J - 2 for size in (self.M, self.N))
        size, missing = self._pieces(B * C, planes.device)
        planes = F.pad(planes, (0, 0, 0, 0, 0, missing))
        out = torch.empty(len(planes), k, h, w, device=planes.device)
        for piece, result in zip(planes.split(size), out.split(size), strict=True):
            self._scatter(piece, result)
        return out[: B * C].reshape(B, C * k, h, w)

    def _pieces(self, n: int, device: torch.device) -> tuple[int, int]:
        """Return the number of planes in each piece, and of zero planes to add.

        All pieces of n planes have the same number of planes.
        """
        budget = CPU_BYTES if device.type == "cpu" else _GPU_BYTES
        fit = max(1, budget // (2 * self.L * self.M * self.N))
        count = max(1, -(-n // fit))
        # some processors use different kernels for a single plane
        size = min(fit, max(2, -(-n // count)))
        return size, count * size - n

    def _scatter(self, planes: torch.Tensor, out: torch.Tensor) -> None:
        """Write the channels of planes (P, H, W) to `out` (P, K, h, w).

        P counts the planes and K the channels of each plane (see the class). Signals
        are (P, angles, m, n). `to` is the next channel of the second order.
        """
        J, L = self.J, self.L
        x = planes[:, None, self.rows][..., self.cols]  # type: ignore[index]
        self._average(x, 0, out[:, :1])
        spectrum, to = torch.fft.fft2(x), 1 + J * L
        for j1 in range(J):
            parts = _parts(spectrum, 2**j1)
            # The last scale has no second order: all its angles are processed at once.
            # Otherwise one angle at a time fills the cache.
            together = L if j1 == J - 1 else 1
            own = out[:, 1 + j1 * L : 1 + (j1 + 1) * L]
            for t in range(0, L, together):
                angles = slice(t, t + together)
                first = self._modulus(parts, j1, 0, angles)
                self._average(first, j1, own[:, angles])
                if j1 == J - 1:
                    continue
                spectra = torch.fft.fft2(first)
                for j2 in range(j1 + 1, J):
                    parts2 = _parts(spectra, 2 ** (j2 - j1))
                    second = self._modulus(parts2, j2, j1, slice(0, L))
                    self._average(second, j2, out[:, to : to + L])
                    to += L

    def _modulus(
        self, parts: torch.Tensor, j: int, level: int, angles: slice
    ) -> torch.Tensor:
        """Return |signal * psi[j, theta]| for some angles, on every 2**j-th pixel.

        `parts` are `_parts` of a signal that holds every 2**level-th pixel.
        """
        psi = self.get_buffer(f"psi{j}at{level}")[:, angles]
        folded = parts[0] * psi[0]
        for part, weights in zip(parts[1:], psi[1:], strict=True):
            folded.addcmul_(part, weights)
        wave = torch.fft.ifft2(torch.view_as_complex(folded.unflatten(-1, (-1, 2))))
        squares = torch.view_as_real(wave).square_()
        return (squares[..., 0] + squares[..., 1]).sqrt_()

    def _average(self, signal: torch.Tensor, j: int, out: torch.Tensor) -> None:
        """Write local means of a signal, which holds every 2**j-th pixel, to `out`."""
        left = self.get_buffer(f"left{j}")
        right = self.get_buffer(f"right{j}")
        columns = (signal @ right.T).transpose(-1, -2)
        out.copy_((columns @ left.T).transpose(-1, -2))


def _parts(spectrum: torch.Tensor, step: int) -> torch.Tensor:
    """Return the blocks of a spectrum that add up if only every step-th pixel is kept.

    The first axis counts the blocks. On the last axis, each complex value becomes its
    real and its imaginary part.
    """
    return torch.view_as_real(torch.stack(_blocks(spectrum, step))).flatten(-2)


def _blocks(values: Any, step: int) -> list[Any]:
    """Return the step**2 blocks (..., m / step, n / step) of (..., m, n)."""
    m, n = values.shape[-2] // step, values.shape[-1] // step
    return [
        values[..., a * m : (a + 1) * m, b * n : (b + 1) * n]
        for a in range(step)
        for b in range(step)
    ]


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


def _wavelet_spectra(M: int, N: int, L: int, j: int, level: int) -> np.ndarray:
    """Return the Fourier transforms of the L wavelets of scale j.

    Their shape is (L, M / 2**level, N / 2**level), for signals that hold every
    2**level-th pixel.
    """
    angles = [(int(L / 2 - 1) - t) * np.pi / L for t in range(L)]
    spectra = [
        _morlet(M, N, 0.8 * 2**j, theta, 0.75 * np.pi / 2**j, 4.0 / L)
        for theta in angles
    ]
    return np.stack([_crop_spectrum(s, M >> level, N >> level) for s in spectra])


def _lowpass_matrix(size: int, J: int, j: int) -> np.ndarray:
    """Return the matrix that averages one axis with phi[J] and samples it.

    The matrix has the shape (size / 2**J - 2, size / 2**j). It keeps every 2**J-th
    pixel and drops one at each end. It acts on one axis of a signal that is already
    sampled every 2**j pixels. `size` is the padded length at full resolution.
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
    """Return the spectrum of a coarser grid: the `sizes` lowest frequencies."""
    for axis, n in enumerate(sizes):
        full = spectrum.shape[axis]
        half = n // 2
        keep = np.arange(n) if n == full else np.r_[0:half, full - half : full]
        spectrum = np.take(spectrum, keep, axis)
    return spectrum


@register
class _ScatterNetFamily(FixedFilters):
    """Build ScatterNets of one or several scales, with joined outputs."""

    names = ("scatternet",)

    def nets(
        self,
        options: BackboneOptions,
        shape: tuple[int, int],
        colors: int,
        basis: torch.Tensor | None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        """Return a ScatterNet for each scale, and no constants."""
        scales, angles = options.settings["scatter_j"], options.settings["scatter_l"]
        return [ScatterNet(j, shape, angles) for j in scales], {}
