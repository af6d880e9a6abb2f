"""Compute the filters of ScatterNet: Morlet wavelets and local averages."""

from __future__ import annotations

import numpy as np

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


def wavelet_spectra(M: int, N: int, L: int, j: int, level: int) -> np.ndarray:
    """Return the Fourier transforms of the wavelets of scale j.

    Their shape is (L, M / 2**level, N / 2**level), on every 2**level-th pixel.
    """
    angles = [(int(L / 2 - 1) - t) * np.pi / L for t in range(L)]
    spectra = [
        _morlet(M, N, 0.8 * 2**j, theta, 0.75 * np.pi / 2**j, 4.0 / L)
        for theta in angles
    ]
    return np.stack([_crop_spectrum(s, M >> level, N >> level) for s in spectra])


def lowpass_matrix(size: int, J: int, j: int) -> np.ndarray:
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
