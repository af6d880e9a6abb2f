"""Normalisation of each row by itself: it looks at no other row, so it costs no privacy.

Group normalisation is the data normalisation of Tramer and Boneh (2021, section 2.2): the channels of ScatterNet
features (K, H, W) are cut into G groups, and each group's (K / G) H W values get mean zero and variance one. Synthetic
normalisation brings each channel to mean zero and variance one on synthetic images (`extract.synthetic`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from extract.backbones import Backbone
from extract.errors import ExtractError
from extract.synthetic import COUNT, SEED, channel_statistics

EPSILON = 1e-5  # added to a group's variance


@dataclass(frozen=True)
class RowNorm:
    """One of kind "none", "group" (with `groups`), "unit" (divide by the Euclidean norm), "synthetic" (if `fitted`)."""

    kind: str = "none"
    groups: int = 0
    statistics: tuple[torch.Tensor, torch.Tensor] | None = field(
        default=None, compare=False
    )  # mean, spread: (channels,)

    def __post_init__(self) -> None:
        if self.kind not in ("none", "group", "unit", "synthetic") or (self.kind == "group") != (self.groups > 0):
            raise ExtractError(
                "normalisation must be none, unit, synthetic, or group with a positive number of groups, got "
                f"kind={self.kind!r}, groups={self.groups}. Use --normalize group --groups G."
            )

    def check_channels(self, channels: int) -> None:
        """ExtractError unless the groups divide the channels."""
        if self.kind == "group" and channels % self.groups:
            divisors = [g for g in range(1, channels + 1) if channels % g == 0]
            raise ExtractError(
                f"the number of groups must divide the channels, got groups={self.groups} and channels={channels}. "
                f"Use one of {divisors}."
            )

    def fitted(self, backbone: Backbone) -> RowNorm:
        """With the backbone's statistics on synthetic images, where they are used."""
        if self.kind != "synthetic":
            return self
        return replace(self, statistics=channel_statistics(backbone))

    def record(self) -> dict[str, Any]:
        """What the file's attribute ``normalization`` says."""
        if self.kind == "group":
            return {"kind": "group", "groups": self.groups, "epsilon": EPSILON}
        if self.kind == "synthetic":
            return {"kind": "synthetic", "images": COUNT, "seed": SEED, "epsilon": EPSILON}
        return {"kind": self.kind}

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Normalise (B, C, ...) channel-wise; returns (B, d), float32, channels first."""
        if self.kind == "group":
            self.check_channels(features.shape[1])
            grouped = features.float().reshape(len(features), self.groups, -1)
            variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
            return ((grouped - mean) * torch.rsqrt(variance + EPSILON)).reshape(len(features), -1)
        if self.kind == "synthetic":
            assert self.statistics is not None
            mean, spread = (v.to(features.device)[:, None] for v in self.statistics)
            return ((features.float().reshape(len(features), len(mean), -1) - mean) / (spread + EPSILON)).flatten(1)
        flat = features.float().reshape(len(features), -1)
        if self.kind == "unit":
            norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
            return torch.where(norm > 0, flat / norm.clamp_min(torch.finfo(torch.float32).tiny), 0)
        return flat
