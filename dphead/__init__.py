"""Train differentially private classifier heads on frozen image features.

Names are imported on first use, so `import dphead` loads no numerical library.
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

# names that need PyTorch, excluded from `from dphead import *`
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
