"""Protect patients with several images each."""

import numpy as np
from sklearn.datasets import load_digits

from dphead import DPAutoClassifier

X, y = load_digits(return_X_y=True)
patient = np.arange(len(y)) // 3  # as if each patient had three images in a row

for cap in (1, 3):  # at most `cap` images of a patient count
    head = DPAutoClassifier(epsilon=3.0, classes=range(10), group_cap=cap)
    head.fit(X, y, groups=patient)
    # more images count with a larger cap, but the noise is also larger
    print(f"{head.privacy_.protected_unit}: accuracy {head.score(X, y):.3f}")
