"""Fit private heads as scikit-learn estimators.

No label's code may run, and no row's value may affect anything before the charge.
"""

from dphead.estimators.base import DPClassifier
from dphead.estimators.classifiers import (
    DPAdamClassifier,
    DPAutoClassifier,
    DPFeatureCovarianceClassifier,
    DPHeadClassifier,
    DPLeastSquaresClassifier,
    DPNewtonClassifier,
    DPPrototypeClassifier,
    DPSGDClassifier,
)
from dphead.estimators.cross_validation import CrossValidation, cross_validate
from dphead.estimators.fitting import PrivacyWarning, PrivateNotice
from dphead.estimators.guarantee import Privacy
from dphead.estimators.multilabel import DPMultiLabelClassifier
from dphead.estimators.pca import DPPCA
from dphead.estimators.regression import DPRegressor

__all__ = [
    "DPPCA",
    "CrossValidation",
    "DPAdamClassifier",
    "DPAutoClassifier",
    "DPClassifier",
    "DPFeatureCovarianceClassifier",
    "DPHeadClassifier",
    "DPLeastSquaresClassifier",
    "DPMultiLabelClassifier",
    "DPNewtonClassifier",
    "DPPrototypeClassifier",
    "DPRegressor",
    "DPSGDClassifier",
    "Privacy",
    "PrivacyWarning",
    "PrivateNotice",
    "cross_validate",
]
