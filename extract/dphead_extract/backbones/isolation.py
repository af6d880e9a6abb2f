"""Refuse a backbone in which an image's features depend on other images."""

from __future__ import annotations

import torch
from torch import nn

from dphead_extract.backbones.weights import first_line
from dphead_extract.errors import ExtractError

# Kernels for batches round differently. A row that depends on other rows changes far
# more than this.
_ROW_TOLERANCE = 1e-3  # a choice, not measured


def check_rows_alone(module: nn.Module, input_shape: tuple[int, int, int]) -> None:
    """Raise ExtractError if a row's features depend on the other rows of its batch.

    One person could then change the features of another person. The module is tested
    in its present mode, with the same rows among other rows, in another order, and one
    at a time.
    """
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, *input_shape, generator=draw)
    others = 5 * torch.randn(3, *input_shape, generator=draw) + 2
    with torch.inference_mode():
        try:
            plain = module(rows)
            batch = torch.cat([others[:1], rows.flip(0), others[1:]])
            beside = module(batch)[1:4].flip(0)
            alone = module(rows[:1])
        except (ValueError, RuntimeError) as error:
            culprit = _batch_statistics(module)
            if not culprit:
                raise ExtractError(
                    f"The backbone does not run on inputs of shape {input_shape}: "
                    f"{first_line(error)}. Set --image-size."
                ) from error
            plain = beside = alone = torch.full((3, 1), torch.nan)
    scale = plain.abs().amax().clamp_min(1e-12)
    moved = max(
        float((plain - beside).abs().amax() / scale),
        float((plain[:1] - alone).abs().amax() / scale),
    )
    if not moved <= _ROW_TOLERANCE:
        culprit = _batch_statistics(module)
        reason = (
            f"{culprit} uses statistics of the batch"
            if culprit
            else "the backbone mixes the rows of a batch"
        )
        raise ExtractError(
            f"{reason}, so the features of an image depend on the other images of a "
            f"batch (relative change {moved:.1e}). Choose another --backbone."
        )


def _batch_statistics(module: nn.Module) -> str:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (
            part.training or part.running_mean is None
        ):
            return f"{type(part).__name__} {name!r}"
    return ""
