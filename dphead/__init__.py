"""Train differentially private classifier heads on frozen image features.

Names are imported on first use, so `import dphead` loads no numerical library.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphead.analysis.audit_mechanism import audit_mechanism
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
        cross_validate,
    )
    from dphead.finetune import DPFinetuneClassifier as DPFinetuneClassifier

if sys.platform == "win32":
    raise ImportError("dphead runs on Linux and macOS. On Windows, install it in WSL.")

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
    "audit_mechanism",
    "cross_validate",
]

# needs PyTorch, so `from dphead import *` excludes it
_NEEDS_TORCH = "DPFinetuneClassifier"
# modules of the names that are no estimators of heads
_MODULES = {_NEEDS_TORCH: "finetune", "audit_mechanism": "analysis.audit_mechanism"}

if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in {*__all__, _NEEDS_TORCH}:
            raise AttributeError(f"module 'dphead' has no attribute {name!r}")
        module = _MODULES.get(name, "estimators")
        value = getattr(import_module(f"dphead.{module}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, _NEEDS_TORCH})
