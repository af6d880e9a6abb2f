"""Differentially private classifier heads on frozen image features.

The names below are imported on first use, so `import dphead` itself loads no numerical
library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphead.estimators import (
        DPPCA,
        DPAdamClassifier,
        DPAutoClassifier,
        DPFeatureCovarianceClassifier,
        DPHeadClassifier,
        DPLeastSquaresClassifier,
        DPMultiLabelClassifier,
        DPNewtonClassifier,
        DPPrototypeClassifier,
        DPRegressor,
        DPSGDClassifier,
        PrivacyWarning,
        PrivateNotice,
    )

__version__ = "0.1.0"
__all__ = [
    "DPPCA",
    "DPAdamClassifier",
    "DPAutoClassifier",
    "DPFeatureCovarianceClassifier",
    "DPHeadClassifier",
    "DPLeastSquaresClassifier",
    "DPMultiLabelClassifier",
    "DPNewtonClassifier",
    "DPPrototypeClassifier",
    "DPRegressor",
    "DPSGDClassifier",
    "PrivacyWarning",
    "PrivateNotice",
    "__version__",
]

# what needs PyTorch, which `from dphead import *` must not
ELSEWHERE = {"DPFinetuneClassifier": "dphead.finetune"}


def __getattr__(name: str) -> Any:
    if name not in {*__all__, *ELSEWHERE}:
        raise AttributeError(f"module 'dphead' has no attribute {name!r}")
    module = ELSEWHERE.get(name, "dphead.estimators")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *ELSEWHERE})
