# The public names. `__init__.py` reads this file, and imports each name on first use.
# isort: skip_file
from dphead.analysis.audit_mechanism import audit_mechanism as audit_mechanism
from dphead.estimators.classifiers import (
    DPAdamClassifier as DPAdamClassifier,
    DPAutoClassifier as DPAutoClassifier,
    DPFeatureCovarianceClassifier as DPFeatureCovarianceClassifier,
    DPHeadClassifier as DPHeadClassifier,
    DPLeastSquaresClassifier as DPLeastSquaresClassifier,
    DPNewtonClassifier as DPNewtonClassifier,
    DPOptaxClassifier as DPOptaxClassifier,
    DPPrototypeClassifier as DPPrototypeClassifier,
    DPSGDClassifier as DPSGDClassifier,
)
from dphead.estimators.cross_validation import cross_validate as cross_validate
from dphead.estimators.fitting import (
    PrivacyWarning as PrivacyWarning,
    PrivateNotice as PrivateNotice,
)
from dphead.estimators.multilabel import (
    DPMultiLabelClassifier as DPMultiLabelClassifier,
)
from dphead.estimators.pca import DPPCA as DPPCA
from dphead.estimators.regression import DPRegressor as DPRegressor
from dphead.finetune.estimator import DPFinetuneClassifier as DPFinetuneClassifier
from dphead.finetune.own_loop import PrivateTraining as PrivateTraining

__version__: str
