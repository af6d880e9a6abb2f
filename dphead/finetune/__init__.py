"""Train whole networks end to end.

This package needs `pip install 'dphead[finetune]'`. A network must not mix the rows of
a batch. Code here must not add noise: sums go through `release`, as for heads.
`DPFinetuneClassifier` is imported on first use, so that planning (`choose`, `tan`) does
not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphead.finetune.estimator import DPFinetuneClassifier

__all__ = ["DPFinetuneClassifier"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dphead.finetune' has no attribute {name!r}")
    from dphead.finetune import estimator

    return getattr(estimator, name)
