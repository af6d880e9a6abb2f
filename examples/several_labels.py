"""Train a head for rows with none, one or several classes."""

import numpy as np
from sklearn.datasets import load_digits

from dphead import DPMultiLabelClassifier

X, digit = load_digits(return_X_y=True)
NAMES = ["even", "large", "round"]
Y = np.column_stack([digit % 2 == 0, digit >= 5, np.isin(digit, [0, 6, 8, 9])])

head = DPMultiLabelClassifier(epsilon=3.0, classes=NAMES).fit(X, Y.astype(int))
print(f"all three right: {head.score(X, Y.astype(int)):.3f}")
for one, probabilities in zip(digit[:5], head.predict_proba(X[:5]), strict=True):
    print(one, dict(zip(NAMES, probabilities.round(2).tolist(), strict=True)))
