"""Normalize each row without use of other rows, which spends no budget.

group: the data normalization of Tramer and Boneh (2021, section 2.2). The channels of
ScatterNet features (K, H, W) are split into G groups, and each group's (K / G) H W
values get mean zero and variance one.

synthetic: each channel gets mean zero and variance one on synthetic images
(`dphead_extract.synthetic`).

local: signed square roots, then synthetic. Then the channels at each position are
divided by their length plus one, so that positions have equal weight. Each part of a
row (a scale of ScatterNet) is divided by the square root of its number of positions, so
that parts have equal weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dphead_extract.errors import ExtractError

if TYPE_CHECKING:  # the command line checks its options before it imports PyTorch
    import torch

    from dphead_extract.backbones.base import Backbone

# added to a group's variance, as torch's GroupNorm does, and to a channel's spread
EPSILON = 1e-5
_KINDS = ("none", "group", "unit", "synthetic", "local")
_Parts = tuple[tuple[int, int], ...]  # (channels, positions) of each part of a flat row


@dataclass(frozen=True)
class RowNorm:
    """Normalize rows by one of the kinds in _KINDS.

    Attributes
    ----------
    kind : str
        One of _KINDS. "unit" divides a row by its Euclidean norm.
    groups : int
        Number of groups, for "group".
    parts : tuple
        (channels, positions) of each part of a row. `fitted` sets it.
    statistics : tuple
        Mean and standard deviation of each part's channels, each (C, 1). `fitted` sets
        them.
    """

    kind: str = "none"
    groups: int = 0
    parts: _Parts = field(default=(), compare=False)
    statistics: tuple[tuple[torch.Tensor, torch.Tensor], ...] = field(
        default=(), compare=False
    )

    def __post_init__(self) -> None:
        if self.kind not in _KINDS or (self.kind == "group") != (self.groups > 0):
            raise ExtractError(
                f"--normalize must be one of {', '.join(_KINDS)}, and `group` needs "
                f"the number of groups, as group:4, got {self.kind!r} with "
                f"{self.groups} groups."
            )

    @classmethod
    def parse(cls, text: str) -> RowNorm:
        """Return the normalization of a text such as "local" or "group:4"."""
        kind, _, groups = text.partition(":")
        return cls(kind, int(groups) if groups.isdecimal() else 0)

    def fitted(self, backbone: Backbone) -> RowNorm:
        """Return the normalization with the parts and statistics of a backbone.

        Raises ExtractError unless the groups divide the channels, or if the network
        returns tokens and the normalization needs channels.
        """
        import torch

        from dphead_extract.synthetic import synthetic_features

        if backbone.channels_last and self.kind not in ("none", "unit"):
            raise ExtractError(
                f"--normalize {self.kind} needs a map of channels, and {backbone.name} "
                "returns tokens, or channels last. Type --normalize none or unit."
            )
        statistics = []
        for channels, _ in backbone.parts:
            self._check_channels(channels)
        if self.kind in ("synthetic", "local"):
            for part in _split(synthetic_features(backbone).double(), backbone.parts):
                part = signed_sqrt(part) if self.kind == "local" else part
                spread, mean = torch.std_mean(
                    part.transpose(0, 1).flatten(1), dim=1, keepdim=True
                )
                statistics.append((mean.float(), spread.float() + EPSILON))
        return replace(self, parts=backbone.parts, statistics=tuple(statistics))

    def _check_channels(self, channels: int) -> None:
        if self.kind == "group" and channels % self.groups:
            divisors = [g for g in range(1, channels + 1) if channels % g == 0]
            raise ExtractError(
                f"--normalize group:G: G must divide the {channels} channels, got "
                f"{self.groups}. Use one of "
                f"{', '.join(map(str, divisors))}."
            )

    def record(self) -> dict[str, Any]:
        """Return the value of the file's attribute ``normalization``."""
        if self.kind == "group":
            return {"kind": "group", "groups": self.groups, "epsilon": EPSILON}
        if self.kind in ("synthetic", "local"):
            from dphead_extract.synthetic import N_SYNTHETIC, SYNTHETIC_SEED

            return {
                "kind": self.kind,
                "images": N_SYNTHETIC,
                "seed": SYNTHETIC_SEED,
                "epsilon": EPSILON,
            }
        return {"kind": self.kind}

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Normalize features (B, C, ...), or (B, d) of several parts.

        Return (B, d), float32, channels first.
        """
        import torch

        features = features.float()
        flat = features.flatten(1)
        if self.kind == "none":
            return flat
        if self.kind == "unit":
            norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
            return torch.where(
                norm > 0, flat / norm.clamp_min(torch.finfo(torch.float32).tiny), 0
            )
        channels = features.shape[1]
        parts = self.parts or ((channels, flat.shape[1] // channels),)
        return torch.cat(
            [self._part(x, i).flatten(1) for i, x in enumerate(_split(flat, parts))],
            dim=1,
        )

    def _part(self, x: torch.Tensor, i: int) -> torch.Tensor:
        """Return part i of some rows, x (B, channels, positions), normalized.

        For "group", the result is (B, groups, values of a group).
        """
        import torch

        if self.kind == "group":
            self._check_channels(x.shape[1])
            grouped = x.reshape(len(x), self.groups, -1)
            variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
            return (grouped - mean) * torch.rsqrt(variance + EPSILON)
        mean, spread = (v.to(x.device) for v in self.statistics[i])
        if self.kind == "synthetic":
            return (x - mean) / spread
        x = (signed_sqrt(x) - mean) / spread
        return x / (spatial_norms(x) * x.shape[2] ** 0.5)


def _split(features: torch.Tensor, parts: _Parts) -> list[torch.Tensor]:
    """Split rows (B, d) or (B, channels, ...) into parts (B, channels, positions)."""
    pieces = features.flatten(1).split(
        [channels * places for channels, places in parts], dim=1
    )
    return [
        piece.reshape(len(piece), *part)
        for piece, part in zip(pieces, parts, strict=True)
    ]


def signed_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return signed square roots.

    Without square roots, a few large values dominate a row's direction.
    """
    return x.abs().sqrt_().copysign_(x)  # in place after `abs`: one copy, not three


def spatial_norms(x: torch.Tensor) -> torch.Tensor:
    """Return one plus the length of the channels at each position, (B, 1, ...).

    A division by this length gives positions equal weight, except positions with values
    near zero.
    """
    import torch

    return torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1
