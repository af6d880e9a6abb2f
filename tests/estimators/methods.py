"""The estimators of one method each, from the public names."""

import dphead

METHODS = [
    getattr(dphead, name)
    for name in dphead.__all__
    if name.endswith("Classifier")
    if name not in ("DPHeadClassifier", "DPMultiLabelClassifier")  # of any method
]
