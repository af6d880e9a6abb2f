"""Make random views of images, with numbers that a public function computes.

A view's numbers depend only on the step, the row's content and the view. Therefore a
row's statistic depends neither on the row's position nor on other rows. Positions
cannot seed the views, because removing a row shifts all later rows. The numbers need
not be secret: the guarantee holds against an attacker who knows them. Equal rows have
equal views.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_NUMBERS_A_VIEW = 16  # uniform numbers per view: more than any augmentation uses
_GRAY = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R BT.601)


def row_keys(x: np.ndarray) -> np.ndarray:
    """Return (k,) uint64: a blake2b digest of the bytes of each row of x (k, ...)."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x]
    return np.frombuffer(b"".join(digests), "<u8")


def uniforms(step: int, keys: np.ndarray, views: int) -> np.ndarray:
    """Return uniform numbers (k, views, 16) in [0, 1), float32, for row keys (k,).

    splitmix64 (Steele et al. 2014) makes them from the step, the key and the view.
    """
    with np.errstate(over="ignore"):
        start = _mixed(_mixed(np.uint64(0)) + np.uint64(step))
        row = _mixed(start + keys.astype(np.uint64))[:, None]
        bits = _mixed(row + np.arange(views * _NUMBERS_A_VIEW, dtype=np.uint64))
    return (
        ((bits >> np.uint64(40)) * 2.0**-24)
        .astype(np.float32)
        .reshape(len(keys), views, _NUMBERS_A_VIEW)
    )


def _mixed(z: np.ndarray | np.uint64) -> np.ndarray:
    """Return the next output of splitmix64 for each state."""
    z = np.asarray(z, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _crop_flip(x: Tensor, u: Tensor, pad: int | None = None) -> Tensor:
    """Crop at random after padding by reflection, and flip at random.

    The default padding is an eighth of the height: 4 pixels of 32, as in De22 C.2.
    """
    n, _, h, w = x.shape
    pad = max(1, round(h / 8)) if pad is None else pad
    shift = (u[:, :2] * (2 * pad + 1)).long() - pad
    rows = _reflected(torch.arange(h, device=x.device) + shift[:, :1], h)
    columns = _reflected(torch.arange(w, device=x.device) + shift[:, 1:], w)
    columns = torch.where(u[:, 2:3] < 0.5, columns.flip(1), columns)
    images = torch.arange(n, device=x.device)[:, None, None]
    return x[images, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Map indices outside 0..size - 1 back inside, by reflection at the borders."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)


def _resized_crop(x: Tensor, u: Tensor) -> Tensor:
    """Crop a random box, resize it bilinearly, and flip it at random ("rrc").

    The box has 8 % to 100 % of the area and an aspect ratio of 3/4 to 4/3 [TAN23
    section 4.2]. A side that is longer than the image's is shortened to it.
    """
    n, _, h, w = x.shape
    area = 0.08 + 0.92 * u[:, 0]
    ratio = torch.exp((2 * u[:, 1] - 1) * np.log(4 / 3))
    tall = (area / ratio).sqrt().clamp(max=1)
    wide = (area * ratio).sqrt().clamp(max=1)
    top = (2 * u[:, 2] - 1) * (1 - tall)
    left = (2 * u[:, 3] - 1) * (1 - wide)
    wide = torch.where(u[:, 4] < 0.5, -wide, wide)
    zero = torch.zeros_like(wide)
    across = torch.stack([wide, zero, left], 1)
    down = torch.stack([zero, tall, top], 1)
    theta = torch.stack([across, down], 1)
    grid = F.affine_grid(theta, [n, 1, h, w], align_corners=False)
    return F.grid_sample(
        x, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def jitter(x: Tensor, u: Tensor, light: float, hue: float) -> Tensor:
    """Change brightness, contrast, saturation and hue at random.

    Factors of the first three are from 1 - light to 1 + light. The hue rotates by up to
    `hue` turns (in YIQ). Only images with 3 channels get the last two changes.
    """
    scale = 1 + light * (2 * u[:, :3] - 1)
    brightness, contrast, saturation = scale[:, :, None, None, None].unbind(1)
    x = (x * brightness).clamp(0, 1)
    mean = _gray(x).mean(dim=(2, 3), keepdim=True)
    x = (mean * (1 - contrast) + x * contrast).clamp(0, 1)
    if x.shape[1] != 3:
        return x
    x = (_gray(x) * (1 - saturation) + x * saturation).clamp(0, 1)
    if hue == 0:
        return x
    angle = 2 * np.pi * hue * (2 * u[:, 3] - 1)
    yiq = x.new_tensor([_GRAY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
    one = torch.ones_like(angle)
    zero = torch.zeros_like(angle)
    c = angle.cos()
    s = angle.sin()
    entries = [one, zero, zero, zero, c, -s, zero, s, c]
    turn = torch.stack(entries, 1).reshape(-1, 3, 3)
    colors = torch.linalg.inv(yiq) @ turn @ yiq
    return torch.einsum("nij,njhw->nihw", colors, x).clamp(0, 1)


def _gray(x: Tensor) -> Tensor:
    """Return the gray image, with one channel."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor(_GRAY)[:, None, None]).sum(dim=1, keepdim=True)


def _blurred(x: Tensor, sd: Tensor) -> Tensor:
    """Blur each image by a Gaussian with its own standard deviation in pixels.

    The kernel's width is about a tenth of the image's height, at least 3 pixels.
    """
    radius = max(1, x.shape[2] // 20)
    at = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-(at**2) / (2 * sd[:, None] ** 2))
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    for dim in (2, 3):
        pad = (0, 0, radius, radius) if dim == 2 else (radius, radius, 0, 0)
        windows = F.pad(x, pad, mode="reflect").unfold(dim, 2 * radius + 1, 1)
        x = torch.einsum("nchwk,nk->nchw", windows, kernel)
    return x


def _ours(x: Tensor, u: Tensor) -> Tensor:
    """Apply TAN23's "OURS": crop, flip, and light color jitter [TAN23 section 4.2].

    Before the crop, reflection pads the image by 20 pixels for a height of 224, and in
    proportion for others, but at least by 4. The paper does not state the strength of
    the jitter. This code uses 0.2.
    """
    pad = max(4, round(20 * x.shape[2] / 224))
    return jitter(_crop_flip(x, u, pad), u[:, 4:], light=0.2, hue=0.0)


def _simclr(x: Tensor, u: Tensor) -> Tensor:
    """Apply "SimCLR": resized crop, flip, strong color jitter, gray and blur.

    Jitter has probability 0.8, gray 0.2, and blur 0.5. Images with a height below 64
    pixels get no blur, and jitter of strength 0.5 instead of 1, as in the CIFAR-10
    experiments of the source.

    Source: Chen et al. 2020, appendix A.
    """
    small = x.shape[2] < 64
    strength = 0.5 if small else 1.0
    x = _resized_crop(x, u)
    colored = jitter(x, u[:, 6:], 0.8 * strength, 0.2 * strength)
    x = _where(u[:, 5] < 0.8, colored, x)
    x = _where(u[:, 10] < 0.2, _gray(x).expand_as(x), x)
    if small:
        return x
    return _where(u[:, 11] < 0.5, _blurred(x, 0.1 + 1.9 * u[:, 12]), x)


def _where(chosen: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return images of `a` where `chosen` (n,) is true, else of `b`."""
    return torch.where(chosen[:, None, None, None], a, b)


AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "crop": _crop_flip,
    "rrc": _resized_crop,
    "ours": _ours,
    "simclr": _simclr,
}


def views_of(
    x: Tensor, keys: np.ndarray, views: int, augment: str, step: int
) -> Tensor:
    """Return the views of images.

    Parameters
    ----------
    x : Tensor of shape (k, c, h, w)
        Images, in [0, 1].
    keys : ndarray of shape (k,), uint64
        Their `row_keys`.
    views : int
        Number of views. 0 returns the images unchanged.
    augment : str
        A name in AUGMENTATIONS; "none" if `views` is 0.
    step : int
        Step of the training, which seeds the random numbers.

    Returns
    -------
    Tensor of shape (k, max(views, 1), c, h, w)
        The views.
    """
    if views == 0:
        return x[:, None]
    u = torch.from_numpy(uniforms(step, keys, views)).to(x.device).flatten(0, 1)
    many = x.repeat_interleave(views, dim=0)
    return AUGMENTATIONS[augment](many, u).unflatten(0, (len(x), views))
